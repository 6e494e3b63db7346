"""Undoing, and workflows that call workflows: what `docs/undoing.md` promises, on its example. The docstrings are sentences of the manual."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conductor.declare import registry
from conductor.declare.starting import start_options
from conductor.runs.fsck import fsck
from conductor.runs.handle import Handle
from conductor.runs.start import start
from conductor.store import Store, connect
from tests.integration.shift import Shift
from tests.support.leaks import forget
from tests.support.server import ValkeyServer
from tests.unit.test_examples import preorders

PAGE = (Path(__file__).parents[2] / "docs" / "undoing.md").read_text()


@pytest.fixture
def shop(valkey: ValkeyServer, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shift]:
    monkeypatch.setenv("PREORDERS_LEDGER", str(tmp_path))
    store = Store(connect(valkey.url()), namespace=namespace, partitions=1)
    with registry.isolated():
        yield Shift(store, preorders.flow, preorders.delivery)
    forget(store.client(), namespace)


def ordered(shop: Shift, **order: Any) -> Handle:
    payload = preorders.flow.encode_input(preorders.Preorder(id=7, total=900, **order))
    return Handle(shop.engine, start(shop.engine, preorders.flow, payload=payload, options=start_options("preorder")).run_id)


@pytest.mark.spec("WF-7")
def test_a_workflow_is_a_step(shop: Shift) -> None:
    """A step may run another workflow; what follows receives its result."""
    run = ordered(shop, address="Elm Street")
    shop.worker().drain(0, "q")
    assert run.get(1) == "parcel 7 to Elm Street"
    assert preorders.entries() == ["took 900 for hold-7"]


@pytest.mark.spec("RUN-7", "WF-5", "WF-7")
def test_what_was_done_is_taken_back(shop: Shift) -> None:
    """If a step fails for good, what was done is undone, the latest first; the keys end in `:undo`."""
    run = ordered(shop)
    shop.worker().drain(0, "q")
    assert (run.status, preorders.entries()) == ("failed", ["gave back 900", "released hold-7", "took 900 for hold-7"])
    undone = [event.index for event in run.events() if event.kind == "undoing"]
    assert [preorders.flow.graph.nodes[index].name for index in undone if index is not None] == ["charge:undo", "reserve:undo"]
    assert fsck(shop.engine) == []


@pytest.mark.spec("CAN-5")
def test_a_cancel_may_ask_for_it(shop: Shift) -> None:
    """`handle.cancel(compensate=True)`: nothing goes forward, what was done is undone, the run ends `cancelled`."""
    run = ordered(shop, address="Elm Street")
    shop.store.hold("workflow:delivery", "strike")
    worker = shop.worker()
    worker.drain(0, "q")
    assert run.cancel("changed my mind", compensate=True).state == "compensating"
    assert run.cancel("again").word == "COMPENSATING"
    worker.drain(0, "q")
    assert (run.status, preorders.entries()) == ("cancelled", ["gave back 900", "released hold-7", "took 900 for hold-7"])


def test_the_page_names_what_there_is() -> None:
    """Every word in the page that is a state, a reason or an option is one."""
    from conductor.runs.why import REASONS, STEP_REASONS

    reasons = {reason for of_state in REASONS.values() for reason in of_state} | set(STEP_REASONS)
    for word in ("compensation_failed", "child_failed", "child_cancelled", "run_ended", "call_too_deep"):
        assert f"{word}" in PAGE
        assert word in reasons
