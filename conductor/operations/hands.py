"""The hands of a calling process: drainers that run a call where it was made.

Authority: this process. Any thread takes a pair that is idle, and a call inside a call takes a second one. A pair is used by one thread at
a time and belongs to none: threads come and go, and what is kept is bounded by how many calls were under way at once. A pair that is one
too many, or of an engine that nobody uses any more, ends with its pulse. After a fork the child begins without any.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from conductor.runs.execute import Drainer

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["hands"]

_MOST_IDLE = 8


class _Pool:
    """Idle drainers with the engine they were made for, the latest used last."""

    def __init__(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._idle: list[tuple[Engine, Drainer]] = []

    def take(self, engine: Engine) -> Drainer:
        with self._lock:
            place = next((at for at in reversed(range(len(self._idle))) if self._idle[at][0] is engine), None)
            if place is not None:
                return self._idle.pop(place)[1]
        return Drainer(engine, worker_name=f"caller@{os.getpid()}", may_stop_process=False)

    def give(self, engine: Engine, made: Drainer) -> None:
        with self._lock:
            self._idle.append((engine, made))
            surplus = self._idle.pop(0)[1] if len(self._idle) > _MOST_IDLE else None
        if surplus is not None:
            surplus.end()

    @property
    def is_ours(self) -> bool:
        return self._pid == os.getpid()


_pool = _Pool()


@contextmanager
def hands(engine: Engine) -> Iterator[Drainer]:
    """A drainer of this process that nobody else uses meanwhile."""
    global _pool
    if not _pool.is_ours:  # its locks and threads are the parent's
        _pool = _Pool()
    made = _pool.take(engine)
    try:
        yield made
    finally:
        _pool.give(engine, made)
