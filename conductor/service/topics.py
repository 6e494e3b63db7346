"""What is followed, and what was read for those who follow it. The page to read first is that of `streams.py`."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from conductor.store.scripts import NOTICE_MS

if TYPE_CHECKING:
    from conductor.service.streams import Hub

__all__ = ["Looks", "Topic"]

T = TypeVar("T")

_WINDOW = 2 * NOTICE_MS / 1000
_KEPT = 256


class Topic:
    """A run, an inbox, or everything. It rings the flags of its readers; `number` is that of its last ring, and no other ring has it."""

    def __init__(self, hub: Hub, name: str, partitions: frozenset[int], *, session: str = "") -> None:
        self.name, self.partitions, self.session = name, partitions, session
        self.mark: Any = None  # by which a change is seen that nobody told of
        self.number = next(hub.rings)
        self._hub = hub
        self._flags: set[asyncio.Event] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._rung = self._until = 0.0

    def told(self) -> None:
        """Something has happened here: ring now, and again when the window of its notice is over."""
        now = self._hub.loop.time()
        self._until = now + _WINDOW
        self._ring_at(max(now, self._rung + self._hub.apart))

    def _ring_at(self, when: float) -> None:
        if self._timer is None:
            self._timer = self._hub.loop.call_at(when, self.ring)

    def ring(self) -> None:
        """Every reader looks again; what was read before now serves nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._rung, self.number = None, self._hub.loop.time(), next(self._hub.rings)
        for flag in self._flags:
            flag.set()
        if self._rung < self._until:
            self._ring_at(max(self._until, self._rung + self._hub.apart))

    @property
    def alone(self) -> bool:
        """Whether it has one reader."""
        return len(self._flags) == 1

    def join(self, flag: asyncio.Event) -> None:
        self._flags.add(flag)

    def leave(self, flag: asyncio.Event) -> bool:
        """Whether that was the last reader."""
        self._flags.discard(flag)
        if not self._flags and self._timer is not None:
            self._timer.cancel()
        return not self._flags


class _Look(Generic[T]):
    """A block that is being read, or was; `ring` is the last one before the read began."""

    def __init__(self, ring: int, answer: asyncio.Future[T]) -> None:
        self.ring, self.answer = ring, answer
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever waits is told; perhaps nobody does any more


class Looks(Generic[T]):
    """Blocks read for one reader that serve all others: the last few of all topics together. A block that is `whole` never changes; any
    other is right until its topic rings."""

    def __init__(self, hub: Hub, read: Callable[[str, int], T], whole: Callable[[T], bool]) -> None:
        self._hub, self._read, self._whole = hub, read, whole
        self._kept: OrderedDict[tuple[str, int], _Look[T]] = OrderedDict()

    async def at(self, topic: Topic, block: int) -> T:
        """A block of the topic as it was at its last ring, or later."""
        key = (topic.name, block)
        known = self._kept.get(key)
        if known is None or (known.ring != topic.number and not self._lasts(known)):
            known = self._kept[key] = _Look(topic.number, self._hub.in_thread(self._read, topic.name, block))
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        try:
            return await asyncio.shield(known.answer)  # one reader that leaves takes it from no other
        except Exception:
            if self._kept.get(key) is known:
                del self._kept[key]
            raise

    def _lasts(self, known: _Look[T]) -> bool:
        answer = known.answer
        return answer.done() and not answer.cancelled() and answer.exception() is None and self._whole(answer.result())

    def forget(self, name: str) -> None:
        """The topic is read anew."""
        for key in [key for key in self._kept if key[0] == name]:
            del self._kept[key]
