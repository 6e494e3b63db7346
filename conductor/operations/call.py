"""Calling a capability: now in this process, later on a worker, or from inside a step.

Authority: the store. A call in this process is an attempt like any other: its record is written and claimed in one script before the code
runs, its lease is kept by a pulse, its outcome is committed under its fence. If this process dies in the middle, the lease runs out, and a
worker takes it again or ends it, as its policy says; what this process still had to say is refused.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from conductor import codec
from conductor.declare.capability import Capability, find
from conductor.declare.context import RUNNING, key_of
from conductor.declare.operation import operation_flow
from conductor.errors import GetInsideStep, OperationFailed, OperationPending
from conductor.ids import derived_id, partition_of
from conductor.operations import read
from conductor.operations.answers import Answer, Cancelled, Completed, Failed, QueuedForRetry, Submitted, TimedOut
from conductor.operations.start import start_operation
from conductor.records import Attempt, Node, OutcomeKind, QueueReason
from conductor.runs.execute import Drainer, Performed
from conductor.sessions.current import originating_session
from conductor.state import OpState
from conductor.store.notices import last_notice, wait_notice
from conductor.store.reads import read_now, read_run

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["answer_of", "call", "call_in_step", "follow", "submit", "wait_for"]

_LOOK_AGAIN = 1.0
_RETRY_HINT = (
    "it is repeated by itself; this is not success: wait for retry_success or retry_exhausted in the inbox, "
    "or ask `conductor ops show {}`"
)
_SUBMIT_HINT = "ask `conductor ops show {}` for its end; the session that asked finds it in its inbox"
_TIMEOUT_HINT = "its outcome is unknown, not failed: ask `conductor ops show {}`; sending it again could do it twice"


def submit(
    engine: Engine, capability: Capability[..., Any] | str, params: Any = None, *, session: str = "", key: str = "", queue: str = "",
    priority: int | None = None,
) -> Submitted:
    """Queue a deferred operation and answer at once. It has one attempt; a lost worker does not count as one."""
    chosen = _found(capability)
    payload = chosen.encode(params, limit=engine.payload_limit)
    told = start_operation(
        engine, chosen, payload, reason=QueueReason.DEFERRED, session=session or originating_session(), key=key, queue=queue,
        priority=priority)
    return Submitted(operation_id=told.run_id, queue_reason=QueueReason.DEFERRED.value, hint=_SUBMIT_HINT.format(told.run_id))


def call(
    engine: Engine, capability: Capability[..., Any] | str, params: Any = None, *, session: str = "", key: str = "",
    timeout: float | None = None, remote: bool = False, op_id: str = "", bound_to: str = "",
) -> Answer:
    """Run a capability now: in this process, or with `remote` on a worker, waiting up to `timeout` seconds for its end."""
    chosen = _found(capability)
    payload = chosen.encode(params, limit=engine.payload_limit)
    asked = session or originating_session()
    if remote or chosen.options.limit is not None:  # under a limit nothing is claimed with its start: a worker that has a permit runs it
        told = start_operation(engine, chosen, payload, reason=QueueReason.RETRY, session=asked, key=key, op_id=op_id, bound_to=bound_to)
        return wait_for(engine, told.run_id, timeout)
    with _hands(engine) as hands:
        told = start_operation(
            engine, chosen, payload, reason=QueueReason.RETRY, session=asked, key=key, op_id=op_id, bound_to=bound_to, tag=hands.tag)
        if told.held is None:  # the key, or the id, has been here before
            return answer_of(engine, told.run_id)
        performed = hands.perform(told.held, operation_flow(chosen).graph_for(QueueReason.RETRY))
    return _answer(engine, chosen, told.run_id, performed)


def _found(capability: Capability[..., Any] | str) -> Capability[..., Any]:
    return find(capability) if isinstance(capability, str) else capability


def _answer(engine: Engine, capability: Capability[..., Any], operation_id: str, performed: Performed) -> Answer:
    """The answer from what this process saw, if the store took it; else from the record."""
    outcome = performed.outcome
    if performed.word != "OK" or outcome.kind is not OutcomeKind.COMPLETED:
        return answer_of(engine, operation_id)
    return _completed(operation_id, codec.decode(outcome.payload), recovered=performed.recovered)


def _completed(operation_id: str, result: Any, *, recovered: bool = False) -> Completed:
    found = result if isinstance(result, Mapping) and result.get("post_write_recovery") is True else {}
    return Completed(
        operation_id=operation_id, result=result, registry_auto_recovered=recovered or None, post_write_recovery=bool(found) or None,
        warning=found.get("warning"), effects_verified=found.get("effects_verified"))


def answer_of(engine: Engine, operation_id: str) -> Answer:
    """What the record says now."""
    found = read.find(engine, operation_id)
    match found.state:
        case OpState.COMPLETED:
            recovered = any(entry.startswith("c;") and entry.endswith(";recovered") for entry in engine.store.log_of(operation_id))
            return _completed(operation_id, found.result, recovered=recovered)
        case OpState.CANCELLED:
            return Cancelled(operation_id=operation_id, reason=found.reason or None)
        case OpState.FAILED | OpState.EXHAUSTED:
            state = "exhausted" if found.state is OpState.EXHAUSTED else "failed"
            return Failed(
                operation_id=operation_id, status=state, error_kind=found.error_kind, error=found.error, reason=found.reason or None)
        case _ if found.queued_for_retry and found.attempt:
            return QueuedForRetry(
                operation_id=operation_id, retry_hint=_RETRY_HINT.format(operation_id), retry_at=found.retry_at or 0,
                error_kind=found.error_kind, error=found.error)
        case _ if found.queued:
            return Submitted(operation_id=operation_id, queue_reason=found.queue_reason, hint=_SUBMIT_HINT.format(operation_id))
        case _:
            return TimedOut(operation_id=operation_id, hint=_TIMEOUT_HINT.format(operation_id))


def wait_for(engine: Engine, operation_id: str, timeout: float | None = None) -> Answer:
    """Wait until the operation has ended or waits for a retry; after `timeout` seconds the answer is `timeout`, never failure."""
    if (inside := RUNNING.get()) is not None:
        raise GetInsideStep(run_id=operation_id, inside=inside.run_id)
    return follow(engine, operation_id, timeout)


def follow(engine: Engine, operation_id: str, timeout: float | None = None) -> Answer:
    """The same, also inside an operation."""
    until = None if timeout is None else time.monotonic() + timeout
    partition, last = partition_of(operation_id), last_notice(engine.store, partition_of(operation_id))
    while True:
        run = read_run(engine.store, operation_id)
        # Ended, or between two attempts: both are answers. Not yet begun, or running: wait.
        if run is None or run.ended or (run.due and not run.roots):
            return answer_of(engine, operation_id)
        left = _LOOK_AGAIN if until is None else min(_LOOK_AGAIN, until - time.monotonic())
        if left <= 0:
            return TimedOut(operation_id=operation_id, hint=_TIMEOUT_HINT.format(operation_id))
        last = wait_notice(engine.store, partition, last, left, operation_id).last_id


# From inside a step.


def call_in_step(engine: Engine, held: Attempt, node: Node, name: str, params: Mapping[str, Any], ordinal: int) -> Any:
    """`ctx.call`: an operation bound to the run, found again by a repeated attempt. Its result, or the error it ended with."""
    key = key_of(held.run_id, node.name, held.item)
    operation_id = _operation_of(engine, held, f"{key}\0{name}\0{ordinal}")
    answer = call(engine, name, params, session=held.session, op_id=operation_id, bound_to=f"{held.run_id};{held.generation}")
    if isinstance(answer, Completed):
        return answer.result
    if isinstance(answer, (QueuedForRetry, Submitted, TimedOut)):
        due = answer.retry_at if isinstance(answer, QueuedForRetry) else 0
        delay = max(200, due - read_now(engine.store) + 200)
        raise OperationPending(operation_id=operation_id, capability=name, delay_ms=delay)
    error = getattr(answer, "error", None) or getattr(answer, "reason", None) or answer.status
    raise OperationFailed(operation_id=operation_id, capability=name, state=answer.status, error=error)


def _operation_of(engine: Engine, held: Attempt, text: str) -> str:
    """One id for all generations, unless an earlier generation's operation ended without success: a retried run tries anew."""
    stamp, partition = int(held.run_id.replace("-", "")[:12], 16), partition_of(held.run_id)
    chosen = ""
    for generation in range(1, held.generation + 1):
        chosen = derived_id(text if generation == 1 else f"{text}\0{generation}", stamp, partition)
        run = read_run(engine.store, chosen)
        if run is not None and run.state == "completed":
            return chosen
    return chosen


# The hands of a calling thread.


class _Hands(threading.local):
    """Idle drainers of this thread: a call inside a call needs a second pair."""

    pid: int = 0
    engine: Engine | None = None
    idle: list[Drainer]


_mine = _Hands()


@contextmanager
def _hands(engine: Engine) -> Iterator[Drainer]:
    if _mine.pid != os.getpid() or _mine.engine is not engine:
        _mine.pid, _mine.engine, _mine.idle = os.getpid(), engine, []
    hands = _mine.idle.pop() if _mine.idle else Drainer(engine, worker_name=f"caller@{os.getpid()}", may_stop_process=False)
    try:
        yield hands
    finally:
        _mine.idle.append(hands)
