"""How times, durations, scopes, counts and errors are said to people: what `why`, lists and the command line share. Pure, and imports
nothing, so that a command line that speaks with a service far away need not load what reads a store."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

__all__ = ["Spelling", "counted", "error_text", "lifts", "moment", "scope_in_words", "span"]

_LONGEST_ERROR = 500


@dataclass(frozen=True, slots=True)
class Spelling:
    """How commands are written so that they can be pasted: with the app that the user named."""

    conductor: str = "conductor"
    worker: str = "celery -A workers worker"

    @classmethod
    def of_app(cls, name: str, conductor: str = "conductor") -> Spelling:
        """For the app of this name, as `-A` takes it."""
        return cls(conductor, f"celery -A {shlex.quote(name)} worker")


def error_text(error: Mapping[str, Any]) -> str:
    """`CardError: declined`: the class without its module, and what it said, in one line."""
    text = ": ".join(filter(None, (str(error.get("type") or "").rpartition(".")[2], " ".join(str(error.get("message") or "").split()))))
    return text if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]}…"


def counted(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def lifts(scope: str) -> str:
    """What follows `conductor` in the command that lifts a hold."""
    kind, _, name = scope.partition(":")
    return f"resume --{kind} {shlex.quote(name)}" if name else f"resume --{kind}"


def scope_in_words(scope: str) -> str:
    kind, _, name = scope.partition(":")
    return f"{kind} {name}" if name else "everything"


def moment(at: int, now: int = 0, *, fine: bool = False) -> str:
    """A time of the store's clock for people, `12:00:20 UTC`; with its date if that is not the date of `now`. `fine` adds milliseconds."""
    if not at:
        return "an unknown time"
    there, here = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (at, now))
    date = "" if there.date() == here.date() else f"{there:%Y-%m-%d} "
    return f"{date}{there:%H:%M:%S}{f'.{at % 1000:03}' if fine else ''} UTC"


def span(ms: int) -> str:
    """A duration for people."""
    seconds = max(0, ms) / 1000
    if seconds < 10:
        return f"{seconds:.1f} s"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
