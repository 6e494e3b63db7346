"""The service of `tests.support.app` mounted into an application of its users' own: `python -m uvicorn tests.support.mounted:app`."""

from __future__ import annotations

from fastapi import FastAPI

from conductor.service.access import ALL_SCOPES, Caller
from tests.support.app import conductor

__all__ = ["app"]

service = conductor.asgi(auth=lambda _request: Caller("shop", ALL_SCOPES))
app = FastAPI(lifespan=service.lifespan)
app.mount("/jobs", service)
