"""The options of a start, checked before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar

from conductor.codec import check_session, check_text
from conductor.declare.durations import Duration, in_ms
from conductor.declare.lanes import Lane, check_lane
from conductor.declare.options import check_priority, check_queue, known_names
from conductor.errors import BadInput, DeclarationError
from conductor.records import LaneTerms

__all__ = ["Handle", "StartOptions", "start_options"]

T = TypeVar("T")

_KEY, _TAG, _TAGS = 512, 128, 32
_KNOWN = ("countdown", "deadline", "eta", "expires", "key", "lane", "priority", "queue", "session", "tags")


class Handle(Protocol):
    """What a start gives back: the run, from the caller's side."""

    @property
    def id(self) -> str: ...

    @property
    def status(self) -> str: ...

    def get(self, timeout: float | None = None) -> Any: ...

    def cancel(self, reason: str = ...) -> Any: ...

    def signal(self, name: str, value: Any = ..., *, id: str = ...) -> Any: ...

    def advance(self, step: str, result: Any = ..., *, actor: str = ...) -> Any: ...


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How a run is started. Durations count from the store's now, `start_at_ms` is absolute; empty values mean: the default."""

    key: str = ""
    session: str = ""
    queue: str = ""
    priority: int | None = None
    tags: tuple[str, ...] = ()
    delay_ms: int = 0
    start_at_ms: int = 0
    expires_ms: int = 0
    deadline_ms: int = 0
    lane: Lane | LaneTerms | None = None


def start_options(
    workflow: str,
    *,
    key: str | None = None,
    countdown: Duration | None = None,
    eta: datetime | None = None,
    expires: Duration | datetime | None = None,
    priority: int | None = None,
    tags: Iterable[str] = (),
    deadline: Duration | datetime | None = None,
    session: str | None = None,
    queue: str | None = None,
    lane: Lane | str | None = None,
    **unknown: Any,
) -> StartOptions:
    """Check the options of one start; the error names workflow and option."""
    what = f"start of workflow {workflow}"
    for name in unknown:
        raise BadInput(what=what, field=name, problem=f"no such option{known_names(name, _KNOWN)}")
    if countdown is not None and eta is not None:
        raise BadInput(what=what, field="eta", problem="countdown was given as well; one of them says when")
    return StartOptions(
        key="" if key is None else _text(key, what, "key", _KEY),
        session="" if session is None else _session(session, what),
        queue="" if queue is None else _declared(check_queue, queue, what, "queue"),
        priority=None if priority is None else _declared(check_priority, priority, what, "priority"),
        tags=_tags(tags, what),
        delay_ms=0 if countdown is None else _duration(countdown, what, "countdown", timedelta(0)),
        start_at_ms=0 if eta is None else _moment(eta, what, "eta"),
        expires_ms=0 if expires is None else _from_now(expires, what, "expires"),
        deadline_ms=0 if deadline is None else _from_now(deadline, what, "deadline"),
        lane=None if lane is None else _declared(check_lane, lane, what, "lane"),
    )


def _declared(check: Callable[[Any, str], T], value: Any, what: str, field: str) -> T:
    """The same rule as when declaring, told as a refused start: the option's name stands before the sentence, not in it."""
    try:
        return check(value, what)
    except DeclarationError as error:
        problem = error.problem.removeprefix(f"{field} ")
        raise BadInput(what=what, field=field, problem=f"it {problem}" if problem.startswith("is ") else problem) from None


def _text(value: Any, what: str, field: str, longest: int) -> str:
    try:
        return check_text(value, field, longest)
    except BadInput as error:
        raise BadInput(what=what, field=field, problem=error.problem) from None


def _session(value: Any, what: str) -> str:
    try:
        return check_session(value)
    except BadInput as error:
        raise BadInput(what=what, field="session", problem=error.problem) from None


def _tags(tags: Any, what: str) -> tuple[str, ...]:
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise BadInput(what=what, field="tags", problem=f"a list of texts was expected, found {type(tags).__name__}")
    checked = tuple(dict.fromkeys(_text(tag, what, "tags", _TAG) for tag in tags))
    if apart := next((tag for tag in checked if "," in tag), None):
        raise BadInput(what=what, field="tags", problem=f"{apart!r} holds a comma, which keeps tags apart; give two tags")
    if len(checked) > _TAGS:
        raise BadInput(what=what, field="tags", problem=f"{len(checked)} were given, the limit is {_TAGS}")
    return checked


def _duration(value: Any, what: str, field: str, least: timedelta) -> int:
    try:
        return in_ms(value, least=least)
    except ValueError as error:
        raise BadInput(what=what, field=field, problem=str(error)) from None


def _moment(value: Any, what: str, field: str) -> int:
    """Milliseconds since the epoch. A time without zone is refused: caller and worker may stand in different ones."""
    if not isinstance(value, datetime):
        raise BadInput(what=what, field=field, problem=f"a datetime was expected, found {type(value).__name__}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise BadInput(what=what, field=field, problem="the datetime has no time zone; use datetime.now(UTC), or timezone-aware times")
    return int(value.timestamp() * 1000)


def _from_now(value: Any, what: str, field: str) -> int:
    if isinstance(value, datetime):
        _moment(value, what, field)
        value = value - datetime.now(UTC)
    return _duration(value, what, field, timedelta(milliseconds=1))
