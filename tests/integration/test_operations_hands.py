"""Calls in the process of their caller: who runs them, and what they leave behind. On both backends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from conductor import Ctx
from conductor.declare import registry
from conductor.declare.capability import capability
from conductor.operations import call, hands, listing, read
from conductor.operations.answers import Cancelled
from conductor.store import Store
from tests.integration.cashier import Cashier


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    with registry.isolated():
        yield


@pytest.fixture
def shop(store: Store) -> Iterator[Cashier]:
    made = Cashier(store)
    yield made
    made.clean()


@pytest.mark.spec("OP-4")
def test_threads_that_come_and_go_leave_nothing_behind(shop: Cashier) -> None:
    pay = shop.effect("none", lambda: None)
    call.call(shop.engine, pay, {"name": "x"})
    before = threading.active_count()
    for number in range(20):
        thread = threading.Thread(target=lambda number=number: call.call(shop.engine, pay, {"name": f"{number}"}))  # type: ignore[misc]
        thread.start()
        thread.join()
    assert threading.active_count() <= before and len(shop.calls) == 21


@pytest.mark.spec("OP-4")
def test_hands_that_are_too_many_are_put_away(shop: Cashier) -> None:
    pay, meet = shop.effect("none", lambda: None), threading.Barrier(12)
    before = {thread.ident for thread in threading.enumerate()}

    @capability("together")
    def together(n: int) -> int:
        meet.wait(20)
        return n

    threads = [threading.Thread(target=lambda n=n: call.call(shop.engine, together, {"n": n})) for n in range(12)]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    until = time.monotonic() + 10
    while len([one for one in threading.enumerate() if one.ident not in before]) > hands._MOST_IDLE and time.monotonic() < until:
        time.sleep(0.02)
    assert len([one for one in threading.enumerate() if one.ident not in before]) <= hands._MOST_IDLE
    assert call.call(shop.engine, pay, {"name": "x"}).ok


@pytest.mark.spec("OP-4", "RUN-5")
def test_what_a_call_could_not_tell_is_told_before_the_next_one_is_answered(shop: Cashier, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store was away when the first call had ended: its outcome is still in the hands that made it."""
    pay = shop.effect("none", lambda: None)

    @capability("regretted")
    def regretted(ctx: Ctx) -> str:
        shop.store.cancel(ctx.run_id, reason="regretted")
        return "not heard"

    commit = type(shop.store).commit

    def away(*args: Any) -> Any:
        raise ConnectionError("the store is away")

    monkeypatch.setattr(type(shop.store), "commit", away)
    with pytest.raises(ConnectionError):
        call.call(shop.engine, pay, {"name": "first"})
    monkeypatch.setattr(type(shop.store), "commit", commit)
    assert isinstance(call.call(shop.engine, regretted), Cancelled), "that of the first was taken, not that of the second"
    assert {read.find(shop.engine, one.operation_id).result for one in listing.list_operations(shop.engine)} == {"paid first", None}
