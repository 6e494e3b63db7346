"""Transient, permanent or unknown: by type first, by text last, and never by accident."""

from __future__ import annotations

import asyncio
import errno
import http.client
import importlib
import json
import smtplib
import socket
import sqlite3
import ssl
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from email.message import Message
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import kombu.exceptions
import pytest
import redis.exceptions
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from conductor import errors
from conductor.classify import classify_error, forget, is_in_doubt, is_transient_result, register_permanent, register_transient


class Strange(Exception):
    """An error nobody knows."""


def foreign(name: str, module: str, *bases: type[BaseException]) -> type[BaseException]:
    """A class as a library would define it, without the library."""
    return type(name, bases or (Exception,), {"__module__": module})


def with_attributes(**attributes: Any) -> Strange:
    error = Strange("x")
    error.__dict__.update(attributes)
    return error


def raised_from(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def validation_error() -> ValidationError:
    class Model(BaseModel):
        number: int

    with pytest.raises(ValidationError) as caught:
        Model.model_validate({"number": "x"})
    return caught.value


def http_error(status: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://x", status, "text", Message(), None)


TRANSIENT = [
    errors.TransientError("x"), errors.StoreUnreachable(url="redis://x"), errors.StepTimeout(),
    ConnectionError(), ConnectionResetError(), BrokenPipeError(), TimeoutError(), InterruptedError(),
    OSError(errno.ECONNREFUSED, "x"), OSError(errno.EHOSTUNREACH, "x"), OSError(errno.EMFILE, "x"), OSError(errno.EBUSY, "x"),
    socket.gaierror(socket.EAI_AGAIN, "x"), ssl.SSLEOFError(), http.client.RemoteDisconnected("x"), http.client.IncompleteRead(b""),
    asyncio.IncompleteReadError(b"", 3), subprocess.TimeoutExpired("x", 1), urllib.error.URLError(TimeoutError("timed out")),
    redis.exceptions.ConnectionError(), redis.exceptions.TimeoutError(), redis.exceptions.BusyLoadingError(),
    redis.exceptions.ReadOnlyError(), redis.exceptions.OutOfMemoryError(), redis.exceptions.ClusterDownError("CLUSTERDOWN x"),
    redis.exceptions.TryAgainError(), redis.exceptions.ResponseError("LOADING Redis is loading the dataset in memory"),
    redis.exceptions.ResponseError("MISCONF Errors writing to the AOF file"), kombu.exceptions.OperationalError("x"),
    foreign("ConnectionError", "requests.exceptions", OSError)(), foreign("ReadTimeout", "httpx", foreign("TimeoutException", "httpx"))(),
    foreign("OperationalError", "psycopg.errors")(),
    foreign("DeadlockDetected", "psycopg.errors", foreign("OperationalError", "psycopg"))(),
    *(http_error(status) for status in (408, 429, 500, 502, 503, 504, 599)),
    with_attributes(status_code=503), with_attributes(status=429), with_attributes(http_status=500),
    with_attributes(response=SimpleNamespace(status_code=502)), with_attributes(response=SimpleNamespace(status=408)),
    with_attributes(response={"ResponseMetadata": {"HTTPStatusCode": 503}}), with_attributes(error_kind="transient"),
    ExceptionGroup("x", [ConnectionError(), TimeoutError()]), raised_from(Strange("x"), ConnectionError()),
    Strange("the connection was reset by peer"), RuntimeError("HTTP 503"), Strange("Too many requests"), Strange("request timed out"),
    foreign("OperationalError", "sqlite3")("database is locked"),
]
PERMANENT = [
    errors.PermanentError("x"), errors.BadInput(), errors.UnknownRun(run_id="x", namespace="y"),
    ValueError("connection reset"), TypeError(), KeyError("x"), IndexError(), AttributeError(), AssertionError(), ZeroDivisionError(),
    NotImplementedError(), ImportError(), NameError(), UnicodeDecodeError("utf-8", b"x", 0, 1, "x"), RecursionError(), validation_error(),
    FileNotFoundError(errno.ENOENT, "x"), PermissionError(errno.EACCES, "x"), OSError(errno.EINVAL, "x"), ssl.SSLCertVerificationError(),
    redis.exceptions.AuthenticationError(), redis.exceptions.NoPermissionError(), redis.exceptions.DataError(),
    redis.exceptions.ResponseError("WRONGTYPE Operation against a key"),
    redis.exceptions.ResponseError("ERR LOADING is not the first word"),
    *(http_error(status) for status in (400, 401, 403, 404, 409, 422)), with_attributes(status_code=404),
    with_attributes(error_kind="permanent"), ExceptionGroup("x", [ConnectionError(), ValueError()]), raised_from(Strange("x"), KeyError()),
]
UNKNOWN = [
    Strange("x"), Exception(), RuntimeError("order 503 not found"), OSError("x"), OSError(errno.ENOSPC, "x"),
    json.JSONDecodeError("x", "y", 0),
    socket.gaierror(socket.EAI_NONAME, "x"), subprocess.CalledProcessError(1, "x"), KeyboardInterrupt(), SystemExit(503),
    with_attributes(error_kind="unknown", status_code=503), with_attributes(error_kind="whatever"), with_attributes(status_code=True),
    with_attributes(status_code=302), with_attributes(status_code=700), with_attributes(status="503"),
    ExceptionGroup("x", [ConnectionError(), Strange("x")]), redis.exceptions.LockError("x"),
]


@pytest.mark.spec("ERR-1")
@pytest.mark.parametrize(
    ("kind", "error"),
    [(kind, error) for kind, group in (("transient", TRANSIENT), ("permanent", PERMANENT), ("unknown", UNKNOWN)) for error in group],
    ids=lambda value: value if isinstance(value, str) else f"{type(value).__module__}.{type(value).__name__}",
)
def test_the_judgement(kind: str, error: BaseException) -> None:
    assert classify_error(error) == kind


@pytest.mark.spec("ERR-1")
def test_every_error_of_our_own_tree_says_its_kind() -> None:
    def tree(cls: type[errors.ConductorError]) -> Iterator[type[errors.ConductorError]]:
        yield cls
        for below in cls.__subclasses__():
            yield from tree(below)

    for cls in tree(errors.ConductorError):
        if cls.__module__ == "conductor.errors":
            assert classify_error(cls("x")) == cls.error_kind, cls


@pytest.mark.spec("ERR-1")
def test_a_registered_class_decides_for_its_subclasses_and_the_nearest_wins() -> None:
    class Flaky(ValueError):
        pass

    class Hopeless(Flaky):
        pass

    assert classify_error(Hopeless()) == "permanent"
    try:
        register_transient(Flaky)
        assert classify_error(Flaky()) == classify_error(Hopeless()) == "transient"
        register_permanent(Hopeless)
        assert (classify_error(Flaky()), classify_error(Hopeless())) == ("transient", "permanent")
    finally:
        forget(Flaky)
        forget(Hopeless)
    assert classify_error(Flaky()) == "permanent"


@pytest.mark.spec("ERR-1")
def test_the_own_word_beats_a_registration_and_a_registration_beats_the_status() -> None:
    class Ours(Exception):
        status_code = 503

    try:
        register_permanent(Ours)
        assert classify_error(Ours()) == "permanent"
        error = Ours()
        error.error_kind = "transient"  # type: ignore[attr-defined]
        assert classify_error(error) == "transient"
    finally:
        forget(Ours)


def test_an_error_that_breaks_when_looked_at_is_unknown() -> None:
    class Hostile(Exception):
        @property
        def error_kind(self) -> str:
            raise RuntimeError("no")

        @property
        def response(self) -> Any:
            raise KeyError("no")

        def __str__(self) -> str:
            raise ValueError("no")

    assert classify_error(Hostile()) == "unknown"


def test_a_ring_of_causes_ends() -> None:
    first, second = Strange("a"), Strange("b")
    first.__cause__, second.__cause__ = second, first
    assert classify_error(first) == "unknown"


def test_what_was_merely_being_handled_is_no_evidence() -> None:
    error = Strange("x")
    error.__context__ = ConnectionError()
    assert classify_error(error) == "unknown"


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_attributes = st.dictionaries(st.sampled_from(["error_kind", "response", "status", "status_code", "http_status", "errno"]), _anything)


@pytest.mark.spec("ERR-1")
@given(st.sampled_from([Strange, ValueError, ConnectionError, OSError, RuntimeError]), st.lists(_anything, max_size=3), _attributes)
def test_any_error_gets_one_of_three_words(cls: type[Exception], args: list[Any], attributes: dict[str, Any]) -> None:
    error = cls(*args)
    for name, value in attributes.items():
        try:
            setattr(error, name, value)
        except (AttributeError, TypeError):
            continue
    assert classify_error(error) in ("transient", "permanent", "unknown")
    assert classify_error(error) == classify_error(error)


@given(st.integers(100, 599))
def test_a_status_is_judged_the_same_wherever_it_is_carried(status: int) -> None:
    response = SimpleNamespace(status_code=status)
    carried = [with_attributes(status_code=status), with_attributes(status=status), with_attributes(response=response)]
    expected = "unknown" if status < 400 else "transient" if status in (408, 429) or status >= 500 else "permanent"
    assert {classify_error(error) for error in carried} == {expected}


@pytest.mark.spec("ERR-1")
@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"error_kind": "transient"}, True), ({"error_kind": "permanent", "status_code": 503, "error": "timeout"}, False),
        ({"error_kind": "unknown", "error": "timed out"}, False), ({"status": "error", "error": "connection refused"}, True),
        ({"status": "error", "status_code": 429}, True), ({"ok": False, "status_code": 404, "error": "timed out"}, False),
        ({"status_code": 503}, True), ({"status": 502}, True), ({"status": "ok", "message": "timed out once, then fine"}, False),
        ({"success": False, "message": "wrong colour"}, False), ({"status": "ok"}, False), ({}, False), (None, False), ("timed out", False),
        ([{"error_kind": "transient"}], False),
    ],
)
def test_a_soft_failure_in_a_result(result: Any, expected: bool) -> None:
    assert is_transient_result(result) is expected


