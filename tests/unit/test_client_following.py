"""The core of the client: facts in, commands out. No clock, no network."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from conductor.client import facts
from conductor.client.budget import Backoff, Budget
from conductor.client.errors import Unauthenticated
from conductor.client.facts import CloseStream, Command, Deliver, Fact, Finish, OpenStream, PollOutcome, ReadEvents
from conductor.client.following import TABLE, TERMINAL, Following, State
from conductor.client.results import Code, Event, Outcome, Result

RUN = "0190c0de-0000-7000-8000-000000000003"


class Caller:
    """A follower, its clock, and what it was told."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("random", lambda: 0.0)
        self.now = 100.0
        self.machine = Following(RUN, **options)
        self.delivered: list[int] = []
        self.asked: list[float] = []
        self.opened: list[int] = []
        self.read: list[int] = []
        self.result: Result | None = None
        self.error: Exception | None = None
        self._stream = self._question = 0
        self._take(self.machine.begin(self.now))

    @property
    def state(self) -> State:
        return self.machine.state

    def _take(self, commands: list[Command]) -> list[Command]:
        for command in commands:
            match command:
                case Deliver(event=event):
                    self.delivered.append(event.number)
                case OpenStream(number=number, after=after):
                    self._stream = number
                    self.opened.append(after)
                case PollOutcome(number=number):
                    self._question = number
                    self.asked.append(self.now)
                case ReadEvents(number=number, after=after):
                    self._question = number
                    self.read.append(after)
                case Finish(result=result, error=error):
                    assert (self.result, self.error) == (None, None), "it finished twice"
                    self.result, self.error = result, error
        return commands

    def tell(self, fact: Fact) -> list[Command]:
        return self._take(self.machine.receive(fact, self.now))

    # the stream

    def opens(self, epoch: str = "e1") -> list[Command]:
        return self.tell(facts.Opened(self._stream, epoch))

    def event(self, *numbers: int) -> None:
        for number in numbers:
            self.tell(facts.Told(self._stream, Event(number, "claimed", 0)))

    def beat(self) -> None:
        self.tell(facts.Beat(self._stream))

    def end(self) -> list[Command]:
        return self.tell(facts.Ended(self._stream, "completed", 1))

    def breaks(self) -> list[Command]:
        return self.tell(facts.Broken(self._stream, "cut"))

    # questions

    def outcome(self, state: str = "running", epoch: str = "e1", **more: Any) -> list[Command]:
        ended = state in ("completed", "failed", "cancelled")
        more.setdefault("last_event", max([0, *self.delivered]))
        return self.tell(facts.Polled(self._question, Outcome(RUN, state, ended, **more), epoch))

    def page(self, *numbers: int) -> list[Command]:
        return self.tell(facts.Page(self._question, tuple(Event(number, "claimed", 0) for number in numbers)))

    def nobody(self) -> list[Command]:
        return self.tell(facts.Unreachable(self._question, "refused"))

    def stranger(self) -> list[Command]:
        return self.tell(facts.NoAnswer(self._question, "503"))

    def unknown(self, epoch: str = "e1") -> list[Command]:
        return self.tell(facts.Unknown(self._question, epoch))

    # time

    def wake(self) -> list[Command]:
        """Nothing happens until it wants to be woken."""
        at = self.machine.wakes_at
        assert at is not None
        assert at >= self.now
        self.now = max(self.now, at)
        return self.tell(facts.Passed())

    def wait(self, seconds: float) -> list[Command]:
        self.now += seconds
        return self.tell(facts.Passed())


def code(caller: Caller) -> Code | None:
    return caller.result.code if caller.result else None


# The straight road.


