"""What a fact means: the word of the table in `following.py` it stands for. Pure; the time is given with every word.

Only a `Polled` outcome says how a run ended. Everything else says whether the run can be followed, and by which way: `patience.py` counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conductor.client import facts
from conductor.client.budget import Backoff, Budget
from conductor.client.patience import Pages, Polling, Reach, Silence, Streams
from conductor.client.results import Code, Event, Outcome, State
from conductor.errors import ConductorError

__all__ = ["Finding", "Judge"]

_ENDS = {"completed": Code.COMPLETED, "cancelled": Code.CANCELLED}


@dataclass(frozen=True, slots=True)
class Finding:
    """Why it ends, if it ends now."""

    code: Code
    problem: str = ""
    seconds: float = 0


class Judge:
    """What is known of one run, and what each fact adds to it."""

    def __init__(
        self, budget: Budget, backoff: Backoff, random: Callable[[], float], *, epoch: str, last_event: int, events: bool,
    ) -> None:
        self.budget, self.epoch, self.last_event = budget, epoch, last_event
        self.outcome: Outcome | None = None
        self.found = Finding(Code.COMPLETED)
        self.refused: ConductorError | None = None
        self.reach, self.streams = Reach(backoff, random), Streams(budget)
        self._events = events
        self._polling, self._silence, self._pages = Polling(budget), Silence(budget.lost_after), Pages()
        self._missing: float | None = None  # since when the service says that it knows no such run

    def news(self, fact: facts.Fact) -> Sequence[Event]:
        """The events in it that were not told before."""
        told = (fact.event,) if isinstance(fact, facts.Told) else fact.events if isinstance(fact, facts.Page) else ()
        new = []
        for event in told:
            if event.number > self.last_event:
                self.last_event = event.number
                new.append(event)
        return new

    def is_other(self, fact: facts.Fact) -> bool:
        """Whether a stream comes from another store than the one we know: then it must be asked how far the run is there."""
        return isinstance(fact, facts.Opened) and self._differs(fact.epoch)

    def _differs(self, epoch: str) -> bool:
        return bool(self.epoch and epoch and epoch != self.epoch)

    def word(self, fact: facts.Fact, state: State, now: float, *, news: bool, reading: bool) -> str | None:
        """The word; None where it moves nothing. `news`: it brought events; `reading`: what was asked for was a page of them."""
        match fact:
            case facts.Opened() | facts.Told() | facts.Beat():
                return self._heard(fact, state, now, news=news)
            case facts.Polled(outcome=outcome, epoch=epoch):
                return self._judge(outcome, epoch or outcome.epoch, state, now)
            case facts.Page():
                return self._read(news=news)
            case facts.Unreachable() | facts.NoAnswer():
                if reading:
                    self._pages.failed(answered=isinstance(fact, facts.NoAnswer))
                return self._unanswered(fact, now)
            case facts.Unknown(epoch=epoch):
                return self._missed(epoch, now)
            case facts.Ended():
                self.reach.answered()
                return "ended"
            case facts.Broken():
                return "broken"
            case facts.Refused(error=error):
                self.refused = error
                return "refused"
            case facts.Stopped():
                self.found = Finding(Code.STOPPED)
                return "left"
            case facts.Passed():
                return None

    def _heard(self, fact: facts.Opened | facts.Told | facts.Beat, state: State, now: float, *, news: bool) -> str | None:
        """The stream lives."""
        self.reach.answered()
        self.streams.brought |= news
        if news:
            self._silence.heard()
        if isinstance(fact, facts.Opened):
            self.epoch = self.epoch or fact.epoch
        if self.streams.good(now):
            self._polling.held()
        return None if isinstance(fact, facts.Beat) and state is State.RUNNING else "event"

    def _unanswered(self, fact: facts.Unreachable | facts.NoAnswer, now: float) -> str:
        """Nobody answered, or not the question."""
        if isinstance(fact, facts.Unreachable):
            self.reach.unanswered(now)
            finding = Finding(Code.CONDUCTOR_UNREACHABLE, fact.problem, round(self.reach.seconds(now), 1))
            return self._gave_up(finding) if self.reach.used_up(now) else "unreachable"
        self.reach.answered()
        self._polling.unanswered(now)
        return self._gave_up(Finding(Code.UNRECOVERABLE, fact.problem)) if self._polling.barren_too_long(now) else "no_answer"

    def _gave_up(self, finding: Finding) -> str:
        if self.outcome is not None and self.outcome.ended:
            return self._ended(self.outcome)  # only its last events could not be had
        self.found = finding
        return "exhausted"

    def _judge(self, outcome: Outcome, epoch: str, state: State, now: float) -> str:
        """What an outcome means. Only here is a run's end learned."""
        self.reach.answered()
        self._polling.answered(outcome, now)
        self._missing = None
        # Beside an open stream an answer may be older than the events that came since, unless it is of another store.
        shorter = 0 < outcome.last_event < self.last_event and (self._differs(epoch) or state is not State.RUNNING)
        if shorter:
            self.last_event = outcome.last_event  # an older backup, lost writes: its next events have numbers we have seen
        self.epoch, self.outcome = epoch or self.epoch, outcome
        if outcome.ended:
            return "behind" if self._behind() else self._ended(outcome)
        if not self._events:
            self.last_event = max(self.last_event, outcome.last_event)
        if self._silence.lost(outcome, now):
            self.found = Finding(Code.DOWNSTREAM_LOST, seconds=round(self._silence.seconds(now), 1))
            return "silent"
        if state is State.RUNNING:
            return "broken" if shorter else "open"
        if self._polling.overdue(now):
            return self._gave_up(Finding(Code.UNRECOVERABLE, f"its deadline is over, and it is still {outcome.state}"))
        return "open" if self.streams.due(now) else "behind" if self._behind() else "not_yet"

    def _ended(self, outcome: Outcome) -> str:
        code = Code.LANE_BUSY if outcome.reason == "lane_busy" else _ENDS.get(outcome.state, Code.FAILED)
        self.found = Finding(code)
        return "completed" if code is Code.COMPLETED else "failed"

    def _behind(self) -> bool:
        """Whether the run has events that were not told and that can be read."""
        return self._events and self.outcome is not None and self._pages.wanted(self.outcome, self.last_event)

    def _read(self, *, news: bool) -> str:
        """A page came. A run that has ended is told when its last one has."""
        self.reach.answered()
        if news:
            self._silence.heard()
        assert self.outcome is not None
        self._pages.came(self.outcome.last_event, any_new=news)
        if self._behind():
            return "behind"
        return self._ended(self.outcome) if self.outcome.ended else "not_yet"

    def _missed(self, epoch: str, now: float) -> str:
        """Nobody knows the run. Right after a wipe a service may still tell the old epoch, so the same one is believed a while later."""
        self.reach.answered()
        if self.outcome is not None and self.outcome.ended:
            return self._ended(self.outcome)  # it was purged before its last events were read
        self._missing = now if self._missing is None else self._missing
        other = self._differs(epoch)
        if self.epoch and not other and now - self._missing < self.budget.settle:
            return "doubtful"
        self.found = Finding(Code.CONDUCTOR_RESTARTED if other else Code.RUN_NOT_FOUND)
        return "unknown"
