"""What a stream tells of one run, and of one inbox. The page to read first is that of `streams.py`."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from conductor.service.access import Caller
from conductor.service.blocks import BLOCK
from conductor.service.framing import frame, place
from conductor.service.streams import Hub
from conductor.service.telling import NOTHING, Told
from conductor.sessions import inbox

if TYPE_CHECKING:
    from conductor.service.topics import Topic

__all__ = ["InboxTeller", "RunTeller"]

_CHUNK = 16_384  # bytes sent at once: what a reader that takes nothing keeps
_MESSAGES = 5  # read at once; each may be as large as a result


class RunTeller:
    """The events of a run behind number `after`, then how it ended."""

    def __init__(self, run_id: str, session: str, after: int) -> None:
        self._run_id, self._session, self._after = run_id, session, after
        self._last = b""  # what was sent last

    def follow(self, hub: Hub, flag: asyncio.Event) -> AbstractContextManager[Topic]:
        return hub.follow_run(self._run_id, flag)

    def opening(self) -> bytes:
        return place(self._after)

    def permits(self, caller: Caller) -> bool:
        return caller.sees(self._session)

    async def look(self, hub: Hub, topic: Topic) -> Told:
        block, passed = divmod(self._after, BLOCK)
        page = await hub.logs.at(topic, block)
        if page is None:
            return Told(over="closed: the run is no longer kept")
        if page.total < self._after or (self._last and passed and page.frames[passed - 1] != self._last):
            return Told(over="closed: the store lost its last writes; read from the beginning")
        parts: list[bytes] = []
        size = 0
        for shown in page.frames[passed:]:
            if parts and size + len(shown) > _CHUNK:
                break
            parts.append(shown)
            size += len(shown)
        self._after += len(parts)
        self._last = parts[-1] if parts else self._last
        if page.end is not None and passed + len(parts) == len(page.frames):
            return Told(b"".join(parts) + page.end, over="end")
        return Told(b"".join(parts), more=bool(parts))


class InboxTeller:
    """The messages of a session that nobody has acknowledged, behind the place `after`, then those that come."""

    def __init__(self, session: str, after: str) -> None:
        self._session, self._after = session, after

    def follow(self, hub: Hub, flag: asyncio.Event) -> AbstractContextManager[Topic]:
        return hub.follow_inbox(self._session, flag)

    def opening(self) -> bytes:
        return b""

    def permits(self, caller: Caller) -> bool:
        return caller.sees(self._session)

    async def look(self, hub: Hub, topic: Topic) -> Told:
        found = await hub.in_thread(inbox.read, hub.engine.store, self._session, self._after, _MESSAGES)
        if not found:
            return NOTHING
        self._after = found[-1].cursor
        return Told(b"".join(frame(one.kind, one.to_dict(), id=one.id) for one in found), more=True)
