"""To whom the end of an operation is told, and what is said if it cannot be. On both backends."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conductor import Ctx, PermanentError, TransientError, codec
from conductor.blobs import open_blobs
from conductor.declare import registry
from conductor.declare.capability import capability
from conductor.operations import call, messages, read
from conductor.operations.answers import TimedOut
from conductor.operations.messages import relay
from conductor.sessions import inbox
from conductor.store import Store
from tests.integration.cashier import Cashier, failing


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    with registry.isolated():
        yield


@pytest.fixture
def shop(store: Store) -> Iterator[Cashier]:
    made = Cashier(store)
    yield made
    made.clean()


@pytest.mark.spec("OP-9")
def test_the_end_of_a_call_that_waited_for_one_of_its_own_is_told(shop: Cashier) -> None:
    shop.effect("replay", failing(1, lambda: TransientError("later")))

    @capability("outer", retry="replay", backoff="none")
    def outer(ctx: Ctx) -> Any:
        return ctx.call("pay", name="a")

    answer = call.call(shop.engine, outer, session="ada")
    assert not answer.ok
    shop.store.hasten(read.find(shop.engine, answer.operation_id).operation_id, 0)
    for _ in range(4):
        shop.work(1)
        shop.store.hasten(answer.operation_id, 0)
    list(relay(shop.engine, 0))
    assert ("retry_success", answer.operation_id) in [(one.kind, one.operation_id) for one in inbox.read(shop.store, "ada")]


@pytest.mark.spec("OP-9", "OP-6")
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("ended", [False, True])
def test_the_end_of_a_call_that_nobody_waits_for_any_more_is_told(shop: Cashier, fails: bool, ended: bool) -> None:
    pay = shop.effect("none", failing(int(fails), lambda: PermanentError("no")))
    operation_id = call.begin(shop.engine, pay, {"name": "a"}, session="ada")
    if ended:  # just before whoever waited said so
        shop.work()
    call.leave(shop.engine, operation_id)
    shop.work()
    for _ in range(2):
        list(relay(shop.engine, 0))
    kind = "retry_failed" if fails else "retry_success"
    assert [(one.kind, one.operation_id) for one in inbox.read(shop.store, "ada")] == [(kind, operation_id)]


@pytest.mark.spec("OP-9", "OP-6")
def test_who_waits_for_a_remote_call_is_told_by_its_answer_or_by_the_inbox(shop: Cashier) -> None:
    pay = shop.effect("none", lambda: None)
    late = call.call(shop.engine, pay, {"name": "late"}, session="ada", remote=True, timeout=0)
    assert isinstance(late, TimedOut)
    heard = call.begin(shop.engine, pay, {"name": "heard"}, session="ada")
    shop.work()
    assert call.wait_for(shop.engine, heard, 5).ok
    list(relay(shop.engine, 0))
    assert [one.operation_id for one in inbox.read(shop.store, "ada")] == [late.operation_id]


@pytest.mark.spec("OP-9", "SES-3", "RUN-10")
@pytest.mark.parametrize("result", ["deep", "large"])
def test_a_result_that_no_message_can_carry_stays_with_its_operation(
    shop: Cashier, result: str, tmp_path: Path, caplog: pytest.LogCaptureFixture,
) -> None:
    value: Any = "x" * 3_000_000
    if result == "deep":
        value = 1
        for _ in range(codec.MAX_DEPTH):
            value = [value]
    fails = failing(1, lambda: TransientError("later"))

    @capability("make", retry="replay", backoff="none")
    def make() -> Any:
        if (error := fails()) is not None:
            raise error
        return value

    codec.use_blobs(open_blobs(f"file://{tmp_path}"))
    try:
        answer = call.call(shop.engine, make, session="ada")
        shop.work()
        list(relay(shop.engine, 0))
        (message,) = inbox.read(shop.store, "ada")
        assert message.kind == "retry_success" and message.body["result"] is None
        assert f"conductor ops show {answer.operation_id}" in message.body["result_left_out"]
        assert read.find(shop.engine, answer.operation_id).result == value
        assert shop.store.outbox(0) == [] and not caplog.records
    finally:
        codec.use_blobs(None)


@pytest.mark.spec("OP-9")
def test_an_end_that_cannot_be_told_is_complained_about_once(
    shop: Cashier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:
    pay = shop.effect("replay", failing(1, lambda: TransientError("later")))
    call.call(shop.engine, pay, {"name": "a"}, session="ada")
    shop.work()
    with monkeypatch.context() as patch:
        patch.setattr(messages, "_body", lambda found: 1 / 0)
        for _ in range(3):
            assert list(relay(shop.engine, 0)) == []
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1
    assert len(list(relay(shop.engine, 0))) == 1
