"""The schedule sweep: starts what the clock of the store says is due, and writes down what this process has declared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from conductor.operations.schedules import declare_all, due, fire_due
from conductor.sweeps.guard import Found, Moves, SweepReport, guarded, over_partitions

if TYPE_CHECKING:
    from conductor.records import Poke
    from conductor.store import Glance
    from conductor.wiring import Engine

__all__ = ["NAME", "sweep_schedules"]

NAME = "schedules"


def sweep_schedules(engine: Engine, *, dry_run: bool = False, glance: Glance | None = None) -> SweepReport:
    """Start what is due, in the partitions that have something due and in no other. What a glance saw says nothing of schedules."""

    def work() -> list[Found]:
        if not dry_run:
            declare_all(engine)
        look = _due if dry_run else _fire
        return over_partitions(NAME, engine.store.partitions_with_due_jobs(), lambda partition: look(engine, partition))

    return guarded(engine, NAME, work, dry_run=dry_run)


def _due(engine: Engine, partition: int) -> Iterable[Found]:
    waiting = due(engine, partition)
    yield Moves(len(waiting), tuple(waiting))


def _fire(engine: Engine, partition: int) -> Iterable[Found]:
    """Starts ask for pokes one by one; they are kept until the lock is released. If this process dies with them, the stall sweep pokes."""
    pokes: list[Poke] = []
    causes = fire_due(replace(engine, poke=pokes.extend), partition)
    yield Moves(len(causes), tuple(causes), tuple(pokes))
