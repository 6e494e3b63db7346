"""Skipping, fan-outs, sleeps, last steps: what each kind of node asks of its neighbours. And what a later release brings."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from conductor import Ctx, DeclarationError, NotAvailableYet, Results, RunOutcome, Workflow
from conductor.records import NodeKind


class Order(BaseModel):
    id: int


class Payment(BaseModel):
    amount: int


def number() -> int:
    return 1


@pytest.mark.spec("WF-3")
def test_what_may_be_skipped_must_be_taken_as_none() -> None:
    flow = Workflow("w", input=Order)

    @flow.step
    def always(order: Order) -> int:
        return 1

    @flow.step(when=lambda always: always > 1)
    def gift(always: int) -> str:
        return ""

    with pytest.raises(DeclarationError, match=r"w.wrap: parameter 'gift' is declared str, but step 'gift' may be skipped"):

        @flow.step
        def wrap(gift: str) -> str:
            return ""

    @flow.step
    def ribbon(gift: str | None) -> str:
        return ""

    with pytest.raises(DeclarationError, match=r"step 'ribbon' may be skipped"):  # all its predecessors may be

        @flow.step
        def bow(ribbon: str) -> str:
            return ""

    @flow.step
    def card(ribbon: str = "none", *, always: int) -> str:
        return ""

    @flow.step
    def last(card: str) -> str:  # one predecessor of card is never skipped
        return ""

    assert len(flow.graph.nodes) == 5


@pytest.mark.spec("WF-3")
def test_skipping_is_judged_again_when_a_later_step_is_named() -> None:
    flow = Workflow("w")
    flow.add(number, name="a", after="z")

    @flow.step
    def b(a: int) -> int:
        return a

    flow.add(number, name="z", when=lambda: False)
    with pytest.raises(DeclarationError, match=r"step 'a' may be skipped"):
        flow.graph


@pytest.mark.spec("WF-6")
def test_an_each_runs_over_the_list_of_an_earlier_step() -> None:
    flow = Workflow("media", input=Order)

    @flow.step
    def split(order: Order) -> list[str]:
        return []

    @flow.each(split, max_parallel=7, queue="gpu")
    def encode(chunk: str, order: Order, ctx: Ctx) -> Payment:
        return Payment(amount=len(chunk))

    @flow.step
    def stitch(encode: list[Payment], split: list[str]) -> int:
        return 1

    @flow.step
    def count(encode: Results[Payment]) -> int:
        return len(encode)

    node = flow.graph.nodes[1]
    assert (node.kind, node.source, node.parents, node.needs, node.max_parallel, node.queue) == (NodeKind.EACH, 0, (0,), (), 7, "gpu")
    assert flow.graph.feeds_each(0)
    assert encode("abc", Order(id=1), Ctx.for_test()) == Payment(amount=3)
    with pytest.raises(DeclarationError, match=r"parameter 'encode' is declared list\[str\], step 'encode' gives list\[Payment\]"):

        @flow.step
        def wrong(encode: list[str]) -> int:
            return 1

    with pytest.raises(DeclarationError, match=r"parameter 'chunk' is declared int, an item of step 'split' is str"):

        @flow.each("split")
        def wrong_item(chunk: int) -> int:
            return 1

    with pytest.raises(DeclarationError, match=r"an each cannot run over the results of another, use flow.call"):
        flow.each(encode, name="nested")(lambda part: part)


@pytest.mark.spec("WF-6")
def test_an_each_needs_a_list_an_item_and_a_sane_source() -> None:
    flow = Workflow("media")
    flow.add(number)
    pause = flow.sleep(timedelta(seconds=1), name="pause")

    @flow.step(when=lambda: True)
    def maybe() -> list[int]:
        return []

    for source, message in (("number", "must give a list but gives int"), (pause, "no value"), ("nowhere", "is no earlier step")):
        with pytest.raises(DeclarationError, match=message):
            flow.each(source, name="bad")(lambda part: part)
    with pytest.raises(DeclarationError, match=r"no parameter is left for the item"):
        flow.each(maybe, name="none")(lambda: 1)
    with pytest.raises(DeclarationError, match=r"named like the list it runs over"):
        flow.each(maybe, name="same")(lambda maybe: maybe)
    with pytest.raises(DeclarationError, match=r"may be skipped while other steps before it are not"):
        flow.each(maybe, name="both", after="number")(lambda part: part)
    flow.each(maybe, name="alone")(lambda part: part)
    with pytest.raises(DeclarationError, match=r"max_parallel"):
        flow.each(maybe, max_parallel=0)


@pytest.mark.spec("WF-5")
def test_a_sleep_is_ordered_by_after_and_gives_no_value() -> None:
    flow = Workflow("w")
    first = flow.add(number, name="first")
    pause = flow.sleep(timedelta(days=1), after=first)
    flow.add(number, name="second", after=pause)
    node = flow.graph.nodes[1]
    assert (node.kind, node.delay_ms, node.parents, node.name) == (NodeKind.SLEEP, 86_400_000, (0,), "sleep_1")
    assert flow.graph.nodes[2].parents == (1,)
    with pytest.raises(DeclarationError, match=r"is a sleep and gives no value"):
        flow.add(lambda sleep_1: 1, name="third")
    for wrong in (timedelta(0), -1, "1", float("nan"), timedelta(days=4000)):
        with pytest.raises(DeclarationError, match=r"sleep"):
            flow.sleep(wrong)  # type: ignore[arg-type]


@pytest.mark.spec("WF-17")
def test_last_steps_stand_at_the_end_and_know_the_outcome() -> None:
    flow = Workflow("w", input=Order)

    @flow.on_failure
    def tell(order: Order, outcome: RunOutcome, ctx: Ctx) -> None:
        return None

    @flow.on_finish
    def clean(outcome: RunOutcome) -> None:
        return None

    flow.add(number)
    assert [node.name for node in flow.graph.nodes] == ["number", "tell", "clean"]
    assert flow.graph.hooks == "f1,n2"
    assert [leaf.name for leaf in flow.graph.leaves] == ["number"]
    with pytest.raises(DeclarationError, match=r"a last step receives only input, ctx and RunOutcome"):
        flow.on_finish(name="bad")(lambda number: None)
    with pytest.raises(DeclarationError, match=r"a last step; nothing can follow it"):
        flow.add(number, name="more", after=tell)


@pytest.mark.spec("WF-1")
def test_only_one_step_may_be_the_result() -> None:
    flow = Workflow("w")
    flow.add(number, name="a", result=True)
    flow.add(number, name="b")
    assert [leaf.name for leaf in flow.graph.leaves] == ["a"]
    with pytest.raises(DeclarationError, match=r"step 'a' is already the result"):
        flow.add(number, name="c", result=True)


def test_steps_of_other_workflows_are_refused() -> None:
    other = Workflow("other").add(number)
    with pytest.raises(DeclarationError, match=r"w.mine: after= names 'number', a step of workflow 'other'"):
        Workflow("w").add(number, name="mine", after=other)


def test_a_workflow_without_steps_has_no_graph() -> None:
    with pytest.raises(DeclarationError, match=r"it has no steps"):
        Workflow("w").graph


def test_what_comes_later_is_refused_by_name() -> None:
    flow = Workflow("w")
    flow.add(number)
    calls: list[Any] = [
        lambda: flow.task(None),
        lambda: Workflow.from_canvas("c", None), lambda: flow.start_many([]), lambda: flow.adelay(1),
        lambda: Workflow("x", version=1),  # type: ignore[call-overload]
    ]
    for call in calls:
        with pytest.raises(NotAvailableYet, match=r"is not available in this release"):
            call()

    async def later() -> int:
        return 1

    with pytest.raises(NotAvailableYet, match=r"w.later: an async step"):
        flow.step(later)