@pytest.mark.spec("CLI-1")
def test_a_stream_to_its_end_and_the_outcome_says_how() -> None:
    caller = Caller()
    assert caller.state is State.RUNNING
    assert caller.opens() == [PollOutcome(2)], "the first look"
    caller.event(1, 2, 3)
    assert caller.end() == [CloseStream(), PollOutcome(3)]
    assert caller.state is State.POLLING
    assert caller.result is None, "the end marker is no outcome"
    caller.outcome("completed", result=42)
    assert caller.state is State.READY
    assert caller.delivered == [1, 2, 3]
    assert caller.result is not None
    assert (caller.result.code, caller.result.get()) == (Code.COMPLETED, 42)


@pytest.mark.parametrize(("state", "reason", "expected", "at"), [
    ("completed", "", Code.COMPLETED, State.READY), ("failed", "step_failed", Code.FAILED, State.FAILED),
    ("cancelled", "requested", Code.CANCELLED, State.FAILED), ("failed", "lane_busy", Code.LANE_BUSY, State.FAILED),
])
@pytest.mark.spec("CLI-1")
def test_who_wants_only_the_result_asks_first(state: str, reason: str, expected: Code, at: State) -> None:
    caller = Caller(events=False)
    assert (caller.state, caller.opened, len(caller.asked)) == (State.POLLING, [], 1)
    caller.outcome(state, reason=reason)
    assert (code(caller), caller.state) == (expected, at)


def test_who_wants_only_the_result_streams_from_where_the_run_stands() -> None:
    caller = Caller(events=False)
    caller.outcome("running", last_event=17)
    assert (caller.state, caller.opened) == (State.RECOVERED, [17])


# Breaks.


@pytest.mark.spec("CLI-1")
def test_a_break_is_polled_and_the_stream_taken_up_after_the_last_event() -> None:
    caller = Caller()
    caller.opens()
    caller.event(1, 2)
    caller.breaks()
    assert caller.state is State.LOST_CONNECTION
    caller.wake()
    caller.outcome("running", last_event=3)
    assert (caller.state, caller.opened) == (State.RECOVERED, [0, 2])
    caller.opens()
    caller.event(1, 2, 3)
    assert (caller.state, caller.delivered) == (State.RUNNING, [1, 2, 3])


@pytest.mark.spec("CLI-1")
def test_a_run_that_ended_meanwhile_is_told_with_the_events_that_were_missed() -> None:
    caller = Caller()
    caller.opens()
    caller.event(1)
    caller.breaks()
    caller.wake()
    caller.outcome("completed", last_event=5, result=1)
    assert caller.read == [1]
    caller.page(2, 3, 4)
    assert (caller.read, caller.result) == ([1, 4], None)
    caller.page(5)
    assert (caller.delivered, code(caller), caller.result and caller.result.value) == ([1, 2, 3, 4, 5], Code.COMPLETED, 1)


def test_the_terminal_snapshot_is_enough_where_the_rest_cannot_be_had() -> None:
    """It is not there, it is refused, nobody answers: the end is known, and is told."""
    def nothing(caller: Caller) -> None:
        caller.page()

    for answer, most in ((nothing, 1), (Caller.stranger, 20), (Caller.nobody, 400)):
        caller = Caller()
        caller.opens()
        caller.event(1)
        caller.breaks()
        began = caller.now
        while caller.result is None:
            if not caller.machine._question:
                caller.wake()
            elif caller.machine._reading:
                answer(caller)
            else:
                caller.outcome("completed", last_event=3)
        assert (caller.delivered, code(caller)) == ([1], Code.COMPLETED)
        assert caller.now - began < most


def test_a_run_that_is_purged_before_its_last_events_were_read_has_ended_all_the_same() -> None:
    caller = Caller()
    caller.opens()
    caller.breaks()
    caller.wake()
    caller.outcome("failed", last_event=3)
    caller.unknown()
    assert code(caller) is Code.FAILED


