"""New code beside old runs: a run keeps the graph it started with, and a value that no longer fits stops it with the field's name."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import create_model

from conductor import Workflow
from conductor.declare import registry
from conductor.runs.handle import Handle
from conductor.runs.read import view_run
from conductor.runs.why import why
from conductor.store import Store
from tests.integration.shift import Shift

pytestmark = pytest.mark.spec("WF-10")


def release(kind: type = int, *, ships: bool = False) -> Workflow[Any]:
    """One workflow in several releases: its model may have a field of another type, and there may be a further step."""
    price_model: Any = create_model("Price", total=(kind, ...))

    def price() -> Any:
        return price_model(total=kind(900))

    def ship(price: Any) -> str:
        return "shipped"

    def bill(price: Any) -> str:
        return f"billed {price.total}"

    price.__annotations__["return"] = ship.__annotations__["price"] = bill.__annotations__["price"] = price_model
    with registry.isolated():
        flow = Workflow("order")
        flow.add(price)
        flow.add(bill, after=[flow.add(ship)] if ships else [])
    return flow


def test_old_runs_finish_on_their_graph_while_new_ones_start_on_the_new(store: Store) -> None:
    before, after = release(), release(ships=True)
    old = Shift(store, before).start(before)
    shift = Shift(store, after)  # deployed: this worker has the new code only
    new = shift.start(after)
    shift.worker().drain(0, "q")
    assert [(shift.state(run_id), len(shift.moves(run_id, "c"))) for run_id in (old, new)] == [("completed", 2), ("completed", 3)]
    assert Handle(shift.engine, old).get(1) == Handle(shift.engine, new).get(1) == "billed 900"
    assert len(store.client().hgetall(store.keys.of(0, "graphs"))) == 2


def test_a_value_that_no_longer_fits_pauses_the_run_and_names_the_field(store: Store) -> None:
    """The class was changed under its own name, so its steps are still the same steps. The old class brought back, the run goes on."""
    before, after = release(int), release(str)
    assert before.graph.hash == after.graph.hash
    old, new = Shift(store, before, drain_steps=1), Shift(store, after)
    run_id = old.start(before)
    old.worker().drain(0, "q")
    new.worker().drain(0, "q")
    assert new.state(run_id) == "paused"
    sentence = why(view_run(store, run_id)).sentence
    assert "bill" in sentence
    assert "total" in sentence
    assert "900" not in sentence, "values are nobody's business"
    assert Handle(old.engine, run_id).resume().word == "OK"
    old.worker().drain(0, "q")
    assert Handle(old.engine, run_id).get(1) == "billed 900"
