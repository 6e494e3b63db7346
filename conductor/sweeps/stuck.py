"""The stuck sweep: runs that have not moved for long and that nothing could move are re-derived from their logs.

Most runs it looks at are only slow, waiting for a retry or for a worker; for those it costs a few reads and changes nothing.
"""

from __future__ import annotations

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


def sweep_stuck(engine: Engine, *, dry_run: bool = False, glance: Glance | None = None, stale_after: float = 0) -> SweepReport:
    """Mend runs without progress for `stale_after` seconds that have nothing that could move them."""
    before = read_now(engine.store) - int((stale_after or engine.settings.stale_after_seconds) * 1000)

    def work() -> list[Found]:
        return over_partitions(NAME, range(engine.store.partitions), lambda partition: _mended(engine, partition, before, dry_run))

    return guarded(engine, NAME, work, dry_run=dry_run)


def _mended(engine: Engine, partition: int, before: int, dry_run: bool) -> Iterable[Found]:
    for run in stuck_runs(engine, partition, before):
        if told := mend(engine, run, dry_run=dry_run):
            yield Moves(1, (f"{run.run_id} re-derived: {'; '.join(told[:3])}",))
