"""Can a repeat help, and may the first try have taken effect? Every error is transient, permanent or unknown, and in doubt or not.

Evidence is weighed in this order, and the first that speaks decides: the error's own word (`error_kind`, `in_doubt`), classes that users
registered, the HTTP status it carries, its type (nearest class first, so that a subclass may differ from its parent), the errors it wraps,
and only then its text. Libraries are known by the names of their classes, never by import: nothing is loaded to judge an error, and only
`store/` may import redis. What nobody knows is `unknown`, which fails a step: repeating blindly is for the user to allow.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator, Mapping
from typing import Any, Final

from conductor.errors import ErrorKind
from conductor.known_errors import (
    AWS_SLOWER,
    BY_NAME,
    IN_DOUBT,
    LASTING_ERRNOS,
    LOST_ERRNOS,
    LOST_TEXT,
    NOT_CONNECTED,
    PASSING_ERRNOS,
    PASSING_TEXT,
    REDIS_NOT_SENT,
    REDIS_PASSING,
    SAME,
    UNSURE_STATUSES,
)

__all__ = ["classify_error", "forget", "is_in_doubt", "is_transient_result", "register_permanent", "register_transient"]

_KINDS: Final = ("transient", "permanent", "unknown")
_DEEPEST_CAUSE: Final = 8
_WIDEST_CAUSE: Final = 3
_registered: dict[type[BaseException], ErrorKind] = {}

def register_transient(cls: type[BaseException]) -> type[BaseException]:
    """From now on errors of this class and its subclasses are transient. Usable as a decorator."""
    _registered[cls] = "transient"
    return cls


def register_permanent(cls: type[BaseException]) -> type[BaseException]:
    """From now on errors of this class and its subclasses are permanent. Usable as a decorator."""
    _registered[cls] = "permanent"
    return cls


def forget(cls: type[BaseException]) -> None:
    """Take a registration back."""
    _registered.pop(cls, None)


def retry_after_ms(error: BaseException) -> int:
    """How long a service wants to be left alone, in ms: an attribute `retry_after` (seconds, or a timedelta), or the header of a response;
    a day at most. 0: it did not say."""
    said: Any = getattr(error, "retry_after", None)
    if said is None:
        headers: Any = getattr(getattr(error, "response", None), "headers", None)
        said = headers.get("Retry-After") if hasattr(headers, "get") else None
    try:
        seconds = said.total_seconds() if hasattr(said, "total_seconds") else float(said)
    except (TypeError, ValueError):
        return 0
    return 0 if math.isnan(seconds) else int(min(max(seconds, 0), 86_400) * 1000)


def classify_error(exc: BaseException) -> ErrorKind:
    """Transient, permanent or unknown. Never raises, whatever the error's own attributes do."""
    try:
        return _judge(exc, _DEEPEST_CAUSE)
    except Exception:
        return "unknown"


def is_in_doubt(exc: BaseException) -> bool:
    """Whether the error leaves open if the request took effect. Never raises; what cannot be looked at is in doubt."""
    try:
        return bool(_doubt(exc, _DEEPEST_CAUSE))
    except Exception:
        return True


def _judge(exc: BaseException, depth: int) -> ErrorKind:
    if (own := _own_word(exc)) is not None:
        return own
    if isinstance(exc, BaseExceptionGroup):
        return _together(exc, depth)
    for cls in type(exc).__mro__:
        if cls in _registered:
            return _registered[cls]
    found = _by_status(_status_of(exc)) or _by_database(exc) or _by_type(exc)
    if found is not None:
        return found
    # `raise Wrapped() from error`: the wrapper says nothing, what it wraps does.
    for inner in _wrapped(exc) if depth else ():
        if (kind := _judge(inner, depth - 1)) != "unknown":
            return kind
    return "transient" if PASSING_TEXT.search(_text_of(exc)) else "unknown"


def _doubt(exc: BaseException, depth: int) -> bool | None:
    """None if neither the error nor anything in it speaks."""
    if isinstance(own := _attribute(exc, "in_doubt"), bool):
        return own
    if isinstance(exc, BaseExceptionGroup):
        return any(_doubt(member, depth - 1) for member in exc.exceptions) if depth else None
    if (status := _status_of(exc)) is not None and status >= 400:
        return status in UNSURE_STATUSES
    if _attribute(exc, "connection_invalidated") is True:  # SQLAlchemy: lost while a statement was under way
        return True
    if (found := _doubt_by_type(exc)) is not None:
        return found
    words = {_doubt(inner, depth - 1) for inner in _wrapped(exc)} - {None} if depth else set()
    if words or _judge(exc, 0) == "permanent":
        return True in words
    text = _text_of(exc)
    return True if LOST_TEXT.search(text) and not NOT_CONNECTED.search(text) else None


def _doubt_by_type(exc: BaseException) -> bool | None:
    for cls in type(exc).__mro__:
        key = _name_of(cls)
        if (word := IN_DOUBT.get(key)) is not None:
            return word and not (key[0] == "redis" and REDIS_NOT_SENT.search(_text_of(exc)))
        if cls is OSError:
            number = _attribute(exc, "errno")
            return True if isinstance(number, int) and number in LOST_ERRNOS else None
    return None


