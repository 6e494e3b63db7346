"""Undoing a run that has called others: nothing is undone while an attempt of a child, of its child, or of an operation may still go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conductor import PermanentError, Workflow
from conductor.declare import registry
from conductor.declare.starting import start_options
from conductor.records import Attempt, FailurePolicy, Outcome, OutcomeKind
from conductor.runs.children import child_of
from conductor.runs.fsck import fsck
from conductor.runs.start import start
from conductor.store import Store, Want, connect
from tests.integration.playing import Player, chain, graph_of, node
from tests.integration.shift import Shift
from tests.support.leaks import forget, leaks
from tests.support.server import ValkeyServer

told: list[str] = []


class Refused(PermanentError):
    """no"""


@pytest.fixture
def store(valkey: ValkeyServer) -> Iterator[Store]:
    found = Store(connect(valkey.url()), namespace="undofam", partitions=1)
    told.clear()
    with registry.isolated():
        yield found
    assert leaks(found.client(), "undofam", 1) == []
    forget(found.client(), "undofam")


def family(*, between: bool = False, **options: Any) -> list[Workflow[Any]]:
    """order calls payment (through another workflow, if there is one between), and can take it back."""
    payment = Workflow("payment", input=int)

    @payment.step
    def charge(amount: int) -> int:
        told.append("charged")
        return amount

    flows: list[Workflow[Any]] = [payment]
    if between:
        desk: Workflow[Any] = Workflow("desk", input=int)
        desk.call(payment, name="down")
        flows.append(desk)
    order: Workflow[Any] = Workflow("order_undone", input=int, **options)
    pay = order.call(flows[-1], name="pay")

    @pay.undo
    def refund(result: int | None) -> None:
        told.append(f"refund {result}")

    return [*flows, order]


def begun(shift: Shift, flow: Workflow[Any]) -> str:
    return start(shift.engine, flow, payload=flow.encode_input(5), options=start_options(flow.name)).run_id


def in_body(shift: Shift, workflow: str) -> Attempt:
    """What a worker has claimed and is in the middle of."""
    shift.store.register_code("c", shift.worker().signatures)
    (held,) = shift.store.claim(0, Want("q", 1, "c", "t")).attempts
    assert held.workflow == workflow
    return held


def played(shift: Shift) -> None:
    worker = shift.worker()
    for _ in range(5):
        shift.store.fire_due(0)
        worker.drain(0, "q")
    assert [str(found) for found in fsck(shift.engine)] == []


def late(shift: Shift, held: Attempt) -> list[str]:
    """Its worker comes to commit what it has done."""
    done = Outcome(held, OutcomeKind.COMPLETED, payload="j1:5", total=-1)
    answers: list[str] = shift.store.commit(0, [(done, "")], Want("q", 0, "c", "t")).answers
    return answers


def waiting_for_the_child(shift: Shift, store: Store, between: bool) -> None:
    """A worker comes to the call, and to the calls below it, and not to what is called last."""
    store.hold("workflow:payment", "x")
    for _ in range(2 + between):
        shift.worker().drain(0, "q")
    store.unhold("workflow:payment")


@pytest.mark.spec("RUN-7", "WF-7", "CAN-5")
@pytest.mark.parametrize("between", [False, True])
def test_a_call_is_undone_when_the_body_of_its_child_is_over(store: Store, between: bool) -> None:
    flows = family(between=between)
    shift = Shift(store, *flows)
    run_id = begun(shift, flows[-1])
    waiting_for_the_child(shift, store, between)
    held = in_body(shift, "payment")
    assert store.cancel(run_id, reason="x", compensate=True).word == "OK"
    assert store.heartbeat(0, [held]) == ["CANCELLED"]
    played(shift)
    assert (told, shift.state(run_id), shift.state(held.run_id)) == ([], "compensating", "cancelled")
    assert late(shift, held) == ["CANCELLED"]
    assert store.client().zcard(store.keys.of(0, "leases")) == 0
    played(shift)  # its holder has said that the body is over: nobody waits for the lease
    assert (told, shift.state(run_id)) == (["refund None"], "cancelled")


@pytest.mark.spec("RUN-7", "WF-7")
def test_a_holder_that_is_never_heard_of_is_waited_for_as_long_as_its_lease(store: Store) -> None:
    flows = family()
    shift = Shift(store, *flows)
    run_id = begun(shift, flows[-1])
    waiting_for_the_child(shift, store, False)
    held = in_body(shift, "payment")
    store.cancel(run_id, reason="x", compensate=True)
    played(shift)
    assert told == []
    store.client().zadd(store.keys.of(0, "leases"), {held.ref: 1000})
    for member in store.client().zrange(store.keys.of(0, "due"), 0, -1):
        store.client().zadd(store.keys.of(0, "due"), {member: 1000})
    played(shift)
    assert (told, shift.state(run_id)) == (["refund None"], "cancelled")


@pytest.mark.spec("RUN-7", "WF-7")
def test_a_branch_that_fails_undoes_a_call_when_its_child_has_stopped(store: Store) -> None:
    payment, order = family(on_failure="compensate")

    @order.step
    def bad() -> None:
        raise Refused

    shift = Shift(store, payment, order)
    store.hold("workflow:payment", "x")
    run_id = begun(shift, order)
    worker = shift.worker()
    store.register_code("c", worker.signatures)
    calling, failing = sorted(store.claim(0, Want("q", 5, "c", "t")).attempts, key=lambda one: one.index)
    store.commit(0, [(worker._attempts.run(calling, order.graph, calling.needs), "")], Want("q", 0, "c", "t"))
    store.unhold("workflow:payment")
    held = in_body(shift, "payment")
    store.commit(0, [(Outcome(failing, OutcomeKind.FAILED, reason="permanent", policy=FailurePolicy.COMPENSATE), "")], Want("q", 0, "c", "t"))
    assert shift.state(run_id) == "compensating"
    played(shift)
    assert told == []
    assert late(shift, held) == ["CANCELLED"]
    played(shift)
    assert (told, shift.state(run_id)) == (["refund None"], "failed")
    assert child_of(store, run_id, calling.index) == held.run_id


@pytest.mark.spec("RUN-7", "CAN-4")
def test_an_operation_that_a_step_called_is_waited_for_too(store: Store) -> None:
    """Also where the step that runs has no undo of its own: nothing is undone while anything of the run is under way."""
    flow: Workflow[Any] = Workflow("calls_out")

    @flow.step
    def first() -> int:
        return 1

    @first.undo
    def back(result: int | None) -> None:
        told.append(f"back {result}")

    @flow.step(after=[first])
    def second() -> int:
        return 2

    shift = Shift(store, flow)
    run_id = shift.start(flow)
    store.register_code("c", shift.worker().signatures)
    (one,) = store.claim(0, Want("q", 1, "c", "t")).attempts
    done = Outcome(one, OutcomeKind.COMPLETED, payload="j1:1", total=-1)
    (running,) = store.commit(0, [(done, "1")], Want("q", 1, "c", "t")).attempts
    play = Player(store)
    op = play.start(chain(1), bound_to=f"{run_id};1", queue_reason="retry", queue="ops")
    (of_op,) = store.claim(0, play.want(queue="ops")).attempts
    assert of_op.run_id == op
    store.cancel(run_id, reason="x", compensate=True)
    played(shift)
    assert told == []
    assert late(shift, running) == ["CANCELLED"]
    played(shift)
    assert told == []
    assert late(shift, of_op) == ["CANCELLED"]
    played(shift)
    assert (told, shift.state(run_id)) == (["back 1"], "cancelled")


@pytest.mark.spec("RUN-7")
def test_what_other_runs_do_is_not_waited_for(store: Store) -> None:
    play = Player(store)
    other = play.start(graph_of(node(0)))
    held = play.one()
    assert held.run_id == other
    assert store.last_lease(other, besides="") > held.at
    assert store.last_lease(other, besides=held.ref) == store.last_lease(play.start(graph_of(node(0))), besides="") == 0
    play.drain()
