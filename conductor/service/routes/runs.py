"""Runs: start one, list them, look at one, ask how it ended. What moves a run stands in `moving.py`, its events in `events.py`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from conductor.declare.starting import StartOptions, start_options
from conductor.errors import BadInput
from conductor.runs.outcome import has_ended, outcome
from conductor.runs.showing import explain_run, show_run
from conductor.runs.start import start
from conductor.service.access import Reader, Served, Writer, spelling_of
from conductor.service.forms import Body
from conductor.service.ownership import own_keys, own_run, own_session
from conductor.service.patience import until
from conductor.service.quick import QuickRoute
from conductor.service.replies import example, reply
from conductor.service.segments import SegmentRoute
from conductor.service.shown_runs import OutcomeShown, RunShown, RunWhy, Started
from conductor.store.notices import glimpse

__all__ = ["router"]

router = APIRouter(route_class=SegmentRoute, tags=["runs"])

_LONGEST_WAIT = 30
RUN = "01908f2e-7c1a-7b3e-9d55-3f1c5e0a7b05"
ROW = {
    "run_id": RUN, "workflow": "order", "state": "running", "reason": "", "generation": 1, "queue": "celery", "priority": 5, "lane": None,
    "session": "alice", "key": "order-42", "tags": ["eu"], "created_at": 1_753_000_000_000, "ended_at": None, "deadline": None,
    "duration_ms": 60_000, "progress_at": 1_753_000_057_000, "idle_since": None, "idle_ms": None, "active_waiters": [], "forked_from": None,
    "parent_id": None, "root_id": None, "starts_at": None, "held": [], "events": 3, "steps_left": 2, "steps_failed": 0, "running": 1,
    "ready": 0,
}
_OUTCOME = {
    "run_id": RUN, "workflow": "order", "session": "alice", "state": "failed", "ended": True, "generation": 1, "reason": "step_failed",
    "ended_at": 1_753_000_004_000, "deadline": None, "last_event": 7, "live_leases": 0, "due": 0, "children": 0,
    "held": [], "limited": False,
    "progress_at": 1_753_000_004_000, "parked": False,
    "error": {
        "code": "run_failed", "message": "run 0190… of workflow order failed: step_failed; failed steps: pay (CardError: declined)",
        "failed": [{"step": "pay", "reason": "permanent", "error": "CardError: declined"}],
    },
    "epoch": "9f2c4e1ab07d3358",
}

Moment = Annotated[str, Field(max_length=64, examples=["2026-01-31T12:00:00Z"])]
Span = Annotated[float, Field(ge=0, le=10**9)]


class Start(Body):
    """A run to be started. A number in `countdown`, `expires` and `deadline` counts seconds from now; a text is a moment (ISO 8601)."""

    workflow: Annotated[str, Field(min_length=1, max_length=256, examples=["order"])]
    input: Annotated[Any, Field(description="what the workflow's input model takes", examples=[{"id": 42}])] = None
    key: Annotated[str | None, Field(max_length=512, description="the same key with the same input is the same run")] = None
    session: Annotated[str | None, Field(max_length=256, description="whom the run belongs to")] = None
    queue: Annotated[str | None, Field(max_length=256)] = None
    priority: Annotated[int | None, Field(ge=0, le=9, description="0 is first")] = None
    tags: Annotated[list[str], Field(max_length=32, default_factory=list)]
    lane: Annotated[str | None, Field(max_length=256)] = None
    countdown: Span | None = None
    eta: Annotated[Moment | int | None, Field(description="a moment, or ms since 1970")] = None
    expires: Span | Moment | None = None
    deadline: Span | Moment | None = None

    def options(self, key: str | None, session: str | None) -> StartOptions:
        what = f"start of workflow {self.workflow[:64]}"
        return start_options(
            self.workflow, key=key, session=session, queue=self.queue, priority=self.priority, tags=self.tags, lane=self.lane,
            countdown=None if self.countdown is None else timedelta(seconds=self.countdown), eta=_moment(self.eta, what, "eta"),
            expires=_span(self.expires, what, "expires"), deadline=_span(self.deadline, what, "deadline"),
        )


def _moment(value: str | int | None, what: str, field: str) -> datetime | None:
    try:
        if isinstance(value, int):
            return datetime.fromtimestamp(value / 1000, UTC)
        return None if value is None else datetime.fromisoformat(value)
    except (ValueError, OverflowError, OSError):
        raise BadInput(what=what, field=field, problem="it is no moment; write 2026-01-31T12:00:00Z, or ms since 1970") from None


def _span(value: float | str | None, what: str, field: str) -> timedelta | datetime | None:
    return _moment(value, what, field) if value is None or isinstance(value, str) else timedelta(seconds=value)


def start_run(
    served: Served, caller: Writer, body: Start, idempotency_key: Annotated[str | None, Header(max_length=512)] = None,
) -> Response:
    """The same key, also as header Idempotency-Key, with the same input and session is the same run; with others it is `key_conflict`."""
    if None not in (body.key, idempotency_key) and body.key != idempotency_key:
        raise BadInput(what="request", field="key", problem="it differs from the header Idempotency-Key; send one of them")
    flow, session = served.workflow(body.workflow), own_session(caller, body.session)
    options = body.options(body.key if idempotency_key is None else idempotency_key, session or None)
    payload = flow.encode_input(body.input, limit=served.payload_limit)
    with own_keys(served, caller):
        accepted = start(served.engine, flow, payload=payload, options=options)
    state = "running" if accepted.new and options.lane is None and flow.lane is None else _state(served, accepted.run_id)
    told = {"run_id": accepted.run_id, "workflow": flow.name, "new": accepted.new, "state": state}
    return reply(told, 201 if accepted.new else 200, {"Location": f"/v1/runs/{accepted.run_id}"})


class StartRoute(QuickRoute):
    """Starting must cost little more than the start."""

    model = Start


router.add_api_route(
    "/v1/runs", start_run, methods=["POST"], summary="Start a run", status_code=201, route_class_override=StartRoute,
    responses={
        201: example("a new run", {"run_id": RUN, "workflow": "order", "new": True, "state": "running"}, Started),
        200: example("the run that this key already has", {
            "run_id": RUN, "workflow": "order", "new": False, "state": "completed",
        }, Started),
    },
)


def _state(served: Served, run_id: str) -> str:
    seen = glimpse(served.engine.store, run_id)
    return seen.state if seen else str(outcome(served.engine, run_id)["state"])


@router.get("/v1/runs/{run_id}", summary="Show a run", responses={200: example("the run, its steps, and why it stands so", {
    **ROW, "now": 1_753_000_060_000, "progress": {"completed": 1, "running": 1, "pending": 1}, "holds": {},
    "steps": [{"index": 0, "name": "check", "kind": "step", "state": "completed"}], "parked": False, "archived": None, "kept_until": None,
    "why": {"sentence": "step pay is running for 3 s", "command": ""},
}, RunShown)})
def show(run_id: str, served: Served, caller: Reader, values: bool = False) -> Response:
    """From the store, or from the archive for one that is parked or has left. `values=true` adds input and result."""
    own_run(served, caller, run_id)
    return reply(show_run(served.engine, run_id, values=values, spelling=spelling_of(served)))


@router.get("/v1/runs/{run_id}/why", summary="Why a run stands so", responses={200: example("in one sentence, and what would move it", {
    "run_id": RUN, "workflow": "order", "state": "paused", "reason": "requested", "sentence": "run 01908f2e of order is paused on request",
    "command": f"conductor resume {RUN}",
}, RunWhy)})
def explain(run_id: str, served: Served, caller: Reader) -> Response:
    """What it waits for or why it ended, and the command that would move it."""
    own_run(served, caller, run_id)
    return reply(explain_run(served.engine, run_id, spelling=spelling_of(served)))


@router.get("/v1/runs/{run_id}/outcome", summary="How a run ended", responses={200: example("the terminal record", _OUTCOME, OutcomeShown)})
async def ask_outcome(
    request: Request, run_id: str, served: Served, caller: Reader, wait: Annotated[float, Query(ge=0, le=_LONGEST_WAIT)] = 0,
) -> Response:
    """The durable record of the end; for a run that has not ended `ended` is false. `wait` waits so many seconds for the end."""
    await run_in_threadpool(own_run, served, caller, run_id)
    told = await until(request, lambda: outcome(served.engine, run_id), has_ended, wait)
    return reply({**told, "epoch": request.app.state.access.keyring.identity})