def _wrapped(exc: BaseException) -> list[BaseException]:
    """What an error was raised `from`, and what clients hand on as `orig`, as `reason` or as an argument."""
    arguments = _attribute(exc, "args")
    found = [_attribute(exc, name) for name in ("__cause__", "orig", "reason")]
    found += arguments if isinstance(arguments, tuple) else ()
    unique = {id(inner): inner for inner in found if isinstance(inner, BaseException) and inner is not exc}
    return list(unique.values())[:_WIDEST_CAUSE]


def _own_word(exc: BaseException) -> ErrorKind | None:
    word = _attribute(exc, "error_kind")
    return next((kind for kind in _KINDS if isinstance(word, str) and kind == str(word)), None)


def _together(group: BaseExceptionGroup[BaseException], depth: int) -> ErrorKind:
    """A repeat helps a group only if it helps every member."""
    kinds = {_judge(member, depth - 1) for member in group.exceptions} if depth else {"unknown"}
    if "permanent" in kinds:
        return "permanent"
    return "transient" if kinds == {"transient"} else "unknown"


def _name_of(cls: type) -> tuple[str, str]:
    package = str(cls.__module__).partition(".")[0]
    return SAME.get(package, package), cls.__name__


def _by_type(exc: BaseException) -> ErrorKind | None:
    """What the nearest class that we know says; None if none is known, so that other evidence is asked."""
    for cls in type(exc).__mro__:
        key = _name_of(cls)
        if key == ("redis", "ResponseError") and _text_of(exc).partition(" ")[0] in REDIS_PASSING:
            return "transient"
        if (kind := BY_NAME.get(key)) == "transient" and "CERTIFICATE_VERIFY_FAILED" in _text_of(exc):
            return "permanent"  # clients call it a failed connection, but no repeat will make the certificate good
        if kind is not None:
            return kind if kind != "unknown" else None
        if cls is OSError:
            return _by_errno(exc)
    return None


def _by_database(exc: BaseException) -> ErrorKind | None:
    """A lost connection passes, whatever class the driver chose. SQLite has one class for a locked table and for wrong SQL (code 1)."""
    if _attribute(exc, "connection_invalidated") is True:
        return "transient"
    orig = _attribute(exc, "orig")
    code = _attribute(exc if orig is None else orig, "sqlite_errorcode")
    return "permanent" if isinstance(code, int) and code == 1 else None


def _by_errno(exc: BaseException) -> ErrorKind | None:
    number = _attribute(exc, "errno")
    if not isinstance(number, int):  # anybody may build an OSError from anything
        return None
    if isinstance(exc, socket.gaierror):  # its numbers are another alphabet
        return "transient" if number == socket.EAI_AGAIN else None
    if number in PASSING_ERRNOS:
        return "transient"
    return "permanent" if number in LASTING_ERRNOS else None


def _status_of(exc: BaseException) -> int | None:
    """The HTTP status an error carries, as the usual clients spell it."""
    numbers = (number for number in _statuses(exc) if isinstance(number, int) and not isinstance(number, bool))
    return next((int(number) for number in numbers if 100 <= number <= 599), None)


def _statuses(exc: BaseException) -> Iterator[Any]:
    response = _attribute(exc, "response")
    if isinstance(response, Mapping):  # botocore
        meta, error = response.get("ResponseMetadata"), response.get("Error")
        if isinstance(error, Mapping) and AWS_SLOWER.search(str(error.get("Code"))):
            yield 429  # AWS asks to slow down with status 400
        yield meta.get("HTTPStatusCode") if isinstance(meta, Mapping) else None
    else:
        yield _attribute(response, "status_code")
        yield _attribute(response, "status")
    for name in ("status_code", "http_status", "status"):
        yield _attribute(exc, name)


def _by_status(status: int | None) -> ErrorKind | None:
    if status is None or status < 400:
        return None
    return "transient" if status in (408, 429) or status >= 500 else "permanent"


def _attribute(thing: Any, name: str) -> Any:
    """An attribute may be a property that raises; then it says nothing."""
    try:
        return getattr(thing, name, None)
    except Exception:
        return None


def _text_of(exc: BaseException) -> str:
    try:
        return str(exc)[:2000]
    except Exception:
        return ""


def is_transient_result(result: Any) -> bool:
    """Whether a returned dict tells of a failure that a repeat may mend: by its `error_kind`, else by its status, else by its text."""
    if not isinstance(result, Mapping):
        return False
    if (word := result.get("error_kind")) is not None:
        return bool(word == "transient")
    if not _says_failure(result):
        return False
    for name in ("status_code", "http_status", "status", "code"):
        number = result.get(name)
        if type(number) is int and 400 <= number <= 599:
            return _by_status(number) == "transient"
    texts = (result.get(name) for name in ("error", "message", "detail", "reason"))
    return any(isinstance(text, str) and PASSING_TEXT.search(text[:2000]) for text in texts)


def _says_failure(result: Mapping[Any, Any]) -> bool:
    status = result.get("status")
    if result.get("ok") is False or result.get("success") is False or result.get("error"):
        return True
    if isinstance(status, str):
        return status.lower() in ("error", "failed", "failure", "timeout", "unavailable")
    return any(type(code) is int and 400 <= code <= 599 for code in (status, result.get("status_code"), result.get("http_status")))