@pytest.mark.spec("CLI-1")
def test_where_streams_do_not_get_through_events_are_read_page_by_page() -> None:
    caller = Caller(budget=Budget(interval=2))
    caller.tell(facts.NoAnswer(1, "a proxy without streams"))
    for last in (2, 4, 6):
        while caller.machine._question == 0:
            if caller.state is State.RECOVERED:
                caller.tell(facts.NoAnswer(caller._stream, "a proxy without streams"))
            else:
                caller.wake()
        caller.outcome("running", last_event=last)
        while caller.state is State.RECOVERED:
            caller.tell(facts.NoAnswer(caller._stream, "a proxy without streams"))
            caller.wake()
            caller.outcome("running", last_event=last)
        caller.page(*range(max([0, *caller.delivered]) + 1, last + 1))
        assert caller.delivered == list(range(1, last + 1))
    assert caller.state is State.POLLING


def test_an_end_marker_and_a_run_that_goes_on_is_a_retry_in_between() -> None:
    caller = Caller()
    caller.opens()
    caller.event(1, 2)
    caller.end()
    caller.outcome("running", generation=2, last_event=3)
    assert (caller.state, caller.opened, caller.result) == (State.RECOVERED, [0, 2], None)


def test_what_an_abandoned_stream_still_says_is_dropped() -> None:
    caller = Caller()
    caller.opens()
    old = facts.Told(1, Event(1, "claimed", 0))
    caller.breaks()
    assert caller.tell(old) == []
    assert caller.tell(facts.Broken(1, "again")) == []
    assert (caller.delivered, caller.state) == ([], State.LOST_CONNECTION)


def test_a_stream_that_never_holds_is_tried_more_and_more_rarely() -> None:
    caller = Caller(budget=Budget(interval=2))
    caller.opens()
    caller.breaks()
    tried = []
    for _ in range(60):
        if caller.state is State.RECOVERED:
            tried.append(caller.now)
            caller.breaks()
        else:
            caller.wake()
            caller.outcome("running")
    gaps = [round(later - earlier) for earlier, later in itertools.pairwise(tried)]
    assert gaps[0] >= 2
    assert gaps[-1] >= 30
    assert caller.result is None, "a reachable service is asked for ever"


def test_a_stream_without_a_byte_is_broken_and_one_with_heartbeats_is_not() -> None:
    caller = Caller(budget=Budget(stall=45))
    caller.opens()
    for _ in range(10):
        caller.wait(20)
        caller.beat()
        caller.outcome("waiting_signal") if caller.asked and caller.machine._question else None
    assert caller.state is State.RUNNING
    for _ in range(8):
        if caller.state is State.RUNNING:
            caller.wait(10)
            caller.outcome("waiting_signal") if caller.machine._question else None
    assert caller.state is State.LOST_CONNECTION


def test_a_question_that_nobody_answers_is_no_answer() -> None:
    caller = Caller(events=False, budget=Budget(answer=20))
    caller.wait(20.1)
    assert caller.state is State.LOST_CONNECTION
    assert caller.outcome("completed") == [], "its answer comes too late"
    assert caller.result is None


def test_a_quiet_stream_is_checked_and_what_ended_unheard_is_found() -> None:
    caller = Caller(budget=Budget(quiet=30))
    caller.opens()
    caller.outcome("running", last_event=0)
    caller.event(1)
    caller.wait(30)
    assert len(caller.asked) == 2
    caller.outcome("completed", last_event=1)
    assert code(caller) is Code.COMPLETED


# The first look.


@pytest.mark.spec("CLI-2")
def test_the_deadline_is_learned_as_soon_as_a_stream_has_begun() -> None:
    """Else a budget shorter than the run would end before it, if the service's store went away within the first half minute."""
    caller = Caller(budget=Budget(interval=2, attempts=5, total=60, grace=60))
    caller.opens()
    caller.outcome("running", now=1_000_000, deadline=1_000_000 + 3_600_000)
    began = caller.now
    caller.event(1)
    caller.breaks()
    while caller.result is None:
        caller.wake()
        caller.stranger()
    assert code(caller) is Code.UNRECOVERABLE
    assert 3_660 <= caller.now - began < 3_670, "not before the deadline and its grace"


