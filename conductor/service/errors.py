"""What went wrong, as JSON: `{"error": {"code", "message", "hint", "details"}}`. The code is that of the `ConductorError`, and is stable.

Every error leaves through here, so nothing that was not meant for a caller does: messages are redacted, an unexpected error is named by an
id that stands in the log beside its traceback, and nothing else is told.
"""

from __future__ import annotations

import json
import logging
import traceback
import uuid
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from conductor.errors import BadInput, ConductorError, StoreUnreachable, redact
from conductor.service.hints import hint_for
from conductor.store.notices import Unreachable

__all__ = [
    "BadJson", "Forbidden", "Refusal", "TooLarge", "TooManyFailures", "TooSlow", "Unauthenticated", "UnknownFilter",
    "UnsupportedMediaType", "error_response", "install", "status_of", "unexpected",
]

logger = logging.getLogger(__name__)


class Refusal(ConductorError):
    """the request was refused: {problem}"""

    status = 400
    hint = "Correct the request and send it again."


class BadJson(Refusal):
    """the body is not JSON: {problem}"""

    hint = "Send one JSON value in UTF-8: no duplicate keys, no NaN, at most 100 levels deep."


class UnsupportedMediaType(Refusal):
    """the body has content type {found!r}"""

    status = 415
    hint = "Send JSON with the header Content-Type: application/json."


class TooLarge(Refusal):
    """{what} is larger than {limit} bytes"""

    status = 413
    hint = "Keep large values outside and send a reference to them, or raise conductor_service_max_body_bytes."


class TooSlow(Refusal):
    """the body did not arrive within {seconds} s"""

    status = 408
    hint = "Send the request again."


class UnknownFilter(Refusal):
    """{problem}"""

    status = 422
    hint = "Unknown parameters and values are refused rather than ignored; the OpenAPI document lists those of this route."


class Unauthenticated(Refusal):
    """this request names nobody: {problem}"""

    status = 401
    hint = "Send the header Authorization: Bearer TOKEN; `conductor tokens add NAME` makes a token."


class Forbidden(Refusal):
    """{problem}"""

    status = 403
    hint = "`conductor tokens list` shows which scopes and sessions a token has."


class TooManyFailures(Refusal):
    """too many failed attempts from this address"""

    status = 429
    hint = "Wait as long as the header Retry-After says, then send a token that is valid."


_STATUS: Mapping[str, int] = {
    "key_conflict": 409, "conflict": 409, "not_failed": 409, "run_finished": 409, "wait_over": 409, "already_advanced": 409,
    "not_waiting": 409, "not_in_doubt": 409, "run_queued": 409, "was_undone": 409, "fork_refused": 409, "code_not_here": 409,
    "not_healthy": 409, "operation_pending": 409, "operation_failed": 409, "no_archive": 409, "effect_in_doubt": 409,
    "consent_required": 403, "result_expired": 410, "unknown_signal": 422, "unknown_step": 404, "value_too_large": 413,
    "lane_full": 429, "too_many_signals": 429, "retry_after": 429,
    "store_unreachable": 503, "store_full": 503, "archive_unreachable": 503, "blob_unreachable": 503, "unsafe_server": 503,
    "archive_refused": 503, "archive_too_new": 503, "archive_not_installed": 503,
    "bad_input": 422, "declaration_error": 422, "payload_mismatch": 409, "superseded": 409,
}
_RETRY_AFTER = {429: "1", 503: "1"}


def status_of(error: ConductorError) -> int:
    """The HTTP status of an error; one without a rule of its own is 409 if it may pass, else 500."""
    if isinstance(error, Refusal):
        return error.status
    if error.code in _STATUS:
        return _STATUS[error.code]
    if error.code.startswith("unknown_") and error.code != "unknown_format":
        return 404
    return 409 if error.error_kind == "transient" else 500


def error_response(error: ConductorError) -> Response:
    """The one form of every error."""
    status = status_of(error)
    hint = error.hint if isinstance(error, Refusal) else hint_for(error.code, status)
    headers = {"Retry-After": str(error.details.get("retry_after") or _RETRY_AFTER[status])} if status in _RETRY_AFTER else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return render(status, error.code, str(error), hint, _told(error.details), headers)


def render(
    status: int, code: str, message: str, hint: str, details: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None,
) -> Response:
    told: dict[str, Any] = {"code": code, "message": redact(message), "hint": hint}
    if details:
        told["details"] = dict(details)
    # ASCII: what a caller sent may hold half a surrogate pair, which UTF-8 cannot carry.
    return Response(json.dumps({"error": told}), status, headers, media_type="application/json")


def _told(details: Mapping[str, Any]) -> dict[str, Any]:
    """Details that are plain words or numbers, redacted and of bounded length."""
    told: dict[str, Any] = {}
    for name, value in details.items():
        if isinstance(value, bool | int | float):
            told[name] = value
        elif isinstance(value, str) and value:
            told[name] = redact(value)[:500]
    return told


def _conductor(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ConductorError)
    return error_response(error)


def _unreachable(request: Request, error: Exception) -> Response:
    url = request.app.state.conductor.engine.store.url
    return error_response(StoreUnreachable(url=url, problem=type(error).__name__))


def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(bad_request(error))


def bad_request(error: RequestValidationError) -> ConductorError:
    """The first thing that is wrong with a request, by the name of its field. What was sent is not repeated."""
    first = error.errors()[0]
    place, *path = first["loc"] or ("body",)
    field = ".".join(str(part) for part in path) or str(place)
    problem = str(first["msg"])
    if place == "query":
        return UnknownFilter(problem=f"parameter {field}: {problem}", field=field)
    return BadInput(what="request", field=field[:200], problem=problem)


def _http(_request: Request, error: Exception) -> Response:
    """What the framework itself refuses: no such route, wrong method."""
    assert isinstance(error, HTTPException)
    code = {404: "unknown_route", 405: "method_not_allowed", 400: "bad_json"}.get(error.status_code, "refused")
    hint = "Send one JSON value in UTF-8." if code == "bad_json" else "GET /v1/openapi.json lists every route and its methods."
    return render(error.status_code, code, str(error.detail), hint, headers=error.headers)


def _unexpected(_request: Request, error: Exception) -> Response:
    return unexpected(error)


def unexpected(error: BaseException) -> Response:
    """A bug of ours: told by an id, because what it says may hold anything."""
    trouble = uuid.uuid4().hex[:12]
    logger.error("a request failed unexpectedly, error id %s\n%s", trouble, redact("".join(traceback.format_exception(error))))
    return render(500, "internal_error", f"something went wrong here, error id {trouble}", "The service's log says more under this id.")


def install(app: FastAPI) -> None:
    """Every error of the app leaves in this form."""
    app.add_exception_handler(ConductorError, _conductor)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    for kind in Unreachable:
        app.add_exception_handler(kind, _unreachable)
    app.add_exception_handler(Exception, _unexpected)
