"""How long a caller goes on trying. All times are seconds; nothing here reads a clock.

Two things are told apart. **Backoff** is for a service that nobody reaches: it ends in `conductor_unreachable`. **Budget** is for one that
answers: it ends in `unrecoverable`, never before the run's own deadline, and without a deadline a service that says "it still runs" is
believed for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

__all__ = ["Backoff", "Budget"]


class _Positive:
    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
                raise ValueError(f"{type(self).__name__}({field.name}={value!r}): a number above 0 was expected")


@dataclass(frozen=True, slots=True)
class Backoff(_Positive):
    """Pauses between tries to reach a service: `first`, doubled each time up to `most`, each shortened by up to half at random so that
    callers cut off together do not come back together. Following gives up after `total`, a single call after `call_total`."""

    first: float = 0.25
    most: float = 15.0
    total: float = 300.0
    call_total: float = 30.0

    def pause(self, tries: int, random: Callable[[], float]) -> float:
        """The pause after so many tries without an answer (0: before the first)."""
        full = min(self.most, self.first * 2.0 ** min(tries, 32))
        return full * (1 - random() / 2)


@dataclass(frozen=True, slots=True)
class Budget(_Positive):
    """How long a service that answers is asked for a run's outcome: every `interval`, until `attempts` or `total` is used up. A run with a
    deadline is asked for at least until `grace` after it."""

    interval: float = 2.0
    attempts: int = 300
    total: float = 600.0
    grace: float = 60.0
    lost_after: float = 600.0  # a running run without live lease or event for so long is `downstream_lost`
    quiet: float = 30.0  # a stream without an event for so long is checked against the outcome
    stall: float = 45.0  # a stream without a byte, heartbeats included, for so long is broken: a half-open connection says nothing
    answer: float = 20.0  # a question without an answer for so long is lost
    settle: float = 2.0  # the epoch a service tells may be a second old: an unknown run is asked for again for so long

    @property
    def held(self) -> float:
        """A stream that lived so long was a good one, even if it had nothing to tell."""
        return 5 * self.interval
