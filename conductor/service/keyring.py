"""A copy of the store's tokens and of its identity, at most a second old, so that no request pays for asking.

Authority: the store. A token that is revoked counts here for a second more. A store that is away leaves the last copy standing for a
minute: whoever was known stays known, nobody new is. A process that has once seen a token never opens again, whatever happens to the store.
Threads: one request fetches, the others of that moment wait for it; the copy itself is never changed, only replaced.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool

from conductor.errors import ConductorError
from conductor.store.notices import Unreachable
from conductor.store.tokens import Login, Token, digest

if TYPE_CHECKING:
    from conductor.store import Store

__all__ = ["Keyring", "Ring"]

_FRESH, _STALE = 1.0, 60.0
_LOGINS = 4096


@dataclass(frozen=True, slots=True)
class Ring:
    """Tokens by digest, as the store had them; `offset_ms` leads from this process's clock to the store's."""

    identity: str = ""
    tokens: Mapping[str, Token] = field(default_factory=dict)
    offset_ms: float = 0.0

    @property
    def now(self) -> int:
        return int(time.time() * 1000 + self.offset_ms)


class Keyring:
    """Asks at most once a second."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ring = Ring()
        self._at = float("-inf")
        self._closed = False
        self._fetching: tuple[asyncio.AbstractEventLoop, asyncio.Future[Ring]] | None = None
        self._logins: OrderedDict[str, tuple[float, Login | None]] = OrderedDict()

    @property
    def identity(self) -> str:
        """What the store was called when it was last asked."""
        return self._ring.identity

    @property
    def url(self) -> str:
        """Where the store is, without its password."""
        return self._store.url

    async def ring(self) -> Ring:
        """The copy, renewed if it is older than a second."""
        if time.monotonic() - self._at < _FRESH:
            return self._ring
        loop = asyncio.get_running_loop()
        if self._fetching is None or self._fetching[0] is not loop:  # a future belongs to one loop
            self._fetching = loop, asyncio.ensure_future(run_in_threadpool(self._fetch))
            self._fetching[1].add_done_callback(self._fetched)
        try:
            return await asyncio.shield(self._fetching[1])
        except Unreachable:
            if time.monotonic() - self._at < _STALE:
                return self._ring
            raise

    def _fetched(self, done: asyncio.Future[Ring]) -> None:
        self._fetching = None
        if not done.cancelled():
            done.exception()  # told by whoever waits; nobody may

    def _fetch(self) -> Ring:
        store = self._store
        seconds, micros = store.client().time()
        offset = int(seconds) * 1000 + int(micros) / 1000 - time.time() * 1000
        ring = Ring(store.identity(), {token.digest: token for token in store.tokens()}, offset)
        self._ring, self._at = ring, time.monotonic()
        self._closed = self._closed or bool(ring.tokens)
        return ring

    async def meet_anew(self) -> None:
        """Ask the store who it is, now: whoever is told that a run is unknown must know of which store that was said."""
        try:
            identity = await run_in_threadpool(self._store.identity)
        except (*Unreachable, ConductorError):
            return
        if identity != self._ring.identity:
            self._ring, self._at = replace(self._ring, identity=identity), float("-inf")

    def expire(self) -> None:
        """The copy is not believed any longer."""
        self._at = float("-inf")
        self._logins.clear()

    async def is_open(self) -> bool:
        """Whether no token was ever seen here, so that the machine itself may call."""
        await self.ring()
        return not self._closed

    async def token(self, secret: str) -> Token | None:
        """The token of this text. Found by its digest, and the digest compared once more in constant time."""
        ring, told = await self.ring(), digest(secret)
        found = ring.tokens.get(told)
        return found if found is not None and hmac.compare_digest(found.digest, told) else None

    async def login(self, secret: str) -> tuple[Login, Token] | None:
        """The login of a browser's cookie and the token behind it, as long as both count."""
        told = digest(secret)
        at, known = self._logins.get(told, (float("-inf"), None))
        if time.monotonic() - at >= _FRESH:
            known = await run_in_threadpool(self._store.login, secret)
            self._logins[told] = (time.monotonic(), known)
            if len(self._logins) > _LOGINS:
                self._logins.popitem(last=False)
        ring = await self.ring()
        token = ring.tokens.get(known.digest) if known else None
        if known is None or token is None or known.expires_at <= ring.now:
            return None
        return known, token

    def forget_login(self, secret: str) -> None:
        self._logins.pop(digest(secret), None)
