"""Batches: one action on every run that a filter names. A dry run unless it is asked not to be one; a worker does it, never this process.

A caller bound to sessions moves the runs of one of them: the batch belongs to that session, and whatever its filter says, it acts on no
other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Header
from pydantic import Field
from starlette.responses import Response

from conductor.errors import BadInput, UnknownOperation
from conductor.operations.batches import RATE, preview, preview_json, standing, submit
from conductor.runs.batching import Action
from conductor.runs.filters import Where
from conductor.service.access import Caller, Reader, Served, Writer
from conductor.service.errors import Forbidden, UnknownFilter
from conductor.service.forms import Body
from conductor.service.ownership import own_keys, own_operation, own_session
from conductor.service.replies import Responses, example, reply
from conductor.service.routes.runs import ROW
from conductor.service.segments import SegmentRoute
from conductor.service.shown_upkeep import BatchAsked, BatchPreview, BatchShown

__all__ = ["router"]

router = APIRouter(route_class=SegmentRoute, tags=["batches"])

T = TypeVar("T")

_RUN, _BATCH = "01908f2e-7c1a-7b3e-9d55-3f1c5e0a7b05", "01908f2e-8d21-7c10-8f00-9a1b2c3d4e05"
_STANDS = {
    "batch_id": _BATCH, "state": "running", "action": "retry", "where": {"status": ["failed"], "workflow": "order"}, "done": 1200,
    "changed": 1198, "unchanged": 2, "failed": 0, "total": 8000, "errors": [], "actor": "token:ops", "reason": "the card service is back",
    "rate": 50.0, "error": None, "created_at": 1_753_000_000_000, "ended_at": None,
}
_ASKED: Responses = {
    200: example("a dry run: how many runs are meant (`more`: at least so many), and some of them", {
        "dry_run": True, "action": "retry", "count": 8000, "more": False, "examples": [_RUN], "runs": [ROW],
        "now": 1_753_000_060_000,
    }, BatchPreview),
    202: example("a worker does it", {"batch_id": _BATCH}, BatchAsked),
}


class Asked(Body):
    """What is to be done to which runs."""

    action: Literal["retry", "cancel", "pause", "resume"]
    where: dict[str, Any] = Field(
        description="the filters of GET /v1/runs, at least one", examples=[{"workflow": "order", "status": "failed"}])
    reason: Annotated[str, Field(max_length=512, description="stands in the batch's record and in the runs' logs")] = "requested"
    dry_run: bool = Field(True, description="count, and do nothing")
    rate: Annotated[float, Field(ge=0.1, le=10_000, description="how many runs a second")] = RATE


@router.post("/v1/batches", summary="Move many runs", responses=_ASKED)
def move_many(
    body: Asked, served: Served, caller: Writer, idempotency_key: Annotated[str | None, Header(max_length=512)] = None,
) -> Response:
    """Which runs are meant is settled when the batch begins: what starts later is left alone, and no run is moved twice."""
    action, where = Action(body.action), _filters(lambda: Where.parse(body.where))
    session = _session(caller, where)
    if body.dry_run:
        found = _filters(lambda: preview(served.engine, action, where, session=session))
        return reply(preview_json(served.engine, action, found))
    key = f"{caller.actor} {idempotency_key}" if idempotency_key else ""  # one caller's keys say nothing to another
    with own_keys(served, caller):
        batch_id = _filters(lambda: submit(
            served.engine, action, where, reason=body.reason, actor=caller.actor, rate=body.rate, session=session, key=key))
    return reply({"batch_id": batch_id}, 202, {"Location": f"/v1/batches/{batch_id}"})


@router.get("/v1/batches/{batch_id}", summary="Show a batch", responses={
    200: example("how far it is, or what it came to", _STANDS, BatchShown),
})
def show_batch(batch_id: str, served: Served, caller: Reader) -> Response:
    """`unchanged` had moved on by themselves; `errors` are the first of those that failed. A batch is an operation: cancel it as one."""
    if ":" in batch_id:  # a step of a run is none
        raise UnknownOperation(operation_id=batch_id, namespace=served.settings.namespace)
    own_operation(served, caller, batch_id)
    return reply(standing(served.engine, batch_id))


def _filters(read: Callable[[], T]) -> T:
    """What is wrong with a filter, told as lists tell it."""
    try:
        return read()
    except BadInput as error:
        if error.what in ("filter", "batch"):
            raise UnknownFilter(problem=f"filter {error.field}: {error.problem}", field=error.field) from None
        raise


def _session(caller: Caller, where: Where) -> str:
    """Whose batch it is. One of nobody in particular may move everybody's runs; only who is bound to no session may ask for one."""
    if caller.sessions is None:
        return ""
    if not where.session and len(caller.sessions) > 1:
        raise Forbidden(problem=f"name one of your sessions in where: session is {' or '.join(sorted(caller.sessions))}")
    return own_session(caller, where.session or None)
