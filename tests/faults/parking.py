"""Scenarios of the archive: runs that are parked, moved while they are, and woken; ended ones that leave; and a store that was wiped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from conductor.archive.door import Archive  # noqa: F401 - so that processes that are forked from a warm one need not import it
from conductor.errors import RunFinished, UnknownRun
from conductor.runs.archiving import open_snapshot
from conductor.runs.parking import park, wake
from conductor.runs.recover import recover
from conductor.runs.waiting import advance, signal
from conductor.store.reads import read_now
from conductor.store.stubs import read_stub
from conductor.sweeps.archiving import sweep_archive
from conductor.sweeps.checkpoints import lag_ms, sweep_checkpoints
from conductor.sweeps.parked import sweep_parked
from tests.support.leaks import forget
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.faults.lean import Lean

__all__ = ["WITH_ARCHIVE", "parked", "recovered"]

WITH_ARCHIVE = frozenset({"parked", "recovered"})

Right = dict[str, str]


def parked(lean: Lean) -> Right:
    """One is answered while it is parked, one is cancelled, and one has lost its row; then the cancelled one leaves for the archive."""
    runs = {name: lean.start(name, "waited", n=3) for name in ("woken", "unwanted", "lost")}
    lean.drive(lambda: all(_away(lean, run_id) for run_id in runs.values()), "all are parked")
    _said(lambda: signal(lean.engine, runs["woken"], "word", 10, signal_id="s1"))
    _said(lambda: advance(lean.engine, runs["woken"], "draft", 20))
    lean.store.cancel(runs["unwanted"], reason="not wanted", actor="test")
    if read_stub(lean.judge.store, runs["lost"]) is not None:
        lean.engine.archive.open().delete([runs["lost"]])
        lean.engine.poke(wake(lean.engine, runs["lost"])[1])
        lean.store.cancel(runs["lost"], reason="lost", actor="test")
    lean.drive(lambda: _swept(lean) and lean.ended(*runs)(), "all are back or gone")
    lean.truth.zadd(lean.store.keys.of(int(runs["unwanted"][-2:], 16), "ended:cancelled"), {runs["unwanted"]: 1}, xx=True)
    sweep_archive(lean.engine)
    return {"woken": "completed", "unwanted": "gone", "lost": "gone"}


def _away(lean: Lean, run_id: str) -> bool:
    """Parked now, or over: an earlier process may have gone further."""
    park(lean.engine, [run_id], read_now(lean.judge.store))
    state = lean.truth.hget(lean.store.keys.run(run_id), "st")
    return state in (None, "completed", "cancelled", "running") and (state != "running" or _is_answered(lean, run_id))


def _is_answered(lean: Lean, run_id: str) -> bool:
    return any(str(entry).startswith("v;") for entry in lean.truth.lrange(lean.store.keys.run(run_id, "log"), 0, -1))


def _said(send: Callable[[], object]) -> None:
    """An earlier process may have said it, and the run have ended."""
    try:
        send()
    except (RunFinished, UnknownRun):
        pass


def _swept(lean: Lean) -> bool:
    sweep_parked(lean.engine)
    return True


def recovered(lean: Lean) -> Right:
    """The store is wiped after a checkpoint; what that had seen comes back and ends."""
    wiped = Path(lean.ground.directory) / "wiped"
    if not wiped.exists():
        lean.start("begun", "chain")
        lean.start("waiting", "waited", n=3)
        eventually(lambda: sweep_checkpoints(lean.engine).ran and lag_ms(lean.judge) == 0, what="all is copied before anything moves")
        _written(wiped, lean)
        forget(lean.truth, lean.store.namespace)
    lean.runs, lean.inputs = (dict(part) for part in json.loads(wiped.read_text()))
    for _ in range(2):  # the second finds everything there but one entry
        told = recover(lean.engine)
        assert not told.errors, told.errors
        run_id = lean.runs["begun"]
        lean.truth.hdel(lean.store.keys.of(int(run_id[-2:], 16), "active"), run_id)
    if not (set_back := wiped.with_suffix(".set_back")).exists():
        _overtaken(lean, lean.runs["waiting"])
        assert not (told := recover(lean.engine, restored=True)).errors, told.errors
        set_back.touch()
    recover(lean.engine)
    lean.drive(lambda: _answered(lean, lean.runs["waiting"]), "it waits again")
    lean.drive(lean.ended("begun", "waiting"), "both end")
    return {"begun": "completed", "waiting": "completed"}


def _overtaken(lean: Lean, run_id: str) -> None:
    """As if the store had been set back by one event, which changes nothing else: the archive knows more."""
    archive = lean.engine.archive.open()
    row = archive.get(run_id, with_snapshot=True)
    assert row is not None
    known = open_snapshot(row)
    log = [*known.keys["log"], f"C;{read_now(lean.judge.store)}"]
    more = replace(known, n=known.n + 1, keys={**known.keys, "log": log})
    archive.put([replace(row, n=more.n, snapshot=more.to_bytes())])


def _written(wiped: Path, lean: Lean) -> None:
    part = wiped.with_suffix(".part")
    part.write_text(json.dumps([lean.runs, lean.inputs]))
    part.rename(wiped)


def _answered(lean: Lean, run_id: str) -> bool:
    """Both answers are given; each may have been given before."""
    if lean.state("waiting") == "completed":
        return True
    if lean.state("waiting") != "waiting_signal" and not _is_answered(lean, run_id):
        return False
    _said(lambda: signal(lean.engine, run_id, "word", 10, signal_id="s1"))
    _said(lambda: advance(lean.engine, run_id, "draft", 20))
    return True