@given(_anything)
def test_any_result_is_judged(result: Any) -> None:
    assert is_transient_result(result) in (True, False)


# The errors of real libraries, built as the libraries build them.


def made(cls: Any, library: str) -> Any:
    """An error of a class whose parts do not matter here."""
    if library in ("httpx", "httpx2") and issubclass(cls, importlib.import_module(library).RequestError):
        return cls("x", request=None)
    if library == "urllib3" and cls.__name__ == "MaxRetryError":
        return cls(None, "/", None)
    if library in ("urllib3", "sqlalchemy", "botocore", "aiohttp"):
        return cls.__new__(cls)  # their constructors ask for pools, statements and requests
    return cls("x")


_HTTPX = {
    "transient": "ReadTimeout WriteTimeout ConnectTimeout PoolTimeout ReadError WriteError ConnectError CloseError RemoteProtocolError ProxyError",
    "permanent": "InvalidURL UnsupportedProtocol LocalProtocolError TooManyRedirects CookieConflict",
    "unknown": "DecodingError HTTPError",
}
LIBRARIES: list[tuple[str, str, dict[str, str]]] = [
    ("httpx", "httpx", _HTTPX), ("httpx2", "httpx2", _HTTPX),
    ("httpcore", "httpcore", {"transient": "ReadTimeout ConnectTimeout ReadError ConnectError RemoteProtocolError", "permanent": "UnsupportedProtocol"}),
    ("requests", "requests.exceptions", {
        "transient": "ConnectionError ConnectTimeout ReadTimeout Timeout ChunkedEncodingError ProxyError RetryError",
        "permanent": "InvalidURL MissingSchema InvalidSchema InvalidHeader InvalidProxyURL InvalidJSONError URLRequired TooManyRedirects SSLError "
        "StreamConsumedError UnrewindableBodyError",
        "unknown": "HTTPError ContentDecodingError RequestException",
    }),
    ("urllib3", "urllib3.exceptions", {
        "transient": "ReadTimeoutError ConnectTimeoutError NewConnectionError NameResolutionError ProtocolError MaxRetryError EmptyPoolError "
        "IncompleteRead ProxyError",
        "permanent": "LocationParseError URLSchemeUnknown InvalidHeader", "unknown": "DecodeError HTTPError",
    }),
    ("sqlalchemy", "sqlalchemy.exc", {
        "transient": "OperationalError TimeoutError DisconnectionError",
        "permanent": "IntegrityError ProgrammingError DataError NotSupportedError ArgumentError CompileError InvalidRequestError NoResultFound",
        "unknown": "DBAPIError InterfaceError InternalError PendingRollbackError ResourceClosedError SQLAlchemyError",
    }),
    ("sqlalchemy", "sqlalchemy.orm.exc", {"unknown": "StaleDataError"}),
    ("kombu", "kombu.exceptions", {
        "transient": "OperationalError ConnectionLimitExceeded ChannelLimitExceeded LimitExceeded",
        "permanent": "EncodeError DecodeError SerializerNotInstalled ContentDisallowed NotBoundError", "unknown": "KombuError",
    }),
    ("amqp", "amqp.exceptions", {"transient": "RecoverableConnectionError ConnectionForced", "permanent": "AccessRefused NotFound PreconditionFailed NotAllowed"}),
    ("aiohttp", "aiohttp", {
        "transient": "ClientConnectionError ServerDisconnectedError ServerTimeoutError ConnectionTimeoutError ClientOSError ClientPayloadError",
        "permanent": "InvalidURL TooManyRedirects ServerFingerprintMismatch", "unknown": "ClientError",
    }),
    ("botocore", "botocore.exceptions", {
        "transient": "EndpointConnectionError ConnectTimeoutError ReadTimeoutError ConnectionClosedError HTTPClientError",
        "permanent": "ParamValidationError NoCredentialsError NoRegionError", "unknown": "BotoCoreError",
    }),
]


