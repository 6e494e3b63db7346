"""`Following`: a run followed from the far side of a network, as a pure state machine. Facts in, commands out; no clock, socket or thread.

**Authority.** The service's outcome is the only word on how a run ended. An end marker of the stream makes us ask for it; a broken
stream, a silent one, a 404 of a proxy say nothing of the run.
**States** are the table below; everything else here is what moves it. **Trust window:** the outcome is one answer old. Events are
numbered from 1 without a gap, so "after N" resumes a stream wherever it broke, and each event is delivered once, in order.
**Failure.** Nobody answers: backoff with jitter, then `conductor_unreachable`. Somebody answers, but not with the run: asked every
interval, then `unrecoverable`, never before the run's own deadline. The run is unknown: `conductor_restarted` if the store's epoch is
another one, else `run_not_found`. A refused token is never tried again.

Races, one sentence each: what an abandoned stream or question still says carries an old number and is dropped; an end marker followed by an
outcome that goes on is a run that was retried in between, and is followed on; a store brought back from an older backup, or that
lost its last writes, has fewer events than we have seen, and is followed from where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from conductor.client import facts
from conductor.client.budget import Backoff, Budget
from conductor.client.facts import CloseStream, Command, Deliver, Fact, Finish, OpenStream, PollOutcome
from conductor.client.patience import Polling, Reach, Silence, Streams
from conductor.client.results import Code, Outcome, Result
from conductor.errors import ConductorError

__all__ = ["TABLE", "TERMINAL", "Following", "State", "mermaid"]


class State(StrEnum):
    """Where the follower stands. It is not the state of the run."""

    RUNNING = "running"
    LOST_CONNECTION = "lost_connection"
    POLLING = "polling"
    RECOVERED = "recovered"
    NOT_FOUND = "not_found"
    GAVE_UP = "gave_up"
    FAILED = "failed"
    READY = "ready"


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
        "broken": State.LOST_CONNECTION,  # cut, ended without a marker, or without a byte for too long
        "unreachable": State.LOST_CONNECTION,
        "no_answer": State.POLLING,
        **_ALWAYS,
    },
    State.LOST_CONNECTION: {  # asks for the outcome, with backoff
        "open": State.RECOVERED,
        "not_yet": State.POLLING,  # somebody answers, but streams do not hold here
        "unreachable": State.LOST_CONNECTION,
        "no_answer": State.POLLING,
        **_ALWAYS,
    },
    State.POLLING: {  # asks for the outcome, every interval
        "open": State.RECOVERED,
        "not_yet": State.POLLING,
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

_ENDS = {"completed": Code.COMPLETED, "cancelled": Code.CANCELLED}


class Following:
    """One run followed by one caller. `wakes_at` is when it wants to be told `Passed`, if nothing else comes before."""

    def __init__(
        self, run_id: str, *, random: Callable[[], float], epoch: str = "", after: int = 0, events: bool = True, until: float | None = None,
        timeout: float = 0, budget: Budget | None = None, backoff: Backoff | None = None, url: str = "",
    ) -> None:
        self.run_id, self.epoch, self.last_event, self.url = run_id, epoch, after, url
        self.budget = budget or Budget()
        self.state = State.RUNNING if events else State.POLLING
        self.outcome: Outcome | None = None
        self._events, self._until, self._timeout = events, until, timeout
        self._reach = Reach(backoff or Backoff(), random)
        self._polling, self._streams = Polling(self.budget), Streams(self.budget)
        self._silence = Silence(self.budget.lost_after)
        self._numbers = self._stream = self._question = 0
        self._missing: float | None = None  # since when the service says that it knows no such run
        self._ask_at: float | None = None
        self._stall_at: float | None = None
        self._answer_by: float | None = None
        self._found: tuple[Code, str, float] = (Code.COMPLETED, "", 0)
        self._error: ConductorError | None = None
        self._pauses = {"ended": 0.0, "doubtful": self.budget.settle}  # before the next question; else the interval

    @property
    def over(self) -> bool:
        return self.state in TERMINAL

    @property
    def wakes_at(self) -> float | None:
        """The next time at which something is due."""
        ask_at = None if self._question else self._ask_at
        return min((at for at in (ask_at, self._stall_at, self._answer_by, self._until) if at is not None), default=None)

    def begin(self, now: float) -> list[Command]:
        """The first commands: the stream for who wants events, else the outcome."""
        return [self._open(now)] if self._events else [self._ask(now)]

    def receive(self, fact: Fact, now: float) -> list[Command]:
        """What follows from a fact. After the end nothing does."""
        commands: list[Command] = []
        if not self.over and not self._stale(fact):
            if isinstance(fact, facts.Told) and fact.event.number > self.last_event:
                self.last_event = fact.event.number
                self._streams.brought = True
                commands.append(Deliver(fact.event))
            if (word := self._word(fact, now)) is not None:
                commands += self._move(word, now)
        return commands + self._tick(now)

    # what a fact means

    def _stale(self, fact: Fact) -> bool:
        """Whether it comes from a stream or a question that was let go. An answered question is over."""
        number = getattr(fact, "number", None)
        if number is None or number == self._stream:
            return False
        if number != self._question:
            return True
        self._question, self._answer_by = 0, None
        return False

    def _word(self, fact: Fact, now: float) -> str | None:
        """The fact as a word of the table; None where it moves nothing."""
        match fact:
            case facts.Opened() | facts.Told() | facts.Beat():
                return self._heard(fact, now)
            case facts.Polled(outcome=outcome, epoch=epoch):
                return self._judge(outcome, epoch or outcome.epoch, now)
            case facts.Ended():
                self._reach.answered()
                return "ended"
            case facts.Broken():
                return "broken"
            case facts.Unreachable(problem=problem):
                self._reach.unanswered(now)
                seconds = self._reach.seconds(now)
                return self._gave_up(self._reach.used_up(now), Code.CONDUCTOR_UNREACHABLE, problem, seconds) or "unreachable"
            case facts.NoAnswer(problem=problem):
                self._reach.answered()
                self._polling.unanswered(now)
                return self._gave_up(self._polling.barren_too_long(now), Code.UNRECOVERABLE, problem, 0) or "no_answer"
            case facts.Unknown(epoch=epoch):
                self._reach.answered()
                return self._missed(epoch, now)
            case facts.Refused(error=error):
                self._error = error
                return "refused"
            case facts.Stopped():
                self._found = (Code.STOPPED, "", 0)
                return "left"
            case facts.Passed():
                return None

    def _gave_up(self, used_up: bool, code: Code, problem: str, seconds: float) -> str:
        self._found = (code, problem, round(seconds, 1))
        return "exhausted" if used_up else ""

    def _heard(self, fact: facts.Opened | facts.Told | facts.Beat, now: float) -> str | None:
        """The stream lives."""
        self._stall_at = now + self.budget.stall
        self._reach.answered()
        if not isinstance(fact, facts.Beat):
            self._silence.heard()
            self._ask_at = now + self.budget.quiet
        if isinstance(fact, facts.Opened):
            if self.epoch and fact.epoch and fact.epoch != self.epoch:
                self._ask_at = now  # another store: how far is it?
            self.epoch = self.epoch or fact.epoch
        if self._streams.good(now):
            self._polling.held()
        return None if isinstance(fact, facts.Beat) and self.state is State.RUNNING else "event"

    def _judge(self, outcome: Outcome, epoch: str, now: float) -> str:
        """What an outcome means. Only here is a run's end learned."""
        self._reach.answered()
        self._polling.answered(outcome, now)
        self._missing = None
        # Beside an open stream an answer may be older than the events that came since, unless it is of another store.
        other = bool(epoch and self.epoch and epoch != self.epoch)
        behind = 0 < outcome.last_event < self.last_event and (other or self.state is not State.RUNNING)
        if behind:
            self.last_event = outcome.last_event  # an older backup, lost writes: its next events have numbers we have seen
        self.epoch, self.outcome = epoch or self.epoch, outcome
        if outcome.ended:
            return self._unread(outcome, now) or self._ended(outcome)
        if not self._events:
            self.last_event = max(self.last_event, outcome.last_event)
        if self._silence.lost(outcome, now):
            self._found = (Code.DOWNSTREAM_LOST, "", round(self._silence.seconds(now), 1))
            return "silent"
        if self.state is State.RUNNING:
            return "broken" if behind else "open"
        problem = f"its deadline is over, and it is still {outcome.state}"
        goes_on = "open" if self._streams.due(now) else "not_yet"
        return self._gave_up(self._polling.overdue(now), Code.UNRECOVERABLE, problem, 0) or goes_on

    def _missed(self, epoch: str, now: float) -> str:
        """Nobody knows the run. Right after a wipe a service may still tell the old epoch, so the same one is believed a while later."""
        other = bool(self.epoch and epoch and epoch != self.epoch)
        self._missing = now if self._missing is None else self._missing
        if self.epoch and not other and now - self._missing < self.budget.settle:
            return "doubtful"
        self._found = (Code.CONDUCTOR_RESTARTED if other else Code.RUN_NOT_FOUND, "", 0)
        return "unknown"

    def _ended(self, outcome: Outcome) -> str:
        code = Code.LANE_BUSY if outcome.reason == "lane_busy" else _ENDS.get(outcome.state, Code.FAILED)
        self._found = (code, "", 0)
        return "completed" if code is Code.COMPLETED else "failed"

    def _unread(self, outcome: Outcome, now: float) -> str:
        """A run that ended while we were away has events we have not delivered: a stream brings them. Where a few in a row bring none, the
        outcome is enough."""
        if not self._events or outcome.last_event <= self.last_event or self._streams.hopeless:
            return ""
        if self.state is State.RUNNING:
            return "broken"
        return "open" if self._streams.due(now) else "not_yet"

    # what follows

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
        closing = self._close(now, answered=word != "unreachable")
        pause = self._pauses.get(word, self.budget.interval) if self.state is State.POLLING else self._reach.pause(now)
        self._question, self._answer_by, self._ask_at = 0, None, now + pause
        return closing

    def _tick(self, now: float) -> list[Command]:
        """What has become due. A fact that never comes is made here."""
        if self.over:
            return []
        if self._until is not None and now >= self._until:
            self._found = (Code.TIMED_OUT, "", self._timeout)
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
        self._streams.asked(now)
        return OpenStream(self._stream, self.last_event)

    def _ask(self, now: float) -> PollOutcome:
        self._question, self._ask_at, self._answer_by = self._number(), None, now + self.budget.answer
        return PollOutcome(self._question)

    def _close(self, now: float, *, answered: bool) -> list[Command]:
        if not self._stream:
            return []
        self._streams.over(now, answered=answered)
        self._stream, self._stall_at = 0, None
        return [CloseStream()]

    def _finish(self) -> list[Command]:
        closing: list[Command] = [CloseStream()] if self._stream else []
        self._stream = self._question = 0
        self._ask_at = self._stall_at = self._answer_by = self._until = None
        if self._error is not None:
            return [*closing, Finish(error=self._error)]
        code, problem, seconds = self._found
        known = self.outcome
        result = Result(
            code, self.run_id, self.state, known.result if known and code is Code.COMPLETED else None, known.reason if known else "",
            problem, self.last_event, seconds, self.url, known,
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
