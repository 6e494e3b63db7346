"""Ready-made verifiers: a file, an HTTP resource, a row, a Redis key.

Each is a factory whose result takes `params`: `EffectSpec("invoice", file_content(lambda p: p.path))`. Every argument is a constant or a
function of the parameters. What cannot be looked at raises, and `effects.ask` turns that into indeterminate with the error as its reason.
Absent means that it is not there; partial means that something is there, but not what was promised, as after a write that broke off. Both
are repeated, so that difference is for people.

Libraries are imported when a verifier is asked, not when it is declared: a process that only submits work does not need them.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import inspect
import json as json_format
import os
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from io import BufferedReader
from typing import Any, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from conductor.declare.effects import Verdict

__all__ = ["file_content", "http_get", "redis_key", "sql_row"]

Check: TypeAlias = Callable[[Any], Verdict]

_CHUNK = 65_536
_BODY = 1_048_576
_ROWS = 100
_REDIS_SECONDS = 5.0
_GONE = (404, 410)


class Unclear(Exception):
    """There was an answer, but it does not say whether the effect is there."""


def _given(argument: Any, params: Any, what: str) -> Any:
    """A constant, or what the user's function makes of the parameters."""
    if not callable(argument):
        return argument
    if (value := argument(params)) is None:
        # None would silently drop the expectation, and mere existence would pass for the promised content.
        raise ValueError(f"the function for {what} gave None")
    return value


def _bytes(value: Any) -> bytes:
    return bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else str(value).encode()


def _matches(good: bool) -> Verdict:
    return Verdict.VERIFIED if good else Verdict.PARTIAL


# A file.


def file_content(path: Any, *, equals: Any = None, contains: Any = None, sha256: Any = None) -> Check:
    """The file exists and has this content (text is compared as UTF-8). Missing: absent. Other content: partial. Unreadable: indeterminate.

    Without an expectation it only has to exist.
    """

    def verify(params: Any) -> Verdict:
        where = _given(path, params, "path")
        whole, part, digest = _given(equals, params, "equals"), _given(contains, params, "contains"), _given(sha256, params, "sha256")
        try:
            if not stat.S_ISREG(os.stat(where).st_mode):  # opening a pipe would wait for a writer
                raise Unclear(f"{where} is not a regular file")
            with open(where, "rb") as file:
                return _matches(_holds(file, whole, part, digest))
        except (FileNotFoundError, NotADirectoryError):
            return Verdict.ABSENT

    return verify


def _holds(file: BufferedReader, whole: Any, part: Any, digest: Any) -> bool:
    if whole is not None and file.read(len(_bytes(whole)) + 1) != _bytes(whole):
        return False
    if part is not None and not _found_in(file, _bytes(part)):
        return False
    file.seek(0)
    return digest is None or hashlib.file_digest(file, "sha256").hexdigest() == str(digest).strip().lower()


def _found_in(file: BufferedReader, part: bytes) -> bool:
    """Read in pieces, because the file may be large; each piece keeps the end of the last one."""
    file.seek(0)
    seen = b""
    while True:
        chunk = file.read(_CHUNK)
        seen += chunk
        if part in seen:
            return True
        if not chunk:
            return False
        seen = seen[-len(part):]


# An HTTP resource.


def http_get(
    url: Any, *, status: Any = 200, contains: Any = None, json: Any = None, headers: Any = None, timeout: Any = 5.0,
) -> Check:
    """A GET answers with this status, and its body contains this text or this JSON (of an object, the named members are compared).

    404 and 410: absent, unless expected. The expected status with other content: partial. Everything else says nothing about the effect and
    is indeterminate: other statuses, no connection, no answer in time, a body that is not JSON, a redirect to another host or port (which
    is not followed), content not found in the first MiB of a longer body.
    """

    def verify(params: Any) -> Verdict:
        text, value = _given(contains, params, "contains"), _given(json, params, "json")
        patience = float(_given(timeout, params, "timeout"))
        request = _request(str(_given(url, params, "url")), _given(headers, params, "headers") or {})
        with closing(_opened(request, patience)) as answer:
            if answer.status != _given(status, params, "status"):
                if answer.status in _GONE:
                    return Verdict.ABSENT
                # Without the query, which may hold a token.
                raise Unclear(f"{request.full_url.partition('?')[0]} answered {answer.status}{_led_away(answer)}")
            if text is None and value is None:
                return Verdict.VERIFIED
            return _body_holds(_body(answer, patience), text, value)

    return verify


def _body_holds(body: bytes, text: Any, value: Any) -> Verdict:
    good = (text is None or _bytes(text) in body) and (value is None or len(body) > _BODY or _within(value, json_format.loads(body)))
    if len(body) > _BODY and (not good or value is not None):
        raise Unclear(f"the body is longer than {_BODY} bytes, so it cannot be judged")
    return _matches(good)


