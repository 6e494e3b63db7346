"""What is a filter and what is none: names, values, times. Nothing that is not understood is passed over."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import BadInput
from conductor.runs.filters import Where
from conductor.state import RunState

NOW = 1_753_000_000_000


@pytest.mark.spec("SVC-1")
def test_every_filter_is_read() -> None:
    where = Where.parse({
        "status": "failed,cancelled", "workflow": "order", "session": "ann", "key": "k-1", "tag": "eu", "step": "charge",
        "error_kind": "shop.CardError", "version": "0a1b2c", "since": "1752000000000", "until": "2025-07-20T10:00:00+02:00", "idle": "true",
        "idle_duration_gt": "90", "waiting_for": "approval", "lane": "fast", "archived": "false",
    })
    assert where.status == (RunState.FAILED, RunState.CANCELLED)
    assert (where.since, where.until, where.idle, where.idle_duration_gt) == (1_752_000_000_000, 1_752_998_400_000, True, 90.0)
    assert Where.parse(json.loads(json.dumps(where.to_json()))) == where, "what is stored is read again"
    assert Where.parse({}).to_json() == {}
    assert {one["name"] for one in Where.openapi_parameters()} == set(Where.model_fields)


@pytest.mark.spec("SVC-1", "BAD-1")
@pytest.mark.parametrize(("given", "field", "words"), [
    ({"statsu": "failed"}, "statsu", "did you mean status"),
    ({"status": "odd"}, "status", "known are queued, running"),
    ({"status": ""}, "status", "no state of a run"),
    ({"status": []}, "status", "names no state"),
    ({"status": {"failed": 1}}, "status", "names no state"),
    ({"workflow": ""}, "workflow", "0 characters"),
    ({"workflow": "a\0b"}, "workflow", "control character"),
    ({"key": "k" * 513}, "key", "allowed are 1 to 512"),
    ({"session": 5}, "session", "text was expected"),
    ({"error_kind": "transitent"}, "error_kind", "none of transient, permanent"),
    ({"error_kind": "Card*"}, "error_kind", "nor the class of an error"),
    ({"version": "xyz1"}, "version", "not the hash of a graph"),
    ({"version": "0a"}, "version", "at least 4"),
    ({"since": "yesterday"}, "since", "is no time"),
    ({"since": "2h"}, "since", "is no time"),
    ({"since": "2026-01-31T12:00:00"}, "since", "with a zone"),
    ({"since": 1_753_000_000}, "since", "ms since 1970"),
    ({"since": True}, "since", "is no time"),
    ({"since": "-5"}, "since", "is no time"),
    ({"until": "9" * 20}, "until", "is no time"),
    ({"since": NOW, "until": NOW - 1}, "since", "later than until"),
    ({"idle": "yes"}, "idle", "neither true nor false"),
    ({"idle": 1}, "idle", "neither true nor false"),
    ({"idle_duration_gt": "-1"}, "idle_duration_gt", "no number of seconds"),
    ({"idle_duration_gt": float("nan")}, "idle_duration_gt", "no number of seconds"),
    ({"idle_duration_gt": "1e9"}, "idle_duration_gt", "no number of seconds"),
    ({"tag": None}, "tag", "text was expected"),
])
def test_what_is_no_filter_is_refused_by_name(given: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(BadInput) as refused:
        Where.parse(given)
    assert refused.value.field == field
    assert words in str(refused.value)


@pytest.mark.spec("CLI-4")
def test_a_span_counts_back_from_now_where_there_is_a_now() -> None:
    where = Where.parse({"since": "2h", "until": "10m", "idle_duration_gt": "1d"}, now=NOW)
    assert (where.since, where.until, where.idle_duration_gt) == (NOW - 7_200_000, NOW - 600_000, 86_400.0)
    with pytest.raises(BadInput, match="a span before now such as 2h"):
        Where.parse({"since": "2 hours"}, now=NOW)


@pytest.mark.spec("BAD-1", "S16")
@given(st.sampled_from(sorted(Where.model_fields)), st.one_of(st.text(max_size=200), st.integers(), st.floats(), st.booleans(), st.none()))
def test_nothing_odd_is_let_through_or_lets_it_stumble(name: str, value: Any) -> None:
    try:
        where = Where.parse({name: value}, now=NOW)
    except BadInput:
        return
    assert Where.parse(where.to_json()) == where


@pytest.mark.spec("S16")
@pytest.mark.parametrize("name", ["since", "error_kind", "idle_duration_gt", "version", "workflow"])
def test_no_text_takes_long_to_refuse(name: str) -> None:
    began = time.perf_counter()
    for text in ("1" * 100_000, "a." * 50_000, "a" * 100_000 + "!", "1." * 50_000 + "h", "((((" * 20_000):
        with pytest.raises(BadInput):
            Where.parse({name: text}, now=NOW)
    assert time.perf_counter() - began < 0.5
