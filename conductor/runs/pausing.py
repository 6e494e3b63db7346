"""Pausing one run and letting it go on, wherever it is: a parked one is brought back to be paused, and is resumed as its stub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conductor.runs.parking import awake
from conductor.runs.retry import resume_failed
from conductor.store.answers import Moved

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["pause_run", "resume_run"]


def pause_run(engine: Engine, run_id: str, *, reason: str = "", actor: str = "", only: int | None = None) -> Moved:
    """Stop claims of a run; running attempts may commit. With `only` nothing is done to a run of another generation: SUPERSEDED."""
    awake(engine, run_id)
    told: Moved = engine.store.pause(run_id, reason=reason, actor=actor, only=only)
    return told


def resume_run(engine: Engine, run_id: str, *, actor: str = "", only: int | None = None) -> Moved:
    """Let a paused run go on; one that a failed step has paused gets fresh budgets for what failed."""
    told: Moved = engine.store.resume(run_id, actor=actor, only=only)
    if told.word == "STEP_FAILED":
        return resume_failed(engine, run_id, actor=actor, only=only)
    engine.poke(told.pokes)
    return told
