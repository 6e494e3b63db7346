"""Child runs: a step calls another workflow, waits without a worker, and goes on when the child has ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conductor import Ctx, PermanentError, RunOutcome, Workflow
from conductor.declare import registry
from conductor.declare.starting import start_options
from conductor.records import NodeKind, Outcome, OutcomeKind
from conductor.runs.children import Children, child_of
from conductor.runs.fork import fork_run
from conductor.runs.fsck import fsck
from conductor.runs.handle import Handle
from conductor.runs.read import view_run
from conductor.runs.retry import resume_failed, retry_run
from conductor.runs.start import start
from conductor.runs.why import why
from conductor.store import Store, Want, connect
from tests.integration.playing import Player, chain, graph_of, node
from tests.integration.shift import Shift
from tests.support.leaks import forget, leaks
from tests.support.server import ValkeyServer

told: list[str] = []
origins: list[tuple[str, str]] = []
mended = {"": False}


class Refused(PermanentError):
    """no"""


@pytest.fixture
def store(valkey: ValkeyServer) -> Iterator[Store]:
    found = Store(connect(valkey.url()), namespace="children", partitions=1)
    told.clear()
    mended[""] = False
    with registry.isolated():  # other tests may use the same names
        yield found
    assert leaks(found.client(), "children", 1) == []
    forget(found.client(), "children")


def family(**options: Any) -> tuple[Workflow[Any], Workflow[Any]]:
    """order: price → pay (calls payment) → thank."""
    payment = Workflow("payment", input=int)

    @payment.step
    def charge(amount: int, ctx: Ctx) -> int:
        told.append(f"charge {amount}")
        origins.append((ctx.root_id, ctx.parent_id))
        if amount > 100 and not mended[""]:
            raise Refused
        return amount + 1

    order: Workflow[Any] = Workflow("order_of_two", input=int, **options)

    @order.step
    def price(number: int) -> int:
        return number * 10

    pay = order.call(payment, price, name="pay")

    @order.step
    def thank(pay: int) -> str:
        return f"paid {pay}"

    assert pay.gives is int
    return order, payment


def started(shift: Shift, flow: Workflow[Any], number: int) -> str:
    return start(shift.engine, flow, payload=flow.encode_input(number), options=start_options(flow.name)).run_id


def played(shift: Shift, *, times: int = 4) -> None:
    worker = shift.worker()
    for _ in range(times):
        worker.drain(0, "q")
        due = shift.store.keys.of(0, "due")
        for member in shift.store.client().zrange(due, 0, -1):
            shift.store.client().zadd(due, {member: 1000}, xx=True)
        shift.store.fire_due(0)
    assert [str(found) for found in fsck(shift.engine)] == []


def reason(store: Store, run_id: str) -> str:
    return str(store.client().hget(store.keys.run(run_id), "wy"))


@pytest.mark.spec("WF-7")
def test_a_step_gives_what_the_child_gave(store: Store) -> None:
    order, payment = family()
    shift = Shift(store, order, payment)
    run_id = started(shift, order, 3)
    played(shift)
    assert Handle(shift.engine, run_id).get(1) == "paid 31"
    assert told == ["charge 30"]
    assert origins[-1] == (run_id, run_id)
    child = child_of(store, run_id, 1)
    assert (shift.state(child), Handle(shift.engine, child).get(1)) == ("completed", 31)
    assert store.log_of(run_id)[0].startswith("s")
    assert view_run(store, child).run.bound_to == f"{run_id};1"
    assert view_run(store, child).run.root == run_id


@pytest.mark.spec("WF-7")
def test_the_parent_waits_without_a_worker_and_says_for_whom(store: Store) -> None:
    order, payment = family()
    shift = Shift(store, order, payment)
    store.hold("workflow:payment", "later")
    run_id = started(shift, order, 3)
    shift.worker().drain(0, "q")
    child = child_of(store, run_id, 1)
    assert store.client().zcard(store.keys.of(0, "leases")) == 0
    assert store.client().hget(store.keys.run(run_id), "ch") == "1"
    assert f"waits for run {child} of payment, which pay has called" in why(view_run(store, run_id)).sentence
    assert fsck(shift.engine) == []
    store.unhold("workflow:payment")
    played(shift)
    assert shift.state(run_id) == "completed"


@pytest.mark.spec("WF-7")
@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_a_child_that_ends_badly_fails_its_step(store: Store, how: str) -> None:
    order, payment = family()
    shift = Shift(store, order, payment)
    if how == "cancelled":
        store.hold("workflow:payment", "x")
    run_id = started(shift, order, 300)
    shift.worker().drain(0, "q")
    child = child_of(store, run_id, 1)
    if how == "cancelled":
        assert store.cancel(child, reason="x").word == "OK"
        store.unhold("workflow:payment")
    played(shift)
    assert (shift.state(run_id), reason(store, run_id)) == ("failed", "step_failed")
    step = next(step for step in view_run(store, run_id).steps if step.name == "pay")
    assert step.reason == f"child_{how}"
    assert child in str(step.error["message"])


@pytest.mark.spec("WF-7", "CAN-4")
def test_a_cancel_binds_all_descendants_at_once(store: Store) -> None:
    leaf = Workflow("leaf")

    @leaf.step
    def work() -> None:
        told.append("work")

    flows = [leaf]
    for number in range(3):
        above: Workflow[Any] = Workflow(f"above{number}")
        above.call(flows[-1], name="down")
        flows.append(above)
    shift = Shift(store, *flows)
    store.hold("workflow:leaf", "x")
    run_id = shift.start(flows[-1])
    shift.worker().drain(0, "q")
    line = [run_id]
    for _ in range(3):
        line.append(child_of(store, line[-1], 0))
    assert [shift.state(one) for one in line] == ["running"] * 4
    store.register_code("c", shift.worker().signatures)
    store.unhold("workflow:leaf")
    held = store.claim(0, Want("q", 1, "c", "t")).attempts[0]
    assert held.run_id == line[-1]
    store.cancel(run_id, reason="x")
    assert store.heartbeat(0, [held]) == ["CANCELLED"]
    played(shift)
    assert [shift.state(one) for one in line] == ["cancelled"] * 4
    assert {reason(store, one) for one in line[1:]} == {"run_ended"}
    assert told == []


@pytest.mark.spec("WF-7")
def test_runs_call_each_other_at_most_eight_deep(store: Store) -> None:
    loop: Workflow[Any] = Workflow("loop")
    loop.call(loop, name="again")
    shift = Shift(store, loop)
    run_id = shift.start(loop)
    played(shift, times=12)
    assert shift.state(run_id) == "failed"
    assert store.client().zcard(store.keys.of(0, "runs")) == 9
    deepest = run_id
    while below := child_of(store, deepest, 0):
        deepest = below
    step = view_run(store, deepest).steps[0]
    assert step.reason == "call_too_deep"


@pytest.mark.spec("WF-7", "RUN-11")
def test_a_retried_parent_calls_anew_what_had_failed_and_keeps_what_had_completed(store: Store) -> None:
    order, payment = family()
    shift = Shift(store, order, payment)
    run_id = started(shift, order, 300)
    played(shift)
    first = child_of(store, run_id, 1)
    mended[""] = True
    retry_run(shift.engine, run_id)
    played(shift)
    assert Handle(shift.engine, run_id).get(1) == "paid 3001"
    assert child_of(store, run_id, 1) != first
    assert told == ["charge 3000", "charge 3000"]
    forked = fork_run(shift.engine, run_id, from_="thank")
    played(shift)
    assert Handle(shift.engine, forked.run_id).get(1) == "paid 3001"
    assert len(told) == 2
    again = fork_run(shift.engine, run_id, from_="pay")
    played(shift)
    assert Handle(shift.engine, again.run_id).get(1) == "paid 3001"
    assert len(told) == 3


@pytest.mark.spec("WF-7", "RUN-7")
def test_a_run_paused_by_its_child_goes_on_with_a_new_one(store: Store) -> None:
    order, payment = family(on_failure="pause")
    shift = Shift(store, order, payment)
    run_id = started(shift, order, 300)
    played(shift)
    assert (shift.state(run_id), reason(store, run_id)) == ("paused", "step_failed")
    mended[""] = True
    resume_failed(shift.engine, run_id)
    played(shift)
    assert Handle(shift.engine, run_id).get(1) == "paid 3001"


@pytest.mark.spec("WF-7")
def test_a_lost_worker_between_start_and_wait_finds_the_first_child(store: Store) -> None:
    order, payment = family()
    shift = Shift(store, order, payment)
    run_id = started(shift, order, 3)
    store.register_code("c", shift.worker().signatures)

    def lost(*_told: Any) -> None:
        raise KeyboardInterrupt

    real = shift.engine.store.start
    shift.before_reply("start", lambda told, *asked: lost() if asked[0].bound_to else None)
    with pytest.raises(KeyboardInterrupt):
        shift.worker().drain(0, "q")
    shift.store.start = real
    (member,) = [one for one in map(str, store.client().zrange(store.keys.of(0, "leases"), 0, -1)) if one.startswith(run_id)]
    store.client().zadd(store.keys.of(0, "leases"), {member: 1000})
    store.client().hset(store.keys.head(0), "look", store.client().time()[0] * 1000)
    store.expire_leases(0)
    played(shift)
    assert Handle(shift.engine, run_id).get(1) == "paid 31"
    assert told == ["charge 30"]
    assert store.client().zcard(store.keys.of(0, "runs")) == 2


@pytest.mark.spec("WF-7", "RUN-7")
def test_children_of_a_failing_run_do_not_go_on(store: Store) -> None:
    child = Workflow("patient")
    child.sleep(3600)
    parent: Workflow[Any] = Workflow("failing")

    @parent.step
    def first() -> None: ...

    parent.call(child, name="wait", after=[first])

    @parent.step(after=[first])
    def bad() -> None:
        raise Refused

    @parent.on_failure
    def tell(outcome: RunOutcome) -> None:
        told.append(outcome.reason)

    shift = Shift(store, child, parent)
    run_id = shift.start(parent)
    played(shift)
    below = child_of(store, run_id, 1)
    assert (shift.state(run_id), shift.state(below), reason(store, below)) == ("failed", "cancelled", "run_ended")
    assert told == ["step_failed"]


@pytest.mark.spec("WF-7", "RUN-11")
def test_a_child_of_the_generation_before_is_refused(store: Store) -> None:
    child = Workflow("slow")

    @child.step
    def work() -> int:
        told.append("work")
        return 1

    parent: Workflow[Any] = Workflow("retried")
    parent.call(child, name="wait")

    @parent.step
    def bad() -> None:
        if not mended[""]:
            raise Refused

    shift = Shift(store, child, parent)
    store.hold("workflow:slow", "x")
    run_id = shift.start(parent)
    store.register_code("c", shift.worker().signatures)
    calling = next(one for one in store.claim(0, Want("q", 2, "c", "t")).attempts if one.index == 0)
    outcome = Children(shift.engine, lambda *_told: "{}").call(calling, parent.graph.nodes[0], child, "j1:null", 0)
    store.commit(0, [(outcome, "")], Want("q", 0, "c", "t"))
    store.unhold("workflow:slow")
    held = next(one for one in store.claim(0, Want("q", 5, "c", "t")).attempts if one.workflow == "slow")
    shift.worker().drain(0, "q")
    store.client().zadd(store.keys.of(0, "leases"), {f"{run_id}:1": 1000}, xx=True)
    store.client().hset(store.keys.head(0), "look", store.client().time()[0] * 1000)
    store.expire_leases(0)
    shift.worker().drain(0, "q")
    assert shift.state(run_id) == "failed"
    mended[""] = True
    retry_run(shift.engine, run_id)
    assert shift.state(run_id) == "running"
    assert store.heartbeat(0, [held]) == ["CANCELLED"]
    late = store.commit(0, [(Outcome(held, OutcomeKind.COMPLETED, payload="j1:1", total=-1), "")], Want("q", 0, "c", "t"))
    assert late.answers == ["CANCELLED"]
    played(shift)
    assert (shift.state(run_id), shift.state(held.run_id)) == ("completed", "cancelled")
    assert child_of(store, run_id, 0) != held.run_id
    assert told == ["work"]


@pytest.mark.spec("WF-7")
def test_only_the_child_that_a_step_waits_for_wakes_it(store: Store) -> None:
    play = Player(store)
    run_id = play.start(graph_of(node(0, kind=NodeKind.CALL)))
    held = play.one()
    other, mine = play.call(held, chain(1)), play.start(chain(1), bound_to=f"{run_id};1;0")
    assert play.send(play.outcome(held, OutcomeKind.CALLED, reason=mine)).answers == ["OK"]
    assert store.cancel(other, reason="x").word == "OK"
    assert play.step(run_id, 0) == "W"
    assert store.cancel(mine, reason="x").word == "OK"
    assert play.step(run_id, 0) == "R"


@pytest.mark.spec("WF-7", "RUN-7")
def test_nothing_of_a_child_goes_on_while_its_parent_fails(store: Store) -> None:
    play = Player(store)
    run_id = play.start(graph_of(node(0, kind=NodeKind.CALL), node(1), node(2)))
    calling, slow, bad = play.claim(3)
    child = play.call(calling)
    assert play.send(play.outcome(calling, OutcomeKind.CALLED, reason=child)).answers == ["OK"]
    of_child = play.one()
    assert (of_child.run_id, store.heartbeat(0, [of_child, slow])) == (child, ["OK", "OK"])
    play.fail(bad)
    assert (play.state(run_id), play.field(run_id, "ph")) == ("running", "F")
    assert store.heartbeat(0, [of_child, slow]) == ["CANCELLED", "OK"]
    assert play.complete(of_child) == "CANCELLED"
    assert play.complete(slow) == "OK"
    assert play.state(run_id) == "failed"
    play.due()
    assert play.ended(child) == ("cancelled", "run_ended")


@pytest.mark.spec("WF-7", "RET-1")
def test_a_child_stays_as_long_as_its_parent_may_take_its_result(store: Store) -> None:
    play = Player(store)
    run_id = play.start(graph_of(node(0, kind=NodeKind.CALL)))
    calling = play.one()
    child = play.call(calling, chain(1))
    assert play.send(play.outcome(calling, OutcomeKind.CALLED, reason=child)).answers == ["OK"]
    store.pause(run_id, reason="for weeks")
    play.drain()
    assert play.state(child) == "completed"
    play.backdate("ended:completed")
    assert store.purge(child, due_only=True).word == "NOT_DUE"
    store.resume(run_id)
    play.complete(play.one())
    play.backdate("ended:completed")
    assert store.purge(child, due_only=True).word == "OK"


@pytest.mark.spec("CAN-4", "WF-7")
@pytest.mark.parametrize(("terminate", "word"), [(True, "TERMINATE"), (False, "CANCELLED")])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_cancel_that_stops_processes_stops_those_of_descendants_too(store: Store, terminate: bool, word: str, depth: int) -> None:
    play = Player(store)
    run_id = play.start(graph_of(node(0, kind=NodeKind.CALL)))
    for level in range(depth):
        held = play.one()
        child = play.call(held, graph_of(node(0, kind=NodeKind.CALL)) if level + 1 < depth else chain(1))
        play.send(play.outcome(held, OutcomeKind.CALLED, reason=child))
    held = play.one()
    assert store.heartbeat(0, [held]) == ["OK"]
    assert store.cancel(run_id, reason="x", terminate=terminate).word == "OK"
    assert store.heartbeat(0, [held]) == [word]
    play.due()
