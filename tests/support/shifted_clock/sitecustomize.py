"""Read by every interpreter whose PYTHONPATH names this directory: its wall clock is wrong by `TEST_CLOCK_SHIFT` seconds.

The monotonic clock is left alone, as on a host whose date was set wrongly.
"""

from __future__ import annotations

import datetime
import os
import time
from typing import Any

_SHIFT = float(os.environ.get("TEST_CLOCK_SHIFT", "0"))


class _Calendar:
    """Not a function: `logging` keeps the converter as a class attribute, where a function would become a method."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __call__(self, seconds: float | None = None) -> time.struct_time:
        told: time.struct_time = self._real(time.time() if seconds is None else seconds)
        return told


def _install(shift: float) -> None:
    real_time, real_ns, real_gmtime, real_localtime, real_gettime = time.time, time.time_ns, time.gmtime, time.localtime, time.clock_gettime
    real = datetime.datetime

    class _Kind(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, real)

        def __subclasscheck__(cls, kind: Any) -> bool:
            return issubclass(kind, real)

    class Shifted(datetime.datetime, metaclass=_Kind):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return real.fromtimestamp(time.time(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return real.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return real.fromtimestamp(time.time())

    Shifted.__name__ = Shifted.__qualname__ = "datetime"
    time.time = lambda: real_time() + shift
    time.time_ns = lambda: real_ns() + int(shift * 1e9)
    time.gmtime = _Calendar(real_gmtime)
    time.localtime = _Calendar(real_localtime)
    time.clock_gettime = lambda clock: real_gettime(clock) + (shift if clock == time.CLOCK_REALTIME else 0)
    datetime.datetime = Shifted  # type: ignore[misc]


if _SHIFT:
    _install(_SHIFT)
