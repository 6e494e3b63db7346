"""The threads that wait in the store for a whole process: one per partition for notices, one per partition for inboxes, while somebody
follows something there. They tell the event loop what moved and decide nothing. The page to read first is that of `streams.py`.

A thread pauses after each answer, so that a store full of work is asked at most some times a second. One whose server goes away tries
again, and tells of a gap when it is back. Nobody waits for a thread to end; it ends within a second when it is not needed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from conductor.store.following import News, newest_arrivals, read_arrivals, read_news
from conductor.store.notices import Unreachable, forget

__all__ = ["Listeners"]

logger = logging.getLogger(__name__)

_SLICE = 1.0
_PAUSE = 0.05
_AWAY = 0.5

class _Listener(threading.Thread):
    """Asks until it is `over`. Telling a loop that is gone raises RuntimeError, which ends it as well."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            try:
                self.over.wait(_PAUSE if self.ask() else 0)
            except Unreachable:
                self._again()
            except RuntimeError:
                break  # the loop is closed
            except Exception as error:
                logger.warning("%s failed, and tries again: %s: %s", self.name, type(error).__name__, error)
                self._again()
        forget()

    def _again(self) -> None:
        forget()
        self.lost()
        self.over.wait(_AWAY)

    def ask(self) -> bool:
        """One wait in the store; whether there was something to tell."""
        raise NotImplementedError

    def lost(self) -> None:
        """The server went away; what it said meanwhile may be missing."""
        raise NotImplementedError


class _Notices(_Listener):
    """What the notices of a partition say."""

    def __init__(self, store: Any, partition: int, tell: Callable[[int, News], None]) -> None:
        super().__init__(f"notices of partition {partition:02x}")
        self._store, self._partition, self._tell = store, partition, tell
        self._place, self._lost = "", False

    def ask(self) -> bool:
        news = read_news(self._store, self._partition, self._place, 0.001 if self._lost else _SLICE)
        self._place = news.place
        if self._lost:
            news, self._lost = replace(news, gap=True), False
        self._tell(self._partition, news)  # nothing new as well: so a loop that is gone is noticed
        return bool(news.told)

    def lost(self) -> None:
        self._lost = True


class _Inboxes(_Listener):
    """Which of the followed inboxes of a partition have something new. `sessions` is replaced, never changed."""

    def __init__(self, store: Any, partition: int, tell: Callable[[Iterable[str]], None], sessions: frozenset[str]) -> None:
        super().__init__(f"inboxes of partition {partition:02x}")
        self._store, self._partition, self._tell = store, partition, tell
        self._places: dict[str, str] = {}
        self.sessions = sessions

    def ask(self) -> bool:
        sessions = self.sessions
        fresh = sessions - self._places.keys()
        if fresh:
            # From here on nothing is missed; who looked before looks again.
            self._places = {session: place for session, place in self._places.items() if session in sessions}
            self._places |= newest_arrivals(self._store, fresh)
            self._tell(fresh)
        places = {session: self._places[session] for session in sessions}
        arrived = read_arrivals(self._store, self._partition, places, _SLICE)
        if arrived:
            self._places |= newest_arrivals(self._store, arrived)
        self._tell(arrived)
        return bool(arrived)

    def lost(self) -> None:
        self._places = {}


class Listeners:
    """Starts a thread for what is followed, and lets it go when it is not."""

    def __init__(self, store: Any, heard: Callable[[int, News], None], arrived: Callable[[Iterable[str]], None]) -> None:
        self._store, self._heard, self._arrived = store, heard, arrived
        self._notices: dict[int, _Notices] = {}
        self._inboxes: dict[int, _Inboxes] = {}

    def listen(self, partitions: Collection[int], inboxes: Mapping[int, frozenset[str]]) -> None:
        """Listen to these partitions, and for these sessions in theirs."""
        for partition in partitions:
            if partition not in self._notices or not self._notices[partition].is_alive():
                self._notices[partition] = _Notices(self._store, partition, self._heard)
                self._notices[partition].start()
        for partition, sessions in inboxes.items():
            if partition not in self._inboxes or not self._inboxes[partition].is_alive():
                self._inboxes[partition] = _Inboxes(self._store, partition, self._arrived, sessions)
                self._inboxes[partition].start()
            self._inboxes[partition].sessions = sessions

    def let_go(self, partitions: Collection[int], inboxes: Collection[int]) -> None:
        """End the threads of all others."""
        for partition in self._notices.keys() - set(partitions):
            self._notices.pop(partition).over.set()
        for partition in self._inboxes.keys() - set(inboxes):
            self._inboxes.pop(partition).over.set()

    def __len__(self) -> int:
        return len(self._notices) + len(self._inboxes)
