"""Events: of one run, of a session's inbox, and of all runs as they happen. As a stream (`Accept: text/event-stream`) or, of one run, as
pages of JSON.

The id of an event is its number, so a reader that comes back with `Last-Event-ID` gets each event once; what a browser sends by itself goes
before the `after=` that stands in its URL. How streams work is told in `conductor/service/streams.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers
from starlette.routing import Match

from conductor.errors import BadInput, UnknownRun
from conductor.runs.history import HistoryPage
from conductor.service.access import Caller, Reader, Served
from conductor.service.errors import Refusal, UnknownFilter
from conductor.service.forms import Limit, Word
from conductor.service.ownership import own_run
from conductor.service.replies import Responses, example
from conductor.service.routes.sessions import known_session
from conductor.service.shown_runs import EventsPage
from conductor.service.streams import histories_of
from conductor.service.tail import TailTeller
from conductor.service.tellers import InboxTeller, RunTeller
from conductor.service.telling import EventStream, Teller
from conductor.state import RunState
from conductor.store.following import place_of

if TYPE_CHECKING:
    from conductor.broker.conductor import Conductor

from conductor.service.segments import SegmentRoute

__all__ = ["router"]

_NUMBER = re.compile(r"[0-9]{1,15}\Z")  # no number that JavaScript would round
_NOWHERE = 10**15  # behind every log: the page says only how long it is
_STREAM: Responses = {200: {"description": "events as they come", "content": {"text/event-stream": {"schema": {"type": "string"}}}}}
_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
_ONLY: Responses = {**_STREAM, 406: {"description": "this is told as a stream of events only", "content": _ERROR}}


LastId = Annotated[str | None, Header(alias="Last-Event-ID", description="the id of the last event that was read")]


class NotAcceptable(Refusal):
    """this is told as a stream of events only"""

    status = 406
    hint = "Send the header Accept: text/event-stream; GET /v1/runs lists runs as JSON."


class StreamRoute(SegmentRoute):
    """Matches only who asks for a stream of events; all others go on to the next route of the same path."""

    def matches(self, scope: Any) -> tuple[Match, Any]:
        if not _wants_stream(Headers(scope=scope)):
            return Match.NONE, {}
        return super().matches(scope)


router = APIRouter(route_class=SegmentRoute, prefix="/v1", tags=["events"])
streams = APIRouter(route_class=StreamRoute)


_PAGE = example("a page, or a stream", {
    "events": [{"number": 1, "kind": "started", "at": 1_753_000_000_000, "generation": 1}], "last": 1, "end": None,
}, EventsPage)
_PAGE["content"] |= _STREAM[200]["content"]


@router.get("/runs/{run_id}/events", responses={200: _PAGE}, response_class=JSONResponse)
def run_events(
    run_id: str, request: Request, caller: Reader, conductor: Served,
    after: Annotated[Word, Query(description="a number: only events behind it; `now`: only what comes")] = "0", limit: Limit = 100,
    last_event_id: LastId = None,
) -> Response:
    """The history of a run. As JSON a page: `last` is where to read on, `end` how the run ended if this is the last page. As a stream all
    of it, and what comes, until the run has ended: then event `end`, with state, reason and generation."""
    own_run(conductor, caller, run_id)
    if not _wants_stream(request.headers):
        place, page = _read(request, run_id, after, "after", limit)
        last = page.events[-1]["number"] if page.events else place
        return JSONResponse({"events": page.events, "last": last, "end": None if page.end is None else page.end.to_json()})
    if "limit" in request.query_params:
        raise UnknownFilter(problem="parameter 'limit' goes with pages of JSON, not with a stream", field="limit")
    place, page = _read(request, run_id, *((after, "after") if last_event_id is None else (last_event_id, "Last-Event-ID")), 1)
    return _stream(request, caller, RunTeller(run_id, page.session, place))


def _read(request: Request, run_id: str, wanted: str, field: str, limit: int) -> tuple[int, HistoryPage]:
    """The place that is wanted, checked against what the run has, and what stands behind it."""
    place = _number(wanted, field)
    if place is None:
        place = _page(request, run_id, _NOWHERE, 1).total
    page = _page(request, run_id, place, limit)
    if place > page.total:
        problem = f"run {run_id} has {page.total} events, so {place} is none of them; begin again with after=0"
        raise BadInput(what="request", field=field, problem=problem)
    return place, page


def _page(request: Request, run_id: str, after: int, limit: int) -> HistoryPage:
    page = histories_of(request.app).page(run_id, after, limit)
    if page is None:
        raise UnknownRun(run_id=run_id, namespace=request.app.state.conductor.settings.namespace)
    return page


def _number(text: str, field: str) -> int | None:
    """The number of an event; None is now."""
    if text == "now" and field == "after":
        return None
    if not _NUMBER.match(text):
        raise BadInput(what="request", field=field, problem="the number of an event of this run was expected")
    return int(text)


@router.get("/events", responses=_ONLY, response_class=EventStream)
def all_events(
    request: Request, caller: Reader, workflow: Word = "",
    state: Annotated[Word, Query(description="only runs that come into this state")] = "", last_event_id: LastId = None,
) -> Response:
    """What happens to all runs, live: event `state` when a run has come into a state, `gap` where some may be missing. A view, not a log:
    it begins now, and nobody can come back to a place in it."""
    if not _wants_stream(request.headers):
        raise NotAcceptable
    if state and state not in set(RunState):
        raise UnknownFilter(problem=f"state {state!r} is unknown; known are {', '.join(RunState)}", field="state")
    if last_event_id:
        raise BadInput(what="request", field="Last-Event-ID", problem="what happens to all runs is told live and has no places")
    return _stream(request, caller, TailTeller(caller, workflow=workflow, state=state))


@router.get("/sessions/{session}/inbox/events", responses=_ONLY, response_class=EventStream)
def inbox_events(session: str, request: Request, caller: Reader, conductor: Served, last_event_id: LastId = None) -> Response:
    """The messages of a session that nobody has acknowledged, and those that come; ids are those of the messages. Who comes back with
    `Last-Event-ID` goes on behind that message."""
    if not _wants_stream(request.headers):
        raise NotAcceptable
    return _inbox_stream(session, request, caller, conductor, last_event_id)


@streams.get("/sessions/{session}/inbox", include_in_schema=False)
def inbox_as_stream(session: str, request: Request, caller: Reader, conductor: Served, last_event_id: LastId = None) -> Response:
    """The same under the path of the inbox itself."""
    return _inbox_stream(session, request, caller, conductor, last_event_id)


router.include_router(streams)


def _inbox_stream(session: str, request: Request, caller: Caller, conductor: Conductor, last: str | None) -> EventStream:
    known_session(caller, session)
    message_id = _as_text(last or "")
    if len(message_id) > 512:
        raise BadInput(what="request", field="Last-Event-ID", problem="the id of a message was expected")
    place = place_of(conductor.engine.store, session, message_id) if message_id else ""
    return _stream(request, caller, InboxTeller(session, place))


def _as_text(header: str) -> str:
    """Ids may hold any sign; headers arrive as bytes."""
    try:
        return header.encode("latin-1").decode("utf-8")
    except UnicodeError:
        raise BadInput(what="request", field="Last-Event-ID", problem="it is no UTF-8") from None


def _wants_stream(headers: Headers) -> bool:
    """Whether the caller named streams of events among what it accepts."""
    kinds = (part.split(";") for part in headers.get("accept", "").lower().split(","))
    return any(kind[0].strip() == "text/event-stream" and not any(_is_zero(more) for more in kind[1:]) for kind in kinds)


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name.strip() == "q" and re.fullmatch(r"0(\.0*)?", value.strip()) is not None


def _stream(request: Request, caller: Caller, teller: Teller) -> EventStream:
    return EventStream(teller, caller, lambda: request.app.state.access.caller(request))
