"""Declaring undos and calls: what is wired to what, and what is refused when the module is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from conductor import Ctx, DeclarationError, Retry, Workflow
from conductor.declare import registry
from conductor.log import parse_all
from conductor.records import FailurePolicy, Graph, NodeKind
from conductor.runs.undoing import plan_undos


class Order(BaseModel):
    id: int


class Other(BaseModel):
    name: str


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    with registry.isolated():
        yield


def order() -> Workflow[Order]:
    return Workflow("order", input=Order)


@pytest.mark.spec("WF-5", "RUN-7")
def test_an_undo_is_a_node_beside_the_steps_with_its_own_options() -> None:
    flow = order()

    @flow.effect(queue="bank", priority=2)
    def charge(order: Order) -> int:
        return order.id

    @charge.undo(retry=Retry(max=9), timeout=5)
    def refund(order: Order, charge: int | None, ctx: Ctx) -> None: ...

    @flow.on_failure
    def tell() -> None: ...

    graph = flow.graph
    assert [(node.name, node.kind) for node in graph.nodes] == [
        ("charge", NodeKind.STEP), ("tell", NodeKind.ON_FAILURE), ("undo:plan", NodeKind.UNDO), ("charge:undo", NodeKind.UNDO)]
    undo = graph.nodes[3]
    assert (undo.undoes, undo.queue, undo.priority, undo.timeout_ms, undo.alone, undo.wants_input) == (0, "bank", 2, 5000, True, True)
    assert undo.retry is not None
    assert undo.retry.max == 9
    assert graph.hooks == "u2,f1"
    assert len(graph.steps) == 1
    assert Graph.from_doc(graph.doc) == graph
    assert undo.descriptor().split(";")[11] == "0"
    assert refund(Order(id=1), 1, Ctx.for_test()) is None


def test_a_workflow_without_undos_has_the_graph_it_had() -> None:
    flow = order()
    flow.step(lambda: 1, name="only")  # type: ignore[call-overload]
    assert "undoes" not in flow.graph.doc
    assert flow.graph.hooks == ""


@pytest.mark.spec("RUN-7")
def test_a_whole_workflow_may_ask_to_be_undone() -> None:
    flow: Workflow[Any] = Workflow("order", on_failure="compensate")
    step = flow.add(lambda: 1, name="only")
    step.undo(lambda: None)
    assert flow.graph.nodes[0].policy is FailurePolicy.COMPENSATE
    assert flow.graph.hooks == "U1"


@pytest.mark.spec("WF-2", "BAD-1")
@pytest.mark.parametrize(("undo", "problem"), [
    (lambda other: None, r"undo takes 'other', which is neither a parameter of the step nor its result \(have: order, result, ctx\)"),
    (lambda **more: None, "has no name to be wired by"),
])
def test_a_parameter_that_nothing_gives_is_refused(undo: Callable[..., Any], problem: str) -> None:
    flow = order()

    @flow.step
    def charge(order: Order) -> int:
        return 1

    with pytest.raises(DeclarationError, match=problem):
        charge.undo(undo)


@pytest.mark.spec("WF-2", "BAD-1")
def test_an_undo_must_bear_an_unknown_result_and_the_right_types() -> None:
    flow = order()

    @flow.step
    def charge(order: Order) -> int:
        return 1

    def blind(result: int) -> None: ...
    def wrong(result: str | None) -> None: ...
    def misread(order: Other) -> None: ...

    with pytest.raises(DeclarationError, match=r"nobody knows the result and the undo gets None; declare it int \| None"):
        charge.undo(blind)
    with pytest.raises(DeclarationError, match="the step gives int"):
        charge.undo(wrong)
    with pytest.raises(DeclarationError, match="in the step it is Order"):
        charge.undo(misread)
    with pytest.raises(DeclarationError, match="an undo takes no when"):
        charge.undo(when=lambda: True)(blind)  # type: ignore[call-overload]
    charge.undo(lambda: None)
    with pytest.raises(DeclarationError, match="already has an undo"):
        charge.undo(lambda: None)
    with pytest.raises(DeclarationError, match="only a step or an each can be undone"):
        flow.sleep(1).undo(lambda: None)


@pytest.mark.spec("RUN-7", "BAD-1")
def test_compensation_without_an_undo_is_refused() -> None:
    flow: Workflow[Any] = Workflow("order", on_failure="compensate")
    flow.add(lambda: 1, name="only")
    with pytest.raises(DeclarationError, match=r"no step has an undo; declare one with @step\.undo"):
        flow.graph
    single: Workflow[Any] = Workflow("single")
    single.add(lambda: 1, name="only", on_failure="compensate")
    with pytest.raises(DeclarationError, match=r"single\.only: on_failure"):
        single.graph


def child(takes: Any = int) -> Workflow[Any]:
    flow: Workflow[Any] = Workflow("child", input=takes)

    @flow.step
    def end() -> str:
        return ""

    return flow


@pytest.mark.spec("WF-7")
def test_a_call_gives_what_the_child_gives() -> None:
    flow, other = order(), child()

    @flow.step
    def price(order: Order) -> int:
        return 1

    pay = flow.call(other, price, name="pay")

    def number(order: Order) -> int:
        return order.id

    made = flow.call(other, number, name="made")

    @flow.step
    def thank(pay: str, made: str) -> None: ...

    nodes = flow.graph.nodes
    assert [(node.name, node.kind, node.calls, node.parents) for node in nodes] == [
        ("price", NodeKind.STEP, "", ()), ("pay", NodeKind.CALL, "child", (0,)), ("made", NodeKind.CALL, "child", ()),
        ("thank", NodeKind.STEP, "", (1, 2))]
    assert pay.gives is made.gives is str

    with pytest.raises(DeclarationError, match="is declared int, step 'pay' gives str"):
        @flow.step
        def wrong(pay: int) -> None: ...


@pytest.mark.spec("WF-7", "BAD-1")
def test_a_call_that_cannot_be_right_is_refused() -> None:
    flow, other = order(), child(Other)

    @flow.step
    def price(order: Order) -> int:
        return 1

    with pytest.raises(DeclarationError, match="name the step that gives it, or a function that makes it"):
        flow.call(other)
    with pytest.raises(DeclarationError, match="step 'price' gives int, workflow 'child' takes Other"):
        flow.call(other, price)
    with pytest.raises(DeclarationError, match="takes no input, so nothing can be given to it"):
        flow.call(child(None), price)
    with pytest.raises(DeclarationError, match="call takes a Workflow"):
        flow.call("child")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="a call takes no timeout"):
        flow.call(child(Order), timeout=3)
    with pytest.raises(DeclarationError, match="is no step, name of a step, or function"):
        flow.call(other, 7)  # type: ignore[arg-type]


@pytest.mark.spec("RUN-7")
def test_the_plan_is_the_log_backwards() -> None:
    flow = order()

    @flow.step
    def numbers() -> list[int]:
        return [1]

    @flow.each(numbers)
    def items(number: int) -> int:
        return number

    for step in (numbers, items):
        step.undo(lambda: None)
    last = flow.add(lambda: None, name="last", after=["items"])
    last.undo(lambda: None)
    numbered, of_items, of_last = (next(node.index for node in flow.graph.nodes if node.undoes == index) for index in range(3))

    def plan(*log: str) -> list[str]:
        return plan_undos(flow.graph, parse_all(["s;1;1;0;0", *log]))

    done = ("k;1;0;10;;w", "c;1;0;10;;3")
    assert plan(*done) == [f"{numbered}"]
    items_done = ("k;1;1;11;0-2;w", "c;1;1;11;0-1", "f;1;1;13;2;bad;d")
    assert plan(*done, *items_done) == [f"{of_items}:2q", f"{of_items}:1", f"{of_items}:0", f"{numbered}"]
    failed = ("k;1;1;11;0-2;w", "c;1;1;11;0-1", "f;1;1;13;2;bad")
    assert plan(*done, *failed)[0] == f"{of_items}:1"
    over = ("k;1;1;11;0-2;w", "c;1;1;11;0-2", "c;1;1;0")
    assert plan(*done, *over, "k;1;2;20;;w") == [f"{of_last}q", f"{of_items}:2", f"{of_items}:1", f"{of_items}:0", f"{numbered}"]
    lost = ("k;1;0;10;;w", "x;1;0;10;;lease_expired")
    assert plan(*lost) == [f"{numbered}q"]
    assert plan(*lost, "k;1;0;12;;w", "b;1;0;12;;shutdown") == [f"{numbered}q"]
    assert plan(*lost, "k;1;0;12;;w", "t;1;0;12;;0;permanent") == []
