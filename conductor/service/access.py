"""Who calls, and what they may do. Settled by the guard before the body of a request is read; endpoints only ask for a scope.

Three ways: a bearer token; a cookie that a browser got for one (`logins.py`), whose changes need the CSRF header too; or, as long as no
token was ever made, the machine itself. The last trusts nothing a stranger could send through a browser or a proxy: the peer must be
loopback, `Host` must name it (a rebound DNS name does not), and no `Forwarded` header may stand there. `auth=` replaces all of them.
An attempt that fails is counted by address (`lockout.py`).
"""

from __future__ import annotations

import hmac
import inspect
import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from conductor.runs.words import Spelling
from conductor.service.errors import Forbidden, TooManyFailures, Unauthenticated
from conductor.service.keyring import Keyring
from conductor.service.lockout import Lockout
from conductor.service.strangers import refuse_strangers
from conductor.store.tokens import Token, digest

if TYPE_CHECKING:
    from conductor.broker.conductor import Conductor
else:
    Conductor = Any

__all__ = [
    "ALL_SCOPES", "COOKIE", "CSRF_HEADER", "Access", "Admin", "Auth", "Caller", "Reader", "Served", "Writer", "allowed", "csrf_of",
    "spelling_of",
]

ALL_SCOPES = frozenset({"read", "write", "admin"})
COOKIE, CSRF_HEADER = "conductor_login", "x-conductor-csrf"
CALLER = "conductor.caller"  # where the guard leaves who calls
_SAFE = ("GET", "HEAD", "OPTIONS")
_PROXIED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
_NOBODY = "there is no token in it"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a name for the record, scopes, and the sessions it is bound to (None: everybody's)."""

    actor: str
    scopes: frozenset[str]
    sessions: frozenset[str] | None = None

    def sees(self, session: str) -> bool:
        """Whether what belongs to `session` exists for this caller."""
        return self.sessions is None or session in self.sessions


Auth = Callable[[Request], Caller | Awaitable[Caller | None] | None]

LOCAL = Caller("local", ALL_SCOPES)


class Access:
    """Finds out who calls. Raises Unauthenticated, Forbidden or TooManyFailures."""

    def __init__(self, keyring: Keyring, auth: Auth | None = None) -> None:
        self.keyring = keyring
        self._auth = auth
        self._lockout = Lockout()

    @property
    def by_application(self) -> bool:
        """Whether another application says who calls."""
        return self._auth is not None

    async def caller(self, request: Request) -> Caller:
        """Who sent this request, asked anew each time."""
        if self._auth is not None:
            return await self._by_callable(request)
        header = request.headers.get("authorization")
        if header is not None:
            return await self.by_token(request, _bearer(header))
        if secret := request.cookies.get(COOKIE):
            return await self._by_cookie(request, secret)
        if await self.keyring.is_open():
            return _local(request)
        raise Unauthenticated(problem=_NOBODY)

    async def by_token(self, request: Request, secret: str) -> Caller:
        """The caller a token stands for."""
        return as_caller(await self.token(request, secret))

    async def token(self, request: Request, secret: str) -> Token:
        """A token that counts. Every failure is counted, a right one only until it is known."""
        address = request.client.host if request.client else ""
        told = digest(secret)
        if left := self._lockout.left(address, told):
            raise TooManyFailures(retry_after=int(left) + 1)
        token = await self.keyring.token(secret)
        if token is None:
            self._lockout.failed(address)
            raise Unauthenticated(problem="the token in it is not known here")
        if problem := token.problem((await self.keyring.ring()).now):
            raise Unauthenticated(problem=problem)
        self._lockout.passed(told)
        return token

    async def _by_cookie(self, request: Request, secret: str) -> Caller:
        found = await self.keyring.login(secret)
        if found is None:
            raise Unauthenticated(problem="the login has ended; log in again")
        _, token = found
        if problem := token.problem((await self.keyring.ring()).now):
            raise Unauthenticated(problem=problem)
        if request.method not in _SAFE:
            _own_page(request)
            if not hmac.compare_digest(request.headers.get(CSRF_HEADER, "").encode(), csrf_of(secret).encode()):
                raise Forbidden(problem=f"a change by cookie needs the header {CSRF_HEADER} with the word that the login gave")
        return as_caller(token)

    async def _by_callable(self, request: Request) -> Caller:
        assert self._auth is not None
        # A plain function may ask a database, which the loop must not wait for. What it gives may still have to be awaited: a partial, an
        # object with an async `__call__` or a lambda does not say beforehand that it is async.
        told = await (self._auth(request) if inspect.iscoroutinefunction(self._auth) else run_in_threadpool(self._auth, request))
        if inspect.isawaitable(told):
            told = await told
        if told is None:
            raise Unauthenticated(problem="the application that serves this does not know who sent it")
        if not isinstance(told, Caller):
            raise TypeError(f"auth= must give a Caller or None, it gave {type(told).__name__}")
        if request.method not in _SAFE and "authorization" not in request.headers:
            _own_page(request)  # it may have gone by a cookie, which a browser sends for strangers too
        return told


def as_caller(token: Token) -> Caller:
    return Caller(token.name, token.scopes, token.sessions)


def csrf_of(secret: str) -> str:
    """The word a page must repeat beside its cookie: it follows from the cookie, which no script can read."""
    return hmac.new(secret.encode(), b"csrf", "sha256").hexdigest()[:40]


def _bearer(header: str) -> str:
    kind, _, secret = header.partition(" ")
    if kind.lower() != "bearer" or not secret.strip():
        raise Unauthenticated(problem="the header Authorization is not of the form `Bearer TOKEN`")
    return secret.strip()


def _local(request: Request) -> Caller:
    """The machine itself, as long as nobody has made a token."""
    peer = request.client.host if request.client else ""
    if not is_loopback(peer) or not is_loopback(_host(request)) or any(name in request.headers for name in _PROXIED):
        raise Unauthenticated(problem="no token was made yet, so only this machine itself may call, by a loopback address and no proxy")
    if request.method not in _SAFE:
        _own_page(request)
    return LOCAL


def _host(request: Request) -> str:
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _own_page(request: Request) -> None:
    """A browser says from which page a change comes; programs say nothing."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    strange = site not in (None, "same-origin", "none")
    if strange or (origin is not None and origin.partition("://")[2] != request.headers.get("host")):
        raise Forbidden(problem="a change from a page of another site is refused")


async def _served(request: Request) -> Conductor:
    found: Conductor = request.app.state.conductor
    return found


def spelling_of(conductor: Conductor) -> Spelling:
    """How commands are written for whoever asks this service."""
    return Spelling.of_app(conductor.app.main or "APP")


def allowed(request: Request, scope: str) -> Caller:
    """Who calls, if that caller has the scope."""
    caller: Caller = request.scope[CALLER]
    if scope not in caller.scopes:
        raise Forbidden(problem=f"this needs scope {scope}; {caller.actor} has {', '.join(sorted(caller.scopes)) or 'none'}")
    if scope == "admin" and caller.sessions is not None:
        raise Forbidden(problem=f"this concerns everybody, and {caller.actor} acts for some sessions only")
    refuse_strangers(request)
    return caller


def _scope(name: str) -> Any:
    async def check(request: Request) -> Caller:
        return allowed(request, name)

    check.scope = name  # type: ignore[attr-defined]  # for the reference
    return check


Served = Annotated[Conductor, Depends(_served)]
Reader = Annotated[Caller, Depends(_scope("read"))]
Writer = Annotated[Caller, Depends(_scope("write"))]
Admin = Annotated[Caller, Depends(_scope("admin"))]
