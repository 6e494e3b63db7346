"""What happens to all runs, live: each change of a run's state, told to everybody who follows everything. The page to read first is that of
`streams.py`.

It is a view, not a log: nothing of it is kept, no reader can come back to a place in it, and of several changes within a moment the last is
told. It costs the store a bounded number of reads a second, however many runs move and however many readers there are. Where something may
be missing (more moved than is read, a reader fell behind, a notice was lost) it says `gap`: who needs the whole lists the runs again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conductor.service.access import Caller
from conductor.service.framing import frame
from conductor.service.telling import NOTHING, Told
from conductor.store.following import Head, News, read_heads
from conductor.store.notices import Unreachable

if TYPE_CHECKING:
    from conductor.service.streams import Hub
    from conductor.service.topics import Topic

__all__ = ["TailTeller"]

logger = logging.getLogger(__name__)

_EVERY = 0.2  # seconds between two reads
_AT_ONCE = 500  # runs of one read
_WAITING = 2000  # runs that wait to be read; more are a gap
_RING = 1024  # changes kept for readers that are a little behind
_REMEMBERED = 8192  # runs of which is known what was told last
_CHUNK = 64
_STANDING = 2.0  # seconds in which threads begin to listen, each with a gap that nobody minds


@dataclass(frozen=True, slots=True)
class _Change:
    """A run in a new state; without a session for everybody: a gap."""

    shown: bytes
    state: str = ""
    workflow: str = ""
    session: str | None = None


_GAP = _Change(frame("gap", {"hint": "changes may be missing here; list the runs again"}))


class _Tail:
    """One per hub, while somebody follows it. `total` counts all changes there ever were."""

    def __init__(self, hub: Hub, topic: Topic) -> None:
        self._hub, self._topic = hub, topic
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._last: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._ring: deque[_Change] = deque(maxlen=_RING)
        self._reading: asyncio.Task[None] | None = None
        self._stands = hub.loop.time() + _STANDING
        self.total = 0

    def heard(self, news: News) -> None:
        """What a partition has said."""
        if news.gap and self._hub.loop.time() > self._stands:
            self._add([_GAP])
        for run_id, _, state in news.told:
            if self._last.get(run_id, ("", 0))[0] != state:
                self._waiting[run_id] = None
        if len(self._waiting) > _WAITING:
            for _ in range(len(self._waiting) - _WAITING):
                self._waiting.popitem(last=False)
            self._add([_GAP])
        if self._waiting and (self._reading is None or self._reading.done()):
            self._reading = self._hub.loop.create_task(self._read())

    async def _read(self) -> None:
        while self._waiting and self._hub.watcher is self:
            some = [self._waiting.popitem(last=False)[0] for _ in range(min(_AT_ONCE, len(self._waiting)))]
            try:
                heads = await self._hub.in_thread(read_heads, self._hub.engine.store, some)
            except Exception as error:
                if not isinstance(error, Unreachable):
                    logger.warning("runs that moved could not be read: %s: %s", type(error).__name__, error)
                heads = []
                self._add([_GAP])
            self._add([change for head in heads if (change := self._change(head)) is not None])
            await asyncio.sleep(_EVERY)

    def _change(self, head: Head) -> _Change | None:
        """None if that was told before."""
        stands = (head.state, head.generation)
        if self._last.get(head.run_id) == stands:
            return None
        self._last[head.run_id] = stands
        self._last.move_to_end(head.run_id)
        while len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)
        told = {
            "run_id": head.run_id, "workflow": head.workflow, "state": head.state, "reason": head.reason, "generation": head.generation,
            "session": head.session, "event": head.events,
        }
        return _Change(frame("state", told), head.state, head.workflow, head.session)

    def _add(self, changes: Sequence[_Change]) -> None:
        if changes:
            self._ring.extend(changes)
            self.total += len(changes)
            self._topic.told()

    def behind(self, place: int) -> tuple[list[_Change], int]:
        """Some changes after the first `place` of them, and how many there were up to the last of those."""
        first = self.total - len(self._ring)
        if place < first:
            return [_GAP], first
        some = [self._ring[at - first] for at in range(place, min(self.total, place + _CHUNK))]
        return some, place + len(some)


class TailTeller:
    """The changes that a caller may see and has asked for."""

    def __init__(self, caller: Caller, *, workflow: str = "", state: str = "") -> None:
        self._caller, self._workflow, self._state = caller, workflow, state
        self._tail: _Tail | None = None
        self._place = 0

    @contextmanager
    def follow(self, hub: Hub, flag: asyncio.Event) -> Iterator[Topic]:
        with hub.follow_all(flag) as topic:
            if not isinstance(hub.watcher, _Tail):
                hub.watcher = _Tail(hub, topic)
            self._tail = hub.watcher
            self._place = self._tail.total
            try:
                yield topic
            finally:
                if topic.alone:
                    hub.watcher = None

    def opening(self) -> bytes:
        return b""

    def permits(self, caller: Caller) -> bool:
        self._caller = caller  # its sessions may be others now
        return True

    async def look(self, hub: Hub, topic: Topic) -> Told:
        assert self._tail is not None
        some, self._place = self._tail.behind(self._place)
        if not some:
            return NOTHING
        return Told(b"".join(change.shown for change in some if self._wants(change)), more=True)

    def _wants(self, change: _Change) -> bool:
        if change.session is None:
            return True
        asked = self._workflow in ("", change.workflow) and self._state in ("", change.state)
        return asked and self._caller.sees(change.session)
