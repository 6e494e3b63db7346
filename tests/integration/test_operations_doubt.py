"""What is asked before code that may have taken effect runs again, and what is kept of an attempt. On both backends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from conductor import Ctx, Lane, PermanentError, TransientError, Workflow
from conductor.declare import registry
from conductor.declare.capability import capability
from conductor.declare.effects import EffectSpec
from conductor.operations import acting, call, read
from conductor.operations.answers import Failed, QueuedForRetry
from conductor.records import Attempt
from conductor.runs import holding
from conductor.runs.execute import Drainer
from conductor.runs.retry import retry_run
from conductor.state import OpState
from conductor.store import Store
from tests.integration.cashier import Cashier, failing, run_of


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    with registry.isolated():
        yield


@pytest.fixture
def shop(store: Store) -> Iterator[Cashier]:
    made = Cashier(store)
    yield made
    made.clean()


# Before a repeat.


@pytest.mark.spec("EFF-2", "WF-4", "OP-6")
def test_a_person_who_retries_repeats_nothing_that_has_landed(shop: Cashier) -> None:
    """The error was not one of doubt: a bug behind the booking."""
    pay = shop.effect("verify_first", failing(1, lambda: PermanentError("a bug")), lands=True)
    answer = call.call(shop.engine, pay, {"name": "a"})
    assert isinstance(answer, Failed)
    acting.retry(shop.engine, answer.operation_id)
    shop.work()
    assert read.find(shop.engine, answer.operation_id).result["post_write_recovery"] is True and shop.calls == ["a"]


@pytest.mark.spec("EFF-2", "WF-4", "RUN-11")
@pytest.mark.parametrize("items", [0, 3])
def test_a_retried_run_asks_before_it_repeats_an_effect(shop: Cashier, items: int) -> None:
    flow, sent, asked = Workflow("buy"), list[str](), list[str]()

    @flow.step
    def orders() -> list[int]:
        return list(range(items))

    def body(ctx: Ctx) -> str:
        sent.append(ctx.key)
        if len(sent) == 1:
            raise KeyError("a bug behind the charge")
        return "charged"

    def of_item(each: int, ctx: Ctx) -> str:
        return body(ctx)

    charge: Any = flow.each(orders, effect=True, name="charge")(of_item) if items else flow.effect(name="charge")(body)

    @charge.verify  # type: ignore[untyped-decorator]
    def check(ctx: Ctx) -> str | None:
        asked.append(ctx.key)
        return "charged before" if ctx.key in sent else None

    handle = run_of(shop, flow)
    shop.work()
    assert handle.status == "failed" and asked == []
    retry_run(shop.engine, handle.id)
    shop.work(6)
    assert handle.status == "completed"
    assert len(sent) == len(set(sent)) == max(1, items) and asked == sent[:1]


@pytest.mark.spec("EFF-2", "RUN-11")
def test_an_attempt_that_was_cut_off_by_the_end_of_its_run_is_in_doubt_in_the_next_life(shop: Cashier) -> None:
    """The deadline ended the run while the body ran: nobody will hear what it gave."""
    flow, asked = Workflow("buy"), list[str]()

    @flow.effect
    def charge(ctx: Ctx) -> str:
        client: Any = shop.store.client()
        client.zadd(shop.store.keys.of(0, "due"), {f"deadline:{ctx.run_id}": 1000})
        shop.store.fire_due(0)
        return "charged"

    @charge.verify
    def check(ctx: Ctx) -> str:
        asked.append(ctx.key)
        return "indeterminate"

    handle = run_of(shop, flow)
    shop.work(1)
    assert handle.status == "failed"
    retry_run(shop.engine, handle.id)
    shop.work()
    assert handle.status == "paused" and asked, "nobody can tell, so a person must"


@pytest.mark.spec("EFF-2", "LANE-2", "RUN-11")
def test_a_retry_that_is_queued_in_its_lane_remembers_that_its_first_step_has_run(shop: Cashier) -> None:
    flow, sent = Workflow("buy", lane=Lane("one", max_active=1)), list[str]()

    @flow.effect
    def charge(ctx: Ctx) -> str:
        sent.append(ctx.key)
        raise KeyError("a bug behind the charge")

    @charge.verify
    def check(ctx: Ctx) -> str:
        return "charged before"

    handle = run_of(shop, flow)
    shop.work()
    other = run_of(shop, flow)
    retry_run(shop.engine, handle.id)
    assert handle.status == "queued"
    other.cancel("enough")
    shop.work()
    assert handle.get(1) == "charged before" and len(sent) == 1


@pytest.mark.spec("OP-3", "EFF-2", "OP-6")
@pytest.mark.parametrize(("landed", "blind", "ends"), [
    (True, False, "completed"), (False, False, "completed"), (True, True, "failed"),
])
def test_what_may_not_be_repeated_is_looked_at_when_a_person_retries_it(shop: Cashier, landed: bool, blind: bool, ends: str) -> None:
    pay = shop.effect("none", lambda: None)
    operation_id = shop.hold(pay, name="a")
    shop.blind = True
    shop.lose(operation_id)
    shop.work()
    assert read.find(shop.engine, operation_id).reason == "outcome_unknown" and shop.calls == []
    shop.blind = blind
    shop.landed |= {"a"} if landed else set()
    acting.retry(shop.engine, operation_id)
    shop.work()
    found = read.find(shop.engine, operation_id)
    assert (found.state, shop.calls) == (OpState(ends), [] if landed else ["a"])
    assert found.reason == ("outcome_unknown" if blind else "")


@pytest.mark.spec("OP-3", "EFF-2")
def test_what_may_not_be_repeated_and_has_landed_has_completed(shop: Cashier) -> None:
    operation_id = shop.hold(shop.effect("none", lambda: None), name="a")
    shop.landed.add("a")
    shop.lose(operation_id)
    shop.work()
    found = read.find(shop.engine, operation_id)
    assert found.state is OpState.COMPLETED and found.result["post_write_recovery"] is True and shop.calls == []


@pytest.mark.spec("EFF-2", "RUN-12")
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("landed", "blind", "ends"), [
    (True, False, (OpState.COMPLETED, "")), (False, False, (OpState.EXHAUSTED, "retries_exhausted")),
    (True, True, (OpState.FAILED, "effect_in_doubt")),
])
def test_a_last_attempt_that_does_not_listen_to_its_timeout_is_asked_about(
    shop: Cashier, landed: bool, blind: bool, ends: tuple[OpState, str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody can ask while it runs; the attempt after it asks, and runs nothing."""
    monkeypatch.setattr(holding, "GRACE", 0.3)
    over = threading.Event()

    @capability("deaf", retry="verify_first", max_retries=0, timeout=1, effects=(EffectSpec("booking", lambda: shop.verdict("a")),))
    def deaf() -> str:
        shop.calls.append("a")
        shop.landed |= {"a"} if landed else set()
        over.wait(20)  # one wait in C, which hears nothing
        return "late"

    told = call.submit(shop.engine, deaf)
    worker = Drainer(shop.engine, worker_name="w", may_stop_process=False)
    thread = threading.Thread(target=lambda: worker.drain(0, "q"))
    thread.start()
    until = time.monotonic() + 20
    while not read.find(shop.engine, told.operation_id).retry_history and time.monotonic() < until:
        time.sleep(0.05)
    over.set()
    thread.join(20)
    shop.blind = blind
    shop.work()
    found = read.find(shop.engine, told.operation_id)
    assert (found.state, found.reason, found.attempt, shop.calls) == (*ends, 1, ["a"])
    assert len(found.retry_history) == 1