@pytest.mark.spec("CLI-2")
@pytest.mark.parametrize("answer", [Caller.nobody, Caller.stranger])
def test_a_first_look_that_nobody_answers_leaves_the_stream_and_is_repeated(answer: Any) -> None:
    caller = Caller(budget=Budget(interval=2, attempts=3, total=5))
    caller.opens()
    for _ in range(50):
        assert answer(caller) == []
        assert caller.state is State.RUNNING
        caller.event(len(caller.delivered) + 1)
        caller.wait(2)
    assert len(caller.asked) == 51
    caller.outcome("running")
    caller.wait(20)
    caller.beat()
    assert (len(caller.asked), caller.opened) == (51, [0]), "what is known is not asked for again"


def test_a_first_look_that_is_ahead_of_its_stream_lets_it_tell() -> None:
    caller = Caller()
    caller.opens()
    assert caller.outcome("completed", last_event=3, result=7) == []
    caller.event(1, 2, 3)
    caller.end()
    caller.outcome("completed", last_event=3, result=7)
    assert (code(caller), caller.delivered, caller.read) == (Code.COMPLETED, [1, 2, 3], [])


def test_a_first_look_may_find_that_everything_was_told_or_nothing_can_be() -> None:
    caller = Caller(after=3)
    caller.opens()
    caller.outcome("failed", reason="step_failed", last_event=3)
    assert code(caller) is Code.FAILED
    caller = Caller()
    caller.opens()
    caller.tell(facts.Refused(caller._question, Unauthenticated(url="x")))
    assert isinstance(caller.error, Unauthenticated)


@pytest.mark.spec("CLI-1")
def test_a_log_that_lost_its_last_writes_is_followed_from_where_it_stands() -> None:
    caller = Caller()
    caller.opens()
    caller.event(1, 2, 3, 4, 5)
    caller.breaks()
    caller.wake()
    caller.outcome("running", epoch="e2", last_event=3)
    assert caller.opened == [0, 3]
    caller.opens("e2")
    caller.event(4)
    assert caller.delivered == [1, 2, 3, 4, 5, 4], "it is another event 4"


def test_a_stream_of_another_store_makes_it_look_at_once() -> None:
    caller = Caller(epoch="e1", after=9)
    caller.opens("e2")
    assert len(caller.asked) == 1
    caller.outcome("running", epoch="e2", last_event=3)
    assert caller.state is State.LOST_CONNECTION, "that stream waits behind event 9 of another log"
    while caller.state is not State.RECOVERED:
        caller.wake()
        caller.outcome("running", epoch="e2", last_event=3)
    assert caller.opened == [9, 3]


# Giving up.


@pytest.mark.spec("CLI-1")
def test_unreachable_when_the_backoff_is_used_up() -> None:
    caller = Caller(backoff=Backoff(first=0.25, most=15, total=300))
    began = caller.now
    caller.tell(facts.Unreachable(1, "refused"))
    while caller.result is None:
        caller.wake()
        caller.nobody()
    assert (code(caller), caller.state) == (Code.CONDUCTOR_UNREACHABLE, State.GAVE_UP)
    assert 300 <= caller.now - began < 302
    gaps = [later - earlier for earlier, later in itertools.pairwise(caller.asked)]
    assert gaps[:4] == [1.0, 2.0, 4.0, 8.0]
    assert max(gaps) == 15


def test_an_answer_of_anybody_begins_the_backoff_anew() -> None:
    caller = Caller(events=False, backoff=Backoff(total=10))
    for _ in range(20):
        caller.nobody()
        caller.wake()
        caller.stranger()
        caller.wake()
    assert caller.result is None


