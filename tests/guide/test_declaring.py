"""Declaring work. Each test is one thing you can rely on; its docstring is the sentence in the manual."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from pydantic import BaseModel

from conductor import BadInput, Ctx, DeclarationError, NotAvailableYet, Results, Retry, RunOutcome, Workflow
from conductor.declare import registry


class Order(BaseModel):
    id: int
    total: int


class Payment(BaseModel):
    amount: int


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    with registry.isolated():
        yield


@pytest.mark.spec("WF-1")
def test_a_parameter_named_like_an_earlier_step_receives_its_result() -> None:
    """Write plain functions. A parameter typed as the input model receives the input; one named like an earlier step its result."""
    flow = Workflow("order", input=Order)

    @flow.step
    def reserve(order: Order) -> str:
        return f"hold-{order.id}"

    @flow.step
    def charge(order: Order, reserve: str) -> Payment:
        return Payment(amount=order.total)

    assert [(node.name, node.parents) for node in flow.graph.nodes] == [("reserve", ()), ("charge", (0,))]


@pytest.mark.spec("WF-9")
def test_steps_stay_plain_functions() -> None:
    """A step is still your function: call it in a unit test, with `Ctx.for_test` where it wants a context."""
    flow = Workflow("order", input=Order)

    @flow.effect
    def charge(order: Order, ctx: Ctx) -> str:
        return f"{ctx.key} {order.total}"

    assert charge(Order(id=1, total=900), Ctx.for_test(key="run-1:charge")) == "run-1:charge 900"


@pytest.mark.spec("WF-2")
def test_mistakes_are_found_when_the_module_is_imported() -> None:
    """A misspelt parameter is an error at import, and it says what you probably meant."""
    flow = Workflow("order", input=Order)

    @flow.step
    def charge(order: Order) -> Payment:
        return Payment(amount=order.total)

    with pytest.raises(DeclarationError, match=r"order\.ship: parameter 'chrage' .*did you mean 'charge'\?"):

        @flow.step
        def ship(chrage: Payment) -> str:
            return "sent"


@pytest.mark.spec("WF-3")
def test_a_condition_decides_when_the_step_is_reached() -> None:
    """`when=` takes the step's own parameters. What may be skipped must be taken as `None` by whoever follows."""
    flow = Workflow("order", input=Order)

    @flow.step(when=lambda order: order.total > 1000)
    def gift(order: Order) -> str:
        return "a teapot"

    @flow.step
    def ship(order: Order, gift: str | None) -> str:
        return f"parcel with {gift or 'no gift'}"

    assert ship(Order(id=1, total=1), None) == "parcel with no gift"
    with pytest.raises(DeclarationError, match="may be skipped"):

        @flow.step
        def wrap(gift: str) -> str:
            return gift


@pytest.mark.spec("WF-3", "OP-7")
def test_retries_are_declared_beside_the_step() -> None:
    """`Retry` says how often, for which errors, with which pauses. Without it transient errors are retried with the defaults."""
    flow = Workflow("order", input=Order)

    @flow.step(retry=Retry(max=3, on=TimeoutError, backoff="exponential", cap=timedelta(minutes=1)))
    def charge(order: Order) -> Payment:
        return Payment(amount=order.total)

    policy = flow.graph.nodes[0].retry
    assert policy is not None
    assert (policy.max, policy.on) == (3, ("builtins.TimeoutError",))


@pytest.mark.spec("WF-6")
def test_each_fans_out_over_a_list_known_only_at_run_time() -> None:
    """`@flow.each(split)` runs once per member. The next step receives all results in order: a `list`, or `Results` read page by page."""
    flow = Workflow("video", input=Order)

    @flow.step
    def split(order: Order) -> list[str]:
        return ["a", "b"]

    @flow.each(split, max_parallel=20, queue="gpu")
    def encode(chunk: str, ctx: Ctx) -> int:
        return len(chunk)

    @flow.step
    def stitch(encode: Results[int]) -> int:
        return sum(encode)

    assert flow.graph.nodes[1].source == 0
    assert encode("abc", Ctx.for_test()) == 3


@pytest.mark.spec("WF-5")
def test_a_sleep_is_a_durable_timer() -> None:
    """`flow.sleep` holds no worker and survives restarts; what follows names it in `after=`."""
    flow = Workflow("trial", input=Order)

    @flow.step
    def welcome(order: Order) -> None: ...

    two_weeks = flow.sleep(timedelta(days=14), after=welcome)

    @flow.step(after=two_weeks)
    def remind(order: Order) -> None: ...

    assert flow.graph.nodes[1].delay_ms == 14 * 86_400_000


@pytest.mark.spec("WF-17")
def test_last_steps_learn_how_the_run_ends() -> None:
    """`@flow.on_failure` and `@flow.on_finish` are durable last steps. `RunOutcome` tells them the state, the reason and what failed."""
    flow = Workflow("order", input=Order)
    flow.add(lambda: 1, name="work")

    @flow.on_failure
    def tell_support(order: Order, outcome: RunOutcome) -> str:
        return f"order {order.id}: {outcome.reason}"

    assert tell_support(Order(id=7, total=1), RunOutcome(state="failed", reason="charge failed")) == "order 7: charge failed"


@pytest.mark.spec("WF-1")
def test_a_graph_can_be_made_by_a_program() -> None:
    """`flow.add` declares a step from a loop; `using=` wires a parameter to a step of any name."""

    def double(number: int = 1) -> int:
        return number * 2

    flow = Workflow("powers")
    last = flow.add(double, name="power_1")
    for n in range(2, 11):
        last = flow.add(double, name=f"power_{n}", using={"number": last})
    assert [leaf.name for leaf in flow.graph.leaves] == ["power_10"]


@pytest.mark.spec("BAD-1")
def test_input_is_checked_strictly_before_anything_is_written() -> None:
    """`"12"` is not 12, and an unknown field is an error: the message names the field."""
    flow = Workflow("order", input=Order)
    with pytest.raises(BadInput, match=r"total: Input should be a valid integer"):
        flow.encode_input({"id": 1, "total": "12"})
    with pytest.raises(BadInput, match=r"totl: no such field \(known: id, total\)"):
        flow.encode_input({"id": 1, "total": 1, "totl": 2})


@pytest.mark.spec("WF-5")
def test_a_run_waits_for_people_agents_and_times_without_holding_a_worker() -> None:
    """What follows a wait receives what was sent, under the wait's name; a signal is checked against its type before it is taken."""
    flow = Workflow("order", input=Order)
    approval = flow.wait("approval", Payment, timeout=timedelta(days=3), default=Payment(amount=0))
    draft = flow.agent("draft", str, instructions="Write to the customer.", after=approval)
    flow.sleep(timedelta(hours=1), name="pause", after=draft)

    @flow.step(after="pause")
    def ship(approval: Payment, draft: str) -> str:
        return f"{draft}: {approval.amount}"

    assert [node.kind for node in flow.graph.nodes] == ["wait", "agent", "sleep", "step"]
    with pytest.raises(DeclarationError, match=r"parameter 'approval' is declared str, step 'approval' gives Payment"):
        flow.add(lambda approval: 1, name="fine") and flow.add(_wrong, name="wrong")


def _wrong(approval: str) -> str:
    return approval


def test_what_a_later_release_brings_is_refused_by_name() -> None:
    """Nothing you write is silently ignored."""
    flow = Workflow("order", input=Order)
    with pytest.raises(NotAvailableYet, match=r"flow\.task"):
        flow.task(None)
