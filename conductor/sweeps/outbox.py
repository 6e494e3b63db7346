"""The outbox sweep: tells the ends of operations that are owed to somebody, partition by partition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from conductor.operations.messages import relay
from conductor.sweeps.guard import Found, Moves, SweepReport, guarded, over_partitions

if TYPE_CHECKING:
    from conductor.store import Glance
    from conductor.wiring import Engine

__all__ = ["NAME", "sweep_outbox"]

NAME = "outbox"


def sweep_outbox(engine: Engine, *, dry_run: bool = False, glance: Glance | None = None) -> SweepReport:
    """Tell what is owed, in the partitions that owe something and in no other."""

    def work() -> list[Found]:
        seen = glance or engine.store.glance()
        if dry_run:
            return [Moves(1, (f"partition {partition} has something to tell",)) for partition in seen.owed]
        return over_partitions(NAME, seen.owed, lambda partition: _told(engine, partition))

    return guarded(engine, NAME, work, dry_run=dry_run)


def _told(engine: Engine, partition: int) -> Iterable[Found]:
    causes = tuple(relay(engine, partition))
    yield Moves(len(causes), causes)
