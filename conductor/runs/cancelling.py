"""Cancelling a run wherever it is: in the store, parked, or gone to the archive, where it has ended and nothing is changed any more.

What is to be undone stands in the log of a run, and a stub has none: a parked run that is to be undone is woken first. It may be parked
again before it is cancelled, so that is tried a few times. An archive that is away makes it fail, and nothing was said to the run then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from conductor.errors import ArchivedRunCorrupt, ArchiveUnreachable
from conductor.runs.archived import archived_row
from conductor.runs.parking import awake
from conductor.state import RunState
from conductor.store.answers import Cancelled

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["cancel"]

_TRIES = 3


def cancel(
    engine: Engine, run_id: str, *, reason: str = "", actor: str = "", terminate: bool = False, compensate: bool = False,
    only: int | None = None,
) -> Cancelled:
    """OK, ALREADY, COMPENSATING, ENDED or UNKNOWN, and whoever has to move then is woken. A run that only the archive has answers as its
    record there says. With `only` a run that lives in another generation by now is left alone: SUPERSEDED."""
    for _ in range(_TRIES):
        told: Cancelled = engine.store.cancel(run_id, reason=reason, actor=actor, terminate=terminate, compensate=compensate, only=only)
        engine.poke(told.pokes)
        if told.word == "UNKNOWN":
            return _archived(engine, run_id, told)
        if told.word != "PARKED":
            return told
        awake(engine, run_id)
    problem = "it is parked and does not come back, so what it has done cannot be undone; cancel it without undoing, or resume it first"
    raise ArchivedRunCorrupt(run_id=run_id, prefix="archive", problem=problem)


def _archived(engine: Engine, run_id: str, told: Cancelled) -> Cancelled:
    try:
        row = archived_row(engine, run_id)
    except ArchiveUnreachable:
        return told
    if row is None or not row.is_terminal:
        return told
    word = "ALREADY" if row.state is RunState.CANCELLED else "ENDED"
    return Cancelled(word, row.state, row.reason, row.ended_at_ms or 0)
