"""What is told of an operation's end, and to whom. A relay reads the partition's outbox, tells, and only then removes the entry.

A crash anywhere repeats the relay, never the message: a message has a stable id (`<operation>:<generation>:<kind>`), and a surface is told
by an operation of its own whose id is derived from message and surface. So one surface that fails or hangs is retried alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from conductor.declare.capability import find
from conductor.errors import UnknownOperation, ValueTooLarge
from conductor.ids import derived_id, home_of_name
from conductor.operations.built_in import NOTIFY, surfaces_of
from conductor.operations.read import Operation
from conductor.operations.read import find as find_operation
from conductor.operations.start import start_operation
from conductor.records import QueueReason
from conductor.sessions import inbox
from conductor.state import OpState
from conductor.store.reads import RunRecord, read_graph, read_run

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["kind_of", "relay"]

_PREFIX = {QueueReason.RETRY: "retry", QueueReason.DEFERRED: "deferred", QueueReason.SCHEDULED: "scheduled"}
_ENDS = {OpState.COMPLETED: "success", OpState.EXHAUSTED: "exhausted", OpState.FAILED: "failed"}
_BATCH = 100
_LAST = 9  # of the priorities 0 to 9

_REMEMBERED = 1000

_complained: set[str] = set()  # entries of outboxes that this process has complained about

logger = logging.getLogger(__name__)


def kind_of(found: Operation) -> str:
    """`retry_success`, `retry_exhausted`, `deferred_failed`, …; empty if its end is not told."""
    end = _ENDS.get(found.state)
    return f"{_PREFIX[QueueReason(found.queue_reason)]}_{end}" if end and found.queue_reason else ""


def relay(engine: Engine, partition: int) -> Iterator[str]:
    """Tell what is owed in one partition; each cause says what was told. One entry that cannot be told never stops the others."""
    for member in engine.store.outbox(partition, _BATCH):
        operation_id, _, generation = member.partition(";")
        try:
            told = _tell(engine, operation_id, int(generation or 1))
        except Exception as error:
            _complain(member, operation_id, error)
            engine.store.tell_later(partition, member)  # behind the others: a hundred that cannot be told must not hide the rest
            continue
        engine.store.told(partition, member)
        _complained.discard(member)
        yield f"{operation_id} {told or 'nobody to tell'}"


def _complain(member: str, operation_id: str, error: Exception) -> None:
    """Loudly once: a sweep comes back to it every few seconds."""
    level = logging.DEBUG if member in _complained else logging.ERROR
    if len(_complained) >= _REMEMBERED:
        _complained.clear()
    _complained.add(member)
    logger.log(level, "the end of operation %s could not be told; it is tried again until it is", operation_id, exc_info=error)


def _tell(engine: Engine, operation_id: str, generation: int) -> str:
    run = read_run(engine.store, operation_id)
    if run is not None and not run.queue_reason:
        return _tell_of_run(engine, run, generation)
    try:
        found = find_operation(engine, operation_id)
    except UnknownOperation:
        return ""  # purged before it could be told
    kind = kind_of(found)
    if not kind or found.generation != generation:
        return ""  # a retry has opened a new life; its own end will be told
    message_id, body = f"{operation_id}:{generation}:{kind}", _body(found)
    if found.originating_session_id:
        _deliver(engine, found, message_id, kind, body)
    if kind == "retry_exhausted" and found.capability != NOTIFY:
        _notify(engine, message_id, {
            "id": message_id, "kind": kind, "operation_id": operation_id, "at": found.ended_at or 0, "body": body | {"result": None}})
    return kind


def _deliver(engine: Engine, found: Operation, message_id: str, kind: str, body: dict[str, Any]) -> None:
    """A result that is too large or too deep for a message (it may be in the blob store) stays where it is, and the message says where."""
    def put(body: Mapping[str, Any]) -> None:
        inbox.deliver(
            engine.store, found.originating_session_id, id=message_id, kind=kind, operation_id=found.operation_id, body=body,
            limit=2 * engine.settings.max_payload_bytes)

    try:
        put(body)
    except ValueTooLarge as large:
        if body.get("result") is None:
            raise
        put(body | {"result": None, "result_left_out": f"{large}; it is kept with the operation: conductor ops show {found.operation_id}"})


def _tell_of_run(engine: Engine, run: RunRecord, generation: int) -> str:
    """A run that was cancelled because no agent came is told like a failure: nobody was there to see it."""
    if not run.ended or run.generation != generation:
        return ""
    steps = [read_graph(engine.store, run.partition, run.graph).nodes[index].name for index in run.waiting]
    logger.warning("run %s of %s was cancelled: it waited for %s, and no agent came", run.run_id, run.workflow, ", ".join(steps))
    if run.session:
        inbox.deliver(
            engine.store, run.session, id=f"{run.run_id}:{generation}:{run.reason}", kind="run_cancelled", operation_id=run.run_id,
            body={"workflow": run.workflow, "state": run.state.value, "reason": run.reason, "waited_for": steps, "at": run.ended_at})
    return run.reason


def _body(found: Operation) -> dict[str, Any]:
    """The full result of a success; of a failure what a person must know to act."""
    told: dict[str, Any] = {"capability": found.capability, "state": found.state.value, "attempts": found.attempt}
    if found.state is OpState.COMPLETED:
        return told | {"result": found.result}
    return told | {"error_kind": found.error_kind, "error": found.error, "reason": found.reason}


def _notify(engine: Engine, message_id: str, message: Mapping[str, Any]) -> None:
    """One operation per surface, under an id that is the same if this is repeated. They come after everything else that stands ready: a
    target that is slow takes what workers have left over, and never the turn of a run."""
    capability = find(NOTIFY)
    for name in surfaces_of(engine.settings):
        text = f"{message_id}\0{name}"
        payload = capability.encode({"surface": name, "message": dict(message)}, limit=2 * engine.settings.max_payload_bytes)
        op_id = derived_id(text, int(message_id[:13].replace("-", ""), 16), home_of_name(text, engine.store.partitions))
        start_operation(engine, capability, payload, reason=QueueReason.RETRY, op_id=op_id, priority=_LAST)
