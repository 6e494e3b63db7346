"""Start an operation: checked parameters become a run of one step. Only after the store has it is anyone told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conductor import codec
from conductor.declare.capability import Capability
from conductor.declare.limits import limit_keys
from conductor.declare.operation import operation_flow
from conductor.errors import KeyConflict, RunFinished
from conductor.ids import home_of_key, new_run_id
from conductor.records import NewRun, QueueReason
from conductor.store import Started

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["start_operation"]


def start_operation(
    engine: Engine, capability: Capability[..., Any], payload: str, *, reason: QueueReason | str, session: str = "", key: str = "",
    op_id: str = "", bound_to: str = "", queue: str = "", priority: int | None = None, delay_ms: int = 0, start_at_ms: int = 0,
    tag: str = "", doubtful: bool = False,
) -> Started:
    """Write the operation. The same id, or the same key with the same parameters and session, is the same operation. With a `tag` the
    caller claims it in the same script."""
    why, flow, settings = QueueReason(reason), operation_flow(capability), engine.settings
    home = home_of_key(flow.name, key, engine.store.partitions) if key else None
    limit = capability.options.limit
    keys = limit_keys([limit] if limit else [], lambda: capability.shape.read(payload), f"call of capability {capability.name}")
    told = engine.store.start(
        NewRun(
            run_id=op_id or new_run_id(engine.store.partitions, home), workflow=flow.name, input=payload,
            queue=queue or capability.options.queue or engine.default_queue, priority=5 if priority is None else priority, session=session,
            key=key, digest=codec.fingerprint(payload, session) if key else "", delay_ms=delay_ms, start_at=start_at_ms,
            queue_reason=why.value, bound_to=bound_to,
            retain_completed_ms=int(settings.retention_completed_seconds * 1000),
            retain_failed_ms=int(settings.retention_failed_seconds * 1000), key_retention_ms=int(settings.key_retention_days * 86_400_000),
            limit_keys=keys, doubtful=doubtful,
        ),
        flow.graph_for(why), tag=tag)
    if told.word == "CONFLICT":
        raise KeyConflict(workflow=f"capability {capability.name}", key=key, run_id=told.run_id)
    if told.word == "RUN_ENDED":
        raise RunFinished(run_id=bound_to.partition(";")[0], state="ended")
    engine.poke(told.pokes)
    return told
