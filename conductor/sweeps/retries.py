"""The due sweep: fires what its time has come for (retries, sleeps, delayed starts, expiries, deadlines). All of it ends in ready."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from conductor.sweeps.guard import Found, Moves, SweepReport, guarded, over_partitions

if TYPE_CHECKING:
    from conductor.store import Glance
    from conductor.wiring import Engine

__all__ = ["NAME", "sweep_retries"]

NAME = "retries"
_BATCH = 100
_ROUNDS = 50  # per partition and sweep: one partition with a flood of due items must not keep the others waiting


def sweep_retries(engine: Engine, *, dry_run: bool = False, glance: Glance | None = None) -> SweepReport:
    """Fire what is due, in the partitions that have something due and in no other."""

    def work() -> list[Found]:
        seen = glance or engine.store.glance()
        if dry_run:
            return [Moves(1, (f"partition {partition} has something due",)) for partition in seen.due]
        return over_partitions(NAME, seen.due, lambda partition: _fire(engine, partition))

    return guarded(engine, NAME, work, dry_run=dry_run)


def _fire(engine: Engine, partition: int) -> Iterable[Found]:
    for _ in range(_ROUNDS):
        swept = engine.store.fire_due(partition, _BATCH)
        yield swept
        if swept.looked < _BATCH:
            return
