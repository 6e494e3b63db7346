"""The application: every router, one guard around all of them, one form of errors."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from conductor import __version__
from conductor.service import errors
from conductor.service.access import COOKIE, Access, Auth
from conductor.service.keyring import Keyring
from conductor.service.limits import Guard, Receive, Scope, Send
from conductor.service.metrics import Metrics
from conductor.service.quick import BODY, QuickRoute
from conductor.service.recording import Recorder
from conductor.service.replies import ERROR_SCHEMA, ERRORS
from conductor.service.stopping import stopped_at_the_end

if TYPE_CHECKING:
    from conductor.broker.conductor import Conductor

__all__ = ["Service", "asgi"]

# Runs first: routes are tried in order.
_ROUTES = (
    "runs", "moving", "listing", "health", "login", "events", "batches", "purge", "operations", "gates", "schedules", "sessions",
    "catalogue", "naming",
)
_NEEDS = {"listing": "conductor.runs.finding"}


_TEXT = """Durable workflow runs over HTTP. Send `Authorization: Bearer TOKEN`. Every error is `{"error": {"code", "message", "hint"}}`.
Every answer has the header `Conductor-Epoch`, which changes when the store was wiped or set back."""


class Service(FastAPI):
    """The framework's app inside our guard."""

    guard: Guard

    def lifespan(self, _parent: Any = None) -> AbstractAsyncContextManager[None]:
        """For the application that mounts this one: `FastAPI(lifespan=service.lifespan)`, or around its own. A mounted app hears nothing of
        the end of its server, and streams would keep that from ending."""
        return stopped_at_the_end(self.stop, self.close)

    def stop(self) -> None:
        """Tell every stream to go on at another service. From any thread, and from a handler of signals."""
        streams = getattr(self.state, "streams", None)
        if streams is not None and not streams.loop.is_closed():
            streams.loop.call_soon_threadsafe(streams.stop)

    def close(self) -> None:
        """Write what is left of the record."""
        self.state.recorder.close()

    def openapi(self) -> dict[str, Any]:
        """The document, with the form of errors and the ways to say who one is."""
        if self.openapi_schema is None:
            told = super().openapi()
            parts = told.setdefault("components", {})
            parts.setdefault("schemas", {})["Error"] = ERROR_SCHEMA
            parts["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer"}, "login": {"type": "apiKey", "in": "cookie", "name": COOKIE},
            }
            told["security"] = [{"token": []}, {"login": []}]
            self._bring_back_nulls(told)
        return self.openapi_schema or {}

    def _bring_back_nulls(self, told: dict[str, Any]) -> None:
        """The framework leaves out of its document whatever is null, in examples too, which then show answers that are never given."""
        for route in self.routes:
            if not isinstance(route, APIRoute) or not route.include_in_schema:
                continue
            for status, answer in route.responses.items():
                for kind, content in answer.get("content", {}).items():
                    for method in (route.methods or ()) if "example" in content else ():
                        shown = told["paths"][route.path_format][method.lower()]["responses"][str(status)]
                        shown["content"][kind]["example"] = content["example"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        await self.guard(scope, receive, send)


def asgi(conductor: Conductor, *, auth: Auth | None = None) -> Service:
    """The service as an ASGI app, to be run by `conductor serve` or mounted: `app.mount("/conductor", service)`, with `service.lifespan`
    as the lifespan of what mounts it."""
    app = Service(
        title="Conductor", version=__version__, description=_TEXT, docs_url=None, redoc_url=None, openapi_url=None,
        lifespan=lambda app: app.lifespan(),
        redirect_slashes=False,  # a redirect would be built from `Host`, and would send a token to whoever stands there
    )
    store = conductor.engine.store
    app.state.conductor = conductor
    app.state.access = Access(Keyring(store), auth)
    app.state.recorder = Recorder(store, BODY)
    app.state.metrics = Metrics(conductor.engine, app.state.recorder)
    errors.install(app)
    for name in _ROUTES:
        module = f"conductor.service.routes.{name}"
        if importlib.util.find_spec(module) and importlib.util.find_spec(_NEEDS.get(name, module)):
            _include(app, importlib.import_module(module).router)
    quick = {(method, route.path): route.answer for route in app.routes if isinstance(route, QuickRoute) for method in route.methods or ()}
    app.guard = Guard(super(Service, app).__call__, app.state.access, conductor.settings, app.state.recorder, quick)
    return app


def _include(app: Service, router: APIRouter) -> None:
    """The routes themselves, in one flat list: an included router would be one more thing that each request walks through."""
    for route in _within(router):
        route.responses = {**ERRORS, **route.responses}
        route.status_code = route.status_code or 200  # the document cannot tell it from a response class of our own
    app.router.routes.extend(router.routes)


def _within(router: APIRouter) -> Iterator[APIRoute]:
    for route in router.routes:
        if isinstance(route, APIRoute):
            yield route
        elif inner := getattr(route, "original_router", None):
            yield from _within(inner)
