"""`Where`: which runs are meant. One form for lists, batches, the command line, HTTP and Celery tasks.

A filter that is ignored shows, or cancels, the wrong runs. So an unknown name or value is refused with what is allowed, and a text is
compared as it is: nothing in it is a pattern.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict

from conductor.codec import check_text
from conductor.errors import BadInput
from conductor.state import RunState
from conductor.store.listing import Filter
from conductor.store.sifting import ERROR_WORDS

__all__ = ["Where"]

_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|min|h|d|w)\Z")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*\Z")
_VERSION = re.compile(r"[0-9a-f]{4,16}\Z")
_EARLIEST, _LATEST = 10**11, 2**53  # ms; a time before 1973 was meant in seconds
_LONGEST_IDLE = 3.2e8  # seconds; ten years
_LENGTHS = {"workflow": 128, "session": 256, "key": 512, "tag": 128, "step": 256, "waiting_for": 256, "lane": 256}
_ABOUT = {
    "status": f"states, separated by commas: {', '.join(RunState)}",
    "workflow": "the name of its workflow", "session": "whom it belongs to", "key": "its idempotency key", "tag": "one of its tags",
    "step": "the step at which it stands, or which failed", "version": "the hash of its graph, or at least 4 digits of its beginning",
    "error_kind": f"the kind of error a failed or repeated attempt met: {', '.join(ERROR_WORDS)}, or its class, such as CardError",
    "since": "started at or after this time: ms since 1970, or ISO 8601 with a zone",
    "until": "started at or before this time: ms since 1970, or ISO 8601 with a zone",
    "idle": "true: only runs that wait; false: only the others", "idle_duration_gt": "waits for longer than so many seconds",
    "waiting_for": "the signal it waits for, or the step in which it waits", "lane": "its lane",
    "archived": "true: the runs of the archive instead of those of the store",
}


class Where(BaseModel):
    """Every filter that is set must hold; nothing set means every run. Times are ms on the store's clock, both ends included."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    status: tuple[RunState, ...] = ()
    workflow: str = ""
    session: str = ""
    key: str = ""
    tag: str = ""
    step: str = ""
    error_kind: str = ""
    version: str = ""
    since: int | None = None
    until: int | None = None
    idle: bool | None = None
    idle_duration_gt: float | None = None
    waiting_for: str = ""
    lane: str = ""
    archived: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, Any], *, now: int | None = None) -> Where:
        """The filters that names and texts say, as a query or a person writes them, or plain JSON values. With `now` a time may also be a
        span before it, such as `2h`."""
        read: dict[str, Any] = {}
        for name, value in given.items():
            if name not in _READ:
                near = difflib.get_close_matches(str(name), _READ, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                _refuse(str(name)[:64], f"there is no such filter; known are {', '.join(_READ)}{hint}")
            read[name] = _READ[name](name, value, now)
        if read.get("since") is not None and read.get("until") is not None and read["since"] > read["until"]:
            _refuse("since", "it is later than until, so nothing could match")
        return cls(**read)

    @classmethod
    def openapi_parameters(cls) -> list[dict[str, Any]]:
        """The filters as the parameters of a query."""
        return [
            {"name": name, "in": "query", "required": False, "description": about, "schema": _SCHEMAS.get(name, {"type": "string"})}
            for name, about in _ABOUT.items()
        ]

    def to_json(self) -> dict[str, Any]:
        """The filters that are set; `parse` reads it again."""
        told = self.model_dump(mode="json", exclude_defaults=True)
        return {name: told[name] for name in sorted(told)}

    def to_filter(self, now: int, sessions: frozenset[str] | None = None) -> Filter:
        """What the lists of the store take; how long a run has been idle is judged at `now`."""
        before = 0 if self.idle_duration_gt is None else max(1, now - math.floor(self.idle_duration_gt * 1000) - 1)
        return Filter(
            frozenset(self.status), self.workflow, self.session, self.key, self.tag, self.since or 0, self.until or 0, self.lane,
            idle=self.idle, idle_before=before, waiting_for=self.waiting_for, step=self.step, error_kind=self.error_kind,
            version=self.version, sessions=sessions,
        )


# One reader a kind of value: (name, what was given, now) → the field.


def _refuse(name: str, problem: str) -> NoReturn:
    raise BadInput(what="filter", field=name, problem=problem)


def _shown(value: Any) -> str:
    return repr(value)[:80]


def _status(name: str, given: Any, _now: int | None) -> tuple[RunState, ...]:
    words = given.split(",") if isinstance(given, str) else given
    if not isinstance(words, list | tuple) or not words:
        _refuse(name, f"{_shown(given)} names no state; known are {', '.join(RunState)}")
    for word in words:
        if not isinstance(word, str) or word not in set(RunState):
            _refuse(name, f"{_shown(word)} is no state of a run; known are {', '.join(RunState)}")
    return tuple(state for state in RunState if state in words)


def _text(name: str, given: Any, _now: int | None) -> str:
    try:
        return check_text(given, name, _LENGTHS[name])
    except BadInput as error:
        raise BadInput(what="filter", field=name, problem=error.problem) from None


def _error_kind(name: str, given: Any, _now: int | None) -> str:
    """A word of ours, or a class; a word in small letters that is neither is a typing error."""
    is_name = isinstance(given, str) and len(given) <= 256 and _CLASS.match(given)
    if is_name and (given in ERROR_WORDS or given != given.lower() or "." in given):
        return str(given)
    _refuse(name, f"{_shown(given)} is none of {', '.join(ERROR_WORDS)}, nor the class of an error, such as CardError or zlib.error")


def _version(name: str, given: Any, _now: int | None) -> str:
    if isinstance(given, str) and _VERSION.match(given):
        return given
    _refuse(name, f"{_shown(given)} is not the hash of a graph, nor at least 4 of its first digits (0-9, a-f)")


def _time(name: str, given: Any, now: int | None) -> int:
    found = given if isinstance(given, int) and not isinstance(given, bool) else None
    if isinstance(given, str) and len(given) <= 64:
        found = int(given) if re.fullmatch(r"[0-9]{1,16}", given) else _moment(given)
        if found is None and now is not None and (span := _SPAN.match(given)):
            found = max(_EARLIEST, now - round(float(span[1]) * _SECONDS[span[2]] * 1000))
    if found is None or not _EARLIEST <= found < _LATEST:
        spans = "" if now is None else ", or a span before now such as 2h"
        _refuse(name, f"{_shown(given)} is no time: ms since 1970, ISO 8601 with a zone (2026-01-31T12:00:00Z){spans} was expected")
    return found


def _moment(text: str) -> int | None:
    """A time without a zone is none: whoever asks and whoever answers may stand in different ones."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if found.tzinfo is None else math.floor(found.astimezone(UTC).timestamp() * 1000)


def _flag(name: str, given: Any, _now: int | None) -> bool:
    if isinstance(given, bool):
        return given
    if given not in ("true", "false"):
        _refuse(name, f"{_shown(given)} is neither true nor false")
    return bool(given == "true")


def _seconds(name: str, given: Any, _now: int | None) -> float:
    found = float(given) if isinstance(given, int | float) and not isinstance(given, bool) else None
    if isinstance(given, str):
        span = _SPAN.match(given)
        if re.fullmatch(r"\d{1,12}(\.\d{1,6})?", given):
            found = float(given)
        elif span:
            found = float(span[1]) * _SECONDS[span[2]]
    if found is None or not 0 <= found <= _LONGEST_IDLE:
        _refuse(name, f"{_shown(given)} is no number of seconds from 0 to {_LONGEST_IDLE:.0f}")
    return found


_READ: dict[str, Callable[[str, Any, int | None], Any]] = {
    "status": _status, "workflow": _text, "session": _text, "key": _text, "tag": _text, "step": _text, "error_kind": _error_kind,
    "version": _version, "since": _time, "until": _time, "idle": _flag, "idle_duration_gt": _seconds, "waiting_for": _text, "lane": _text,
    "archived": _flag,
}
_SCHEMAS: dict[str, dict[str, Any]] = {
    "idle": {"type": "boolean"}, "archived": {"type": "boolean"}, "idle_duration_gt": {"type": "number", "minimum": 0},
    "version": {"type": "string", "pattern": "^[0-9a-f]{4,16}$"},
}
