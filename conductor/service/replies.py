"""Answers as they leave: plain JSON, rendered once. The framework's own way would walk every value a second time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

__all__ = ["ERRORS", "ERROR_SCHEMA", "Responses", "example", "reply"]

Responses = dict[int | str, dict[str, Any]]


def reply(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(content), status, headers, "application/json")


def example(description: str, value: Any, model: Any = None) -> dict[str, Any]:
    """An answer as the OpenAPI document shows it: an example, and what every such answer is."""
    told: dict[str, Any] = {"description": description, "content": {"application/json": {"example": value}}}
    return told if model is None else told | {"model": model}


def _error(code: str, message: str, hint: str) -> dict[str, Any]:
    example = {"error": {"code": code, "message": message, "hint": hint}}
    return {"description": message, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}, "example": example}}}


ERRORS: Responses = {
    400: _error("bad_json", "the body is not JSON: Expecting value at character 0", "Send one JSON value in UTF-8."),
    401: _error("unauthenticated", "this request names nobody: there is no token in it", "Send the header Authorization: Bearer TOKEN."),
    403: _error("forbidden", "this needs scope write; ci has read", "`conductor tokens list` shows which scopes a token has."),
    404: _error("unknown_run", "unknown run 0190…: no such run in namespace shop", "Ids come from the service's own answers."),
    409: _error("conflict", "the run has moved on", "Look at it again, then repeat."),
    413: _error("too_large", "the body is larger than 2097152 bytes", "Keep large values outside and send a reference to them."),
    415: _error("unsupported_media_type", "the body has content type 'text/plain'", "Send Content-Type: application/json."),
    422: _error("bad_input", "request refused: priority: Input should be a valid integer", "Correct the field that is named."),
    429: _error("lane_full", "lane orders is full", "Nothing was started; try again later."),
    503: _error("store_unreachable", "the store cannot be reached", "Nothing is lost; repeat the request."),
}
"""What any route may answer instead, for the OpenAPI document."""

ERROR_SCHEMA: dict[str, Any] = {
    "type": "object", "required": ["error"], "properties": {"error": {
        "type": "object", "required": ["code", "message", "hint"], "properties": {
            "code": {"type": "string", "description": "stable; what programs look at"},
            "message": {"type": "string", "description": "one sentence"},
            "hint": {"type": "string", "description": "what to do next"},
            "details": {"type": "object", "description": "names and numbers that the message speaks of"},
        },
    }},
}
