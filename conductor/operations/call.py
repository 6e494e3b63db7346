"""Calling a capability: now in this process, later on a worker, or from inside a step.

Authority: the store. A call in this process is an attempt like any other: its record is written and claimed in one script before the code
runs, its lease is kept by a pulse, its outcome is committed under its fence. If this process dies in the middle, the lease runs out, and a
worker takes it again or ends it, as its policy says; what this process still had to say is refused.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from conductor import codec
from conductor.declare.capability import Capability, find
from conductor.declare.context import RUNNING, Ctx
from conductor.declare.operation import operation_flow
from conductor.errors import GetInsideStep, OperationFailed, OperationPending
from conductor.ids import partition_of
from conductor.operations import read
from conductor.operations.answers import Answer, Cancelled, Completed, Failed, QueuedForRetry, Submitted, TimedOut
from conductor.operations.hands import hands
from conductor.operations.inside import Asked, in_doubt, look_again_ms, running_step
from conductor.operations.start import start_operation
from conductor.records import OutcomeKind, QueueReason
from conductor.runs.execute import Performed
from conductor.sessions.current import originating_session
from conductor.state import OpState
from conductor.store import Started
from conductor.store.notices import last_notice, wait_notice
from conductor.store.reads import read_input, read_run

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["answer_of", "begin", "call", "call_in_step", "follow", "leave", "submit", "wait_for"]

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
    """Queue a deferred operation and answer at once. It has one attempt; a lost worker does not count as one. A repeated step finds what it
    has submitted before; it is not bound to the run, and goes on without it."""
    chosen = _found(capability)
    payload, who = chosen.encode(params, limit=engine.payload_limit), session or originating_session()
    inside = None if key else running_step()
    asked = None if inside is None else Asked.next(inside, chosen.name, payload, who)
    operation_id = "" if asked is None else asked.operation_id
    if asked is None or not _was_submitted(asked):
        told = start_operation(
            engine, chosen, payload, reason=QueueReason.DEFERRED, session=who, key=key, op_id=operation_id, queue=queue, priority=priority)
        operation_id = told.run_id
        if asked is not None:
            _keep_submitted(engine, asked, told, payload)
    return Submitted(operation_id=operation_id, queue_reason=QueueReason.DEFERRED.value, hint=_SUBMIT_HINT.format(operation_id))


def _was_submitted(asked: Asked) -> bool:
    known = asked.known()
    if known is not None and not asked.is_same(known):
        raise asked.changed()
    return known is not None


def _keep_submitted(engine: Engine, asked: Asked, told: Started, payload: str) -> None:
    before = read_input(engine.store, told.run_id) if told.word == "EXISTS" else None  # an attempt that died before it could remember
    if before is not None and codec.fingerprint(before) != codec.fingerprint(payload):
        raise asked.changed()
    asked.keep_asked()


def call(
    engine: Engine, capability: Capability[..., Any] | str, params: Any = None, *, session: str = "", key: str = "",
    timeout: float | None = None, remote: bool = False,
) -> Answer:
    """Run a capability now: in this process, or with `remote` on a worker, waiting up to `timeout` seconds for its end. Inside a step it is
    bound to the run, and a repeated step finds it again; nobody waits there."""
    chosen, inside = _found(capability), running_step()
    if remote and (held_by := RUNNING.get()) is not None:
        raise GetInsideStep(run_id=f"of capability {chosen.name}", inside=held_by.run_id)
    payload, who = chosen.encode(params, limit=engine.payload_limit), session or originating_session()
    if inside is not None and not key:
        return _call_inside(engine, chosen, Asked.next(inside, chosen.name, payload, who), payload, who)
    if remote or chosen.options.limit is not None:  # under a limit nothing is claimed with its start: a worker that has a permit runs it
        told = start_operation(engine, chosen, payload, reason=QueueReason.RETRY, session=who, key=key)
        if inside is not None:
            return answer_of(engine, told.run_id)
        answer = wait_for(engine, told.run_id, timeout)
        if isinstance(answer, TimedOut):
            leave(engine, told.run_id)
        return answer
    with hands(engine) as made:
        told = start_operation(engine, chosen, payload, reason=QueueReason.RETRY, session=who, key=key, tag=made.tag)
        if told.held is None:  # the key has been here before
            return answer_of(engine, told.run_id)
        performed = made.perform(told.held, operation_flow(chosen).graph_for(QueueReason.RETRY))
    return _answer(engine, told.run_id, performed)


def begin(engine: Engine, capability: Capability[..., Any] | str, params: Any = None, *, session: str = "", key: str = "") -> str:
    """Call on a worker, and do not wait: whoever begins asks for the answer by `wait_for`, and says so if he stops (`leave`)."""
    chosen = _found(capability)
    payload = chosen.encode(params, limit=engine.payload_limit)
    return start_operation(
        engine, chosen, payload, reason=QueueReason.RETRY, session=session or originating_session(), key=key).run_id


def leave(engine: Engine, operation_id: str) -> None:
    """Nobody waits for the answer of this call any more: the session finds its end in its inbox, whatever it is."""
    engine.store.leave_call(operation_id)


def _found(capability: Capability[..., Any] | str) -> Capability[..., Any]:
    return find(capability) if isinstance(capability, str) else capability


def _answer(engine: Engine, operation_id: str, performed: Performed) -> Answer:
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


def call_in_step(engine: Engine, ctx: Ctx, name: str, params: Mapping[str, Any]) -> Any:
    """`ctx.call`: an operation bound to the run, found again by a repeated attempt. Its result, or the error it ended with."""
    chosen = _found(name)
    payload, session = chosen.encode(params, limit=engine.payload_limit), ctx.session
    answer = _call_inside(engine, chosen, Asked.next(ctx, chosen.name, payload, session), payload, session)
    if isinstance(answer, Completed):
        return answer.result
    if isinstance(answer, (QueuedForRetry, Submitted, TimedOut)):
        due = answer.retry_at if isinstance(answer, QueuedForRetry) else 0
        delay = look_again_ms(engine, answer.operation_id, due)
        raise OperationPending(operation_id=answer.operation_id, capability=name, delay_ms=delay)
    error = getattr(answer, "error", None) or getattr(answer, "reason", None) or answer.status
    raise OperationFailed(operation_id=answer.operation_id, capability=name, state=answer.status, error=error)


def _call_inside(engine: Engine, chosen: Capability[..., Any], asked: Asked, payload: str, session: str) -> Answer:
    known = asked.known()
    if known is not None and (recorded := asked.answer()) is not None:
        if not asked.is_same(known):
            raise asked.changed()
        return _completed(asked.operation_id, codec.decode(recorded))
    with hands(engine) as made:
        tag = "" if chosen.options.limit is not None else made.tag  # under a limit a worker that has a permit runs it
        told = _begun(engine, chosen, asked, known, payload, session, tag)
        if told.held is None:
            answer = answer_of(engine, told.run_id)
        else:
            performed = made.perform(told.held, operation_flow(chosen).graph_for(QueueReason.RETRY))
            answer = _answer(engine, told.run_id, performed)
    if isinstance(answer, Completed):
        asked.keep_answer(answer.result, engine.payload_limit)
    elif isinstance(answer, (Failed, Cancelled)) and not in_doubt(engine, told.run_id):
        asked.keep_asked(over=True)
    return answer


def _begun(
    engine: Engine, chosen: Capability[..., Any], asked: Asked, known: Mapping[str, Any] | None, payload: str, session: str, tag: str,
) -> Started:
    """Made, found again, or begun anew for another life of the run."""
    if known is not None:
        same, graph = asked.is_same(known), operation_flow(chosen).graph_for(QueueReason.RETRY)
        told = engine.store.renew(asked.operation_id, asked.bond, graph=graph.hash, input=payload, same=same, tag=tag)
        if not same and (told.word in ("CHANGED", "EXISTS") or (told.word == "UNKNOWN" and not known.get("over"))):
            raise asked.changed()
        if told.word in ("OK", "EXISTS"):
            engine.poke(told.pokes)
            held = told.held
            return told if held is None else replace(told, held=replace(held, input=payload, session=session))
    # That it was asked for stands there, and its record is gone: nobody knows what it has done.
    doubtful = known is not None and not known.get("over")
    return start_operation(
        engine, chosen, payload, reason=QueueReason.RETRY, session=session, op_id=asked.operation_id, bound_to=asked.bond, tag=tag,
        doubtful=doubtful)
