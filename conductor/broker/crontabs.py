"""When a schedule ticks, as messages and requests say it: plain JSON, made into what Celery has for it."""

from __future__ import annotations

from typing import Any

from celery.schedules import crontab

from conductor.errors import BadInput

__all__ = ["cadence_of"]

_FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


def cadence_of(name: str, when: float | str) -> Any:
    """A number of seconds, or the five fields of a crontab: `"30 6 * * 1-5"`."""
    if not isinstance(when, str):
        return when
    fields = when.split()
    problem = f"{when[:80]!r} has not the five fields of a crontab: {', '.join(_FIELDS)}"
    if len(fields) != len(_FIELDS):
        raise BadInput(what=f"schedule {name[:80]}", field="when", problem=problem)
    try:
        return crontab(**dict(zip(_FIELDS, fields, strict=True)))
    except (ValueError, TypeError) as error:  # what Celery's own parser says is a ValueError
        raise BadInput(what=f"schedule {name[:80]}", field="when", problem=f"{problem}: {error}") from None
