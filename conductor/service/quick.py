"""A route for what must be quick: the framework shows it in the document, and the guard calls it without the framework's layers.

For each request the framework walks its layers, its routes and the tree of an endpoint's dependencies, and reads the body once more: that
costs more than a start. Here the scope is checked, the body that the guard has read is validated by the same model, and the endpoint is
called, in that order.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from conductor.service.access import allowed
from conductor.service.errors import bad_request

__all__ = ["BODY", "QuickRoute"]

BODY = "conductor.body"  # where the guard leaves the checked value
_LONGEST_KEY = 512
_threads = ThreadPoolExecutor(16, "conductor-quick")  # a plain pool: the framework's costs half as much again for each call


class QuickRoute(APIRoute):
    """Of an endpoint that takes `served`, `caller` (scope write), `body` (of `model`) and the header Idempotency-Key, and nothing else.
    It has one method and no parameter in its path."""

    model: ClassVar[type[BaseModel]]

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        """What `handle` would do, for a scope that the guard has checked."""
        scope["route"] = self
        request = Request(scope, receive)
        caller = allowed(request, "write")
        body, key = self._body(scope), request.headers.get("idempotency-key")
        if key is not None and len(key) > _LONGEST_KEY:
            raise _wrong(("header", "idempotency-key"), f"String should have at most {_LONGEST_KEY} characters")
        loop = asyncio.get_running_loop()
        response = await loop.run_in_executor(_threads, self.endpoint, request.app.state.conductor, caller, body, key)
        await response(scope, receive, send)

    def _body(self, scope: Any) -> BaseModel:
        if BODY not in scope:
            raise _wrong(("body",), "Field required")
        try:
            return self.model.model_validate(scope[BODY])
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False, include_context=False)[0]
            raise _wrong(("body", *first["loc"]), first["msg"]) from None


def _wrong(place: tuple[int | str, ...], problem: str) -> Exception:
    return bad_request(RequestValidationError([{"loc": place, "msg": problem}]))