@pytest.mark.spec("ERR-1")
@pytest.mark.parametrize(
    ("library", "module", "name", "kind"),
    [(library, module, name, kind) for library, module, kinds in LIBRARIES for kind, names in kinds.items() for name in names.split()],
)
def test_the_errors_of_a_library(library: str, module: str, name: str, kind: str) -> None:
    pytest.importorskip(library)
    assert classify_error(made(getattr(importlib.import_module(module), name), library)) == kind


@pytest.mark.spec("ERR-1")
@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_httpx_by_status(library: str) -> None:
    httpx = pytest.importorskip(library)
    request = httpx.Request("POST", "https://bank.test/")

    def error(status: int) -> Any:
        with pytest.raises(httpx.HTTPStatusError) as caught:
            httpx.Response(status, request=request).raise_for_status()
        return caught.value

    assert [classify_error(error(status)) for status in (408, 429, 500, 503, 400, 404, 422)] == ["transient"] * 4 + ["permanent"] * 3
    assert {status for status in (400, 404, 408, 429, 500, 502, 503, 504) if is_in_doubt(error(status))} == {502, 504}


@pytest.mark.spec("ERR-1")
def test_requests_by_status() -> None:
    requests = pytest.importorskip("requests")

    def error(status: int) -> Any:
        response = requests.Response()
        response.status_code = status
        with pytest.raises(requests.HTTPError) as caught:
            response.raise_for_status()
        return caught.value

    assert [classify_error(error(status)) for status in (408, 429, 500, 503, 400, 404)] == ["transient"] * 4 + ["permanent"] * 2
    assert {status for status in (400, 404, 408, 429, 500, 502, 503, 504) if is_in_doubt(error(status))} == {502, 504}


