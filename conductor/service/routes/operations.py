"""Operations: what is queued, runs or has ended; call one and wait, submit one; retry, cancel, resolve.

A call runs on a worker, never here: the service holds none of the user's effects. Waiting for its end holds no thread (`patience.py`).
Queued is not success and a timeout is not failure: both are 202 with the operation's id, under which its end is found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi import Body as Json
from fastapi import Query as Parameters
from fastapi.concurrency import run_in_threadpool
from pydantic import Field

from conductor.errors import BadInput
from conductor.operations.acting import refuse_over
from conductor.operations.answers import Answer, QueuedForRetry, Submitted, TimedOut
from conductor.operations.call import wait_for
from conductor.operations.listing import status_within
from conductor.operations.offering import acts_for_everybody
from conductor.operations.read import OpFilter
from conductor.operations.showing import show_operation as show
from conductor.service.access import Caller, Reader, Served, Writer, spelling_of
from conductor.service.errors import Forbidden
from conductor.service.forms import Body, Limit, Query, Recorded, Seconds, Word
from conductor.service.ownership import own_keys, own_operation, own_session
from conductor.service.patience import until
from conductor.service.replies import reply
from conductor.service.shown import OperationFull, Operations, OperationStatus, Said
from conductor.store.reads import read_now

if TYPE_CHECKING:
    from conductor.broker.conductor import Conductor

from conductor.service.segments import SegmentRoute

__all__ = ["router"]

_CALL_SECONDS = 60.0

router = APIRouter(route_class=SegmentRoute, prefix="/v1", tags=["operations"])


# Looking.


class Wanted(Query):
    """Which operations; nothing given is every one."""

    state: Literal[
        "running", "queued", "completed", "failed", "exhausted", "cancelled", "queued_retry", "queued_deferred_submit",
        "queued_scheduled_job",
    ] | None = Field(None, description="a state, or what a queued one is queued as")
    capability: Word | None = None
    error_kind: Literal["transient", "permanent", "unknown", "outcome_unknown", "effect_in_doubt"] | None = None
    session: Word | None = None
    older_than: Seconds = Field(0, description="seconds since it was made")
    limit: Limit = 50
    cursor: Annotated[str, Field(max_length=400, description="where the page before ended")] = ""


@router.get("/operations", response_model=Operations)
def list_operations(caller: Reader, conductor: Served, wanted: Annotated[Wanted, Parameters()]) -> Any:
    """Operations, newest first, then steps of runs that wait for a retry, without parameters and results. With a `cursor` there may be
    more, even if the page is short."""
    by = OpFilter(
        wanted.state or "", wanted.capability or "", wanted.error_kind or "", wanted.session or "", int(wanted.older_than * 1000),
        caller.sessions)
    found = conductor.operations(by, cursor=wanted.cursor, limit=wanted.limit)
    return reply({
        "operations": [one.to_json() for one in found], "cursor": found.cursor or None, "now": read_now(conductor.engine.store),
    })


@router.get("/operations/status", response_model=OperationStatus)
def operation_status(caller: Reader, conductor: Served) -> Any:
    """The queue at a glance: how many are queued and why, when the next is due, how old the oldest is."""
    told = conductor.operation_status() if caller.sessions is None else status_within(conductor.engine, caller.sessions)
    return told | {"now": read_now(conductor.engine.store)}


@router.get("/operations/{operation_id}", response_model=OperationFull, response_model_exclude_none=True)
def show_operation(operation_id: str, caller: Reader, conductor: Served, values: bool = False) -> Any:
    """One operation, why it stands where it stands, and its attempts: a stand-alone one by its id, a step by `run:step[:item]`. With
    `values` its parameters and result too, which may hold what not everybody should read."""
    own_operation(conductor, caller, operation_id)
    return show(conductor.engine, operation_id, values=values, spelling=spelling_of(conductor))


# Making.


class Submission(Body):
    """What is to be done, and for whom."""

    capability: Word = Field(examples=["invoice.send"])
    params: Any = Field(None, description="as GET /v1/capabilities/{name} shows", examples=[{"number": 7}])
    session: Word | None = Field(None, description="who asks: its grants count, its inbox is told")
    key: Word | None = Field(None, description="the same key with the same parameters is the same operation")


class Deferred(Submission):
    queue: Word | None = None
    priority: int | None = Field(None, ge=0, le=9, description="0 is first, 9 is last")


class Calling(Submission):
    timeout: float = Field(30, ge=0, le=_CALL_SECONDS, description="seconds to wait; the operation goes on after it")


@router.post("/call", response_model=Answer, response_model_exclude_none=True, responses={
    202: {"model": QueuedForRetry | Submitted | TimedOut, "description": "it has not ended"},
})
async def call(asked: Calling, caller: Writer, conductor: Served, request: Request, response: Response) -> Any:
    """Run a capability on a worker and wait for its answer. 200: it has ended, `status` says how. 202: it is queued for a retry (which is
    not success) or the time is over (its outcome is unknown, not failed); ask for it under its id."""
    session = own_session(caller, asked.session)
    answer = await run_in_threadpool(_begin, conductor, caller, asked, session)
    operation_id = answer.operation_id
    try:
        if isinstance(answer, TimedOut):
            answer = await until(request, lambda: wait_for(conductor.engine, operation_id, 0), _is_answer, asked.timeout)
    finally:
        if isinstance(answer, TimedOut):
            await run_in_threadpool(conductor.leave, operation_id)
    response.status_code = 202 if isinstance(answer, QueuedForRetry | Submitted | TimedOut) else 200
    return answer


def _begin(conductor: Conductor, caller: Caller, asked: Calling, session: str) -> Answer:
    _refuse_beyond(conductor, caller, asked.capability)
    with own_keys(conductor, caller):
        begun = conductor.begin(asked.capability, asked.params, session=session, key=asked.key or "")
    return wait_for(conductor.engine, begun, 0)


def _is_answer(told: Answer) -> bool:
    return not isinstance(told, TimedOut)


@router.post("/submit", status_code=202, response_model=Submitted)
def submit(asked: Deferred, caller: Writer, conductor: Served) -> Any:
    """Queue a capability for a worker and answer at once."""
    session = own_session(caller, asked.session)
    _refuse_beyond(conductor, caller, asked.capability)
    with own_keys(conductor, caller):
        return conductor.submit(
            asked.capability, asked.params, session=session, key=asked.key or "", queue=asked.queue, priority=asked.priority)


def _refuse_beyond(conductor: Conductor, caller: Caller, name: str) -> None:
    """What comes along (`workflow_cancel`, …) acts on whatever it is told, on a worker that knows nothing of this caller."""
    if caller.sessions is not None and acts_for_everybody(conductor.capability(name)):
        raise Forbidden(problem=f"{name} acts beyond the sessions that {caller.actor} is bound to; use the route of its own")


# Moving.


class Retrying(Body):
    reason: Recorded = ""
    health_check: bool = Field(False, description="probe what the capability needs first; if it is not there, nothing is replayed")


class Cancelling(Body):
    reason: Word = "requested"


class Resolving(Body):
    """One of the two: it happened and gave `landed` (null if it gave nothing), or it did not happen."""

    reason: Recorded = ""
    landed: Any = Field(None, description="it happened, and this is what it gave")
    absent: Literal[True] | None = Field(None, description="it did not happen: run it again")


@router.post("/operations/{operation_id}/retry", response_model=Answer, response_model_exclude_none=True)
def retry_operation(
    operation_id: str, caller: Writer, conductor: Served, asked: Annotated[Retrying, Json(default_factory=Retrying)],
) -> Any:
    """Replay from the record, without parameters: what waits is due now, what failed begins anew with a fresh budget."""
    own_operation(conductor, caller, operation_id)
    refuse_over(conductor.operation(operation_id))
    return conductor.retry_operation(operation_id, health_check=asked.health_check, actor=caller.actor)


@router.post("/operations/{operation_id}/cancel", response_model=Said)
def cancel_operation(
    operation_id: str, caller: Writer, conductor: Served, asked: Annotated[Cancelling, Json(default_factory=Cancelling)],
) -> Any:
    """Cancel a stand-alone operation; a step is cancelled with its run. One that has ended is left as it is, and the answer says so."""
    own_operation(conductor, caller, operation_id)
    told = conductor.cancel_operation(operation_id, reason=asked.reason, actor=caller.actor)
    return told | {"word": told["word"].lower()}


@router.post("/operations/{operation_id}/resolve", response_model=Answer, response_model_exclude_none=True)
def resolve(operation_id: str, asked: Resolving, caller: Writer, conductor: Served) -> Any:
    """Say whether an effect in doubt happened, and what it gave. It then goes on from there."""
    own_operation(conductor, caller, operation_id)
    happened = "landed" in asked.model_fields_set
    if happened == bool(asked.absent):
        raise BadInput(what="request", field="landed", problem="say one of: landed with what it gave, or absent: true")
    return conductor.resolve(operation_id, happened=happened, value=asked.landed, actor=caller.actor)
