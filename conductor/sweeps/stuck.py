"""The stuck sweep: runs that have not moved for long and that nothing could move are re-derived from their logs.

Most runs it looks at are only slow, waiting for a retry or for a worker; for those it costs a few reads and changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from conductor.runs.mend import mend, stuck_runs
from conductor.store.reads import read_now
from conductor.sweeps.guard import Found, Moves, SweepReport, guarded, over_partitions

if TYPE_CHECKING:
    from conductor.store import Glance
    from conductor.wiring import Engine

__all__ = ["NAME", "sweep_stuck"]

NAME = "stuck"
_PAGE = 100
_AT_MOST = 2.0  # seconds of looking in one sweep; one page of each partition is looked at in any case


def sweep_stuck(engine: Engine, *, dry_run: bool = False, glance: Glance | None = None, stale_after: float = 0) -> SweepReport:
    """Mend runs without progress for `stale_after` seconds that have nothing that could move them."""
    before = read_now(engine.store) - int((stale_after or engine.settings.stale_after_seconds) * 1000)

    def work() -> list[Found]:
        return over_partitions(NAME, range(engine.store.partitions), lambda partition: _mended(engine, partition, before, dry_run))

    return guarded(engine, NAME, work, dry_run=dry_run)


def _mended(engine: Engine, partition: int, before: int, dry_run: bool) -> Iterable[Found]:
    """Page by page from where the last sweep's time was over, so that many runs that are paused, or wait for a child or a long retry, hide
    none behind them. Others may leave the index between two looks; what is passed over for that is met in the next round."""
    store, until = engine.store, time.monotonic() + _AT_MOST / engine.store.partitions
    began = skip = 0 if dry_run else store.looked_at(partition)
    while True:
        page = store.not_moved_since(partition, before, _PAGE, skip=skip)
        skip = skip + len(page) if len(page) == _PAGE else 0
        for run in stuck_runs(engine, page):
            if told := mend(engine, run, dry_run=dry_run):
                skip -= int(skip > 0 and not dry_run)  # it has left the index
                yield Moves(1, (f"{run.run_id} re-derived: {'; '.join(told[:3])}",))
        if not skip or (time.monotonic() > until and not dry_run):
            break
    if skip != began and not dry_run:
        store.look_on(partition, skip)
