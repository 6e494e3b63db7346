"""Lists of runs. The older name of the route answers the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from conductor.runs.finding import Where, find
from conductor.service.access import Caller, Reader, Served
from conductor.service.replies import Responses, example, reply
from conductor.service.routes.runs import ROW

__all__ = ["router"]

router = APIRouter(tags=["runs"])

_FILTERS = {"parameters": [*Where.openapi_parameters()]}
_LISTED: Responses = {200: example("runs, newest first; with a cursor there may be more", {"runs": [ROW], "cursor": None})}


@router.get("/v1/runs", summary="List runs", responses=_LISTED, openapi_extra=_FILTERS)
@router.get("/v1/handlers", summary="List runs, by the older name", responses=_LISTED, openapi_extra=_FILTERS)
def list_runs(
    request: Request, served: Served, caller: Reader, limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    cursor: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Runs that match every filter, newest first. Unknown filters and values are refused. A page may be short and still have a cursor."""
    asked = {name: value for name, value in request.query_params.items() if name not in ("limit", "cursor")}
    found = find(served.engine, Where.parse(_bound(asked, caller)), cursor=cursor, limit=limit)
    return reply({"runs": [row for row in found.rows if caller.sees(str(row["session"]))], "cursor": found.cursor or None})


def _bound(asked: Mapping[str, str], caller: Caller) -> dict[str, str]:
    """A caller bound to one session asks for that one; rows of sessions that are not its own are left out in any case."""
    if caller.sessions is not None and len(caller.sessions) == 1 and "session" not in asked:
        return {**asked, "session": next(iter(caller.sessions))}
    return dict(asked)
