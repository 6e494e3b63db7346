"""Lists of runs. The older name of the route answers the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from conductor.errors import BadInput
from conductor.runs.finding import Where, find
from conductor.service.access import Reader, Served
from conductor.service.errors import UnknownFilter
from conductor.service.replies import Responses, example, reply
from conductor.service.routes.runs import ROW
from conductor.service.shown_runs import Runs

__all__ = ["router"]

router = APIRouter(tags=["runs"])

_FILTERS = {"parameters": [*Where.openapi_parameters()]}
_LISTED: Responses = {200: example("runs, newest first; with a cursor there may be more", {
    "runs": [ROW], "cursor": None, "now": 1_753_000_060_000,
}, Runs)}


@router.get("/v1/runs", summary="List runs", responses=_LISTED, openapi_extra=_FILTERS)
@router.get("/v1/handlers", summary="List runs, by the older name", responses=_LISTED, openapi_extra=_FILTERS)
def list_runs(
    request: Request, served: Served, caller: Reader, limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    cursor: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Runs that match every filter, newest first. Unknown filters and values are refused. A page may be short and still have a cursor."""
    asked = {name: value for name, value in request.query_params.items() if name not in ("limit", "cursor")}
    found = find(served.engine, _where(asked), cursor=cursor, limit=limit, within=caller.sessions)
    told = {"runs": found.rows, "cursor": found.cursor or None, "now": found.now}
    return reply(told | ({"warning": found.warning} if found.warning else {}))


def _where(asked: Mapping[str, str]) -> Where:
    try:
        return Where.parse(asked)
    except BadInput as error:
        raise UnknownFilter(problem=f"filter {error.field}: {error.problem}", field=error.field) from None
