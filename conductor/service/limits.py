"""The guard around every request: sizes and times first, who calls next, the body last; and what every answer carries.

Trust: nothing of a request is believed before it has passed here. The head is bounded before anything is looked up, a caller is known
before a byte of the body is read, a body is bounded in bytes and seconds and must be one JSON value that means the same to everybody: no
duplicate keys, no NaN, no number that overflows, no half surrogate, no depth that a parser may choke on. `Host` and `Forwarded` are never
used to build anything. No CORS header is ever sent.
Failure: what goes wrong inside is answered once, in the form of `errors.py`, and logged without what the caller sent.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from fastapi import Request

from conductor.errors import ConductorError, StoreUnreachable
from conductor.service.access import CALLER, Access
from conductor.service.errors import BadJson, TooLarge, TooSlow, UnsupportedMediaType, error_response, unexpected
from conductor.service.quick import BODY
from conductor.store.notices import Unreachable

if TYPE_CHECKING:
    from conductor.service.recording import Recorder
    from conductor.settings import Settings

__all__ = ["BODY", "Guard", "read_json"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PUBLIC = frozenset({"/v1/health", "/v1/ready", "/v1/login"})
_LONGEST_URL, _LONGEST_HEAD, _MOST_HEADERS = 8_192, 32_768, 100
_BODILESS = ("GET", "HEAD", "OPTIONS")
_DEEPEST = 100  # as the codec has it
_MAYBE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_FIXED = ((b"x-content-type-options", b"nosniff"),)
_UNLESS_SAID = ((b"cache-control", b"no-store"), (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"))


class Guard:
    """One ASGI layer outside everything. Layers cost, so there is no second one."""

    def __init__(self, app: App, access: Access, settings: Settings, recorder: Recorder, quick: Mapping[tuple[str, str], App]) -> None:
        self._app = app
        self._quick = quick
        self._access = access
        self._largest = settings.service_max_body_bytes
        self._patience = settings.service_body_seconds
        self._recorder = recorder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            elif scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        answer = _Answer(send, self._access, scope.get("root_path", ""))
        began = time.perf_counter()
        try:
            receive = await self._checked(scope, receive)
            app = self._quick.get((scope["method"], _path(scope)), self._app)
            await app(scope, receive, answer if scope["method"] in _BODILESS else self._recorder.around(scope, answer))
        except ConductorError as error:
            await self._refuse(answer, error)
        except Unreachable as error:
            await self._refuse(answer, StoreUnreachable(url=self._access.keyring.url, problem=type(error).__name__))
        except _Left:
            return
        except Exception as error:
            if not answer.begun:
                await unexpected(error)(scope, receive, answer)
        self._recorder.count(scope, answer.status, time.perf_counter() - began)

    async def _refuse(self, answer: _Answer, error: ConductorError) -> None:
        if not answer.begun:
            answer.closing = isinstance(error, TooLarge | TooSlow)
            await error_response(error)({"type": "http"}, _nothing, answer)

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        """Head, caller, body; gives a `receive` that plays the body back."""
        _check_head(scope)
        if _path(scope) not in PUBLIC:
            scope[CALLER] = await self._access.caller(Request(scope))
        if scope["method"] in _BODILESS:
            return receive
        body = await self._body(scope, receive)
        if body:
            scope[BODY] = read_json(body)
        return _playing(body, receive)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > self._largest:
            raise TooLarge(what="the body", limit=self._largest)
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise UnsupportedMediaType(found=_shown(headers[b"content-encoding"]))
        kind = headers.get(b"content-type", b"")
        if kind and not _is_json(kind):
            raise UnsupportedMediaType(found=_shown(kind))
        try:
            async with asyncio.timeout(self._patience):
                body = await self._whole(receive)
        except TimeoutError:
            raise TooSlow(seconds=self._patience) from None
        if body and not kind:
            raise UnsupportedMediaType(found="")
        return body

    async def _whole(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Left
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._largest:
                raise TooLarge(what="the body", limit=self._largest)
            if not message.get("more_body"):
                return parts[0] if len(parts) == 1 else b"".join(parts)


class _Left(Exception):
    """The caller went away before its request was whole."""


class _Answer:
    """Sends an answer with the headers that every answer has."""

    __slots__ = ("_access", "_root", "_send", "begun", "closing", "status")

    def __init__(self, send: Send, access: Access, root: str) -> None:
        self._send = send
        self._access = access
        self._root = root.rstrip("/").encode()
        self.begun = self.closing = False
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun, self.status = True, message["status"]
            if self.status == 404:
                await self._access.keyring.meet_anew()
            headers = list(message.get("headers", ()))
            if self._root:  # where the service is mounted, a place in it begins there
                headers = [(name, self._root + value if name == b"location" else value) for name, value in headers]
            said = {name.lower() for name, _ in headers}
            headers += _FIXED
            headers += [pair for pair in _UNLESS_SAID if pair[0] not in said]
            if identity := self._access.keyring.identity:
                headers.append((b"conductor-epoch", identity.encode()))
            if self.closing:
                headers.append((b"connection", b"close"))
            message["headers"] = headers
        await self._send(message)


def _path(scope: Scope) -> str:
    """Below the place where the service is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


def _playing(body: bytes, receive: Receive) -> Receive:
    """The body again, for whoever asks; after it what the server says, which is when the caller leaves."""
    played = False

    async def play() -> Message:
        nonlocal played
        if played:
            return await receive()
        played = True
        return {"type": "http.request", "body": body, "more_body": False}

    return play


def _check_head(scope: Scope) -> None:
    if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > _LONGEST_URL:
        raise TooLarge(what="the URL", limit=_LONGEST_URL)
    headers = scope["headers"]
    if len(headers) > _MOST_HEADERS or sum(len(name) + len(value) for name, value in headers) > _LONGEST_HEAD:
        raise TooLarge(what="the head of the request", limit=_LONGEST_HEAD)


def _is_json(kind: bytes) -> bool:
    media, _, more = kind.decode("latin-1").lower().partition(";")
    return media.strip() == "application/json" and more.strip().replace('"', "") in ("", "charset=utf-8")


def _shown(value: bytes) -> str:
    return value[:80].decode("latin-1")


def read_json(body: bytes) -> Any:
    """The value of a body, if every reader would read the same."""
    try:
        text = body.decode()
        if body.count(b"[") + body.count(b"{") > _DEEPEST:
            _check_depth(text)
        value = json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_finite)
        if _MAYBE_SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode()
    except BadJson:
        raise
    except UnicodeDecodeError:
        raise BadJson(problem="it is not UTF-8") from None
    except UnicodeEncodeError:
        raise BadJson(problem="it has half a surrogate pair") from None
    except json.JSONDecodeError as error:
        raise BadJson(problem=f"{error.msg} at character {error.pos}") from None
    except (ValueError, RecursionError):
        raise BadJson(problem="it has a number that is too long, or is too deep") from None
    return value


def _check_depth(text: str) -> None:
    """Counted outside of strings, before any parser goes down."""
    depth = 0
    for found in re.finditer(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', text, re.DOTALL):
        sign = found[0]
        depth += (sign in "[{") - (sign in "]}")
        if depth > _DEEPEST:
            raise BadJson(problem=f"it is more than {_DEEPEST} levels deep")


def _pairs(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    listed = list(pairs)
    told = dict(listed)
    if len(told) != len(listed):
        raise BadJson(problem="an object has the same key twice")
    return told


def _constant(name: str) -> Any:
    raise BadJson(problem=f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise BadJson(problem="it has a number that is too large")
    return number
