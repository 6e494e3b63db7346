"""One stream of events over HTTP: heartbeats, and every reason for which a stream ends. The page to read first is `streams.py`.

A stream ends when its run has (event `end`, then the response is complete), when its reader leaves, may no longer read, or has heard no
event for an hour, and when this process stops; the last three say so in a comment and lose nothing, because a reader comes back to its
place. A reader that takes nothing is dropped: the connection is cut, for a socket that is closed politely would keep what it has not taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from starlette.responses import Response

from conductor.errors import ArchiveUnreachable, ConductorError, StoreUnreachable, redact
from conductor.service.access import Caller
from conductor.service.errors import status_of
from conductor.service.framing import comment, retry
from conductor.service.streams import Hub, hub_of
from conductor.store.notices import Unreachable

if TYPE_CHECKING:
    from conductor.service.topics import Topic

__all__ = ["NOTHING", "EventStream", "Teller", "Told"]

logger = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store, no-transform"), (b"x-accel-buffering", b"no"),
)
_COME_BACK_MS = 2000
_AWAY = (StoreUnreachable, ArchiveUnreachable, *Unreachable)
_NO_MORE = (401, 403, 404)
_AGAIN = 1.0  # seconds after a look that failed


@dataclass(frozen=True, slots=True)
class Told:
    """What there is to send: some events; whether more of them are there already; why the stream is over."""

    chunk: bytes = b""
    more: bool = False
    over: str = ""


NOTHING = Told()
_AWAY_NOW = Told()  # nothing that could be known


class Teller(Protocol):
    """Knows what a stream tells, and its place in it."""

    def follow(self, hub: Hub, flag: asyncio.Event) -> AbstractContextManager[Topic]:
        """Raise the flag whenever there may be something new."""
        ...

    def opening(self) -> bytes:
        """Said first."""
        ...

    async def look(self, hub: Hub, topic: Topic) -> Told:
        """What comes next."""
        ...

    def permits(self, caller: Caller) -> bool:
        """Whether the caller may still read this."""
        ...


class _Dropped(Exception):
    """The reader has taken nothing for too long."""


class EventStream(Response):
    """Tells what `teller` knows until one of the two has had enough. `who` asks anew who reads."""

    media_type = "text/event-stream"

    def __init__(self, teller: Teller, caller: Caller, who: Callable[[], Awaitable[Caller]]) -> None:
        super().__init__()
        self.raw_headers = list(_HEADERS)
        self._teller, self._actor, self._who = teller, caller.actor, who
        self._flag = asyncio.Event()
        self._left = False

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        hub = hub_of(scope["app"])
        leaving = None
        try:
            with hub.place(self._actor), self._teller.follow(hub, self._flag) as topic:
                leaving = asyncio.create_task(self._watch(receive))
                await self._serve(hub, topic, send)
        except _Dropped:
            await _cut(receive)
        except OSError:
            return  # some servers say so that the reader has left
        finally:
            if leaving is not None:
                leaving.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._left = True
        self._flag.set()

    async def _serve(self, hub: Hub, topic: Topic, send: Send) -> None:
        patience = hub.engine.settings.stream_send_seconds

        async def say(chunk: bytes, *, last: bool = False) -> None:
            await _within(patience, send({"type": "http.response.body", "body": chunk, "more_body": not last}))

        await _within(patience, send({"type": "http.response.start", "status": 200, "headers": self.raw_headers}))
        await say(retry(_COME_BACK_MS) + self._teller.opening())
        over = await self._tell(hub, topic, say)
        if not self._left:
            await say(comment(over) if over != "end" else b"", last=True)

    async def _tell(self, hub: Hub, topic: Topic, say: Callable[[bytes], Awaitable[None]]) -> str:
        """Tell until there is a reason to stop, and give it."""
        settings, now = hub.engine.settings, hub.loop.time
        said = heard = checked = now()
        while not self._left:
            self._flag.clear()  # before the look: what happens during it raises the flag again
            told = await self._look(hub, topic)
            if told.chunk:
                await say(told.chunk)
                said = heard = now()
            if told.over or hub.stopping:
                return told.over or "closed: this process stops; come back"
            if now() >= checked + settings.stream_check_seconds:
                if not await self._may_read():
                    return "closed: you may no longer read this"
                checked = now()
            if now() >= heard + settings.stream_idle_seconds:
                return "closed: nothing has happened for long; come back"
            if now() >= said + settings.stream_heartbeat_seconds:
                await say(comment(""))
                said = now()
            if told.more:
                await asyncio.sleep(0)  # a long history is told between others
            else:
                await self._wait(min(
                    said + settings.stream_heartbeat_seconds, checked + settings.stream_check_seconds,
                    heard + settings.stream_idle_seconds, now() + (_AGAIN if told is _AWAY_NOW else settings.stream_idle_seconds)))
        return ""

    async def _look(self, hub: Hub, topic: Topic) -> Told:
        try:
            return await self._teller.look(hub, topic)
        except _AWAY:
            return _AWAY_NOW  # the stream stays
        except ConductorError as error:
            return Told(over=f"closed: {error.code}")
        except Exception as error:
            logger.error("a stream of events failed: %s: %s", type(error).__name__, redact(str(error)))
            return Told(over="closed: internal_error")

    async def _wait(self, until: float) -> None:
        try:
            async with asyncio.timeout_at(until):
                await self._flag.wait()
        except TimeoutError:
            return

    async def _may_read(self) -> bool:
        """A store that is away says nothing about anybody, nor does it tell an event."""
        try:
            caller = await self._who()
        except _AWAY:
            return True
        except ConductorError as error:
            return status_of(error) not in _NO_MORE
        return "read" in caller.scopes and self._teller.permits(caller)


async def _within(seconds: float, sending: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(seconds):
            await sending
    except TimeoutError:
        raise _Dropped from None


async def _cut(receive: Receive) -> None:
    """Cut the connection, where the server lets us: uvicorn's `receive` belongs to the request, which knows its transport."""
    transport = getattr(getattr(receive, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()
        await asyncio.sleep(0)  # the server learns of it before we return
