"""Parking: an idle run leaves the store's memory for the archive, and comes back exactly once, whoever moves it.

Authority: the store, always. A run is parked by three steps, each repeatable: it is *marked* with its event number, *copied* to the archive
under that number, and *left as a stub* by a script that still finds the number and the mark. Whatever happens to the run in between makes
the last step refuse; the copy in the archive is then an old row that nobody asks for.

A signal, an answer or a cancel of a parked run is one script on its stub: kept in order, acknowledged, and due to be woken; a timer is the
earliest time in `wake`. Waking restores the keys while the stub still stands at its number; the last script makes the run visible, does
what was said to the stub, and removes it. Of two that wake one run the second finds no stub. Timeouts keep their times.

A stub whose row is greater is of a store that was set back (a failover, an old backup): what came after it is in the row alone, so the run
comes back as that, what was said to its stub is done to it, and if the row has ended the run has.

Failure: no row, and the run is `paused: archive_missing` until a person resumes it; an archive that is away is asked again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from conductor.archive import Kind
from conductor.errors import ArchivedRunCorrupt
from conductor.records import Poke
from conductor.runs.archiving import open_snapshot, put_rows, rows_of
from conductor.runs.mend import stand_up
from conductor.store.reads import RunRecord, read_run
from conductor.store.stubs import read_stub

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["awake", "park", "parks", "run_or_stub", "wake", "why_not_parking"]

logger = logging.getLogger(__name__)


def why_not_parking(engine: Engine) -> str:
    """Why no run is parked here; empty if runs are. An archive that not every worker reaches would strand them."""
    if not engine.archive.configured:
        return "there is no archive"
    if not engine.settings.park_after_minutes:
        return "conductor_park_after_minutes is 0"
    if engine.archive.one_host and len(hosts := _hosts(engine)) > 1:
        return f"the archive is a file of one host, and workers run on {', '.join(sorted(hosts))}"
    return ""


def parks(engine: Engine) -> bool:
    return not why_not_parking(engine)


def _hosts(engine: Engine) -> set[str]:
    found: dict[str, str] = engine.store.client().hgetall(engine.store.keys.of(0, "workers"))  # type: ignore[assignment]
    return {text.rpartition("@")[2] for text in found.values() if "@" in text}


def park(engine: Engine, run_ids: Iterable[str], idle_before: int) -> list[str]:
    """Park those of some runs that are idle since before a moment; tells which were. One whose row is greater, of a history that the store
    has lost, stays until it has overtaken that."""
    marked = {run_id: n for run_id in _unbound(engine, run_ids) if (n := engine.store.mark_parking(run_id, idle_before))}
    found = [(snapshot, row) for snapshot, row in rows_of(engine, marked, Kind.PARKED) if snapshot.n == marked[snapshot.run_id]]
    if not found:
        return []
    kept = put_rows(engine, [row for _, row in found])
    return [one.run_id for one, _ in found if one.run_id in kept and engine.store.park(one) == "OK"]


def _unbound(engine: Engine, run_ids: Iterable[str]) -> list[str]:
    """Those that are bound to no other run, in one round trip: a child stays with its parent, however often it is looked at."""
    asked, pipe = list(run_ids), engine.store.client().pipeline(transaction=False)
    for run_id in asked:
        pipe.hget(engine.store.keys.run(run_id), "up")
    return [run_id for run_id, above in zip(asked, pipe.execute() if asked else (), strict=True) if not above]


def wake(engine: Engine, run_id: str) -> tuple[str, Sequence[Poke]]:
    """Bring one parked run back: OK, MISSING (it is paused), or UNKNOWN (it is not parked, or not any more). Then who to wake."""
    stub = read_stub(engine.store, run_id)
    if stub is None:
        return "UNKNOWN", ()
    try:
        row = engine.archive.open().get(run_id, with_snapshot=True)
        if row is None or (row.generation, int(row.is_terminal), row.n) < (stub.generation, 0, stub.n):
            return _missing(engine, run_id, stub.n, "it has none" if row is None else f"its row is at event {row.n}")
        snapshot = open_snapshot(row)
    except (ValueError, KeyError, TypeError, ArchivedRunCorrupt) as problem:
        return _missing(engine, run_id, stub.n, str(problem))
    told = engine.store.restore(snapshot, stub=stub.n)
    if told.word != "OK":
        return "UNKNOWN", ()
    if row.n != stub.n:
        logger.warning("parked run %s is back from event %d: its stub was at %d, of a store that was set back", run_id, row.n, stub.n)
        stand_up(engine, run_id)  # where it was not idle its steps belong into the indexes
    return "OK", told.pokes


def _missing(engine: Engine, run_id: str, n: int, problem: str) -> tuple[str, Sequence[Poke]]:
    told = engine.store.lose_stub(run_id, n)
    if told.word != "OK":
        return "UNKNOWN", ()
    logger.error("parked run %s cannot come back from the archive %s: %s; resume it when it is there", run_id, engine.archive.url, problem)
    return "MISSING", told.pokes


def awake(engine: Engine, run_id: str) -> bool:
    """Whether a run that was parked is back now: for verbs that need the whole run. What is not parked is left as it is (False)."""
    if read_stub(engine.store, run_id) is None:
        return False
    word, pokes = wake(engine, run_id)
    engine.poke(pokes)
    return word == "OK" or read_run(engine.store, run_id) is not None


def run_or_stub(engine: Engine, run_id: str) -> RunRecord | None:
    """The record of a run, of a parked one as its stub tells it."""
    found = read_run(engine.store, run_id)
    if found is None and (stub := read_stub(engine.store, run_id)) is not None:
        return stub.as_run()
    return found or read_run(engine.store, run_id)  # it may have woken between the two looks
