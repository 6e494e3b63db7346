"""A run is taken as a whole: whatever new key a run may have, purging, parking and snapshots know it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from conductor.store.keys import CATALOGUE, Keys, plain_tails
from conductor.store.snapshots import Snapshot, parse_snapshot

LUA = Path(__file__).parents[2] / "conductor/store/lua/fragments/whole.lua"
RUN = "01a1f087-b247-76e4-b276-71ce7b2fcd01"


def test_whoever_takes_a_run_as_a_whole_takes_all_of_it() -> None:
    listed = re.search(r"ipairs\(\{(.*?)\}\)", LUA.read_text())
    assert listed is not None
    assert set(re.findall(r"'(\w+)'", listed[1])) == set(plain_tails())
    assert {"log", "err", "cp", "sig"} <= set(plain_tails())
    shaped = [kind.pattern for kind in CATALOGUE if kind.pattern.startswith("run:")]
    others = [one for one in shaped if not any(re.fullmatch(one, f"run:{RUN}:{tail}") for tail in (*plain_tails(), "buf"))]
    tails = ("", ":s1", ":e1", ":e1:0", ":e1:again", ":v1:2")  # those that `snapshots._tails` and `whole.lua` derive from the graph
    assert all(any(re.fullmatch(one, f"run:{RUN}{tail}") for tail in tails) for one in others), others


def test_a_snapshot_is_read_as_it_was_written_and_nothing_else_is() -> None:
    whole = Snapshot(RUN, 2, {"st": "running", "h": "00", "i": 'j1:"\ud800 ☃"'}, {"log": ["s;1", "k;2"], "err": ["0:1", "{}"]}, {"timer:x": 7}, "{}")
    assert parse_snapshot(RUN, whole.to_bytes()) == whole
    for wrong in (b"", b"[]", b"{}", whole.to_bytes()[:-5], json.dumps({"n": 3, **json.loads(whole.to_bytes())} | {"n": 3}).encode()):
        with pytest.raises((ValueError, KeyError, TypeError)):
            parse_snapshot(RUN, wrong)
    assert Keys("x", 1).kind_of("conductor:{x:00}:run:" + RUN[:-2] + "00:sig") is not None