@pytest.mark.spec("ERR-1")
def test_aws_by_status_and_by_its_code_for_slower() -> None:
    def response(status: int, code: str) -> dict[str, Any]:
        return {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}

    def kind(status: int, code: str) -> str:
        return classify_error(with_attributes(response=response(status, code)))

    assert {kind(400, code) for code in ("ThrottlingException", "Throttling", "ProvisionedThroughputExceededException", "RequestTimeout")} == {"transient"}
    assert {kind(400, code) for code in ("ValidationException", "LimitExceededException", "VpcLimitExceeded", "")} == {"permanent"}
    assert kind(503, "SlowDown") == kind(500, "InternalError") == "transient"
    assert is_in_doubt(with_attributes(response=response(504, "x"))) and not is_in_doubt(with_attributes(response=response(400, "Throttling")))


@pytest.mark.spec("ERR-1")
def test_a_database_error_is_judged_by_what_the_driver_said() -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine("sqlite://")

    def error(*statements: str) -> Any:
        with pytest.raises(sqlalchemy.exc.SQLAlchemyError) as caught, engine.connect() as connection:
            for statement in statements:
                connection.execute(sqlalchemy.text(statement))
        return caught.value

    assert type(error("select * from nowhere")).__name__ == "OperationalError"
    assert classify_error(error("select * from nowhere")) == "permanent"
    assert classify_error(error("create table t (n integer primary key)", "insert into t values (1)", "insert into t values (1)")) == "permanent"
    for cls in (sqlalchemy.exc.DBAPIError, sqlalchemy.exc.InterfaceError, sqlalchemy.exc.InternalError, sqlalchemy.exc.ProgrammingError):
        assert classify_error(cls("select 1", {}, Strange("x"), connection_invalidated=True)) == "transient"
        assert is_in_doubt(cls("select 1", {}, Strange("x"), connection_invalidated=True))
        assert not is_in_doubt(cls("select 1", {}, Strange("x")))
    engine.dispose()


