"""Staying a while: a worker that has just worked looks around in all partitions before it goes, so that runs that come thick and fast do
not cost a broker message each.

Authority: the ready indexes; nothing is decided here. Promise: while a drain attends a partition, what becomes ready there is not poked,
because the drain looks again within `ATTENDED_MS`. It leaves by taking the promise back in the script that also pokes for whatever came
meanwhile, so nothing is forgotten between its last look and its leaving. While a body runs long, the pulse takes the promises back. A
process that dies with a promise given costs what a lost poke costs: the stall sweep's grace.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from conductor.records import Poke
from conductor.store import Store, Want

__all__ = ["LINGER", "THICK", "Lingering"]

LINGER = 0.008  # seconds without anything to do before it leaves
THICK = 0.05  # pokes that follow each other within so many seconds make it worth while to stay
# After a look that found something, so that what is started meanwhile is claimed in one go. It grows as long as each look finds much.
_PAUSE, _LONGEST_PAUSE = 0.001, 0.016
_LISTEN_MS = 4  # after a look that found nothing: so long for a notice, which a start wakes at once


class Lingering:
    """What one drainer attends. Two threads may take promises back: the drainer itself and its pulse."""

    def __init__(self, store: Store, want: Callable[[], Want], poke: Callable[[list[Poke]], None]) -> None:
        self._store, self._want, self._poke = store, want, poke
        self._attended: set[int] = set()
        self._lock = threading.Lock()
        self._left_at = self._worked_at = 0.0
        self._met = 0  # steps that the caller has found since the last look

    def worth_while(self) -> bool:
        """Whether the drain before this one ended only just now."""
        return time.monotonic() - self._left_at < THICK

    def partitions(self, until: float) -> Iterator[int]:
        """Where something is ready, as long as there is time and it does not become quiet. The caller drains what it is told."""
        queue, pause = self._want().queue, _PAUSE
        self._worked_at = time.monotonic()
        while (now := time.monotonic()) < until:
            found, self._met = self._store.ready_in(queue), 0
            for partition in found:
                with self._lock:
                    self._attended.add(partition)
                yield partition
            if now - self._worked_at > LINGER:  # also where something stands that is held, and nobody may claim
                return
            if found:
                pause = min(2 * pause, _LONGEST_PAUSE) if self._met > 1 else max(pause / 2, _PAUSE)
                time.sleep(pause)
            else:
                self._store.await_notice(_LISTEN_MS)

    def worked(self, steps: int = 0) -> None:
        """The caller has found something to do."""
        if steps:
            self._worked_at = time.monotonic()
            self._met += steps

    def leave(self) -> None:
        """Take all promises back; what came meanwhile is poked."""
        with self._lock:
            attended, self._attended = self._attended, set()
        want = self._want()
        for partition in attended:
            self._poke(self._store.claim(partition, Want(want.queue, 0, want.code, want.tag, first=True)).pokes)

    def gone(self) -> None:
        """The drain is over, and ended well."""
        self._left_at = time.monotonic()
