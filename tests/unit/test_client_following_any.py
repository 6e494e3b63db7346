"""The core of the client under any sequence of facts: it ends once, asks no oftener than it may, and never asks a refused service again."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.client import facts
from conductor.client.budget import Backoff, Budget
from conductor.client.errors import Unauthenticated
from conductor.client.facts import Command, Deliver, Fact, Finish, OpenStream, PollOutcome, ReadEvents
from conductor.client.following import TABLE, Following, State
from conductor.client.results import Code, Event, Outcome

RUN = "0190c0de-0000-7000-8000-000000000003"
BUDGET = Budget(interval=2, attempts=50, total=100, grace=10, lost_after=120, quiet=30, stall=45, answer=20)
BACKOFF = Backoff(first=0.5, most=8, total=60)

_WORDS = (
    "opened", "event", "event", "beat", "ended", "broken", "open", "open", "idle", "unreachable", "no_answer", "stream_no_answer",
    "stream_unreachable", "stale", "wake", "wake", "wait",
)
_FINAL = ("completed", "failed", "lane_busy", "unknown", "other_store", "refused", "stopped")


class World:
    """Answers what the machine asked, truthfully numbered, and watches what it does."""

    def __init__(self, events: bool, random: float) -> None:
        self.now = 0.0
        self.machine = Following(RUN, random=lambda: random, epoch="e1", events=events, budget=BUDGET, backoff=BACKOFF)
        self.streams: set[int] = set()
        self.questions: set[int] = set()
        self.last = 0
        self.delivered: list[int] = []
        self.asked: list[float] = []
        self.finishes: list[Finish] = []
        self.note(self.machine.begin(self.now))

    def note(self, commands: list[Command]) -> None:
        for command in commands:
            assert not self.finishes, "it went on after its end"
            match command:
                case OpenStream(number=number, after=after):
                    assert after >= max([0, *self.delivered]), "events would come twice"
                    self.streams.add(number)
                case PollOutcome(number=number):
                    self.questions.add(number)
                    self.asked.append(self.now)
                case ReadEvents(number=number, after=after):
                    assert after == max([0, *self.delivered])
                    self.questions.add(number)
                case Deliver(event=event):
                    assert event.number > max([0, *self.delivered])
                    self.delivered.append(event.number)
                case Finish() as finish:
                    self.finishes.append(finish)

    def tell(self, fact: Fact) -> None:
        before = self.machine.state
        self.note(self.machine.receive(fact, self.now))
        assert self.machine.state is before or self.machine.state in _REACHED[before]
        if not self.machine.over:
            at = self.machine.wakes_at
            assert at is not None, "it would sleep for ever"
            assert at > self.now, "it would spin"

    def say(self, word: str, seconds: float) -> None:
        self.now += seconds
        stream_open, asked = bool(self.machine._stream), bool(self.machine._question)
        if word == "wake":
            self.now = max(self.now, self.machine.wakes_at or self.now)
            return self.tell(facts.Passed())
        if word == "wait":
            return self.tell(facts.Passed())
        if word in ("opened", "event", "beat", "ended", "broken", "stream_no_answer", "stream_unreachable"):
            return self.tell(self.of_stream(word)) if stream_open else None
        if word == "stale":
            for old in self.streams - {self.machine._stream}:
                self.tell(facts.Told(old, Event(999, "claimed", 0)))
                self.tell(facts.Broken(old, ""))
            for old in self.questions - {self.machine._question}:
                self.tell(facts.Polled(old, Outcome(RUN, "completed", ended=True)))
            return None
        if word == "stopped":
            return self.tell(facts.Stopped())
        return self.tell(self.of_question(word)) if asked else None

    def of_stream(self, word: str) -> Fact:
        number = self.machine._stream
        if word == "event":
            self.last += 1
            return facts.Told(number, Event(self.last, "claimed", 0))
        return {
            "opened": facts.Opened(number, "e1"), "beat": facts.Beat(number), "ended": facts.Ended(number), "broken": facts.Broken(number, ""),
            "stream_no_answer": facts.NoAnswer(number, ""), "stream_unreachable": facts.Unreachable(number, ""),
        }[word]

    def of_question(self, word: str) -> Fact:
        number = self.machine._question
        if self.machine._reading and word in ("open", "idle", "completed", "failed", "lane_busy"):
            upto = self.last if word != "idle" else 0
            return facts.Page(number, tuple(Event(one, "claimed", 0) for one in range(1, upto + 1)))
        states = {"open": "running", "idle": "waiting_signal", "completed": "completed", "failed": "failed", "lane_busy": "failed"}
        if word in states:
            self.last += word in ("completed", "open")
            reason = "lane_busy" if word == "lane_busy" else ""
            outcome = Outcome(RUN, states[word], word in ("completed", "failed", "lane_busy"), reason=reason, last_event=self.last)
            return facts.Polled(number, outcome, "e1")
        return {
            "unreachable": facts.Unreachable(number, ""), "no_answer": facts.NoAnswer(number, ""), "unknown": facts.Unknown(number, "e1"),
            "other_store": facts.Unknown(number, "e2"), "refused": facts.Refused(number, Unauthenticated(url="")),
        }[word]

    def until_over(self, word: str, limit: float) -> None:
        """From now on the world says only this; the time that takes has a limit."""
        began = self.now
        while not self.machine.over:
            assert self.now - began <= limit, f"{word} for {limit} s, and it goes on"
            if self.machine._question:
                self.say(word, 0.01)
            elif self.machine._stream:
                self.say("stream_no_answer" if word == "no_answer" else "stream_unreachable" if word == "unreachable" else "broken", 0.01)
            else:
                self.say("wake", 0)


_REACHED: dict[State, set[State]] = {state: set(row.values()) for state, row in TABLE.items()}
for _ in State:  # a fact may bring others with it that are due
    _REACHED = {state: row | {further for one in row for further in _REACHED[one]} for state, row in _REACHED.items()}

_steps = st.lists(st.tuples(st.sampled_from(_WORDS), st.floats(0.001, 40)), max_size=60)
_EXPECTED = {
    "completed": {Code.COMPLETED}, "failed": {Code.FAILED}, "lane_busy": {Code.LANE_BUSY}, "unknown": {Code.RUN_NOT_FOUND},
    "other_store": {Code.CONDUCTOR_RESTARTED}, "stopped": {Code.STOPPED}, "unreachable": {Code.CONDUCTOR_UNREACHABLE},
    "no_answer": {Code.UNRECOVERABLE},
}


@pytest.mark.spec("CLI-1", "CLI-2")
@settings(max_examples=400, deadline=None)
@given(steps=_steps, final=st.sampled_from((*_FINAL, "unreachable", "no_answer")), events=st.booleans(), random=st.floats(0, 1))
def test_whatever_happens_it_ends_once_with_the_code_of_what_happened_last(
    steps: list[tuple[str, float]], final: str, events: bool, random: float,
) -> None:
    world = World(events, random)
    for word, seconds in steps:
        if world.machine.over:
            break
        world.say(word, seconds)
    early = world.machine.over
    if final == "stopped":
        world.say("stopped", 0)
    world.until_over(final, BUDGET.total + BUDGET.attempts * BUDGET.interval + BACKOFF.total + 200)
    assert len(world.finishes) == 1
    finish = world.finishes[0]
    if final == "refused" and not early:
        assert finish.result is None
        assert isinstance(finish.error, Unauthenticated)
    elif not early:
        assert finish.result is not None
        assert finish.result.code in _EXPECTED[final]
    else:
        assert finish.result is not None
        assert finish.result.code in (Code.DOWNSTREAM_LOST, Code.CONDUCTOR_UNREACHABLE, Code.UNRECOVERABLE)
    asked = len(world.asked)
    for word in ("wait", "opened", "completed", "stale", "stopped", "refused"):
        world.say(word, 50)
    assert len(world.asked) == asked
    assert len(world.finishes) == 1


@pytest.mark.spec("CLI-2")
@settings(max_examples=200, deadline=None)
@given(words=st.lists(st.sampled_from(("unreachable", "no_answer", "open", "idle", "broken")), min_size=5, max_size=200), random=st.floats(0, 1))
def test_it_never_asks_oftener_than_its_pauses_allow(words: list[str], random: float) -> None:
    """However the world answers, at once and always: two questions are apart by the shortest pause at least."""
    world = World(events=False, random=random)
    for word in words:
        if world.machine.over:
            break
        if world.machine._question and word != "broken":
            world.say(word, 0)
        elif world.machine._stream:
            world.say("broken", 0)
        else:
            world.say("wake", 0)
    gaps = [later - earlier for earlier, later in itertools.pairwise(world.asked)]
    assert all(gap >= BACKOFF.first / 2 - 1e-9 for gap in gaps), gaps
