"""What a follower counts to know when to try again and when to give up. Pure: the time is given with every word.

Three measures, each reset by what proves the opposite: `Reach` (nobody answers), `Polling` (somebody answers, without the end of the run),
`Silence` (the run stands still); and two that say by which way events may come: `Streams`, `Pages`. They are measured on the caller's own
monotonic clock, so that no two clocks have to agree; only the run's deadline is a time of the store, and it is turned into a distance the
moment the service tells it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from conductor.client.budget import Backoff, Budget
from conductor.client.results import Outcome

__all__ = ["Pages", "Polling", "Reach", "Silence", "Streams"]


_MOST_REFUSED, _MOST_LOST = 4, 40


@dataclass(slots=True)
class Reach:
    """Nobody answers: since when, and how often."""

    backoff: Backoff
    random: Callable[[], float]
    since: float | None = None
    tries: int = 0

    def answered(self) -> None:
        self.since, self.tries = None, 0

    def unanswered(self, now: float) -> None:
        self.since = now if self.since is None else self.since
        self.tries += 1

    def used_up(self, now: float) -> bool:
        return self.since is not None and now - self.since >= self.backoff.total

    def seconds(self, now: float) -> float:
        return 0.0 if self.since is None else now - self.since

    def pause(self, now: float) -> float:
        """Until the next try. The last one is made when the time is up, not a long pause later."""
        pause = self.backoff.pause(self.tries, self.random)
        return pause if self.since is None else min(pause, max(0.05, self.since + self.backoff.total - now))


@dataclass(slots=True)
class Polling:
    """Somebody answers. `barren` counts answers that say nothing of the run, `polls` all since a stream last held."""

    budget: Budget
    since: float | None = None
    polls: int = 0
    barren_since: float | None = None
    barren: int = 0
    deadline: float | None = None  # of the run, on our clock

    def held(self) -> None:
        """A stream held: what was spent on polling is forgotten."""
        self.since, self.polls = None, 0

    def answered(self, outcome: Outcome, now: float) -> None:
        self.barren_since, self.barren = None, 0
        self.since = now if self.since is None else self.since
        self.polls += 1
        if outcome.deadline and outcome.now:
            self.deadline = now + (outcome.deadline - outcome.now) / 1000
        elif not outcome.deadline:
            self.deadline = None

    def unanswered(self, now: float) -> None:
        self.barren_since = now if self.barren_since is None else self.barren_since
        self.barren += 1

    def _outlasted(self, now: float) -> bool:
        return self.deadline is None or now >= self.deadline + self.budget.grace

    def barren_too_long(self, now: float) -> bool:
        """Whether answers without the run's outcome have used the budget up. It always outlasts the run's own deadline."""
        spent = self.barren >= self.budget.attempts or (self.barren_since is not None and now - self.barren_since >= self.budget.total)
        return spent and self._outlasted(now)

    def overdue(self, now: float) -> bool:
        """Whether the run still goes on though its deadline is long over. A run without one may go on for ever."""
        spent = self.polls >= self.budget.attempts or (self.since is not None and now - self.since >= self.budget.total)
        return self.deadline is not None and spent and self._outlasted(now)


@dataclass(slots=True)
class Pages:
    """Whether events that no stream brought can be had by asking for them. `upto` is the event behind which there were none."""

    refused: int = 0
    lost: int = 0
    upto: int = 0

    def came(self, last: int, *, any_new: bool) -> None:
        self.refused = self.lost = 0
        self.upto = self.upto if any_new else last

    def failed(self, *, answered: bool) -> None:
        """A service that is away says little of its pages, one that answers something else more."""
        self.refused += answered
        self.lost += 1

    def wanted(self, outcome: Outcome, last_event: int) -> bool:
        hopeless = self.refused >= _MOST_REFUSED or self.lost >= _MOST_LOST
        return outcome.last_event > max(last_event, self.upto) and not hopeless


@dataclass(slots=True)
class Silence:
    """Since when a running run has had neither a live lease nor an event. Only `running` counts: all other states wait for somebody else;
    and so does a run that waits for the clock, for a run it has called, for its limit, or until somebody lifts what holds it."""

    lost_after: float
    since: float | None = None
    seen: tuple[int, int] = (-1, -1)

    def heard(self) -> None:
        self.since = None

    def lost(self, outcome: Outcome, now: float) -> bool:
        mark = (outcome.generation, outcome.last_event)
        elsewhere = outcome.parked or outcome.live_leases or outcome.due or outcome.children or outcome.held or outcome.limited
        silent = outcome.state == "running" and not (outcome.ended or elsewhere)
        if not silent or mark != self.seen or self.since is None:
            self.seen, self.since = mark, now if silent else None
            return False
        return now - self.since >= self.lost_after

    def seconds(self, now: float) -> float:
        return 0.0 if self.since is None else now - self.since


@dataclass(slots=True)
class Streams:
    """Whether it is worth asking for the stream again. One that told nothing and did not hold makes the next one wait longer."""

    budget: Budget
    opened_at: float | None = None
    brought: bool = False
    fruitless: int = 0
    not_before: float = 0.0

    def asked(self, now: float) -> None:
        self.opened_at, self.brought = now, False

    def good(self, now: float) -> bool:
        return self.brought or (self.opened_at is not None and now - self.opened_at >= self.budget.held)

    def over(self, now: float) -> None:
        if self.opened_at is None:
            return
        self.fruitless = 0 if self.good(now) else self.fruitless + 1
        self.not_before = now + (self.budget.interval * 2.0 ** min(self.fruitless - 1, 4) if self.fruitless else 0.0)
        self.opened_at = None

    def due(self, now: float) -> bool:
        return now >= self.not_before