def _within(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(name in found and _within(value, found[name]) for name, value in wanted.items())
    if isinstance(wanted, (list, tuple)):
        return isinstance(found, list) and len(wanted) == len(found) and all(map(_within, wanted, found))
    return bool(wanted == found) and isinstance(wanted, bool) == isinstance(found, bool)  # 1 is not true


def _request(url: str, headers: Mapping[str, str]) -> urllib.request.Request:
    """The URL's user and password become a header, as urllib would take them for a part of the host and name them in its errors."""
    parts = urlsplit(url)
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    request = urllib.request.Request(urlunsplit(plain), headers={"User-Agent": "celery-conductor", **headers}, method="GET")
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        request.add_header("Authorization", f"Basic {base64.b64encode(secret.encode()).decode()}")
    return request


def _opened(request: urllib.request.Request, patience: float) -> Any:
    opener = urllib.request.OpenerDirector()  # not build_opener, which would also open file: and ftp:
    for handler in (
        urllib.request.ProxyHandler, urllib.request.UnknownHandler, urllib.request.HTTPHandler, urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler, urllib.request.HTTPErrorProcessor, _SameHost,
    ):
        opener.add_handler(handler())
    try:
        return opener.open(request, timeout=patience)
    except urllib.error.HTTPError as answer:  # an answer like any other
        return answer


class _SameHost(urllib.request.HTTPRedirectHandler):
    """A redirect to another place is not followed: it would carry our headers there, and take its answer for the asked one's."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> urllib.request.Request | None:
        if _place(urlsplit(newurl)) != _place(urlsplit(req.full_url)):
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _place(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _led_away(answer: Any) -> str:
    location = answer.headers.get("Location")
    return f", a redirect to {urlsplit(location).netloc.rpartition('@')[2]} that is not followed" if location else ""


def _body(answer: Any, patience: float) -> bytes:
    """At most a little more than a MiB. The socket's timeout is for each read, so a body that trickles needs a limit for the whole."""
    body, deadline = b"", time.monotonic() + patience
    while len(body) <= _BODY and (chunk := answer.read1(_CHUNK)):
        body += chunk
        if time.monotonic() > deadline:
            raise TimeoutError(f"the body was not complete after {patience} s")
    if len(body) <= _BODY and getattr(answer, "length", None):  # read1 does not tell that the connection broke before the promised end
        raise Unclear(f"the body ended {answer.length} bytes too early")
    return body


# A row.


def sql_row(url_or_engine: Any, query: Any, parameters: Any = None, *, expect: Any = None) -> Check:
    """The query (text, or a SQLAlchemy statement) finds a row. No row: absent. Rows, but none as expected: partial.

    `expect` is a mapping of columns, a sequence for the whole row, or a value for its first column; the first 100 rows are looked at. A
    query that always gives a row, like a count, needs `expect`. Nothing is committed. To limit the time, pass an engine that has a timeout.
    """

    def verify(params: Any) -> Verdict:
        sqlalchemy = _sqlalchemy()
        target, statement = _given(url_or_engine, params, "url_or_engine"), _given(query, params, "query")
        values, wanted = _given(parameters, params, "parameters"), _given(expect, params, "expect")
        with _engine(sqlalchemy, target).connect() as connection:
            found = connection.execute(sqlalchemy.text(statement) if isinstance(statement, str) else statement, values or {})
            rows = found.fetchmany(_ROWS)
        if not rows:
            return Verdict.ABSENT
        return _matches(wanted is None or any(_row_is(row, wanted) for row in rows))

    return verify


def _sqlalchemy() -> Any:
    try:
        return importlib.import_module("sqlalchemy")
    except ImportError as error:
        raise ImportError("sql_row needs SQLAlchemy; install it with: pip install 'sqlalchemy>=2.0'") from error


def _engine(sqlalchemy: Any, target: Any) -> Any:
    if hasattr(target, "connect"):
        return target
    # Nothing stays open after the question, and no error names the values that were asked for.
    return sqlalchemy.create_engine(target, poolclass=sqlalchemy.pool.NullPool, hide_parameters=True)


def _row_is(row: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        return all(row._mapping[column] == value for column, value in wanted.items())
    if isinstance(wanted, Sequence) and not isinstance(wanted, (str, bytes)):
        return tuple(row) == tuple(wanted)
    return bool(row[0] == wanted)


# A Redis key.


def redis_key(url_or_client: Any, key: Any, *, equals: Any = None, field: Any = None) -> Check:
    """The key exists; with `field`, the hash has that field; with `equals`, its value is this. Another value: partial."""

    def verify(params: Any) -> Verdict:
        target, name = _given(url_or_client, params, "url_or_client"), _given(key, params, "key")
        member, wanted = _given(field, params, "field"), _given(equals, params, "equals")
        with closing(_client(target)) if isinstance(target, str) else nullcontext(target) as client:
            if member is None and wanted is None:
                return Verdict.VERIFIED if _said(client.exists(name)) else Verdict.ABSENT
            value = _said(client.get(name) if member is None else client.hget(name, member))
        if value is None:
            return Verdict.ABSENT
        return _matches(wanted is None or _bytes(value) == _bytes(wanted))

    return verify


def _client(url: str) -> Any:
    # By name, because only store/ may import redis, and a verifier's server is the user's, not the store.
    redis, retry, backoff = (importlib.import_module(name) for name in ("redis", "redis.retry", "redis.backoff"))
    once = retry.Retry(backoff.NoBackoff(), 0)  # whoever asks decides when to ask again
    url = url.replace("redis+socket://", "unix://", 1)
    return redis.Redis.from_url(url, socket_timeout=_REDIS_SECONDS, socket_connect_timeout=_REDIS_SECONDS, retry=once)


def _said(answer: Any) -> Any:
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError("redis_key was given an async client; give it a plain one or a URL")
    return answer
