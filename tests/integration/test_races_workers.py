"""Races inside a worker: real steps, drained in this process, that meet slow replies, cancels, timeouts and a store that is away."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from typing import Any

import pytest
from celery.exceptions import WorkerShutdown, WorkerTerminate

from conductor import Retry, Workflow
from conductor.errors import StoreUnreachable
from conductor.records import OutcomeKind
from conductor.runs import holding
from conductor.runs.execute import code_table
from conductor.runs.fsck import fsck
from conductor.store import Store
from tests.integration.playing import Player
from tests.integration.shift import TOO_LONG, Shift, fan_out, step
from tests.support.waiting import eventually

# What a worker says of its attempts.


@pytest.mark.spec("RUN-7", "WF-6")
def test_an_each_that_continues_runs_all_its_items_after_one_has_failed(store: Store) -> None:
    ran: list[int] = []

    def work(number: int) -> None:
        ran.append(number)
        assert number != 1

    flow = fan_out("going_on", 4, work, max_parallel=1, on_failure="continue")
    shift = Shift(store, flow)
    run_id = shift.start(flow)
    shift.worker().drain(0, "q")
    assert (ran, shift.state(run_id), fsck(shift.engine)) == ([0, 1, 2, 3], "failed", [])


@pytest.mark.spec("WF-3")
def test_a_condition_is_asked_once_however_often_its_step_is_repeated(store: Store) -> None:
    answers, ran = [False, True], list[str]()

    def fail() -> None:
        ran.append("body")
        raise ValueError("for a moment")

    flow = step("asked", fail, when=lambda: answers.pop(), retry=Retry(max=2, on=(ValueError,), backoff="none"))
    shift = Shift(store, flow)
    run_id, drainer = shift.start(flow), shift.worker()
    for _ in range(3):
        drainer.drain(0, "q")
        store.fire_due(0)
    assert (answers, ran, shift.state(run_id)) == ([False], ["body"] * 3, "failed")


@pytest.mark.spec("RUN-8")
def test_a_worker_says_that_the_code_of_a_repeated_step_begins(store: Store) -> None:
    flags: list[str] = []
    flow = step("repeated", lambda: flags.append(play.record(run_id, 0)[7]))
    shift, play = Shift(store, flow), Player(store)
    run_id = shift.start(flow)
    store.register_code("ghosts", sorted(code_table(shift.engine)))
    play.lose(*play.claim(code="ghosts"))
    shift.worker().drain(0, "q")
    assert ["g" in said for said in flags] == [True], "without it the loss of this worker would not count towards poison"


# Beginning late, leases, timeouts.


@pytest.mark.spec("CAN-1", "RUN-4")
def test_an_answer_that_came_late_does_not_let_a_cancelled_step_begin(store: Store) -> None:
    began, beats = list[int](), iter([False, True])  # asked when it is late, and once more right before the body
    flow = step("late", lambda: began.append(1))
    shift = Shift(store, flow)
    run_id = shift.start(flow)
    shift.before_reply("claim", lambda told, *asked: time.sleep(TOO_LONG if told.attempts else 0))
    shift.before_reply("heartbeat", lambda *asked: next(beats, False) and shift.cancel_slowly(run_id))
    shift.worker().drain(0, "q")
    assert (began, shift.state(run_id)) == ([], "cancelled")


@pytest.mark.spec("CAN-1", "RUN-4", "WF-6")
def test_a_join_whose_inputs_took_long_to_read_does_not_begin_after_a_cancel(store: Store) -> None:
    flow, began = fan_out("slow_join", 3), list[int]()

    @flow.step
    def total(members: list[int]) -> None:
        began.append(len(members))

    shift = Shift(store, flow)
    run_id = shift.start(flow)
    shift.before_reply("values", lambda told, key, fields: ":e1:" in key and shift.cancel_slowly(run_id))
    shift.worker().drain(0, "q")
    assert (began, shift.state(run_id), shift.moves(run_id, "k")[-1]) == ([], "cancelled", "2")


@pytest.mark.spec("RUN-2")
def test_a_lease_that_is_shorter_than_three_heartbeats_is_kept(store: Store) -> None:
    def wait_for_a_beat() -> None:
        leases, client = store.keys.of(0, "leases"), store.client()
        ((ref, until),) = client.zrange(leases, 0, -1, withscores=True)
        eventually(lambda: client.zscore(leases, ref) > until, timeout=2)

    flow = step("short_lease", wait_for_a_beat, lease_seconds=1)
    shift = Shift(store, flow, heartbeat_seconds=5)
    run_id = shift.start(flow)
    shift.worker().drain(0, "q")
    assert shift.state(run_id) == "completed"


@pytest.mark.spec("RUN-12")
def test_a_timeout_that_is_raised_late_does_not_hit_the_next_step(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    decided, next_began, raised, raise_in = threading.Event(), threading.Event(), threading.Event(), holding._raise_in
    flow = step("late_timeout", lambda: decided.wait(5), timeout=0.1)

    @flow.step
    def following(only: int) -> None:
        next_began.set()
        raised.wait(5)

    def raise_late(thread: int, error: type[BaseException]) -> None:
        """The pulse has decided, and sleeps until the body has ended and the next step has begun, if it may."""
        decided.set()
        next_began.wait(0.3)
        raise_in(thread, error)
        raised.set()

    monkeypatch.setattr(holding, "_raise_in", raise_late)
    shift = Shift(store, flow)
    run_id = shift.start(flow)
    shift.worker(may_stop_process=False).drain(0, "q")
    assert shift.moves(run_id, "tf") in (["0"], []), "whichever came first, the following step has nothing to do with it"


@pytest.mark.spec("RUN-12")
@pytest.mark.parametrize("options", [{}, {"may_stop_process": True}])
def test_a_deaf_body_in_a_pool_of_threads_costs_no_process(store: Store, monkeypatch: pytest.MonkeyPatch, options: dict[str, bool]) -> None:
    """It is fenced and abandoned; only where it has a process of its own, that is stopped."""
    stopped, over = list[str](), threading.Event()
    monkeypatch.setattr(holding, "GRACE", 0.1)
    monkeypatch.setattr(holding, "_stop_process", stopped.append)
    flow = step("deaf", lambda: over.wait(10), timeout=0.1, retry=Retry(max=0))
    shift = Shift(store, flow)
    run_id = shift.start(flow)
    thread = threading.Thread(target=lambda: shift.worker(**options).drain(0, "q"))
    thread.start()
    eventually(lambda: shift.moves(run_id, "f") == ["0"] and bool(stopped) is bool(options))
    over.set()
    thread.join()
    assert (bool(stopped), shift.state(run_id), shift.moves(run_id, "c")) == (bool(options), "failed", [])


# A store that is away, and runs that are gone.


@pytest.mark.spec("RET-1", "RUN-4")
def test_a_run_that_was_purged_after_its_claim_does_not_take_its_companions_along(store: Store) -> None:
    ran: list[str] = []
    gone, kept = step("gone", lambda: ran.append("gone")), step("kept", lambda: ran.append("kept"))
    shift = Shift(store, gone, kept)
    drainer = shift.quick_worker(kept)
    del drainer._attempts.inputs._graphs[gone.graph.hash]  # as if it stood on an older graph than this code's: it must be read
    first, others = shift.start(gone, priority=1), [shift.start(kept), shift.start(kept)]

    def purge(told: Any, *asked: Any) -> None:
        assert len(told.attempts) == 3
        store.cancel(first, reason="x")
        store.purge(first)

    shift.before_reply("claim", purge)
    drainer.drain(0, "q")
    assert (ran, [shift.state(run_id) for run_id in others]) == (["kept"] * 3, ["completed", "completed"])


@pytest.mark.spec("RUN-2", "RUN-4")
def test_an_outcome_that_the_pulse_could_not_tell_is_told_again(store: Store) -> None:
    flow, warm = step("told_again", lambda: None), step("warm", lambda: None)

    @flow.step
    def long() -> None:
        eventually(lambda: refused)

    shift = Shift(store, flow, warm)
    drainer, run_id = shift.quick_worker(warm), shift.start(flow)
    refused = shift.away_once("commit")
    drainer.drain(0, "q")
    assert [[outcome.attempt.index for outcome, _ in outcomes] for _, outcomes, _ in refused] == [[0]]
    assert shift.state(run_id) == "completed"


@pytest.mark.spec("RUN-2", "ACT-3")
@pytest.mark.parametrize(("verb", "given_back"), [("graph", ["0"]), ("commit", [])])
def test_what_a_broken_drain_left_is_told_by_the_next_in_its_own_partition(make_store: Any, verb: str, given_back: list[str]) -> None:
    """What it had finished is told, what it had not begun goes back at once."""
    ran: list[str] = []
    one, two = step("one", lambda: ran.append("one")), step("two", lambda: ran.append("two"))
    shift = Shift(make_store(partitions=2), one, two)
    drainer = shift.quick_worker(one)
    del drainer._attempts.inputs._graphs[two.graph.hash]
    told, last, other = shift.start(one, priority=1), shift.start(two), shift.start(one, partition=1)
    shift.away_once(verb)
    with pytest.raises(StoreUnreachable):
        drainer.drain(0, "q")
    drainer._lingering._left_at = 0.0  # it has been quiet, so it does not look around
    drainer.drain(1, "q")
    left = "running" if given_back else "completed"
    assert [shift.state(run_id) for run_id in (told, last, other)] == ["completed", left, "completed"]
    assert shift.moves(last, "b") == given_back
    drainer.drain(0, "q")
    assert (shift.state(last), sorted(ran[1:])) == ("completed", ["one", "one", "two"])


@pytest.mark.spec("RUN-2", "REC-6", "EFF-2")
@pytest.mark.parametrize("away", [1, 3])
def test_what_a_broken_drain_left_is_told_although_nobody_pokes_this_worker_again(
    make_store: Any, monkeypatch: pytest.MonkeyPatch, away: int,
) -> None:
    """The effect has happened, and the worker lives: its lease is kept until the store hears of it, so nothing is in doubt."""
    monkeypatch.setattr(holding, "COMMIT_AFTER", 1.5 * away)  # longer than the lease: it must be kept meanwhile
    flow, ran = Workflow("left"), list[int]()

    @flow.effect(lease_seconds=1)
    def charge() -> None:
        ran.append(1)

    shift = Shift(make_store(), flow, heartbeat_seconds=0.2)
    store, play = shift.store, Player(shift.store)
    run_id, drainer, real = shift.start(flow), shift.worker(), store.commit
    left = iter(range(away))

    def commit(*asked: Any) -> Any:
        if next(left, None) is not None:
            raise StoreUnreachable(url="redis://away", problem="away for a while")
        return real(*asked)

    store.commit = commit
    with pytest.raises(StoreUnreachable):
        drainer.drain(0, "q")

    def over() -> bool:
        play.look_now()
        store.expire_leases(0)
        return shift.state(run_id) == "completed"

    eventually(over, timeout=10)
    assert (ran, play.codes(run_id)) == ([1], "skce")
    eventually(lambda: not drainer._pulse._awake.is_set(), what="the pulse rests when it has told everything")


@pytest.mark.spec("RUN-2", "ACT-3")
def test_what_is_left_of_one_partition_is_never_told_in_another(make_store: Any) -> None:
    """Also where the next drain does not tell it first: the pulse may put it back at any time."""
    flow = step("one", lambda: None)
    shift = Shift(make_store(partitions=2), flow)
    drainer, first, second = shift.worker(), shift.start(flow, 0), shift.start(flow, 1)
    drainer._pulse._tick = lambda now: None  # type: ignore[method-assign]
    shift.away_once("commit")
    with pytest.raises(StoreUnreachable):
        drainer.drain(0, "q")
    drainer._settle_leftovers = lambda: None  # type: ignore[method-assign]
    drainer.drain(1, "q")
    assert [shift.state(first), shift.state(second)] == ["running", "completed"]
    drainer._pulse.tell(drainer._holding.collect())
    assert shift.state(first) == "completed"


@pytest.mark.spec("RUN-13")
def test_a_body_that_outlasts_the_shutdown_is_given_back_once(store: Store) -> None:
    """Where it cannot be stopped (threads, solo) it goes on; what it says later is refused."""
    over, told = threading.Event(), threading.Event()
    flow = step("endless", lambda: told.wait(10))
    shift = Shift(store, flow)
    run_id, said = shift.start(flow), list[Any]()
    shift.before_reply("commit", lambda batch, partition, outcomes, want: said.extend(outcomes))
    thread = threading.Thread(target=lambda: shift.worker(overdue=over.is_set, stopping=over.is_set).drain(0, "q"))
    thread.start()
    eventually(lambda: shift.moves(run_id, "k"))
    over.set()
    eventually(lambda: shift.moves(run_id, "b") == ["0"])
    time.sleep(6 * holding.TICK)
    told.set()
    thread.join()
    assert ([outcome.kind for outcome, _ in said], shift.moves(run_id, "kbc")) == ([OutcomeKind.GIVEN_BACK], ["0", "0"])


# Code that ends more than itself.


@pytest.mark.spec("ERR-3", "RUN-8")
@pytest.mark.parametrize("code", [3, 0, None, "no more", -1])
def test_a_step_that_exits_has_failed_like_any_other(store: Store, code: Any) -> None:
    flow = step("exits", lambda: sys.exit(code))
    shift = Shift(store, flow)
    run_id = shift.start(flow)
    shift.worker().drain(0, "q")
    told = json.loads(store.client().hget(store.keys.run(run_id, "err"), "0:1"))
    assert (shift.state(run_id), shift.moves(run_id, "f")) == ("failed", ["0"])
    assert (told["type"], "sys.exit(code)" in told["traceback"]) == ("builtins.SystemExit", True)


@pytest.mark.spec("RUN-13", "CAN-4")
@pytest.mark.parametrize("error", [SystemExit(-(256 - signal.SIGTERM)), WorkerTerminate(1), WorkerShutdown(0), KeyboardInterrupt()])
def test_what_ends_the_process_is_not_taken_for_an_error_of_the_step(store: Store, error: BaseException) -> None:
    def struck() -> None:
        raise error

    flow = step("struck", struck)
    shift = Shift(store, flow)
    run_id = shift.start(flow)
    with pytest.raises(type(error)):
        shift.worker().drain(0, "q")
    assert (shift.state(run_id), shift.moves(run_id, "ft")) == ("running", [])
