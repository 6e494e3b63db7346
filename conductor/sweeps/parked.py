"""The sweep of parked runs: wakes those that something moves, and parks those that have been idle for long.

It looks at the members of `wake` that are due, and from time to time through the active runs for idle ones; those that are parked are not
among them any more. Nothing is locked while SQL is asked. One sweep wakes and parks some hundred: the same thread copies checkpoints, and
whoever is spoken to meanwhile is not to wait until a hundred thousand others are parked. The next sweep goes on.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from conductor.errors import ArchiveRefused, ArchiveUnreachable, StoreUnreachable
from conductor.runs.parking import park, parks, wake
from conductor.store.indexes import hash_pages
from conductor.store.notices import Unreachable
from conductor.store.reads import read_now
from conductor.sweeps.archiving import hurries
from conductor.sweeps.guard import Found, Moves, SweepReport, through_partitions, unlocked

if TYPE_CHECKING:
    from conductor.store import Glance
    from conductor.wiring import Engine

__all__ = ["NAME", "sweep_parked"]

NAME = "parked"
_LOOKED = "parked_look"
_WAKES, _BATCH, _AT_MOST = 200, 50, 200
_HURRY_MS = 60_000
_LONGEST_REST_MS = 30_000

logger = logging.getLogger(__name__)


def sweep_parked(engine: Engine, *, dry_run: bool = False, glance: Glance | None = None) -> SweepReport:
    """Wake parked runs that are due, and park idle ones. Nothing without an archive."""

    def work() -> Iterator[Found]:
        now = read_now(engine.store)
        everywhere = random.sample(range(engine.store.partitions), engine.store.partitions)  # so that each has its turn to be the first
        yield from _some(through_partitions(NAME, everywhere, lambda partition: _wake(engine, partition, now, dry_run)))
        after = _park_after(engine)
        if after is None or not _is_time(engine, now, after):
            return
        gone = 0
        for one in _some(through_partitions(NAME, everywhere, lambda partition: _park(engine, partition, now - after, dry_run))):
            gone += one.count
            yield one
        if gone < _AT_MOST and not dry_run:
            engine.store.swept(_LOOKED)  # it has come to the end

    return unlocked(engine, NAME, work, dry_run=dry_run)


def _some(found: Iterable[Found]) -> Iterator[Found]:
    """As much as one sweep does."""
    done = 0
    for one in found:
        yield one
        done += one.count
        if done >= _AT_MOST:
            return


def _park_after(engine: Engine) -> int | None:
    """For how many ms a run must be idle; None: no run is parked."""
    if not parks(engine):
        return None
    after = int(engine.settings.park_after_minutes * 60_000)
    return min(after, _HURRY_MS) if hurries(engine) else after


def _is_time(engine: Engine, now: int, after: int) -> bool:
    """Every active run is looked at, so not each second: a run is parked a little later than it might be."""
    last, _ = engine.store.last_sweeps()
    return not 0 <= now - last.get(_LOOKED, 0) < min(after // 4, _LONGEST_REST_MS)


def _wake(engine: Engine, partition: int, now: int, dry_run: bool) -> Iterable[Found]:
    for run_id in engine.store.due_to_wake(partition, now, _WAKES):
        if dry_run:
            yield Moves(1, (f"{run_id} to be woken",))
            continue
        try:
            word, pokes = wake(engine, run_id)
        except (StoreUnreachable, ArchiveUnreachable, ArchiveRefused, *Unreachable):
            raise
        except Exception:
            logger.exception("parked run %s could not be woken; the others are", run_id)
            continue
        if word != "UNKNOWN":
            yield Moves(1, (f"{run_id} {'woken' if word == 'OK' else 'archive_missing'}",), tuple(pokes))


def _park(engine: Engine, partition: int, idle_before: int, dry_run: bool) -> Iterable[Found]:
    for some in _idle(engine, partition, idle_before):
        gone = some if dry_run else park(engine, some, idle_before)
        yield Moves(len(gone), tuple(f"{run_id} parked" for run_id in gone))


def _idle(engine: Engine, partition: int, idle_before: int) -> Iterator[list[str]]:
    """Runs that the active hash calls idle since before a moment, some at a time."""
    some: list[str] = []
    for page in hash_pages(engine.store, partition, "active"):
        for run_id, line in page:
            since = line.split(";")[3]
            if since and int(since) <= idle_before:
                some.append(run_id)
        while len(some) >= _BATCH:
            yield some[:_BATCH]
            some = some[_BATCH:]
    if some:
        yield some
