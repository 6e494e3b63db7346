"""Compensation: what a run did is undone, one at a time, latest first, durably; nothing goes forward meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conductor import Ctx, PermanentError, Retry, RunOutcome, Workflow
from conductor.declare import registry
from conductor.errors import ForkRefused, StoreUnreachable, WasUndone
from conductor.operations.read import find
from conductor.records import NodeKind, Outcome, OutcomeKind
from conductor.runs.fork import fork_run
from conductor.runs.fsck import fsck
from conductor.runs.read import view_run
from conductor.runs.retry import retry_run
from conductor.runs.why import why
from conductor.store import Store, Want, connect
from tests.integration.playing import Player, graph_of, node
from tests.integration.shift import Shift
from tests.support.leaks import forget, leaks
from tests.support.server import ValkeyServer

told: list[str] = []


class Refused(PermanentError):
    """no"""


@pytest.fixture
def store(valkey: ValkeyServer) -> Iterator[Store]:
    found = Store(connect(valkey.url()), namespace="undo", partitions=1)
    told.clear()
    with registry.isolated():  # other tests may use the same names
        yield found
    assert leaks(found.client(), "undo", 1) == []
    forget(found.client(), "undo")


def booking(name: str = "booking", **options: Any) -> Workflow[None]:
    """reserve → charge (an effect) → ship, which fails for good."""
    flow = Workflow(name, **{"on_failure": "compensate", **options})

    @flow.step
    def reserve() -> str:
        return "hold-1"

    @reserve.undo
    def release(reserve: str | None, ctx: Ctx) -> None:
        told.append(f"release {reserve} {ctx.key.partition(':')[2]}")

    @flow.effect
    def charge(reserve: str, ctx: Ctx) -> int:
        return 7

    @charge.undo(retry=Retry(max=2, on=ValueError, backoff="none"))
    def refund(reserve: str, result: int | None) -> None:
        told.append(f"refund {reserve} {result}")
        if len(told) == 1:
            raise ValueError("try again")

    @flow.step
    def ship(charge: int) -> None:
        raise Refused

    return flow


def reason(store: Store, run_id: str) -> str:
    return str(store.client().hget(store.keys.run(run_id), "wy"))


def sentence(shift: Shift, run_id: str) -> str:
    return why(view_run(shift.store, run_id)).sentence


def played(shift: Shift, run_id: str) -> None:
    """A worker, and the clock, until nothing is to be done."""
    worker = shift.worker()
    for _ in range(6):
        worker.drain(0, "q")
        due = shift.store.keys.of(0, "due")
        for member in shift.store.client().zrange(due, 0, -1):
            shift.store.client().zadd(due, {member: 1000}, xx=True)
        shift.store.fire_due(0)
    assert fsck(shift.engine) == []


@pytest.mark.spec("RUN-7", "WF-5")
def test_what_completed_is_undone_latest_first_and_the_run_ends_failed(store: Store) -> None:
    flow = booking()
    shift = Shift(store, flow)
    run_id = shift.start(flow)
    played(shift, run_id)
    assert told == ["refund hold-1 7", "refund hold-1 7", "release hold-1 reserve:undo"]
    assert shift.state(run_id) == "failed"
    assert reason(store, run_id) == "step_failed"
    assert "what it had done was undone" in sentence(shift, run_id)
    shown = {step.name: step.state for step in view_run(store, run_id).steps}
    assert shown["charge:undo"] == shown["reserve:undo"] == "completed"


@pytest.mark.spec("RUN-7", "RUN-11")
def test_what_was_undone_is_not_built_upon_again(store: Store) -> None:
    flow = booking()
    shift = Shift(store, flow)
    run_id = shift.start(flow)
    played(shift, run_id)
    with pytest.raises(WasUndone, match="was undone"):
        retry_run(shift.engine, run_id)
    length = store.client().llen(store.keys.run(run_id, "log"))
    again = store.reopen(run_id, at_event=length, reset={}, eaches={}, steps=0, hooks="", actor="x", generation=True)
    assert again.word == "REFUSED"
    with pytest.raises(ForkRefused, match="before it was undone"):
        fork_run(shift.engine, run_id, from_="ship")
    assert fork_run(shift.engine, run_id, from_="reserve").word == "OK"


@pytest.mark.spec("CAN-5", "RUN-7")
def test_a_compensating_cancel_lets_nothing_go_forward_and_ends_cancelled(store: Store) -> None:
    flow = booking(on_failure="fail")
    shift = Shift(store, flow)
    run_id = shift.start(flow)
    held = store.claim(0, Want("q", 1, "none", "t")).attempts
    assert held == []
    worker = shift.worker()
    store.register_code("c", worker.signatures)
    first = store.claim(0, Want("q", 1, "c", "t")).attempts[0]
    batch = store.commit(0, [(Outcome(first, OutcomeKind.COMPLETED, payload='j1:"hold-1"', total=-1), "1")], Want("q", 1, "c", "t"))
    running = batch.attempts[0]
    told_of_it = store.cancel(run_id, reason="changed my mind", actor="anna", compensate=True)
    assert (told_of_it.word, told_of_it.state) == ("OK", "compensating")
    again = store.cancel(run_id, reason="x")
    assert (again.word, again.state, shift.state(run_id)) == ("COMPENSATING", "compensating", "compensating")
    assert store.cancel(run_id, reason="x", compensate=True).word == store.pause(run_id, reason="x").word == "COMPENSATING"
    assert store.heartbeat(0, [running]) == ["CANCELLED"]
    worker.drain(0, "q")  # the plan waits: the attempt may be in the middle of its body
    assert told == []
    assert "is being undone (changed my mind) and ends cancelled" in sentence(shift, run_id)
    assert "it waits until attempts that were running have ended" in sentence(shift, run_id)
    refused = store.commit(0, [(Outcome(running, OutcomeKind.COMPLETED, payload="j1:7", total=-1), "2")], Want("q", 0, "c", "t"))
    assert refused.answers == ["CANCELLED"]
    store.fire_due(0)  # the holder has said that its body is over: the plan need not wait for the lease
    played(shift, run_id)
    assert told == ["refund hold-1 None", "refund hold-1 None", "release hold-1 reserve:undo"]
    assert (shift.state(run_id), reason(store, run_id)) == ("cancelled", "changed my mind")
    assert "was cancelled (changed my mind) by anna" in sentence(shift, run_id)
    codes = "".join(entry[0] for entry in store.log_of(run_id))
    assert codes.index("Y") < codes.index("Q")
    assert set(codes[codes.index("Y"):]) <= set("YktucQe")


@pytest.mark.spec("CAN-5")
def test_a_run_without_anything_to_undo_with_is_simply_cancelled(store: Store) -> None:
    flow = Workflow("plain")
    flow.step(lambda: 1, name="only")  # type: ignore[call-overload]
    shift = Shift(store, flow)
    run_id = shift.start(flow)
    assert shift.store.cancel(run_id, reason="x", compensate=True).state == "cancelled"


@pytest.mark.spec("RUN-7", "WF-17")
def test_an_undo_that_fails_for_good_does_not_keep_the_others_and_last_steps_come_after(store: Store) -> None:
    flow = Workflow("stubborn", on_failure="compensate")

    @flow.step
    def first() -> int:
        return 1

    @flow.step
    def second(first: int) -> int:
        return 2

    @flow.step
    def third(second: int) -> None:
        raise Refused

    @first.undo
    def undo_first(first: int | None) -> None:
        told.append(f"undo {first}")

    @second.undo
    def undo_second() -> None:
        raise Refused

    @flow.on_failure
    def tell(outcome: RunOutcome) -> None:
        told.append(f"{outcome.state}: {outcome.reason}")

    shift = Shift(store, flow)
    run_id = shift.start(flow)
    played(shift, run_id)
    assert told == ["undo 1", "failed: compensation_failed"]
    assert (shift.state(run_id), reason(store, run_id)) == ("failed", "compensation_failed")
    assert "could not undo everything: step second:undo failed" in sentence(shift, run_id)


@pytest.mark.spec("RUN-7")
def test_items_are_undone_each_with_its_own_record_and_key(store: Store) -> None:
    flow = Workflow("many", on_failure="compensate")

    @flow.step
    def numbers() -> list[int]:
        return [10, 20, 30, 40]

    @flow.each(numbers, max_parallel=1)
    def book(number: int) -> int:
        if number == 40:
            raise Refused
        return number + 1

    @book.undo(retry=Retry(max=1, on=ValueError, backoff="none"))
    def unbook(number: int, result: int | None, ctx: Ctx) -> None:
        told.append(f"{number} {result} {ctx.key.partition(':')[2]}")
        if number == 20:
            raise ValueError("always")

    shift = Shift(store, flow)
    run_id = shift.start(flow)
    played(shift, run_id)
    assert told == ["30 31 book:2:undo", "20 21 book:1:undo", "20 21 book:1:undo", "10 11 book:0:undo"]
    assert (shift.state(run_id), reason(store, run_id)) == ("failed", "compensation_failed")
    failed = find(shift.engine, f"{run_id}:book:1:undo")
    assert (failed.operation_id, failed.state, failed.attempt, failed.error_kind) == (f"{run_id}:book:1:undo", "failed", 2, "permanent")
    assert find(shift.engine, f"{run_id}:book:2:undo").state == "completed"
    shown = next(step for step in view_run(store, run_id).steps if step.name == "book:undo")
    assert shown.each is not None
    assert (shown.each.total, shown.each.done, shown.each.bad) == (3, 2, (1,))
    assert store.purge(run_id).word == "OK"


@pytest.mark.spec("RUN-7", "EFF-2")
@pytest.mark.parametrize(("verdict", "undone"), [
    (False, []), (7, ["refund 7"]), (True, ["refund None"]), ("indeterminate", ["refund None"]),
])
def test_an_attempt_in_doubt_is_undone_unless_it_is_verified_absent(store: Store, verdict: Any, undone: list[str]) -> None:
    flow = Workflow("doubtful")

    @flow.effect
    def charge() -> int:
        return 7

    @charge.verify
    def ask() -> Any:
        return verdict

    @charge.undo
    def refund(result: int | None) -> None:
        told.append(f"refund {result}")

    shift = Shift(store, flow)
    run_id = shift.start(flow)
    store.register_code("c", shift.worker().signatures)
    held = store.claim(0, Want("q", 1, "c", "t")).attempts[0]
    store.client().zadd(store.keys.of(0, "leases"), {held.ref: 1000})
    store.client().hset(store.keys.head(0), "look", store.client().time()[0] * 1000)
    assert store.expire_leases(0).count == 1
    store.cancel(run_id, reason="x", compensate=True)
    played(shift, run_id)
    assert told == undone
    assert shift.state(run_id) == "cancelled"


@pytest.mark.spec("RUN-7")
def test_a_lost_worker_in_the_middle_of_an_undo_costs_time_only(store: Store) -> None:
    flow = booking()
    shift = Shift(store, flow)
    run_id = shift.start(flow)
    worker = shift.worker()
    shift.away_once("stage_undo")
    with pytest.raises(StoreUnreachable):
        worker.drain(0, "q")
    lost = store.client().zrange(store.keys.of(0, "leases"), 0, -1)
    for member in lost:
        store.client().zadd(store.keys.of(0, "leases"), {str(member): 1000})
    store.client().hset(store.keys.head(0), "look", store.client().time()[0] * 1000)
    assert store.expire_leases(0).count == len(lost) == 1
    played(shift, run_id)
    assert told[-1] == "release hold-1 reserve:undo"
    assert shift.state(run_id) == "failed"


@pytest.mark.spec("RUN-7")
def test_a_deadline_of_a_compensating_workflow_undoes_it(store: Store) -> None:
    flow = Workflow("late", on_failure="compensate")

    @flow.step
    def begin() -> int:
        return 1

    @begin.undo
    def unbegin() -> None:
        told.append("unbegin")

    rest = flow.sleep(3600, after=[begin])
    flow.step(lambda: None, name="end", after=[rest])  # type: ignore[call-overload]
    shift = Shift(store, flow)
    run_id = shift.start(flow, deadline_ms=3_000_000)
    shift.worker().drain(0, "q")
    store.client().zadd(store.keys.of(0, "due"), {f"deadline:{run_id}": 1000})
    store.fire_due(0)
    assert shift.state(run_id) == "compensating"
    played(shift, run_id)
    assert told == ["unbegin"]
    assert (shift.state(run_id), reason(store, run_id)) == ("failed", "deadline")


def undoable(**options: Any) -> Any:
    """0 → 1, each with an undo, planned by node 2."""
    undo = NodeKind.UNDO
    return graph_of(node(0, **options), node(1, 0, **options), node(2, kind=undo), *(node(3 + one, kind=undo, undoes=one) for one in (0, 1)))


@pytest.mark.spec("CAN-5", "RUN-7")
def test_a_deadline_does_not_stop_the_undoing(store: Store) -> None:
    play = Player(store)
    run_id = play.start(undoable(), deadline_ms=3_600_000)
    play.complete(play.one())
    assert store.cancel(run_id, reason="x", compensate=True).state == "compensating"
    play.due()
    assert (play.state(run_id), play.field(run_id, "ph")) == ("compensating", "C")
    assert play.drain() == [(2, None), (3, None)]
    assert play.ended(run_id) == ("cancelled", "x")


@pytest.mark.spec("RUN-7", "RUN-2")
def test_a_plan_that_was_lost_is_made_anew_and_nothing_is_undone_twice(store: Store) -> None:
    play = Player(store)
    run_id = play.start(undoable())
    play.complete(play.one())
    store.cancel(run_id, reason="x", compensate=True)
    first = play.one()
    assert play.plan(first) == 1
    play.lose(first)
    second = play.one()
    assert store.stage_undo(first, 1, ["4"]) == "LOST"
    assert play.plan(second) == 1
    assert store.client().lrange(store.keys.run(run_id, "undo"), 0, -1) == ["3"]
    assert play.complete(second, total=1) == "OK"
    assert play.drain() == [(3, None)]
    assert play.codes(run_id).count("Q") == 1


@pytest.mark.spec("CAN-5", "WF-5", "IDLE-1")
def test_a_waiting_run_that_is_undone_waits_for_nothing_any_more(store: Store) -> None:
    play, undo = Player(store), NodeKind.UNDO
    graph = graph_of(
        node(0), node(1, 0, kind=NodeKind.WAIT, signal="go"), node(2, 0, kind=NodeKind.AGENT, idle_ms=1), node(3, kind=undo),
        node(4, kind=undo, undoes=0))
    run_id = play.start(graph)
    play.complete(play.one())
    assert play.state(run_id) == "waiting_signal"
    assert store.cancel(run_id, reason="x", compensate=True).state == "compensating"
    assert store.signal(run_id, name="go", signal_id="s", payload="j1:1", waits=[1]).word == "OVER"
    assert store.advance(run_id, 2, digest="d", payload="j1:1").word == "NOT_WAITING"
    assert store.expire_idle(run_id)[0] == "MOVED"
    assert store.client().zscore(store.keys.of(0, "progress"), run_id) is not None
    assert play.drain() == [(3, None), (4, None)]
    assert play.ended(run_id) == ("cancelled", "x")
