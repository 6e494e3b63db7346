"""The graph is checked as it is declared: wiring by names, types between steps, order, limits. Errors name workflow, step and parameter."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from conductor import Ctx, DeclarationError, Workflow
from conductor.declare.freezing import MAX_STEPS, MAX_SUCCESSORS


class Order(BaseModel):
    id: int


class Payment(BaseModel):
    amount: int


def number() -> int:
    return 1


@pytest.mark.spec("WF-1")
def test_parameters_are_wired_by_name_and_type() -> None:
    flow = Workflow("order", input=Order)

    @flow.step
    def reserve(order: Order) -> str:
        return "hold"

    @flow.step
    def charge(order: Order, reserve: str, ctx: Ctx) -> Payment:
        return Payment(amount=1)

    @flow.step(after=reserve)
    def ship(charge: Payment) -> str:
        return "sent"

    nodes = flow.graph.nodes
    assert [node.name for node in nodes] == ["reserve", "charge", "ship"]
    assert [node.parents for node in nodes] == [(), (0,), (0, 1)]
    assert [node.needs for node in nodes] == [(), (0,), (1,)]
    assert [node.wants_input for node in nodes] == [True, True, False]
    assert [leaf.name for leaf in flow.graph.leaves] == ["ship"]
    assert charge(Order(id=1), "hold", Ctx.for_test()) == Payment(amount=1)


@pytest.mark.spec("WF-1")
@pytest.mark.parametrize("kind", ["dataclass", "typed dict", "plain", "generic"])
def test_input_may_be_any_type_that_pydantic_knows(kind: str) -> None:
    @dataclass
    class Data:
        id: int

    class Typed(TypedDict):
        id: int

    type_, good, bad = {
        "dataclass": (Data, Data(id=1), {"id": "1"}), "typed dict": (Typed, {"id": 1}, {}), "plain": (int, 3, "3"),
        "generic": (list[int], [1, 2], [1, "2"]),
    }[kind]
    flow = Workflow("w", input=type_)  # type: ignore[var-annotated]

    def first(x: Any) -> int:
        return 1

    first.__annotations__["x"] = type_
    flow.add(first)
    assert flow.graph.nodes[0].wants_input
    assert flow.encode_input(good).startswith("j1:")
    with pytest.raises(Exception, match=r"input of workflow w refused"):
        flow.encode_input(bad)


@pytest.mark.spec("WF-2")
def test_an_unknown_parameter_names_what_was_available() -> None:
    flow = Workflow("order", input=Order)

    @flow.step
    def charge(order: Order) -> str:
        return ""

    with pytest.raises(DeclarationError) as caught:

        @flow.step
        def ship(chrage: str) -> str:
            return ""

    assert str(caught.value) == (
        "order.ship: parameter 'chrage' is not the input (Order) and no earlier step has that name (have: charge); did you mean 'charge'?"
    )


@pytest.mark.spec("WF-2")
def test_a_default_may_stand_where_nothing_is_wired_but_not_hide_a_misspelling() -> None:
    flow = Workflow("order")
    flow.add(number, name="charge")
    flow.add(lambda times=3: times, name="fine")
    with pytest.raises(DeclarationError, match=r"did you mean 'charge'"):
        flow.add(lambda chrage=None: chrage, name="typo")
    flow.add(lambda later=None: later, name="early")
    flow.add(number, name="later")
    with pytest.raises(DeclarationError, match=r"order.early: parameter 'later' is named like a step that is declared later"):
        flow.graph


@pytest.mark.spec("WF-2")
def test_a_wrong_type_between_steps_names_both_sides() -> None:
    flow = Workflow("order", input=Order)

    @flow.step
    def charge(order: Order) -> Payment:
        return Payment(amount=1)

    with pytest.raises(DeclarationError, match=r"order.ship: parameter 'charge' is declared str, step 'charge' gives Payment"):

        @flow.step
        def ship(charge: str) -> str:
            return ""


@pytest.mark.spec("WF-2")
def test_a_duplicate_name_is_refused() -> None:
    flow = Workflow("order")
    flow.add(number)
    with pytest.raises(DeclarationError, match=r"order.number: the workflow already has a step named 'number'"):
        flow.add(number)


@pytest.mark.spec("WF-2")
def test_a_circle_is_found_and_shown() -> None:
    flow = Workflow("order")
    flow.add(number, name="a", after="c")
    flow.add(number, name="b", after="a")
    flow.add(number, name="c", after="b")
    with pytest.raises(DeclarationError) as caught:
        flow.graph
    path = str(caught.value).rpartition(": ")[2].split(" → ")
    assert path[0] == path[-1]
    assert set(path) == {"a", "b", "c"}
    own = Workflow("own")
    own.add(number, name="a", after="a")
    with pytest.raises(DeclarationError, match=r"circle"):
        own.graph


@pytest.mark.spec("WF-2")
def test_a_later_step_may_be_named_in_after() -> None:
    flow = Workflow("order")
    flow.add(number, name="a", after="b")
    flow.add(number, name="b")
    assert flow.graph.nodes[0].parents == (1,)
    assert flow.graph.roots == (1,)
    flow.add(number, name="c", after="nowhere")
    with pytest.raises(DeclarationError, match=r"order.c: after= names 'nowhere', no step has that name \(have: a, b, c\)"):
        flow.graph


@pytest.mark.spec("WF-2")
def test_limits_are_refused_with_the_way_out() -> None:
    flow = Workflow("wide")
    first = flow.add(number, name="first")
    for n in range(MAX_SUCCESSORS):
        flow.add(number, name=f"n{n}", after=first)
    with pytest.raises(DeclarationError, match=r"wide.first: 1001 steps follow it directly, the limit is 1000; use `each`"):
        flow.add(number, name="one_more", after=first)
    assert len(flow.graph.successors[0]) == MAX_SUCCESSORS
    many = Workflow("many")
    many._building.steps.update({str(n): first for n in range(MAX_STEPS)})
    with pytest.raises(DeclarationError, match=r"20000 steps"):
        many.add(number)


@pytest.mark.spec("WF-2")
def test_ten_thousand_steps_are_declared_in_seconds() -> None:
    flow = Workflow("chain")

    def work(previous: int = 0) -> int:
        return previous + 1

    began = time.perf_counter()
    last = flow.add(work, name="s0")
    for n in range(1, 10_000):
        last = flow.add(work, name=f"s{n}", using={"previous": last})
    assert len(flow.graph.nodes) == len(flow.codes) == 10_000
    assert time.perf_counter() - began < 8
    assert flow.graph is flow.graph


@pytest.mark.spec("WF-2")
@pytest.mark.parametrize("name", ["", "a b", "a:b", "a;b", "ä", "a\n", "x" * 129, "../x", "{x}", 7])
def test_names_are_safe_in_keys(name: Any) -> None:
    with pytest.raises(DeclarationError):
        Workflow(name)
    with pytest.raises(DeclarationError):
        Workflow("w").add(number, name=name)


def test_functions_without_a_usable_name_or_form_are_refused() -> None:
    flow = Workflow("w")
    with pytest.raises(DeclarationError, match=r"give it one with name="):
        flow.add(lambda: 1)
    with pytest.raises(DeclarationError, match=r"is not a function"):
        flow.add(3)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match=r"parameter '\*args' has no name"):
        flow.add(lambda *args: 1, name="star")
    with pytest.raises(DeclarationError, match=r"generator"):

        @flow.step
        def numbers() -> Any:
            yield 1


def test_a_partial_is_a_step_with_what_is_left_of_its_parameters() -> None:
    def scaled(number: int, by: int) -> int:
        return number * by

    flow = Workflow("w")
    flow.add(number)
    step = flow.add(partial(scaled, by=3), name="three_times")
    assert flow.graph.nodes[1].needs == (0,)
    assert flow.codes[1].run(Ctx.for_test(), None, {0: "j1:2"}, None) == "j1:6"
    assert step(2) == 6


@pytest.mark.spec("WF-2")
def test_types_that_json_cannot_carry_are_refused_when_declared() -> None:
    class Socket:
        pass

    flow = Workflow("w")
    with pytest.raises(DeclarationError, match=r"w.open: Socket cannot be carried as JSON"):

        @flow.step
        def open() -> Socket:
            return Socket()


@pytest.mark.spec("WF-2")
def test_local_models_resolve_and_missing_ones_are_named() -> None:
    class Local(BaseModel):
        id: int

    flow = Workflow("w", input=Local)

    @flow.step
    def first(x: Local) -> list[Local]:
        return [x]

    @flow.step
    def second(first: list[Local]) -> None:
        return None

    with pytest.raises(DeclarationError, match=r"w.third: its annotations use 'Nowhere'"):

        @flow.step
        def third(x: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
            return None
