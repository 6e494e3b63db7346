"""How the service and the store behind it are: for supervisors, for Prometheus, for whoever asks who did what."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response

from conductor import __version__
from conductor.errors import ConductorError
from conductor.runs.doctor import Check, examine, found_durability
from conductor.runs.parking import why_not_parking
from conductor.runs.scopes import holds_json
from conductor.service.access import Access, Admin, Reader, Served
from conductor.service.metrics import CONTENT_TYPE, Metrics
from conductor.service.replies import example, reply
from conductor.service.shown_upkeep import Audit, Health, Ready
from conductor.store.notices import Unreachable
from conductor.sweeps.checkpoints import LATE_MS, lag_ms

__all__ = ["router"]

router = APIRouter(tags=["health"])

_LATE = "see to the archive's load, and that workers run"

_DEED = {
    "at": 1_753_000_000_000, "id": "1753000000000-0", "actor": "ci", "action": "POST /v1/runs/{run_id}/cancel",
    "target": "/v1/runs/01908f2e-7c1a-7b3e-9d55-3f1c5e0a7b05/cancel", "reason": "wrong order", "status": 200,
}


@router.get("/v1/health", summary="Whether the service lives", responses={200: example("it does", {"status": "ok"}, Health)})
async def health() -> Response:
    """Says nothing about the store, so that a supervisor does not restart a service because Redis is away. Needs no token."""
    return reply({"status": "ok"})


_READY = {
    "status": "ready", "health": "red", "version": __version__, "namespace": "shop", "store": "redis://valkey:6379/0",
    "durability": "always", "epoch": "9f2c4e1ab07d3358", "failed": [{
        "check": "checkpoints", "found": "12.4 s behind", "remedy": "see to the archive's load, and that workers run",
    }],
    "holds": {"queue:gpu": {"since": 1_753_000_000_000, "reason": "driver update"}}, "parking": {"on": True, "why": None},
    "checkpoint_lag_seconds": 12.4, "sweeps": {"retries": 0.8, "stalled": 1.1},
}


@router.get("/v1/ready", summary="Whether the service can work", responses={
    200: example("it can; without scope read only `status` and `health` are told", _READY, Ready),
    503: example("it cannot", {"status": "unavailable", "health": "red"}, Ready),
})
async def ready(request: Request, served: Served) -> Response:
    """Whether the store answers and may be trusted with runs. Needs no token; with one of scope read it says more: what is paused, whether
    idle runs are parked, how far checkpoints lag. `health` is `red` where something is wrong that keeps no request from being served, as
    checkpoints more than five seconds behind; such a service stays ready, because taking it away would mend nothing."""
    try:
        told = await run_in_threadpool(_ready, served)
    except (*Unreachable, ConductorError):
        return reply({"status": "unavailable", "health": "red"}, 503, {"Retry-After": "1"})
    seen = told if await _may_read(request) else {name: told[name] for name in ("status", "health")}
    return reply(seen, 200 if told["status"] == "ready" else 503)


async def _may_read(request: Request) -> bool:
    access: Access = request.app.state.access
    try:
        return "read" in (await access.caller(request)).scopes
    except (ConductorError, *Unreachable):
        return False


def _ready(served: Served) -> dict[str, Any]:
    store, settings = served.engine.store, served.settings
    failed = [check for check in examine(store.client(), settings) if check.status == "failed"]
    lag = lag_ms(served.engine) if served.engine.archive.configured else None
    wrong = [*failed, *([Check("checkpoints", "failed", f"{lag / 1000:.1f} s behind", _LATE)] if lag is not None and lag > LATE_MS else [])]
    (noted, now), why = store.last_sweeps(), why_not_parking(served.engine)
    return {
        "status": "unavailable" if failed else "ready", "health": "red" if wrong else "green", "version": __version__,
        "namespace": settings.namespace, "store": store.url,
        "durability": found_durability(store.client(), settings) or "unknown", "epoch": store.identity(),
        "failed": [{"check": check.name, "found": check.found, "remedy": check.remedy} for check in wrong],
        "holds": holds_json(served.engine), "parking": {"on": not why, "why": why or None},
        "checkpoint_lag_seconds": None if lag is None else round(lag / 1000, 1),
        "sweeps": {name: round((now - at) / 1000, 1) for name, at in sorted(noted.items())},
    }


@router.get("/metrics", summary="Metrics for Prometheus", response_class=PlainTextResponse)
def metrics(request: Request, _caller: Reader) -> Response:
    """Counts and ages with fixed labels: no id, no text of a user. What it costs to read them is paid at most every two seconds."""
    shown: Metrics = request.app.state.metrics
    return Response(shown.render(), media_type=CONTENT_TYPE)


@router.get("/v1/audit", summary="Who did what", responses={200: example("deeds, newest first", {"deeds": [_DEED], "cursor": None}, Audit)})
def audit(
    served: Served, _caller: Admin, limit: Annotated[int, Query(ge=1, le=1000)] = 100, cursor: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Every change that was made through the service, with its reason. Some ten thousand are kept."""
    deeds = served.engine.store.deeds(before=cursor, limit=limit)
    return reply({"deeds": [deed.to_json() for deed in deeds], "cursor": deeds[-1].place if len(deeds) == limit else None})


@router.get("/v1/openapi.json", summary="This document", include_in_schema=False)
async def openapi(request: Request, _caller: Reader) -> Response:
    return reply(request.app.openapi())