# What is kept of an attempt.


@pytest.mark.spec("ERR-2", "ERR-3")
def test_a_traceback_is_cut_after_it_was_redacted(shop: Cashier) -> None:
    """The cut must not fall between `password=` and what follows it."""
    words = "password=" + "s3" * 20_000

    @capability("leaky")
    def leaky() -> None:
        raise RuntimeError(words)

    call.call(shop.engine, leaky)
    kept: Any = shop.store.client().hget(shop.store.keys.run(shop.the_operation().operation_id, "err"), "0:1")
    assert "s3s3" not in kept


@pytest.mark.spec("OP-7")
def test_the_age_of_retries_counts_from_the_failure_and_not_from_the_claim(shop: Cashier) -> None:
    pay = shop.effect("replay", failing(9, lambda: TransientError("later")), max_retry_age_minutes=1)
    answer = call.call(shop.engine, pay, {"name": "a"})
    assert isinstance(answer, QueuedForRetry)
    client: Any = shop.store.client()
    errors, first = shop.store.keys.run(answer.operation_id, "err"), json.loads(
        client.hget(shop.store.keys.run(answer.operation_id, "err"), "0:1"))
    found, now = read.find(shop.engine, answer.operation_id), shop.store._now()
    assert found.created_at + first["ran_ms"] <= first["at"] <= now
    client.hset(errors, "0:1", json.dumps(first | {"at": now - 10_000}))
    second = Attempt(answer.operation_id, 0, None, 1, 1, 2, "", "op:pay", "", 1000, 0, at=now)  # as a worker would hold it
    attempts = Drainer(shop.engine, worker_name="w")._attempts
    assert [attempts._age(second, ran) for ran in (0, 2_000)] == [10_000, 12_000]
