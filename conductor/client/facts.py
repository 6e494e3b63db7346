"""Between the core and its drivers: facts come in, commands go out. Values only.

A command that asks something has a number, and every fact it leads to carries that number. What is asked anew gets a new one, so that what
an abandoned stream or question still says (its thread may be slow to notice) is recognised and dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from conductor.client.results import Event, Outcome, Result
from conductor.errors import ConductorError

__all__ = [
    "Beat", "Broken", "CloseStream", "Command", "Deliver", "Ended", "Fact", "Finish", "NoAnswer", "OpenStream", "Opened", "Page",
    "Passed", "PollOutcome", "Polled", "ReadEvents", "Refused", "Stopped", "Told", "Unknown", "Unreachable",
]


# Facts: the stream.


@dataclass(frozen=True, slots=True)
class Opened:
    """The service knows the run and has begun to tell its events."""

    number: int
    epoch: str = ""


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat: nothing happened, and somebody is there."""

    number: int


@dataclass(frozen=True, slots=True)
class Told:
    """An event."""

    number: int
    event: Event


@dataclass(frozen=True, slots=True)
class Ended:
    """The end marker: the run has ended. How is for the outcome to say."""

    number: int
    state: str = ""
    generation: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Broken:
    """The stream had begun and is over without an end marker."""

    number: int
    problem: str


# Facts: of a question, and of a stream that did not come about.


@dataclass(frozen=True, slots=True)
class Polled:
    """How the run stands."""

    number: int
    outcome: Outcome
    epoch: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """Events that no stream has brought."""

    number: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """The service itself says that it knows no such run. A 404 of anybody else is `NoAnswer`."""

    number: int
    epoch: str = ""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Nobody answered."""

    number: int
    problem: str


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Somebody answered, and not the question: the store is away, a proxy speaks for the service."""

    number: int
    problem: str


@dataclass(frozen=True, slots=True)
class Refused:
    """We may not ask that, and asking again would not help."""

    number: int
    error: ConductorError


# Facts: of the caller and the clock.


@dataclass(frozen=True, slots=True)
class Stopped:
    """The caller wants no more of it."""


@dataclass(frozen=True, slots=True)
class Passed:
    """The time has come that the core wanted to be woken at."""


Fact = Opened | Beat | Told | Ended | Broken | Polled | Page | Unknown | Unreachable | NoAnswer | Refused | Stopped | Passed


# Commands.


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Follow the events after this one."""

    number: int
    after: int


@dataclass(frozen=True, slots=True)
class CloseStream:
    """Let go of the stream, without waiting for it."""


@dataclass(frozen=True, slots=True)
class PollOutcome:
    """Ask once how the run stands."""

    number: int


@dataclass(frozen=True, slots=True)
class ReadEvents:
    """Ask once for the events after this one, without a stream."""

    number: int
    after: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand this event to the caller: each once, in order."""

    event: Event


@dataclass(frozen=True, slots=True)
class Finish:
    """It is over: return the result, or raise the error."""

    result: Result | None = None
    error: ConductorError | None = None


Command = OpenStream | CloseStream | PollOutcome | ReadEvents | Deliver | Finish
