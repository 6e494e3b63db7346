"""Waiting for an end without holding a thread: a request that waits for a minute must not take the place of others.

The pool has so many threads (40), and each endpoint needs one for a moment. So whoever waits sleeps on the loop and looks now and then,
from the pool, for a moment each: at first often, because most answers come at once, then twice a second. For a caller that has gone away
nobody looks any longer; what it asked for goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import anyio
from fastapi import Request
from fastapi.concurrency import run_in_threadpool

__all__ = ["until"]

T = TypeVar("T")

_FIRST, _LAST, _GROWTH = 0.02, 0.5, 1.4


async def until(request: Request, look: Callable[[], T], over: Callable[[T], bool], seconds: float) -> T:
    """What `look` (called in the pool) says when `over` holds of it; what it says last when the time is up."""
    end, pause = time.monotonic() + seconds, _FIRST
    seen = await run_in_threadpool(look)
    while not over(seen) and (left := end - time.monotonic()) > 0 and not await request.is_disconnected():
        await anyio.sleep(min(pause, left))
        pause = min(pause * _GROWTH, _LAST)
        seen = await run_in_threadpool(look)
    return seen
