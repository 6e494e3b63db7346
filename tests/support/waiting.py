"""The one place where tests wait. A test names the fact it waits for; it never sleeps and hopes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["NeverHappened", "eventually"]

T = TypeVar("T")


class NeverHappened(AssertionError):
    """The fact a test waited for did not come about in time."""


def eventually(
    fn: Callable[[], T], timeout: float = 10, every: float = 0.02, what: str | Callable[[], str] = "",
    forgive: tuple[type[BaseException], ...] = (AssertionError,),
) -> T:
    """Call `fn` until it returns something true and return that. The error tells the last value, or the last forgiven exception.

    `what` names the fact; a function is asked for it only when the time is over, so it may look around.
    """
    deadline = time.monotonic() + timeout
    while True:
        seen = ""
        try:
            value = fn()
            if value:
                return value
            seen = f"last value: {value!r}"
        except forgive as error:
            seen = f"last error: {type(error).__name__}: {error}"
        if time.monotonic() >= deadline:
            name = (what() if callable(what) else what) or getattr(fn, "__qualname__", repr(fn))
            raise NeverHappened(f"not within {timeout} s: {name}; {seen}")
        time.sleep(every)