@pytest.mark.spec("ERR-1")
def test_sqlite_itself(tmp_path: Any) -> None:
    first = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    second = sqlite3.connect(tmp_path / "x.db", isolation_level=None, timeout=0)
    first.execute("begin exclusive")
    with pytest.raises(sqlite3.OperationalError) as busy:
        second.execute("create table t (n)")
    first.execute("rollback")
    with pytest.raises(sqlite3.OperationalError) as wrong:
        first.execute("nonsense")
    assert (classify_error(busy.value), classify_error(wrong.value)) == ("transient", "permanent")
    assert not is_in_doubt(busy.value) and not is_in_doubt(wrong.value)
    first.close()
    second.close()


@pytest.mark.spec("ERR-1")
@pytest.mark.parametrize(
    "error",
    [
        foreign("ConnectError", "httpx", foreign("NetworkError", "httpx"))("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
        redis.exceptions.ConnectionError("Error 1 connecting to x:1. [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
        urllib.error.URLError(ssl.SSLCertVerificationError(1, "certificate verify failed")),
    ],
    ids=["httpx", "redis", "urllib"],
)
def test_a_bad_certificate_does_not_pass(error: BaseException) -> None:
    assert classify_error(error) == "permanent"
    assert not is_in_doubt(error)


def test_a_status_of_the_standard_library_counts() -> None:
    assert classify_error(with_attributes(status_code=HTTPStatus.BAD_GATEWAY)) == "transient"


def test_what_an_error_was_built_around_is_evidence_too() -> None:
    assert classify_error(Strange("call failed", ConnectionResetError())) == "transient"
    assert classify_error(urllib.error.URLError(ValueError("x"))) == "permanent"


def test_judging_loads_no_library() -> None:
    code = "import sys, conductor.classify as c; c.classify_error(OSError()); c.is_in_doubt(OSError()); print(sorted({'redis', 'kombu', 'ssl'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


# In doubt: may the request have taken effect?


class MaybeLost(errors.EffectUncertain):
    """A user's own kind of it."""


class DeviceError(OSError):
    """A subclass gets its number, but not the class that Python has for it."""


IN_DOUBT = [
    errors.EffectUncertain(key="x"), errors.StepTimeout(), TimeoutError(), TimeoutError("timed out"), MaybeLost(),
    ConnectionResetError(), BrokenPipeError(), ConnectionAbortedError(), OSError(errno.EPIPE, "x"), OSError(errno.ETIMEDOUT, "x"), DeviceError(errno.ECONNRESET, "x"),
    http.client.RemoteDisconnected("x"), http.client.IncompleteRead(b""), http.client.BadStatusLine("x"), asyncio.IncompleteReadError(b"", 3),
    ssl.SSLEOFError(), subprocess.TimeoutExpired("x", 1), smtplib.SMTPServerDisconnected("Connection unexpectedly closed"),
    urllib.error.URLError(ConnectionResetError()), urllib.error.URLError(TimeoutError("timed out")), http_error(502), http_error(504),
    with_attributes(status_code=524), with_attributes(in_doubt=True), with_attributes(in_doubt=True, status_code=404),
    with_attributes(connection_invalidated=True), redis.exceptions.TimeoutError("Timeout reading from 127.0.0.1:6379"),
    redis.exceptions.ConnectionError("Error while reading from 127.0.0.1:6379 : (104, 'Connection reset by peer')"),
    redis.exceptions.ConnectionError("Error 32 while writing to socket. Broken pipe."), redis.exceptions.ConnectionError("Connection closed by server."),
    raised_from(Strange("x"), ConnectionResetError()), raised_from(errors.TransientError("x"), TimeoutError()),
    raised_from(Strange("x"), raised_from(Strange("y"), BrokenPipeError())), raised_from(kombu.exceptions.OperationalError("x"), ConnectionResetError()),
    Strange("x", BrokenPipeError()), ExceptionGroup("x", [ValueError(), TimeoutError()]), ExceptionGroup("x", [ExceptionGroup("y", [BrokenPipeError()])]),
    raised_from(Strange("x"), ExceptionGroup("y", [TimeoutError()])), foreign("SoftTimeLimitExceeded", "billiard.exceptions")(),
    foreign("OperationalError", "psycopg")("server closed the connection unexpectedly"), RuntimeError("read timed out"),
    foreign("OperationalError", "psycopg")("consuming input failed: SSL SYSCALL error: Connection timed out"),
    foreign("OperationalError", "psycopg2")("SSL SYSCALL error: EOF detected"),
    foreign("OperationalError", "psycopg2")("could not receive data from server: Connection timed out"),
    raised_from(foreign("OperationalError", "sqlalchemy.exc")("x"), foreign("OperationalError", "psycopg2")("could not send data to server: Broken pipe")),
    foreign("ConnectionDoesNotExistError", "asyncpg.exceptions", foreign("PostgresConnectionError", "asyncpg.exceptions"))(
        "connection was closed in the middle of operation"),
    RuntimeError("('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))"),
    foreign("ReadTimeout", "httpx", foreign("TimeoutException", "httpx"))(), foreign("ReadTimeout", "httpx2", foreign("TimeoutException", "httpx2"))(),
    foreign("ServerDisconnectedError", "aiohttp.client_exceptions", foreign("ClientConnectionError", "aiohttp.client_exceptions"))(),
    foreign("ReadTimeoutError", "botocore.exceptions", foreign("HTTPClientError", "botocore.exceptions"))(),
]
NOT_IN_DOUBT = [
    Strange("x"), ValueError("connection reset by peer"), KeyError("x"), OSError("x"), OSError(errno.EHOSTUNREACH, "x"), KeyboardInterrupt(), SystemExit(),
    DeviceError(errno.EHOSTUNREACH, "x"), errors.TransientError("x"), errors.PermanentError("broken pipe"), errors.StoreUnreachable(url="x"), errors.GetTimeout(run_id="x"),
    raised_from(errors.StoreUnreachable(url="x"), redis.exceptions.TimeoutError("Timeout reading from socket")),
    ConnectionRefusedError(), OSError(errno.ECONNREFUSED, "x"), socket.gaierror(socket.EAI_AGAIN, "x"), socket.gaierror(socket.EAI_NONAME, "x"),
    urllib.error.URLError(ConnectionRefusedError()), urllib.error.URLError(socket.gaierror(socket.EAI_NONAME, "x")),
    foreign("OperationalError", "psycopg")('connection failed: connection to server at "db", port 5432 failed: SSL SYSCALL error: EOF detected'),
    foreign("OperationalError", "psycopg2")('connection to server at "db" (10.0.0.1), port 5432 failed: server closed the connection unexpectedly'),
    ssl.SSLCertVerificationError(), *(http_error(status) for status in (400, 404, 408, 409, 429, 500, 501, 503)),
    with_attributes(in_doubt=False), raised_from(with_attributes(in_doubt=False), TimeoutError()), errors.EffectUncertain(key="x", in_doubt=False),
    with_attributes(in_doubt="yes"), with_attributes(in_doubt=1), with_attributes(connection_invalidated="yes"),
    redis.exceptions.ConnectionError("Error 111 connecting to 127.0.0.1:1. Connection refused."), redis.exceptions.MaxConnectionsError("Too many connections"),
    redis.exceptions.TimeoutError("Timeout connecting to server"), redis.exceptions.ConnectionError("No connection available."),
    redis.exceptions.AuthenticationError("x"), redis.exceptions.BusyLoadingError("x"), redis.exceptions.ResponseError("OOM command not allowed"),
    raised_from(Strange("x"), ConnectionRefusedError()), raised_from(kombu.exceptions.OperationalError("x"), ConnectionRefusedError()),
    ExceptionGroup("x", [ValueError(), ConnectionRefusedError()]),
    foreign("ConnectTimeout", "httpx", foreign("TimeoutException", "httpx"))(), foreign("PoolTimeout", "httpx2", foreign("TimeoutException", "httpx2"))(),
    foreign("ConnectionTimeoutError", "aiohttp.client_exceptions", foreign("ServerTimeoutError", "aiohttp.client_exceptions", TimeoutError))(),
    foreign("EndpointConnectionError", "botocore.exceptions", foreign("ConnectionError", "botocore.exceptions"))(),
    raised_from(foreign("TimeoutError", "sqlalchemy.exc")("QueuePool limit reached"), TimeoutError()),  # the nearest class decides
    raised_from(RuntimeError("lost connection"), socket.gaierror(socket.EAI_NONAME, "x")),  # and what is wrapped before the text
]


@pytest.mark.spec("EFF-2")
@pytest.mark.parametrize(
    ("expected", "error"),
    [*((True, error) for error in IN_DOUBT), *((False, error) for error in NOT_IN_DOUBT)],
    ids=lambda value: str(value) if isinstance(value, bool) else f"{type(value).__module__}.{type(value).__name__}",
)
def test_in_doubt(expected: bool, error: BaseException) -> None:
    assert is_in_doubt(error) is expected


@pytest.mark.spec("EFF-2")
def test_the_wrappers_of_requests_and_urllib3() -> None:
    requests, urllib3 = pytest.importorskip("requests").exceptions, pytest.importorskip("urllib3").exceptions
    refused = urllib3.NewConnectionError(None, "[Errno 111] Connection refused")
    lost = urllib3.ProtocolError("Connection aborted.", ConnectionResetError(104, "Connection reset by peer"))
    slow = urllib3.ReadTimeoutError(None, "/", "x")
    doubtful = [
        slow, lost, urllib3.ProtocolError("x"), urllib3.MaxRetryError(None, "/", slow), requests.ReadTimeout(), requests.ReadTimeout(slow),
        requests.Timeout(), requests.ChunkedEncodingError("x"), requests.ConnectionError(lost), requests.ConnectionError(urllib3.MaxRetryError(None, "/", slow)),
    ]
    certain = [
        refused, urllib3.ConnectTimeoutError(), urllib3.EmptyPoolError(None, "x"), urllib3.MaxRetryError(None, "/", refused), requests.ConnectTimeout(),
        requests.ConnectionError(urllib3.MaxRetryError(None, "/", refused)), requests.ConnectTimeout(urllib3.MaxRetryError(None, "/", refused)),
        requests.ProxyError(urllib3.MaxRetryError(None, "/", urllib3.ProxyError("Unable to connect to proxy", refused))),
        requests.SSLError(urllib3.MaxRetryError(None, "/", urllib3.SSLError(ssl.SSLCertVerificationError(1, "x")))),
        requests.RetryError(urllib3.MaxRetryError(None, "/", urllib3.ResponseError("too many 503 error responses"))), requests.InvalidURL("x"),
    ]
    assert [error for error in doubtful if not is_in_doubt(error)] == []
    assert [error for error in certain if is_in_doubt(error)] == []


class Peer:
    """A server that takes one whole request and then does what a bad network does."""

    def __init__(self, then: str) -> None:
        self.then = then
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        if then == "refuse":
            self.socket.close()
        else:
            self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection:
                connection.recv(65_536)
                if self.then == "reset":  # a close that says RST
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                elif self.then == "cut":
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
                elif self.then == "hang":
                    self.over.wait(30)

    def close(self) -> None:
        self.over.set()
        self.socket.close()


def _with_httpx(library: str) -> Callable[[str], object]:
    httpx = pytest.importorskip(library)
    return lambda url: httpx.Client(trust_env=False, timeout=0.5).post(url, content=b"x")


def _with_requests(_: str) -> Callable[[str], object]:
    requests = pytest.importorskip("requests")
    session = requests.Session()
    session.trust_env = False
    return lambda url: session.post(url, data=b"x", timeout=0.5)


def _with_urllib3(_: str) -> Callable[[str], object]:
    urllib3 = pytest.importorskip("urllib3")
    return lambda url: urllib3.PoolManager().request("POST", url, body=b"x", timeout=0.5)


def _with_urllib(_: str) -> Callable[[str], object]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return lambda url: opener.open(url, data=b"x", timeout=0.5).read()


def _with_aiohttp(_: str) -> Callable[[str], object]:
    aiohttp = pytest.importorskip("aiohttp")

    async def post(url: str) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=0.5)) as session, session.post(url, data=b"x") as answer:
            await answer.read()

    return lambda url: asyncio.run(post(url))


