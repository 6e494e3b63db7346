"""The shipped examples do what they say, and the order books once per key however often it is repeated."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from conductor import Ctx, Results, RunOutcome, Workflow, codec
from conductor.declare import every, registry
from conductor.declare.context import key_of


def example(name: str) -> Any:
    """Load one example by its file: importing it through `workers` would build the application and start its server."""
    path = Path(__file__).parents[2] / "workers" / "workflows" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    with registry.isolated():
        spec.loader.exec_module(module)
    return module


chain, media, orders, payments = example("chain"), example("media"), example("orders"), example("payments")
preorders = example("preorders")


def walk(flow: Workflow[Any], value: Any) -> Any:
    """Run a graph in order, in memory: each step's code with real payloads."""
    graph, given = flow.graph, flow.encode_input(value)
    stored: dict[int, Any] = {}
    for node in graph.steps:
        code = flow.codes[node.index]
        values = {index: stored[index] for index in code.needs}
        if node.source is None:
            stored[node.index] = code.run(Ctx.for_test(run_id="r", step=node.name), given, values, None)
            continue
        items = codec.split_list(stored[node.source])
        contexts = [Ctx(key=key_of("r", node.name, n), run_id="r", item=n) for n in range(len(items))]
        stored[node.index] = Results.of([code.run(ctx, given, values, item) for ctx, item in zip(contexts, items, strict=True)])
    return flow.result_of({leaf.name: stored[leaf.index] for leaf in graph.leaves})


@pytest.mark.spec("WF-1")
def test_the_chain() -> None:
    assert walk(chain.flow, chain.Letter(to="Ada", text="it works")) == "Dear Ada,\nit works\nYours, Conductor"


@pytest.mark.spec("WF-6")
@pytest.mark.parametrize("seconds", [0, 1, 95])
def test_the_fan_out(seconds: int) -> None:
    whole = hashlib.sha256()
    for start in range(0, seconds, 10):
        whole.update(hashlib.sha256(f"cat:{start}".encode()).hexdigest().encode())
    assert walk(media.flow, {"title": "cat", "seconds": seconds}) == whole.hexdigest()


@pytest.mark.spec("WF-4")
def test_the_order_books_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_LEDGER", str(tmp_path / "ledger"))
    order = orders.Order(id=42, items=["tea"], total=900)
    for _ in range(3):
        assert walk(orders.flow, order) == "parcel-42-900"
    assert orders.bookings() == [orders.Payment(key="r:charge", amount=900)]
    with pytest.raises(orders.Declined):
        orders.charge(orders.Order(id=43, items=["house"], total=10**9), "hold-43", Ctx.for_test())
    assert [found.name for found in (tmp_path / "ledger").iterdir()] == ["r_charge.json"]


@pytest.mark.spec("WF-17")
def test_support_is_told(caplog: pytest.LogCaptureFixture) -> None:
    orders.tell_support(orders.Order(id=1, items=["a"], total=1), RunOutcome(state="failed", reason="no stock"), Ctx.for_test())
    assert "order 1 failed: no stock" in caplog.text


@pytest.mark.spec("WF-3", "WF-4", "WF-14")
def test_the_payment_charges_and_posts_a_receipt(tmp_path: Path) -> None:
    posted = Path(walk(payments.flow, payments.Payment(order=42, cents=900, ledger=str(tmp_path / "ledger"))))
    assert posted.read_text() == f"receipt {posted.stem.removeprefix('receipt-')}: 900 cents\n"
    ledger = payments.Ledger(ledger=str(posted.parent))
    assert payments.read(ledger) == [payments.Booking(key="r:charge", cents=900)]
    assert payments.total(ledger) == 900


@pytest.mark.spec("WF-4", "EFF-2")
def test_a_payment_can_be_asked_whether_it_happened(tmp_path: Path) -> None:
    payment, ctx = payments.Payment(order=1, cents=5, ledger=str(tmp_path)), Ctx.for_test(run_id="r", step="charge")
    assert payments.booked(payment, ctx) is None
    booking = payments.charge(payment, ctx)
    assert payments.booked(payment, ctx) == booking
    assert payments.booked(payment, Ctx.for_test(run_id="other", step="charge")) is None


@pytest.mark.spec("EFF-1")
def test_a_receipt_is_found_absent_half_written_or_whole(tmp_path: Path) -> None:
    receipt = payments.Receipt(ledger=str(tmp_path), number="a1", cents=5)
    judge = payments.post_receipt.judge()

    def verdict() -> str:
        return str(judge({"receipt": receipt}, Ctx.for_test()).verdict)

    assert verdict() == "absent"
    receipt.path.write_text(receipt.text[:4])
    assert verdict() == "partial"
    payments.post_receipt(receipt)
    assert verdict() == "verified"


@pytest.mark.spec("WF-14")
def test_a_receipt_keeps_its_number(tmp_path: Path) -> None:
    payment, booking, kept = payments.Payment(order=1, cents=5, ledger=str(tmp_path)), payments.Booking(key="k", cents=5), dict[str, str]()
    again = [payments.draw(payment, booking, Ctx.for_test(load_once=kept.get, save_once=kept.__setitem__)).number for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.spec("WF-16")
def test_the_audit_ticks_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with every.isolated():
        example("payments")
        assert every.declared == {}
        monkeypatch.setenv("PAYMENTS_LEDGER", "/tmp/ledger")
        example("payments")
        assert str(every.declared["payment_audit"].cadence) == "0 3 * * * (UTC)"


@pytest.mark.spec("WF-5", "RUN-7")
def test_the_preorder_takes_back_what_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREORDERS_LEDGER", str(tmp_path / "ledger"))
    order = preorders.Preorder(id=7, total=900, address="Elm Street")
    assert walk(preorders.delivery, preorders.parcel(order, "key")) == "parcel 7 to Elm Street"
    with pytest.raises(preorders.NoAddress):
        preorders.route(preorders.Parcel(order=7, address=""))
    ctx = Ctx.for_test(key="r:charge")
    assert not preorders.charged(ctx)
    for _ in range(2):
        preorders.charge(order, "hold-7", ctx)
        preorders.refund(order, Ctx.for_test(key="r:charge:undo"))
        preorders.release(None, Ctx.for_test(key="r:reserve:undo"))
    assert preorders.charged(ctx)
    assert preorders.entries() == ["gave back 900", "released whatever was held", "took 900 for hold-7"]