def test_jitter_shortens_a_pause_by_half_at_most() -> None:
    backoff = Backoff(first=1, most=16)
    assert [backoff.pause(tries, lambda: 0.0) for tries in range(6)] == [1, 2, 4, 8, 16, 16]
    assert [backoff.pause(tries, lambda: 1.0) for tries in range(3)] == [0.5, 1, 2]
    assert backoff.pause(10**6, lambda: 0.0) == 16


@pytest.mark.spec("CLI-1", "CLI-2")
def test_unrecoverable_when_somebody_answers_but_never_the_question() -> None:
    caller = Caller(events=False, budget=Budget(interval=2, attempts=1000, total=60))
    began = caller.now
    while caller.result is None:
        caller.stranger()
        if caller.result is None:
            caller.wake()
    assert (code(caller), caller.state) == (Code.UNRECOVERABLE, State.GAVE_UP)
    assert 60 <= caller.now - began < 64


@pytest.mark.spec("CLI-2")
def test_the_attempts_are_counted_too() -> None:
    caller = Caller(events=False, budget=Budget(interval=2, attempts=7, total=10_000))
    while caller.result is None:
        caller.stranger()
        if caller.result is None:
            caller.wake()
    assert len(caller.asked) == 7


@pytest.mark.spec("CLI-2")
def test_the_budget_outlasts_the_deadline_of_the_run() -> None:
    """An hour is left when the service was last heard of: a budget of a minute lasts an hour, and the grace."""
    caller = Caller(events=False, budget=Budget(interval=2, attempts=10, total=60, grace=60))
    now_ms = 1_795_000_000_000
    caller.outcome("running", now=now_ms, deadline=now_ms + 3_600_000)
    began = caller.now
    caller.tell(facts.NoAnswer(caller._stream, "no streams here"))
    while caller.result is None:
        caller.wake()
        caller.stranger()
    assert code(caller) is Code.UNRECOVERABLE
    assert 3660 <= caller.now - began < 3663


@pytest.mark.spec("CLI-2")
def test_a_run_that_outlives_its_deadline_is_given_up_and_one_without_never() -> None:
    for deadline_ms, expected in ((3_600_000, Code.UNRECOVERABLE), (0, None)):
        caller = Caller(events=False, budget=Budget(interval=2, attempts=10, total=60, grace=60))
        now_ms = 1_795_000_000_000
        began = caller.now
        while caller.result is None and caller.now - began < 10 * 3600:
            passed = int((caller.now - began) * 1000)
            if caller.machine._question:
                caller.outcome("waiting_signal", now=now_ms + passed, deadline=deadline_ms and now_ms + deadline_ms)
            elif caller.state is State.RECOVERED:
                caller.breaks()
            else:
                caller.wake()
        assert code(caller) is expected


@pytest.mark.spec("CLI-1")
@pytest.mark.parametrize(("known", "told", "expected"), [
    ("e1", "e2", Code.CONDUCTOR_RESTARTED), ("e1", "e1", Code.RUN_NOT_FOUND), ("", "e1", Code.RUN_NOT_FOUND), ("e1", "", Code.RUN_NOT_FOUND),
])
def test_an_unknown_run_is_told_by_the_epoch(known: str, told: str, expected: Code) -> None:
    caller = Caller(events=False, epoch=known)
    caller.unknown(told)
    while caller.result is None:
        caller.wake()
        caller.unknown(told)
    assert (code(caller), caller.state) == (expected, State.NOT_FOUND)


def test_an_epoch_may_be_told_a_moment_too_late() -> None:
    """A service remembers the name of its store for a second, so the first word after a wipe may come with the old one."""
    caller = Caller(events=False, epoch="e1", budget=Budget(settle=2))
    began = caller.now
    caller.unknown("e1")
    assert caller.state is State.POLLING
    caller.wake()
    assert caller.now - began == 2
    caller.unknown("e2")
    assert code(caller) is Code.CONDUCTOR_RESTARTED


