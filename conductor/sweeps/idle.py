"""The idle sweep: cancels orphans, runs that have waited for agents alone for longer than they may. Nothing else is ever cancelled here.

It reads the index of exactly the orphans, by time, so its cost is that of what is due, however many runs are active. The look decides
nothing: a script judges each run again as it stands, and one that has moved meanwhile is left alone. One that is parked is woken first,
after the lock was given back.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from conductor.errors import ArchiveRefused, ArchiveUnreachable, BadInput
from conductor.ids import partition_of
from conductor.records import Poke
from conductor.runs.parking import wake
from conductor.store.reads import read_now
from conductor.sweeps.guard import Found, Moves, SweepReport, guarded, over_partitions

if TYPE_CHECKING:
    from conductor.store import Glance
    from conductor.wiring import Engine

__all__ = ["NAME", "sweep_idle"]

logger = logging.getLogger(__name__)

NAME = "idle"
_BATCH = 100
_ROUNDS = 100  # what is left is due at the next sweep
_HOUR_MS = 3_600_000


def sweep_idle(
    engine: Engine, *, dry_run: bool = False, glance: Glance | None = None, older_than_hours: float | None = None,
) -> SweepReport:
    """Cancel orphans whose idle timeout is over, or all but the endless ones without progress for `older_than_hours`; parked ones too."""
    hours = None if older_than_hours is None else _hours(older_than_hours)
    before = 0 if hours is None else read_now(engine.store) - int(hours * _HOUR_MS)
    parked: list[str] = []

    def work() -> list[Found]:
        found, skip = [], Counter[int]()
        for _ in range(_ROUNDS):
            pages = engine.store.orphans(before=before, limit=_BATCH, skip=skip)
            filled = dict(enumerate(pages))
            look = partial(_expire, engine, filled, before, dry_run, parked)
            behind = len(parked)
            round_ = over_partitions(NAME, [number for number, page in filled.items() if page], look)
            found += round_
            skip.update(partition_of(run_id) for run_id in parked[behind:])  # they stand where they stood
            if dry_run or not any(len(page) == _BATCH for page in pages) or not (len(parked) > behind or any(one.count for one in round_)):
                break
        return found

    report = guarded(engine, NAME, work, dry_run=dry_run)
    return _with(engine, report, _bring_back(engine, parked, before)) if parked else report


def _expire(
    engine: Engine, pages: Mapping[int, Sequence[str]], before: int, dry_run: bool, parked: list[str], partition: int,
) -> Iterable[Found]:
    told = {run_id: engine.store.expire_idle(run_id, before=before, dry=dry_run) for run_id in pages[partition]}
    away = [run_id for run_id, (word, _, _) in told.items() if word == "PARKED"]
    gone = [run_id for run_id, (word, _, _) in told.items() if word == "OK"] + (away if dry_run else [])
    pokes = tuple(poke for _, _, woken in told.values() for poke in woken)
    if not dry_run:
        parked += away
    yield Moves(len(gone), tuple(f"{run_id} idle_timeout" for run_id in gone), pokes)


def _bring_back(engine: Engine, parked: Sequence[str], before: int) -> Moves:
    """A parked orphan is woken, and ended as it stands then. Under no lock: it asks the archive. What cannot be woken stays due."""
    gone, pokes = list[str](), list[Poke]()
    for run_id in parked if engine.archive.configured else ():
        try:
            pokes += wake(engine, run_id)[1]
            word, _, woken = engine.store.expire_idle(run_id, before=before)
        except (ArchiveUnreachable, ArchiveRefused) as away:
            logger.warning("%d parked orphans could not be woken, the next idle sweep tries again: %s", len(parked) - len(gone), away)
            break
        pokes += woken
        if word == "OK":
            gone.append(run_id)
    return Moves(len(gone), tuple(f"{run_id} idle_timeout" for run_id in gone), tuple(pokes))


def _with(engine: Engine, report: SweepReport, more: Moves) -> SweepReport:
    pokes = list(dict.fromkeys(more.pokes))
    engine.poke(pokes)
    if more.count:
        logger.info("sweep %s: %d that were parked: %s", NAME, more.count, ", ".join(more.causes[:20]))
    return replace(
        report, count=report.count + more.count, pokes=report.pokes + len(pokes), causes=report.causes + more.causes)


def _hours(given: Any) -> float:
    if not isinstance(given, (int, float)) or isinstance(given, bool) or not math.isfinite(given) or given < 0:
        raise BadInput(what="idle sweep", field="older_than_hours", problem="a number of hours, 0 or more, was expected")
    return float(given)
