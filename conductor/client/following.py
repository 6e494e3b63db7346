"""`Following`: a run followed from the far side of a network, as a pure state machine. Facts in, commands out; no clock, socket or thread.

**Authority.** The service's outcome is the only word on how a run ended. An end marker of the stream makes us ask for it; a broken
stream, a silent one, a 404 of a proxy say nothing of the run.
**States** are the table below; everything else here is what moves it. **Trust window:** the outcome is one answer old. Events are
numbered from 1 without a gap, so "after N" resumes a stream wherever it broke, and each event is delivered once, in order.
**The first look.** How the run stands is asked for once beside a stream that has just begun, because nothing else tells its deadline, and a
budget that does not know that cannot outlast it. That answer teaches; it moves the follower only where it says that the run cannot be
followed, or that all of it was told.
**Failure.** Nobody answers: backoff with jitter, then `conductor_unreachable`. Somebody answers, but not with the run: asked every
interval, then `unrecoverable`, never before the run's own deadline. The run is unknown: `conductor_restarted` if the store's epoch is
another one, else `run_not_found`. A refused token is never tried again.

Races, one sentence each: what an abandoned stream or question still says carries an old number and is dropped; an end marker followed by an
outcome that goes on is a run that was retried in between, and is followed on; a store brought back from an older backup, or that
lost its last writes, has fewer events than we have seen, and is followed from where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from conductor.client import facts
from conductor.client.budget import Backoff, Budget
from conductor.client.facts import CloseStream, Command, Deliver, Fact, Finish, OpenStream, PollOutcome, ReadEvents
from conductor.client.judging import Finding, Judge
from conductor.client.results import Code, Outcome, Result, State

__all__ = ["TABLE", "TERMINAL", "Following", "State", "mermaid"]


# What may be heard in any state that is not final, and where it leads.
_ALWAYS: Mapping[str, State] = {
    "completed": State.READY,  # the outcome
    "failed": State.FAILED,  # the outcome: it failed, was cancelled, or its lane was busy
    "doubtful": State.POLLING,  # the service knows no such run, and may not know yet that its store is another one
    "unknown": State.NOT_FOUND,  # the service knows no such run
    "exhausted": State.GAVE_UP,  # backoff or budget is used up
    "silent": State.GAVE_UP,  # nobody works on it: downstream_lost
    "refused": State.GAVE_UP,  # the token; raised
    "left": State.GAVE_UP,  # the caller: stop(), or its timeout
}

TABLE: Mapping[State, Mapping[str, State]] = {
    State.RUNNING: {  # a stream is open, or asked for
        "event": State.RUNNING,  # the stream: something happened, or it began
        "open": State.RUNNING,  # a look at the outcome beside a quiet stream
        "ended": State.POLLING,  # the end marker: ask for the outcome
        "behind": State.POLLING,  # the run has ended, and this stream has not told it
        "broken": State.LOST_CONNECTION,  # cut, ended without a marker, or without a byte for too long
        "unreachable": State.LOST_CONNECTION,
        "no_answer": State.POLLING,
        **_ALWAYS,
    },
    State.LOST_CONNECTION: {  # asks for the outcome, with backoff
        "open": State.RECOVERED,
        "not_yet": State.POLLING,  # somebody answers, but streams do not hold here
        "behind": State.POLLING,  # the same, or the run has ended: the events that were missed are read
        "unreachable": State.LOST_CONNECTION,
        "no_answer": State.POLLING,
        **_ALWAYS,
    },
    State.POLLING: {  # asks for the outcome, every interval
        "open": State.RECOVERED,
        "not_yet": State.POLLING,
        "behind": State.POLLING,
        "unreachable": State.LOST_CONNECTION,
        "no_answer": State.POLLING,
        **_ALWAYS,
    },
    State.RECOVERED: {  # the run goes on: a stream is asked for, after the last event
        "event": State.RUNNING,
        "ended": State.POLLING,
        "broken": State.POLLING,
        "unreachable": State.LOST_CONNECTION,
        "no_answer": State.POLLING,
        **_ALWAYS,
    },
    State.NOT_FOUND: {},
    State.GAVE_UP: {},
    State.FAILED: {},
    State.READY: {},
}
TERMINAL = frozenset(state for state, row in TABLE.items() if not row)


class Following:
    """One run followed by one caller. `wakes_at` is when it wants to be told `Passed`, if nothing else comes before."""

    def __init__(
        self, run_id: str, *, random: Callable[[], float], epoch: str = "", after: int = 0, events: bool = True, until: float | None = None,
        timeout: float = 0, budget: Budget | None = None, backoff: Backoff | None = None, url: str = "",
    ) -> None:
        self.run_id, self.url, self.budget = run_id, url, budget or Budget()
        self.state = State.RUNNING if events else State.POLLING
        self._judge = Judge(self.budget, backoff or Backoff(), random, epoch=epoch, last_event=after, events=events)
        self._until, self._timeout = until, timeout
        self._numbers = self._stream = self._question = 0
        self._reading = False  # the question is, or will be, for a page of events
        self._first = 0  # the question that is the first look
        self._ask_at: float | None = None
        self._stall_at: float | None = None
        self._answer_by: float | None = None
        self._pauses = {"ended": 0.0, "behind": 0.0, "doubtful": self.budget.settle}  # before the next question; else the interval

    @property
    def over(self) -> bool:
        return self.state in TERMINAL

    @property
    def epoch(self) -> str:
        """The store the run was last seen in."""
        return self._judge.epoch

    @property
    def last_event(self) -> int:
        """The event the caller was told last."""
        return self._judge.last_event

    @property
    def outcome(self) -> Outcome | None:
        """How the run stood when it was last asked for."""
        return self._judge.outcome

    @property
    def wakes_at(self) -> float | None:
        """The next time at which something is due."""
        ask_at = None if self._question else self._ask_at
        return min((at for at in (ask_at, self._stall_at, self._answer_by, self._until) if at is not None), default=None)

    def begin(self, now: float) -> list[Command]:
        """The first commands: the stream for who wants events, else the outcome."""
        return [self._open(now)] if self.state is State.RUNNING else [self._ask(now)]

    def receive(self, fact: Fact, now: float) -> list[Command]:
        """What follows from a fact. After the end nothing does."""
        commands: list[Command] = []
        if not self.over and not self._stale(fact):
            news = self._judge.news(fact)
            commands += [Deliver(event) for event in news]
            self._note_life(fact, now)
            word = self._word(fact, now, news=bool(news))
            if word is not None:
                commands += self._move(word, now)
        return commands + self._tick(now)

    def _word(self, fact: Fact, now: float, *, news: bool) -> str | None:
        """What a fact means. A first look that nobody answers is asked for again, and one that is ahead of its stream says nothing against
        it."""
        first = self.state is State.RUNNING and self._first and getattr(fact, "number", None) == self._first
        if first and isinstance(fact, (facts.Unreachable, facts.NoAnswer)):
            self._ask_at = now + self.budget.interval
            return None
        word = self._judge.word(fact, self.state, now, news=news, reading=self._reading)
        if first and word == "behind":
            self._ask_at = now + self.budget.quiet
            return None
        return word

    def _stale(self, fact: Fact) -> bool:
        """Whether it comes from a stream or a question that was let go. An answered question is over."""
        number = getattr(fact, "number", None)
        if number is None or number == self._stream:
            return False
        if number != self._question:
            return True
        self._question, self._answer_by = 0, None
        return False

    def _note_life(self, fact: Fact, now: float) -> None:
        """A stream that says anything lives; one that tells something need not be looked at for a while, once it was looked at."""
        if isinstance(fact, (facts.Opened, facts.Told, facts.Beat)):
            self._stall_at = now + self.budget.stall
            if self.outcome is None and not isinstance(fact, facts.Opened):
                return
            if not isinstance(fact, facts.Beat):
                self._ask_at = now if self._judge.is_other(fact) or self.outcome is None else now + self.budget.quiet

    def _move(self, word: str, now: float) -> list[Command]:
        self.state = TABLE[self.state][word]
        if self.over:
            return self._finish()
        if self.state is State.RUNNING:
            if word == "open":
                self._ask_at = now + self.budget.quiet
            return []
        if self.state is State.RECOVERED:
            return [self._open(now)]
        closing = self._close(now)
        pause = self._pauses.get(word, self.budget.interval) if self.state is State.POLLING else self._judge.reach.pause(now)
        self._question, self._answer_by, self._ask_at = 0, None, now + pause
        self._reading = word == "behind"
        return closing

    def _tick(self, now: float) -> list[Command]:
        """What has become due. A fact that never comes is made here."""
        if self.over:
            return []
        if self._until is not None and now >= self._until:
            self._judge.found = Finding(Code.TIMED_OUT, seconds=self._timeout)
            return self._move("left", now)
        if self._answer_by is not None and now >= self._answer_by:
            return self.receive(facts.Unreachable(self._question, f"no answer within {self.budget.answer:g} s"), now)
        if self._stall_at is not None and now >= self._stall_at:
            return self.receive(facts.Broken(self._stream, "not a byte for too long"), now)
        if self._ask_at is not None and now >= self._ask_at and not self._question:
            return [self._ask(now)]
        return []

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _open(self, now: float) -> OpenStream:
        self._stream, self._stall_at, self._ask_at = self._number(), now + self.budget.answer, None
        self._judge.streams.asked(now)
        return OpenStream(self._stream, self.last_event)

    def _ask(self, now: float) -> PollOutcome | ReadEvents:
        self._question, self._ask_at, self._answer_by = self._number(), None, now + self.budget.answer
        self._first = self._question if self.outcome is None else 0
        return ReadEvents(self._question, self.last_event) if self._reading else PollOutcome(self._question)

    def _close(self, now: float) -> list[Command]:
        if not self._stream:
            return []
        self._judge.streams.over(now)
        self._stream, self._stall_at = 0, None
        return [CloseStream()]

    def _finish(self) -> list[Command]:
        closing: list[Command] = [CloseStream()] if self._stream else []
        self._stream = self._question = 0
        self._ask_at = self._stall_at = self._answer_by = self._until = None
        if self._judge.refused is not None:
            return [*closing, Finish(error=self._judge.refused)]
        found, known = self._judge.found, self.outcome
        result = Result(
            found.code, self.run_id, self.state, known.result if known and found.code is Code.COMPLETED else None,
            known.reason if known else "", found.problem, self.last_event, found.seconds, self.url, known,
        )
        return [*closing, Finish(result)]


def mermaid() -> str:
    """The table as a mermaid state diagram; docs/client.md shows it between its markers, a test compares them."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.RUNNING}: events wanted", f"    [*] --> {State.POLLING}: only the result wanted"]
    lines += [f"    {state} --> {target}: {word}" for state, row in TABLE.items() for word, target in row.items() if word not in _ALWAYS]
    lines += ['    state "any that is not final" as any', *(f"    any --> {target}: {word}" for word, target in _ALWAYS.items())]
    lines += [f"    {state} --> [*]" for state in TABLE if state in TERMINAL]
    return "\n".join(lines)


if __name__ == "__main__":
    print(mermaid())
