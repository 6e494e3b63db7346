"""`Lane`: so many runs at once, the others in one queue. Where it is declared, and what a start makes of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from conductor.codec import check_text
from conductor.declare.durations import in_ms
from conductor.declare.options import check_name
from conductor.errors import BadInput, DeclarationError
from conductor.records import LaneTerms

__all__ = ["Lane", "check_lane", "check_turns", "turn_of"]

_MOST, _LONGEST_KEY = 1_000_000, 128


class Lane:
    """At most `max_active` runs of the lane are under way, waiting and paused ones included; `max_queued` more are queued (None: any
    number), each for `queue_timeout_minutes` at most (None: for ever).

    A start beyond that raises LaneFull; a run that is not admitted in time fails with `lane_busy`. With `key=`, a function of the input,
    the keys take turns in the queue.
    """

    __slots__ = ("key", "terms")

    def __init__(
        self, name: str, max_active: int = 5, max_queued: int | None = 20, queue_timeout_minutes: float | None = 10, *,
        key: Callable[[Any], Any] | None = None,
    ) -> None:
        where = f"lane {name}"
        check_name(name, where, "lane name")
        self.key = check_turns(key, where)
        self.terms = LaneTerms(
            name, _number("max_active", max_active, where, 1), None if max_queued is None else _number("max_queued", max_queued, where, 0),
            0 if queue_timeout_minutes is None else _minutes(queue_timeout_minutes, where), fair=key is not None)

    @property
    def name(self) -> str:
        return self.terms.name

    def __repr__(self) -> str:
        return f"<Lane {self.name}>"


def check_lane(given: Any, where: str) -> Lane | LaneTerms:
    """A lane, or the name of one that stands on its own terms."""
    if isinstance(given, Lane):
        return given
    if isinstance(given, str):
        return LaneTerms(check_name(given, where, "lane name"), known=False)
    raise DeclarationError(where=where, problem=f"lane is {given!r}; a Lane(...) or the name of one was expected")


def check_turns(key: Any, where: str) -> Callable[[Any], Any] | None:
    if key is not None and not callable(key):
        raise DeclarationError(where=where, problem=f"key is {key!r}; a function of the input was expected, such as lambda x: x.customer")
    checked: Callable[[Any], Any] | None = key
    return checked


def turn_of(key: Callable[[Any], Any] | None, value: Any, what: str, field: str) -> str:
    """Whose turn it is, as a text. Asked once, when the work is accepted, so that no script and no worker needs the input for it."""
    if key is None:
        return ""
    try:
        return check_text(str(key(value)), field, _LONGEST_KEY)
    except BadInput as error:
        raise BadInput(what=what, field=f"key of {field}", problem=error.problem) from None
    except Exception as error:
        raise BadInput(what=what, field=f"key of {field}", problem=f"it raised {type(error).__name__}: {error}") from None


def _number(option: str, given: Any, where: str, least: int) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not least <= given <= _MOST:
        raise DeclarationError(where=where, problem=f"{option} is {given!r}; a whole number from {least} to {_MOST} was expected")
    return given


def _minutes(given: Any, where: str) -> int:
    try:
        return in_ms(timedelta(minutes=given), least=timedelta(milliseconds=1), most=timedelta(days=365))
    except (TypeError, ValueError, OverflowError) as error:
        raise DeclarationError(where=where, problem=f"queue_timeout_minutes is {given!r}: {error}") from None
