"""The application: every router, one guard around all of them, one form of errors."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from conductor import __version__
from conductor.service import errors
from conductor.service.access import Access

if TYPE_CHECKING:
    from conductor.broker.conductor import Conductor

__all__ = ["asgi"]

_ROUTES = ("health", "runs", "events", "batches", "operations", "gates", "schedules", "sessions", "catalogue")


def asgi(conductor: Conductor, *, auth: Any = None) -> FastAPI:
    """The service as an ASGI app, to be run by `conductor serve` or mounted: `app.mount("/conductor", conductor.asgi(auth=who))`."""
    app = FastAPI(title="Conductor", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.conductor = conductor
    app.state.access = Access()
    errors.install(app)
    for name in _ROUTES:
        module = f"conductor.service.routes.{name}"
        if importlib.util.find_spec(module):
            app.include_router(importlib.import_module(module).router)
    return app
