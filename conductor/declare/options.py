"""The options of a step, checked when it is declared. What a later release brings is refused by name, never ignored."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from conductor.declare.durations import Duration, in_ms
from conductor.declare.retry import Retry
from conductor.errors import DeclarationError
from conductor.records import FailurePolicy

if TYPE_CHECKING:
    from conductor.declare.limits import Limit

__all__ = [
    "HookOptions", "Options", "StepOptions", "check_name", "check_parallel", "check_policy", "check_priority", "check_queue",
    "known_names", "options_of",
]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
_QUEUE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:/@#+-]{0,127}\Z")


class HookOptions(TypedDict, total=False):
    """The options of a last step: how it runs, not when or what follows."""

    retry: Retry | None
    queue: str | None
    priority: int | None
    timeout: Duration | None
    lease_seconds: Duration | None


class StepOptions(HookOptions, total=False):
    """The options that `step`, `effect`, `each` and `add` take beside names and order."""

    when: Callable[..., Any] | None
    idempotent: bool
    on_failure: str | None
    result: bool
    limit: Limit | None
    lane: Any


_KNOWN = {"after", "name", "using", *StepOptions.__optional_keys__} - {"lane"}


@dataclass(frozen=True, slots=True)
class Options:
    """What stands beside a step's code. Empty values mean: as the run or the workflow says."""

    queue: str = ""
    priority: int | None = None
    retry: Retry | None = None
    timeout_ms: int = 0
    lease_ms: int = 0
    when: Callable[..., Any] | None = None
    policy: FailurePolicy | None = None
    result: bool = False
    effect: bool = False
    idempotent: bool = False
    max_parallel: int = 0
    capability: Any = None  # the Capability that the step calls
    limit: Any = None  # a Limit
    fixed: Mapping[str, Any] = field(default_factory=dict)  # its parameters that the declaration gives


def options_of(
    where: str,
    *,
    queue: str | None = None,
    priority: int | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    lease_seconds: Duration | None = None,
    when: Callable[..., Any] | None = None,
    on_failure: str | None = None,
    result: bool = False,
    effect: bool = False,
    idempotent: bool = False,
    max_parallel: int = 0,
    limit: Limit | None = None,
    lane: Any = None,
    **unknown: Any,
) -> Options:
    """Check every option; the error names it."""
    if unknown:
        name = next(iter(unknown))
        raise DeclarationError(where=where, problem=f"unknown option {name!r}{known_names(name, _KNOWN)}")
    if lane is not None:
        raise DeclarationError(where=where, problem="a step takes no lane; lanes admit runs: Workflow(…, lane=Lane(…))")
    if retry is not None and not isinstance(retry, Retry):
        raise DeclarationError(where=where, problem=f"retry is {retry!r}; a Retry(...) was expected")
    for option, said in (("result", result), ("idempotent", idempotent)):
        if not isinstance(said, bool):
            raise DeclarationError(where=where, problem=f"{option} is {said!r}; True or False was expected")
    return Options(
        queue="" if queue is None else check_queue(queue, where),
        priority=None if priority is None else check_priority(priority, where),
        retry=retry,
        timeout_ms=0 if timeout is None else _duration("timeout", timeout, where, timedelta(milliseconds=1), timedelta(days=30)),
        lease_ms=0 if lease_seconds is None else _duration("lease_seconds", lease_seconds, where, timedelta(seconds=1), timedelta(days=1)),
        when=_check_when(when, where),
        policy=None if on_failure is None else check_policy(on_failure, where),
        result=result,
        effect=effect,
        idempotent=idempotent,
        max_parallel=max_parallel,
        limit=None if limit is None else _check_limit(limit, where),
    )


def known_names(name: str, known: Iterable[str]) -> str:
    """What follows a name that nobody knows: the nearest one that somebody does, and all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"{f', did you mean {near[0]!r}?' if near else ''} (known: {', '.join(names)})"


def check_name(name: Any, where: str, what: str) -> str:
    """A name that is safe in keys, ids and logs."""
    if not isinstance(name, str) or not _NAME.match(name):
        hint = "; give it one with name=" if name == "<lambda>" else ""
        problem = f"{what} {name!r} is not 1 to 128 letters, digits, '.', '_' or '-'{hint}"
        raise DeclarationError(where=where, problem=problem)
    return name


def check_queue(queue: Any, where: str) -> str:
    if not isinstance(queue, str) or not _QUEUE.match(queue):
        raise DeclarationError(where=where, problem=f"queue {queue!r} is not 1 to 128 letters, digits or any of . _ : / @ # + -")
    return queue


def check_priority(priority: Any, where: str) -> int:
    if not isinstance(priority, int) or isinstance(priority, bool) or not 0 <= priority <= 9:
        raise DeclarationError(where=where, problem=f"priority is {priority!r}; a whole number from 0 (first) to 9 was expected")
    return priority


def check_policy(policy: Any, where: str) -> FailurePolicy:
    try:
        return FailurePolicy(policy)
    except ValueError:
        raise DeclarationError(where=where, problem=f"on_failure is {policy!r}; known are {', '.join(FailurePolicy)}") from None


def check_parallel(number: Any, where: str) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= 10_000:
        raise DeclarationError(where=where, problem=f"max_parallel is {number!r}; a whole number from 1 to 10000 was expected")
    return number


def _check_limit(given: Any, where: str) -> Limit:
    from conductor.declare.limits import check_limit  # it checks its own name with what stands here

    return check_limit(given, where)


def _duration(option: str, given: Duration, where: str, least: timedelta, most: timedelta) -> int:
    try:
        return in_ms(given, least=least, most=most)
    except ValueError as error:
        raise DeclarationError(where=where, problem=f"{option}: {error}") from None


def _check_when(when: Any, where: str) -> Callable[..., Any] | None:
    if when is None:
        return None
    if not callable(when):
        raise DeclarationError(where=where, problem=f"when is {when!r}; a function of the step's own parameters was expected")
    if inspect.iscoroutinefunction(when):
        raise DeclarationError(where=where, problem="when is an async function; a plain one was expected")
    checked: Callable[..., Any] = when
    return checked
