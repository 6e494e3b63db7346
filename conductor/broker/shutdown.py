"""What a worker's parent process tells its pool children without a message: "stop claiming" and "somebody watches events".

A prefork child never sees the signal that stops its parent: the parent gets SIGTERM, takes no more messages, and waits for its
children, who would go on claiming. So both facts stand in one anonymous page of memory that is shared over fork. It is made when this
module is imported, which happens before any child exists; the parent writes, children only read. CLOCK_MONOTONIC counts from the boot
of the host, so parent and children read the same time.

Celery announces `worker_shutting_down` only after a cold or soft shutdown has waited, which would be too late for "no claim after the
signal". So the parent also puts itself in front of the handlers that Celery installed: it marks the page, then calls them.
"""

from __future__ import annotations

import mmap
import signal
import struct
import threading
import time
from types import FrameType
from typing import Any

__all__ = ["begin", "events_wanted", "reset", "set_events_wanted", "stand_before_signals", "stopping", "stopping_for"]

_SINCE = struct.Struct("d")
_EVENTS = _SINCE.size
_page = mmap.mmap(-1, mmap.PAGESIZE)


def begin(**_signal: Any) -> None:
    """No claim from now on. Also a receiver of Celery's `worker_shutting_down`; a second call changes nothing."""
    if not stopping():
        _SINCE.pack_into(_page, 0, time.monotonic())


def reset() -> None:
    """A worker starts in this process (again): nothing is being stopped."""
    _page[: _EVENTS + 1] = bytes(_EVENTS + 1)


def stopping() -> bool:
    """Whether this worker was told to stop. Cheap enough to ask before every claim."""
    return bool(_SINCE.unpack_from(_page)[0])


def stopping_for() -> float:
    """Seconds since the worker was told to stop, 0.0 if it was not."""
    since = _SINCE.unpack_from(_page)[0]
    return float(time.monotonic() - since) if since else 0.0


def set_events_wanted(wanted: bool) -> None:
    """Whether this worker sends task events (`-E`, or switched on by remote control)."""
    _page[_EVENTS] = int(wanted)


def events_wanted() -> bool:
    return bool(_page[_EVENTS])


def stand_before_signals() -> None:
    """Mark the page before Celery's own handlers run. Only the main thread may set handlers; an embedded worker in a thread has none."""
    if threading.current_thread() is not threading.main_thread():
        return
    for name in ("SIGTERM", "SIGINT", "SIGQUIT"):
        number = getattr(signal, name, None)
        if number is not None:
            _stand_before(number)


def _stand_before(number: int) -> None:
    after = signal.getsignal(number)
    if not callable(after) or getattr(after, "marks_shutdown", False):
        return

    def mark(signum: int, frame: FrameType | None) -> Any:
        begin()
        return after(signum, frame)

    mark.marks_shutdown = True  # type: ignore[attr-defined]
    signal.signal(number, mark)
