"""What is known of others' errors: which pass, which last, and which leave open whether a request took effect. Tables only.

Libraries are known by the names of their classes, never by import.
"""

from __future__ import annotations

import errno
import re
from typing import TypeVar

from conductor.errors import ErrorKind

__all__ = [
    "AWS_SLOWER", "BY_NAME", "IN_DOUBT", "LASTING_ERRNOS", "LOST_ERRNOS", "LOST_TEXT", "NOT_CONNECTED", "PASSING_ERRNOS", "PASSING_TEXT",
    "REDIS_NOT_SENT", "REDIS_PASSING", "SAME", "UNSURE_STATUSES",
]

Word = TypeVar("Word")

PASSING_ERRNOS = frozenset({
    errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.EPIPE, errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.ENOTCONN,
    errno.ESHUTDOWN, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET,
    errno.ENOBUFS, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ESTALE, errno.ETXTBSY, errno.EDEADLK, errno.ENOLCK,
})
LASTING_ERRNOS = frozenset({
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EINVAL, errno.ENAMETOOLONG,
    errno.ELOOP, errno.EROFS, errno.EXDEV, errno.ENOEXEC, errno.ENOTSUP, errno.EBADF, errno.EFBIG,
})
LOST_ERRNOS = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT, errno.ESHUTDOWN, errno.ENETRESET})

# Packages whose classes have the names of another one's; the database drivers all have those of the DB-API.
SAME = {
    "valkey": "redis", "httpx2": "httpx", "httpcore": "httpx", "httpcore2": "httpx", "anthropic": "openai",
    **dict.fromkeys(("sqlalchemy", "django", "psycopg", "psycopg2", "pymysql", "MySQLdb", "sqlite3"), "dbapi"),
}


def _named(word: Word, **classes: str) -> dict[tuple[str, str], Word]:
    return {(package, name): word for package, names in classes.items() for name in names.split()}


# By package and class. A class stands for its subclasses until a nearer one is named.
BY_NAME: dict[tuple[str, str], ErrorKind] = {
    **_named(
        "transient",
        builtins="ConnectionError TimeoutError BlockingIOError InterruptedError",
        ssl="SSLEOFError SSLZeroReturnError SSLWantReadError SSLWantWriteError SSLSyscallError",
        http="IncompleteRead", asyncio="IncompleteReadError", subprocess="TimeoutExpired", pymongo="AutoReconnect",
        smtplib="SMTPServerDisconnected SMTPConnectError",
        redis="ConnectionError TimeoutError BusyLoadingError ReadOnlyError MasterDownError TryAgainError ClusterDownError OutOfMemoryError "
        "AskError MovedError MaxConnectionsError WatchError",
        kombu="OperationalError LimitExceeded", amqp="ConnectionError RecoverableConnectionError RecoverableChannelError",
        requests="ConnectionError Timeout ChunkedEncodingError RetryError",
        urllib3="TimeoutError ProtocolError NewConnectionError MaxRetryError EmptyPoolError ProxyError",
        httpx="TimeoutException NetworkError RemoteProtocolError ProxyError",
        aiohttp="ClientConnectionError ServerTimeoutError ClientPayloadError", botocore="ConnectionError HTTPClientError",
        dbapi="OperationalError TimeoutError DisconnectionError",
        asyncpg="PostgresConnectionError DeadlockDetectedError SerializationError",
        openai="APIConnectionError", stripe="APIConnectionError RateLimitError",
    ),
    **_named(
        "permanent",
        builtins="ValueError TypeError LookupError AttributeError AssertionError ArithmeticError NameError ImportError NotImplementedError "
        "SyntaxError RecursionError FileNotFoundError FileExistsError PermissionError IsADirectoryError NotADirectoryError",
        ssl="SSLCertVerificationError", http="InvalidURL",
        redis="AuthenticationError AuthorizationError AuthenticationWrongNumberOfArgsError NoPermissionError DataError ResponseError "
        "InvalidResponse NoScriptError",
        kombu="SerializationError SerializerNotInstalled NotBoundError MessageStateError VersionMismatch",
        amqp="AccessRefused NotFound PreconditionFailed NotAllowed InvalidPath ContentTooLarge",
        requests="InvalidURL MissingSchema InvalidSchema InvalidHeader InvalidJSONError URLRequired TooManyRedirects SSLError "
        "StreamConsumedError UnrewindableBodyError",
        urllib3="LocationValueError InvalidHeader UnrewindableBodyError",
        httpx="InvalidURL UnsupportedProtocol LocalProtocolError TooManyRedirects CookieConflict StreamError",
        aiohttp="InvalidURL NonHttpUrlClientError TooManyRedirects ServerFingerprintMismatch ClientConnectorCertificateError",
        botocore="ParamValidationError ValidationError NoCredentialsError PartialCredentialsError NoRegionError",
        dbapi="IntegrityError ProgrammingError DataError NotSupportedError ArgumentError CompileError InvalidRequestError",
        stripe="CardError InvalidRequestError AuthenticationError",
    ),
    # The outside sent something unreadable (a truncated answer as well as a wrong one), or the error only follows from another one.
    **_named(
        "unknown", json="JSONDecodeError", requests="JSONDecodeError ContentDecodingError", ssl="SSLError", redis="LockError",
        httpx="DecodingError", dbapi="StaleDataError PendingRollbackError ResourceClosedError",
    ),
}

