"""When a schedule ticks: every so many milliseconds, or by the fields of a crontab in a time zone. Pure: whoever asks brings the moment.

Intervals are anchored: ticks are the multiples of the interval since the epoch, so two processes that never met agree on them. The fields
of a crontab come from Celery's own object, which has parsed them; as there, a day must fit its month, its number and its weekday. At a
change of the clocks a local time that does not exist is left out, and one that exists twice ticks once, the first time.
"""

from __future__ import annotations

import json
from calendar import monthrange
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import count, product, takewhile
from typing import Any
from zoneinfo import ZoneInfo

from conductor.declare.durations import in_ms
from conductor.errors import DeclarationError

__all__ = ["Cadence"]

_BOUNDS = {"minute": (0, 59), "hour": (0, 23), "day_of_month": (1, 31), "month_of_year": (1, 12), "day_of_week": (0, 6)}
_LONGEST_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_MINUTE = 60_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONTHS = 12 * 10_000  # months before the end of the calendar
_ACCEPTED = "a crontab(…) or schedule(…) of celery.schedules, a timedelta, or a number of seconds"


@dataclass(frozen=True, slots=True)
class Cadence:
    """Either `every_ms`, or the five fields (sorted; 0 is Sunday) in the zone `tz`."""

    every_ms: int = 0
    minute: tuple[int, ...] = ()
    hour: tuple[int, ...] = ()
    day_of_month: tuple[int, ...] = ()
    month_of_year: tuple[int, ...] = ()
    day_of_week: tuple[int, ...] = ()
    tz: str = ""

    @classmethod
    def of(cls, when: object, *, tz: object = "UTC", where: str) -> Cadence:
        """From what users write; DeclarationError says what is wrong and what is accepted."""
        zone = _zone_name(tz, where)
        if all(hasattr(when, field) for field in _BOUNDS):
            return cls.of_fields({field: getattr(when, field) for field in _BOUNDS}, tz=zone, where=where)
        given = getattr(when, "run_every", when)
        if isinstance(given, bool) or not isinstance(given, (timedelta, int, float)):
            raise DeclarationError(where=where, problem=f"{type(when).__name__} is no cadence; {_ACCEPTED} was expected")
        if zone != "UTC":
            raise DeclarationError(where=where, problem=f"tz={zone!r} belongs to a crontab; an interval is counted in UTC")
        try:
            return cls(every_ms=in_ms(given, least=timedelta(seconds=1)))
        except ValueError as error:
            raise DeclarationError(where=where, problem=f"interval: {error}") from None

    @classmethod
    def of_fields(cls, fields: dict[str, Iterable[Any]], *, tz: str, where: str) -> Cadence:
        """From fields that are already expanded."""
        minute, hour, days, months, weekdays = (_field(field, fields[field], where) for field in _BOUNDS)
        if not any(days[0] <= _LONGEST_MONTHS[month - 1] for month in months):
            raise DeclarationError(where=where, problem=f"day {_listed(days)} never comes in month {_listed(months)}")
        return cls(0, minute, hour, days, months, weekdays, tz)

    def next_after(self, ms: int) -> int:
        """The first tick strictly after `ms`."""
        found = next(self._ticks(ms), None)
        if found is None:
            raise ValueError(f"{self} has no tick after {ms} before the calendar ends")
        return found

    def ticks_between(self, after_ms: int, until_ms: int, limit: int) -> list[int]:
        """The ticks later than `after_ms` and not later than `until_ms`, ascending; of more than `limit` only the latest."""
        if self.every_ms:
            last = until_ms // self.every_ms * self.every_ms
            first = max(after_ms // self.every_ms * self.every_ms + self.every_ms, last - (limit - 1) * self.every_ms)
            return list(range(first, last + 1, self.every_ms))
        # A crontab ticks at most once a minute: so long a look back holds no more than `limit`. Where it holds fewer, look back further.
        reach = limit * _MINUTE
        while True:
            start = max(after_ms, until_ms - reach)
            found = list(takewhile(lambda tick: tick <= until_ms, self._ticks(start)))
            if len(found) >= limit or start == after_ms:
                return found[-limit:]
            reach *= 2

    def _ticks(self, after: int) -> Iterator[int]:
        """All ticks after a moment, ascending. The first passing of a local time grows with the local time, so nothing need be sorted."""
        if self.every_ms:
            yield from count(after // self.every_ms * self.every_ms + self.every_ms, self.every_ms)
        zone = ZoneInfo(self.tz)
        local = (_EPOCH + timedelta(milliseconds=after)).astimezone(zone)
        for day in self._days(local.date()):
            begin = (local.hour, local.minute) if day == local.date() else (0, 0)
            for hour, minute in product(self.hour, self.minute):
                tick = _first_passing(day, hour, minute, zone) if (hour, minute) >= begin else None
                if tick is not None and tick > after:
                    yield tick

    def _days(self, start: date) -> Iterator[date]:
        """The days that fit, from `start` on: by months, so that rare ones are found in a few steps."""
        for number in range(start.year * 12 + start.month - 1, _MONTHS):
            year, month = number // 12, number % 12 + 1
            if month not in self.month_of_year:
                continue
            length = monthrange(year, month)[1]
            for day in takewhile(lambda day: day <= length, self.day_of_month):  # noqa: B023 - used up before `length` changes
                found = date(year, month, day)
                if found >= start and found.isoweekday() % 7 in self.day_of_week:
                    yield found

    def to_json(self) -> str:
        """The stored form, with one spelling per cadence."""
        if self.every_ms:
            return json.dumps({"v": 1, "every": self.every_ms}, separators=(",", ":"))
        return json.dumps({"v": 1, "tz": self.tz, **{field: getattr(self, field) for field in _BOUNDS}}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Cadence:
        """Read the stored form; ValueError for one of a newer release, DeclarationError for one that makes no sense here."""
        doc = json.loads(text)
        if not isinstance(doc, dict) or doc.get("v") != 1:
            raise ValueError("the cadence was written by a newer release than this one (format 1); upgrade celery-conductor")
        if "every" in doc:
            return cls(every_ms=int(doc["every"]))
        return cls.of_fields(doc, tz=_zone_name(doc["tz"], "stored cadence"), where="stored cadence")

    def __str__(self) -> str:
        if self.every_ms:
            return f"every {timedelta(milliseconds=self.every_ms)}"
        fields = (_spelled(getattr(self, field), *bounds) for field, bounds in _BOUNDS.items())
        return f"{' '.join(fields)} ({self.tz})"


def _first_passing(day: date, hour: int, minute: int, zone: ZoneInfo) -> int | None:
    """When clocks on the wall first show this time, in ms; None if they never do."""
    wall = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)  # fold=0: the first of two
    passing = wall.astimezone(UTC)
    if passing.astimezone(zone) != wall:  # same zone on both sides: the clock faces are compared
        return None
    return (passing - _EPOCH) // timedelta(milliseconds=1)


@cache
def _known_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, not a relative path, a directory of zones
        return False
    return True


def _zone_name(tz: object, where: str) -> str:
    name = tz.key if isinstance(tz, ZoneInfo) else tz
    if not isinstance(name, str) or not _known_zone(name):
        raise DeclarationError(where=where, problem=f"tz is {tz!r}; the name of a time zone was expected, such as 'Europe/Zurich'")
    return name


def _field(field: str, values: Iterable[Any], where: str) -> tuple[int, ...]:
    low, high = _BOUNDS[field]
    try:
        found = tuple(sorted(set(values)))
    except TypeError:
        found = ()
    if not found or not all(isinstance(value, int) and not isinstance(value, bool) and low <= value <= high for value in found):
        raise DeclarationError(where=where, problem=f"{field} is {values!r}; whole numbers from {low} to {high} were expected")
    return found


def _listed(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))


def _spelled(values: tuple[int, ...], low: int, high: int) -> str:
    """As a person would write the field: `*`, `*/5`, `1-5` or a list."""
    for step in range(1, (high - low) // 2 + 1):
        if values == tuple(range(low, high + 1, step)):
            return "*" if step == 1 else f"*/{step}"
    if len(values) > 2 and values == tuple(range(values[0], values[-1] + 1)):
        return f"{values[0]}-{values[-1]}"
    return _listed(values)