def test_the_epoch_is_learned_on_the_way() -> None:
    caller = Caller()
    caller.opens("e1")
    caller.breaks()
    caller.wake()
    caller.unknown("e2")
    assert code(caller) is Code.CONDUCTOR_RESTARTED


@pytest.mark.spec("CLI-1")
def test_downstream_lost_after_ten_minutes_without_lease_or_event() -> None:
    caller = Caller(events=False, budget=Budget(lost_after=600))
    began = caller.now
    while caller.result is None:
        if caller.machine._question:
            caller.outcome("running", last_event=5)
        elif caller.state is State.RECOVERED:
            caller.opens()
        else:
            caller.wait(10)
            caller.beat()
    assert (code(caller), caller.state) == (Code.DOWNSTREAM_LOST, State.GAVE_UP)
    assert 600 <= caller.now - began < 645


@pytest.mark.spec("CLI-1")
@pytest.mark.parametrize("standing", [
    {"state": "waiting_signal"}, {"state": "paused"}, {"state": "queued"}, {"state": "compensating"},
    {"state": "running", "parked": True}, {"state": "running", "live_leases": 1}, {"state": "running", "due": 1},
    {"state": "running", "children": 1}, {"state": "running", "held": True}, {"state": "running", "limited": True},
])
def test_never_lost_is_what_waits_for_somebody_else(standing: dict[str, Any]) -> None:
    caller = Caller(events=False, budget=Budget(lost_after=600))
    began = caller.now
    while caller.now - began < 7200:
        assert caller.result is None
        if caller.machine._question:
            caller.outcome(**standing, last_event=5)
        elif caller.state is State.RECOVERED:
            caller.opens()
        else:
            caller.wait(10)
            caller.beat()


def test_an_event_or_a_lease_begins_the_silence_anew() -> None:
    caller = Caller(events=False, budget=Budget(lost_after=60, quiet=10, stall=1000))
    caller.outcome("running", last_event=1)
    caller.opens()
    for number in range(2, 20):
        caller.wait(50)
        caller.outcome("running", last_event=number - 1, live_leases=number % 2) if caller.machine._question else None
        caller.event(number)
    assert caller.result is None


@pytest.mark.spec("CLI-1")
def test_a_refused_token_is_raised_and_never_tried_again() -> None:
    for caller in (Caller(), Caller(events=False)):
        caller.tell(facts.Refused(1, Unauthenticated(url="u")))
        assert isinstance(caller.error, Unauthenticated)
        assert caller.machine.wakes_at is None
        assert caller.tell(facts.Passed()) == []
        assert len(caller.asked) + len(caller.opened) == 1


@pytest.mark.spec("CLI-2")
def test_stop_ends_it_at_once_in_every_state() -> None:
    for caller in (Caller(), Caller(events=False)):
        caller.tell(facts.Stopped())
        assert (code(caller), caller.state) == (Code.STOPPED, State.GAVE_UP)


def test_the_callers_own_timeout_is_kept_while_events_flow() -> None:
    caller = Caller(until=130.0, timeout=30.0)
    caller.opens()
    for number in range(1, 100):
        if caller.result is None:
            caller.now += 1
            caller.event(number)
    assert (code(caller), caller.now) == (Code.TIMED_OUT, 130.0)


# The table.


def test_every_state_has_a_row_and_every_target_is_a_state() -> None:
    assert set(TABLE) == set(State)
    assert {target for row in TABLE.values() for target in row.values()} <= set(State)
    assert {State.NOT_FOUND, State.GAVE_UP, State.FAILED, State.READY} == TERMINAL


def test_every_state_is_reached_and_leads_to_an_end() -> None:
    reached = {State.RUNNING, State.POLLING}
    for _ in State:
        reached |= {target for state in reached for target in TABLE[state].values()}
    assert reached == set(State)
    for state in set(State) - TERMINAL:
        assert set(TABLE[state].values()) >= TERMINAL
