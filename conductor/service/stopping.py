"""The end of the service inside a server that is not ours: streams are told to go on elsewhere, and what is left of the audit record is
written. `conductor serve` does both by itself (`server.py`).

Race: a server waits for its open answers before it ends the lifespan, and a stream is an answer without an end, so the two would wait for
each other. Therefore streams are told when the signal comes, by a handler in front of the server's own, which hears it all the same.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from starlette.concurrency import run_in_threadpool

__all__ = ["stopped_at_the_end"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@asynccontextmanager
async def stopped_at_the_end(stop: Callable[[], None], close: Callable[[], None]) -> AsyncIterator[None]:
    """`stop` at the first signal or at the end, then `close`."""
    with _heard(stop):
        try:
            yield
        finally:
            stop()
            await run_in_threadpool(close)


@contextmanager
def _heard(stop: Callable[[], None]) -> Iterator[None]:
    """Only where the server has a handler of its own that ends it; and only the main thread may set one."""
    before = {number: signal.getsignal(number) for number in _SIGNALS} if threading.current_thread() is threading.main_thread() else {}
    ours: dict[signal.Signals, Any] = {number: _before(handler, stop) for number, handler in before.items() if callable(handler)}
    for number, handler in ours.items():
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in ours.items():
            if signal.getsignal(number) is handler:
                signal.signal(number, before[number])


def _before(handler: Callable[..., Any], stop: Callable[[], None]) -> Callable[..., None]:
    def heard(number: int, frame: Any) -> None:
        stop()
        handler(number, frame)

    return heard