# May the request have taken effect? True: it was on its way when the connection or the time ended. False: nothing had been sent.
IN_DOUBT: dict[tuple[str, str], bool] = {
    **_named(
        True,
        conductor="EffectUncertain StepTimeout", builtins="TimeoutError ConnectionResetError BrokenPipeError ConnectionAbortedError",
        ssl="SSLEOFError SSLZeroReturnError SSLSyscallError", http="IncompleteRead BadStatusLine", asyncio="IncompleteReadError",
        subprocess="TimeoutExpired", billiard="SoftTimeLimitExceeded TimeLimitExceeded WorkerLostError", smtplib="SMTPServerDisconnected",
        redis="TimeoutError ConnectionError", amqp="RecoverableConnectionError", pymongo="AutoReconnect",
        requests="Timeout ChunkedEncodingError", urllib3="TimeoutError ProtocolError", botocore="HTTPClientError",
        httpx="TimeoutException NetworkError RemoteProtocolError", aiohttp="ClientConnectionError ClientPayloadError",
    ),
    **_named(
        False,
        conductor="StoreUnreachable GetTimeout",  # Conductor's own requests are the same request when they are repeated
        builtins="ConnectionRefusedError", socket="gaierror herror", ssl="SSLCertVerificationError", dbapi="TimeoutError",
        redis="MaxConnectionsError AuthenticationError AuthorizationError BusyLoadingError",
        requests="ConnectTimeout", urllib3="ConnectTimeoutError NewConnectionError EmptyPoolError",
        httpx="ConnectError ConnectTimeout PoolTimeout", pymongo="ServerSelectionTimeoutError NotPrimaryError",
        aiohttp="ClientConnectorError ConnectionTimeoutError ServerFingerprintMismatch", botocore="ConnectionError",
    ),
}
UNSURE_STATUSES = frozenset({502, 504, 520, 524})  # a gateway gave up waiting for an answer; any other status is the answer

# A server's answer begins with a word. redis-py gives only some of them a class of their own, and fewer in its older releases.
REDIS_PASSING = frozenset({
    "LOADING", "BUSY", "READONLY", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN", "NOREPLICAS", "MISCONF", "OOM", "UNBLOCKED",
})
REDIS_NOT_SENT = re.compile(r"(?i)connecting to|no connection available|too many connections|not ready|health check|invalid database")
AWS_SLOWER = re.compile(r"(?i)throttl|slow_?down|request_?limit|bandwidth_?limit|throughput_?exc|too_?many_?requests|request_?timeout")

PASSING_TEXT = re.compile(
    r"connection (?:was |has been )?(?:reset|refused|aborted|closed|lost|timed out)|timed?[ -]?out\b|temporar(?:y|ily)\b"
    r"|try again later|too many (?:requests|connections)|rate[ -]limit(?:ed)?\b|throttl(?:ed|ing)|service unavailable|bad gateway"
    r"|server (?:is )?overloaded|broken pipe|network is unreachable|no route to host|deadlock detected|database is locked"
    r"|(?:http|status|code)\W{0,3}(?:408|429|5\d\d)\b",
    re.IGNORECASE,
)
# As PostgreSQL's drivers say it: there was no connection yet, so nothing was sent.
NOT_CONNECTED = re.compile(r"(?is)connection to server (?:at|on) .{0,300} failed|could not connect to server")
LOST_TEXT = re.compile(
    r"reset by peer|connection (?:was |has been )?(?:reset|aborted)|broken pipe|closed the connection|(?:end|server) closed connection"
    r"|closed unexpectedly|lost connection|gone away|\bread(?:ing)? (?:operation )?timed? ?out"
    r"|consuming input failed|SSL SYSCALL error|could not (?:receive|send) data (?:from|to) (?:server|client)"
    r"|in the middle of (?:an )?operation|communication link failure|end-of-file on communication channel",
    re.IGNORECASE,
)
