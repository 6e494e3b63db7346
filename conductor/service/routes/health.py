"""How the service and the store behind it are: for supervisors, for Prometheus, for whoever asks who did what."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response

from conductor import __version__
from conductor.errors import ConductorError
from conductor.runs.doctor import examine, found_durability
from conductor.service.access import Access, Admin, Reader, Served
from conductor.service.metrics import CONTENT_TYPE, Metrics
from conductor.service.replies import example, reply
from conductor.store.notices import Unreachable

__all__ = ["router"]

router = APIRouter(tags=["health"])

_DEED = {
    "at": 1_753_000_000_000, "id": "1753000000000-0", "actor": "ci", "action": "POST /v1/runs/{run_id}/cancel",
    "target": "/v1/runs/01908f2e-7c1a-7b3e-9d55-3f1c5e0a7b05/cancel", "reason": "wrong order", "status": 200,
}


@router.get("/v1/health", summary="Whether the service lives", responses={200: example("it does", {"status": "ok"})})
async def health() -> Response:
    """Says nothing about the store, so that a supervisor does not restart a service because Redis is away. Needs no token."""
    return reply({"status": "ok"})


@router.get("/v1/ready", summary="Whether the service can work", responses={
    200: example("it can; details only with scope read", {"status": "ready"}), 503: example("it cannot", {"status": "unavailable"}),
})
async def ready(request: Request, served: Served) -> Response:
    """Whether the store answers and may be trusted with runs. Needs no token; with one of scope read it says more."""
    try:
        told = await run_in_threadpool(_ready, served)
    except (*Unreachable, ConductorError):
        return reply({"status": "unavailable"}, 503, {"Retry-After": "1"})
    seen = told if await _may_read(request) else {"status": told["status"]}
    return reply(seen, 200 if told["status"] == "ready" else 503)


async def _may_read(request: Request) -> bool:
    access: Access = request.app.state.access
    try:
        return "read" in (await access.caller(request)).scopes
    except (ConductorError, *Unreachable):
        return False


def _ready(served: Served) -> dict[str, Any]:
    store, settings = served.engine.store, served.settings
    checks = examine(store.client(), settings)
    failed = [{"check": check.name, "found": check.found, "remedy": check.remedy} for check in checks if check.status == "failed"]
    noted, now = store.last_sweeps()
    return {
        "status": "unavailable" if failed else "ready", "version": __version__, "namespace": settings.namespace, "store": store.url,
        "durability": found_durability(store.client(), settings) or "unknown", "epoch": store.identity(), "failed": failed,
        "sweeps": {name: round((now - at) / 1000, 1) for name, at in sorted(noted.items())},
    }


@router.get("/metrics", summary="Metrics for Prometheus", response_class=PlainTextResponse)
def metrics(request: Request, _caller: Reader) -> Response:
    """Counts and ages with fixed labels: no id, no text of a user. What it costs to read them is paid at most every two seconds."""
    shown: Metrics = request.app.state.metrics
    return Response(shown.render(), media_type=CONTENT_TYPE)


@router.get("/v1/audit", summary="Who did what", responses={200: example("deeds, newest first", {"deeds": [_DEED], "cursor": None})})
def audit(
    served: Served, _caller: Admin, limit: Annotated[int, Query(ge=1, le=1000)] = 100, cursor: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Every change that was made through the service, with its reason. Some ten thousand are kept."""
    deeds = served.engine.store.deeds(before=cursor, limit=limit)
    return reply({"deeds": [deed.to_json() for deed in deeds], "cursor": deeds[-1].place if len(deeds) == limit else None})


@router.get("/v1/openapi.json", summary="This document", include_in_schema=False)
async def openapi(request: Request, _caller: Reader) -> Response:
    return reply(request.app.openapi())
