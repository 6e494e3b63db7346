"""Durations as users write them (`timedelta`, or a number of seconds) and as the engine keeps them (whole milliseconds)."""

from __future__ import annotations

import math
from datetime import timedelta

__all__ = ["YEARS_10", "Duration", "in_ms", "in_words"]

Duration = timedelta | float | int
YEARS_10 = timedelta(days=3653)


_UNITS = ((365.25 * 86_400, "year"), (86_400.0, "day"), (3_600.0, "hour"), (60.0, "minute"), (1.0, "second"), (0.001, "millisecond"))


def in_words(length: timedelta) -> str:
    """A bound as a person says it: `10 years`, `1 second`."""
    seconds = length.total_seconds()
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), (1.0, "second"))
    number = round(seconds / size, 1)
    return f"{number:g} {unit}{'' if number == 1 else 's'}"


def in_ms(value: object, *, least: timedelta, most: timedelta = YEARS_10) -> int:
    """Milliseconds of a duration between `least` and `most`; else ValueError says why. A part of a millisecond counts up."""
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:
            seconds = math.inf
    else:
        raise ValueError(f"a timedelta or a number of seconds was expected, found {type(value).__name__}")
    if not least.total_seconds() <= seconds <= most.total_seconds():  # NaN fails this as well
        raise ValueError(f"{seconds:g} s is not between {in_words(least)} and {in_words(most)}")
    return math.ceil(round(seconds * 1000, 6))
