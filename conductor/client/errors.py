"""What only a caller over HTTP can meet. The docstring of a class is its message, as in `conductor.errors`.

`told` turns the service's error JSON back into the exception that the same refusal raises in the service's own process, so that
`except LaneFull` works on both sides of the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conductor import errors
from conductor.errors import ConductorError, ErrorKind, UnknownRun

__all__ = [
    "AUTH", "ClientNotInstalled", "ConductorRestarted", "ConductorUnreachable", "DownstreamLost", "FollowingStopped", "Forbidden",
    "ReplyLost", "ServiceRefused", "TooManyFailures", "Unauthenticated", "Unrecoverable", "told",
]


class ClientNotInstalled(ConductorError):
    """the client needs the package httpx2, which is not installed here; install it with: pip install 'celery-conductor[client]'"""


class Unauthenticated(ConductorError):
    """the service at {url} does not take this token; give Client(url, token=...) one that it knows"""


class Forbidden(ConductorError):
    """this token may not do that at {url}; use one with the scope that the service names"""


class TooManyFailures(ConductorError):
    """the service at {url} was given too many wrong tokens from here and listens to none for a while; correct the token, then wait"""


class ServiceRefused(ConductorError):
    """the service at {url} refused with HTTP {status}: {problem}"""

    refusal: str = ""  # the service's own code, where it gave one


class ReplyLost(ConductorError):
    """the reply to {what} was lost, so it may or may not have happened; it was not sent again. Look first: {remedy}"""

    error_kind: ErrorKind = "unknown"


class ConductorUnreachable(ConductorError):
    """nobody has answered at {url} for {seconds} s: {problem}; runs go on without us. Is the service up, is the address right? Then
    ask again"""

    error_kind: ErrorKind = "transient"


class ConductorRestarted(UnknownRun):
    """run {run_id} is gone: the service answers, but its store is another one than the run was started in (it was wiped, or brought back
    from an old backup). Start the run again under the same key"""


class Unrecoverable(ConductorError):
    """the service at {url} answers, but not how run {run_id} ended: {problem}; look with `conductor why {run_id}`"""


class DownstreamLost(ConductorError):
    """run {run_id} is running and nobody works on it: no live lease and no event for {seconds} s; look with `conductor why {run_id}`, and
    start a worker"""

    error_kind: ErrorKind = "transient"


class FollowingStopped(ConductorError):
    """run {run_id} is no longer followed here: stop() was called"""


# Asking again with the same token cannot help, and each wrong try counts against us.
AUTH = (Unauthenticated, Forbidden, TooManyFailures)


def told(error: Mapping[str, Any], *, status: int = 0, url: str = "") -> ConductorError:
    """The exception that the service's `{"code", "message", "hint", "details"}` speaks of. A code of a newer release stays readable."""
    code, message = str(error.get("code") or ""), str(error.get("message") or "")
    details = {name: value for name, value in dict(error.get("details") or {}).items() if name.isidentifier() and name not in _OWN}
    details |= {"hint": str(error.get("hint") or ""), "status": status, "url": url}
    kind = _BY_CODE.get(code)
    if kind is None:  # the service's own words about a request; what it says of it keeps its names: `problem`, `field`, …
        said = str(ServiceRefused(url=url, status=status, problem=f"{code}: {message}"))
        return ServiceRefused(message=said, **details, refusal=code)
    return kind(message=message, **details)


_OWN = frozenset({"message", "hint", "status", "url", "args", "code", "error_kind", "details", "self", "refusal"})


_BY_CODE: Mapping[str, type[ConductorError]] = {
    kind.code: kind for kind in (*vars(errors).values(), *AUTH) if isinstance(kind, type) and issubclass(kind, ConductorError)
}