def _unresolved(*_: Any, **__: Any) -> Any:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


CLIENTS = {
    "httpx": _with_httpx, "httpx2": _with_httpx, "requests": _with_requests, "urllib3": _with_urllib3, "urllib": _with_urllib, "aiohttp": _with_aiohttp,
}


@pytest.mark.spec("EFF-2")
@pytest.mark.parametrize(("then", "expected"), [("reset", True), ("close", True), ("cut", True), ("hang", True), ("refuse", False), ("nowhere", False)])
@pytest.mark.parametrize("client", CLIENTS)
def test_what_real_clients_raise_on_a_real_connection(client: str, then: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    post = CLIENTS[client](client)
    peer = Peer("refuse" if then == "nowhere" else then)
    if then == "nowhere":  # asking a real name server could take longer than the client waits
        monkeypatch.setattr(socket, "getaddrinfo", _unresolved)
    try:
        with pytest.raises(Exception) as caught:
            post(f"http://{'127.0.0.1' if then != 'nowhere' else 'nowhere.invalid'}:{peer.port}/")
    finally:
        peer.close()
    assert is_in_doubt(caught.value) is expected, repr(caught.value)
    assert then == "nowhere" or classify_error(caught.value) == "transient", repr(caught.value)


@pytest.mark.spec("EFF-2")
@pytest.mark.parametrize(("then", "expected"), [("reset", True), ("close", True), ("hang", True), ("refuse", False)])
def test_what_redis_raises_on_a_real_connection(then: str, expected: bool) -> None:
    from conductor.store import connect

    peer = Peer(then)
    try:
        with pytest.raises(redis.exceptions.RedisError) as caught:
            connect(f"redis://127.0.0.1:{peer.port}/0?protocol=2&lib_name=&lib_version=", socket_timeout=0.5).set("x", 1)
    finally:
        peer.close()
    assert is_in_doubt(caught.value) is expected, repr(caught.value)


def test_an_error_that_breaks_when_looked_at_is_judged_all_the_same() -> None:
    class Hostile(Exception):
        in_doubt = property(lambda self: 1 / 0)
        response = property(lambda self: 1 / 0)
        reason = property(lambda self: 1 / 0)
        __cause__ = property(lambda self: 1 / 0)

        def __str__(self) -> str:
            raise ValueError("no")

    class Evasive(dict[str, Any]):
        def get(self, *_: Any) -> Any:
            raise RuntimeError("no")

    unnumbered = OSError("x")
    unnumbered.errno = ["no number"]  # type: ignore[assignment]
    assert (is_in_doubt(unnumbered), classify_error(unnumbered)) == (False, "unknown")
    nameless = type("Nameless", (Exception,), {"__module__": None})()
    assert (is_in_doubt(Hostile()), classify_error(Hostile())) == (False, "unknown")
    assert (is_in_doubt(nameless), classify_error(nameless)) == (False, "unknown")
    # What cannot be looked at at all is verified rather than repeated.
    assert (is_in_doubt(with_attributes(response=Evasive())), classify_error(with_attributes(response=Evasive()))) == (True, "unknown")


def test_rings_and_deep_chains_end() -> None:
    first, second = Strange("a"), Strange("b")
    first.__cause__, second.__cause__ = second, first
    first.args, second.args = (second, first) * 50, (first, second) * 50
    assert not is_in_doubt(first) and classify_error(first) == "unknown"
    crowd = [type("Mute", (Strange,), {"__str__": lambda self: "x"})() for _ in range(20)]
    for one in crowd:
        one.args = tuple(crowd)
    assert not is_in_doubt(crowd[0]) and classify_error(crowd[0]) == "unknown", "and in a time one can wait for"
    deep: BaseException = TimeoutError()
    for _ in range(5000):
        deep = raised_from(Strange("x"), deep)
    assert is_in_doubt(deep) is False
    nested: BaseException = TimeoutError()
    for _ in range(5000):
        nested = BaseExceptionGroup("x", [nested])
    assert is_in_doubt(nested) in (True, False)


@pytest.mark.spec("EFF-2")
@given(
    st.sampled_from([Strange, ValueError, ConnectionError, OSError, TimeoutError, redis.exceptions.ConnectionError]), st.lists(_anything, max_size=3),
    st.dictionaries(st.sampled_from(["in_doubt", "response", "status", "status_code", "errno", "orig", "reason", "connection_invalidated"]), _anything),
)
def test_any_error_is_in_doubt_or_not(cls: type[Exception], args: list[Any], attributes: dict[str, Any]) -> None:
    error = cls(*args)
    for name, value in attributes.items():
        try:
            setattr(error, name, value)
        except (AttributeError, TypeError):
            continue
    assert is_in_doubt(error) in (True, False)
    if isinstance(attributes.get("in_doubt"), bool):
        assert is_in_doubt(error) is attributes["in_doubt"]
