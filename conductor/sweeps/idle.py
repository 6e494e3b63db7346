"""The idle sweep: cancels orphans, runs that have waited for agents alone for longer than they may. Nothing else is ever cancelled here.

It reads the index of exactly the orphans, by time, so its cost is that of what is due, however many runs are active. The look decides
nothing: a script judges each run again as it stands, and one that has moved meanwhile is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from conductor.errors import BadInput
from conductor.store.reads import read_now
from conductor.sweeps.guard import Found, Moves, SweepReport, guarded, over_partitions

if TYPE_CHECKING:
    from conductor.store import Glance
    from conductor.wiring import Engine

__all__ = ["NAME", "sweep_idle"]

NAME = "idle"
_BATCH = 100
_ROUNDS = 100  # what is left is due at the next sweep
_HOUR_MS = 3_600_000


def sweep_idle(
    engine: Engine, *, dry_run: bool = False, glance: Glance | None = None, older_than_hours: float | None = None,
) -> SweepReport:
    """Cancel orphans whose idle timeout is over, or all but the endless ones without progress for `older_than_hours`."""
    hours = None if older_than_hours is None else _hours(older_than_hours)
    before = 0 if hours is None else read_now(engine.store) - int(hours * _HOUR_MS)

    def work() -> list[Found]:
        found: list[Found] = []
        for _ in range(_ROUNDS):
            pages = engine.store.orphans(before=before, limit=_BATCH)
            filled = dict(enumerate(pages))
            look = partial(_expire, engine, filled, before, dry_run)
            round_ = over_partitions(NAME, [number for number, page in filled.items() if page], look)
            found += round_
            if dry_run or not any(len(page) == _BATCH for page in pages) or not any(one.count for one in round_):
                break
        return found

    return guarded(engine, NAME, work, dry_run=dry_run)


def _expire(engine: Engine, pages: Mapping[int, Sequence[str]], before: int, dry_run: bool, partition: int) -> Iterable[Found]:
    told = {run_id: engine.store.expire_idle(run_id, before=before, dry=dry_run) for run_id in pages[partition]}
    gone = [run_id for run_id, (word, _, _) in told.items() if word == "OK"]
    pokes = tuple(poke for _, _, woken in told.values() for poke in woken)
    yield Moves(len(gone), tuple(f"{run_id} idle_timeout" for run_id in gone), pokes)


def _hours(given: Any) -> float:
    if not isinstance(given, (int, float)) or isinstance(given, bool) or not math.isfinite(given) or given < 0:
        raise BadInput(what="idle sweep", field="older_than_hours", problem="a number of hours, 0 or more, was expected")
    return float(given)
