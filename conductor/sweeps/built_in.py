"""Capabilities on runs that come along: cancelling one, and sweeping those for which no agent comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conductor.declare import registry
from conductor.declare.capability import capability
from conductor.errors import UnknownRun
from conductor.ids import is_run_id, partition_of
from conductor.runs.cancelling import cancel
from conductor.sweeps.idle import sweep_idle

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["CANCEL", "SWEEP_IDLE"]

CANCEL, SWEEP_IDLE = "workflow_cancel", "workflow_sweep_idle"


def _engine() -> Engine:
    conductor: Any = registry.current("built-in capability")
    engine: Engine = conductor.engine
    return engine


@capability(CANCEL, retry="replay", idempotent=True, timeout=30)
def workflow_cancel(run_id: str, reason: str = "requested", terminate: bool = False) -> dict[str, Any]:
    """Cancel a run: nothing of it begins and no result is taken any more. Cancelling again changes nothing and says so."""
    engine = _engine()
    if not is_run_id(run_id) or partition_of(run_id) >= engine.store.partitions:
        raise UnknownRun(run_id=run_id, namespace=engine.store.namespace)
    told = cancel(engine, run_id, reason=reason, actor=CANCEL, terminate=terminate)
    if told.word == "UNKNOWN":
        raise UnknownRun(run_id=run_id, namespace=engine.store.namespace)
    return {"run_id": run_id, "word": told.word, "state": told.state, "reason": told.reason, "at": told.at}


@capability(SWEEP_IDLE, retry="replay", idempotent=True, timeout=300)
def workflow_sweep_idle(dry_run: bool = False, older_than_hours: float | None = None) -> dict[str, Any]:
    """Cancel runs that have waited for agents alone for longer than they may, or than `older_than_hours`."""
    return sweep_idle(_engine(), dry_run=dry_run, older_than_hours=older_than_hours).to_json()
