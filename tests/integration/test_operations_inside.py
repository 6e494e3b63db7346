"""Operations that the code of a step calls or submits: a repeated attempt, and another life of the run, find them again. On both backends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conductor import Ctx, EffectUncertain, PermanentError, StepTimeout, TransientError, Workflow
from conductor.declare import registry
from conductor.declare.capability import capability
from conductor.declare.effects import EffectSpec
from conductor.declare.limits import Limit
from conductor.errors import GetInsideStep, NotFailed, RunFailed
from conductor.operations import acting, call, listing, read
from conductor.operations.answers import Answer, Cancelled, Completed, Failed, QueuedForRetry, Submitted
from conductor.runs.erasing import purge_but_blobs
from conductor.runs.execute import Drainer
from conductor.runs.handle import Handle
from conductor.runs.retry import resume_failed, retry_run
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


def one_step(shop: Cashier, fn: Callable[[Ctx], Any], **options: Any) -> Handle:
    """A run of one step that was just accepted."""
    flow = Workflow("buy")

    @flow.step(**options)
    def buy(ctx: Ctx) -> Any:
        return fn(ctx)

    return run_of(shop, flow)


def payer(shop: Cashier, error: Callable[[], Exception | None], *, retry: str = "verify_first", blind: bool = True) -> list[str]:
    """A capability `pay` that notes its key outside at every call, and then raises; nobody can look whether it happened if `blind`."""
    keys: list[str] = []
    shop.blind = blind

    @capability("pay", retry=retry, backoff="none", effects=(EffectSpec("booking", shop.verdict),) if retry != "none" else ())
    def pay(name: str, ctx: Ctx) -> str:
        keys.append(ctx.key)
        if (found := error()) is not None:
            raise found
        return f"paid {name}"

    return keys


def over(shop: Cashier, operation_id: str, state: str = "completed") -> bool:
    """Its retention is over: whether the sweep deletes it."""
    client: Any = shop.store.client()
    client.zadd(shop.store.keys.of(0, f"ended:{state}"), {operation_id: 1000}, xx=True)
    return purge_but_blobs(shop.engine, operation_id, due_only=True) is not None


def again(shop: Cashier, handle: Handle) -> None:
    """What waits for a retry is due, and a worker takes it."""
    shop.store.hasten(handle.id, 0)
    shop.work()


# What was answered, and what was asked.


@pytest.mark.spec("WF-14", "OP-5")
def test_an_answer_lives_as_long_as_its_run_and_not_only_as_long_as_its_operation(shop: Cashier) -> None:
    keys, tries = payer(shop, lambda: None), failing(1, lambda: TransientError("after the call"))

    def buy(ctx: Ctx) -> Any:
        paid = ctx.call("pay", name="a")
        if (error := tries()) is not None:
            raise error
        return paid

    handle = one_step(shop, buy)
    shop.work(1)
    assert shop.store.purge(shop.the_operation().operation_id).word == "OK"  # by a person, or with another store's retention
    again(shop, handle)
    assert handle.get(1) == "paid a" and len(keys) == 1


@pytest.mark.spec("WF-14", "OP-5", "RET-1")
def test_an_operation_stays_while_its_run_may_still_ask_for_it(shop: Cashier) -> None:
    """It completed on a worker after its step had gone to wait, and the run is paused, or has failed, for longer than operations are kept."""
    keys = payer(shop, failing(1, lambda: TransientError("later")), blind=False)
    handle = one_step(shop, lambda ctx: ctx.call("pay", name="a"))
    Drainer(shop.engine, worker_name="w").drain(0, "q")
    shop.store.pause(handle.id, reason="wait")
    operation = shop.the_operation().operation_id
    shop.store.hasten(operation, 0)
    shop.work()
    assert read.find(shop.engine, operation).state is OpState.COMPLETED
    assert not over(shop, operation)
    shop.store.resume(handle.id)
    again(shop, handle)
    assert handle.get(1) == "paid a" and len(keys) == 2
    assert over(shop, operation), "its run has completed: nobody asks for it any more"


@pytest.mark.spec("WF-14", "EFF-2", "RUN-11")
@pytest.mark.parametrize("doubtful", [True, False])
def test_that_a_call_was_in_doubt_is_known_when_its_record_is_gone(shop: Cashier, doubtful: bool) -> None:
    """The run was in the archive, operations are not kept there. What had ended without doubt is simply called anew."""
    keys = payer(shop, failing(1, lambda: EffectUncertain(key="k") if doubtful else PermanentError("no")))
    handle = one_step(shop, lambda ctx: ctx.call("pay", name="a"))
    shop.work()
    operation = shop.the_operation().operation_id
    assert not over(shop, operation, "failed"), "its run may be retried"
    assert shop.store.purge(operation).word == "OK"
    retry_run(shop.engine, handle.id)
    shop.work()
    found = read.find(shop.engine, operation)
    assert (found.state, found.reason) == ((OpState.FAILED, "effect_in_doubt") if doubtful else (OpState.COMPLETED, ""))
    assert len(keys) == 1 if doubtful else set(keys) == {keys[0]} and len(keys) == 2


@pytest.mark.spec("WF-14")
def test_a_repeated_attempt_that_asks_for_something_else_is_told_so(shop: Cashier) -> None:
    payer(shop, lambda: None)
    names = iter("ab")

    def buy(ctx: Ctx) -> Any:
        ctx.call("pay", name=next(names))
        raise TransientError("after the call")

    handle = one_step(shop, buy)
    shop.work(1)
    again(shop, handle)
    with pytest.raises(RunFailed, match=r"as its call 1 for pay with other values than an earlier attempt"):
        handle.get(1)


@pytest.mark.spec("WF-14", "RUN-11")
@pytest.mark.parametrize("doubtful", [True, False])
def test_a_retried_run_may_ask_for_something_else_if_nothing_is_in_doubt(shop: Cashier, doubtful: bool) -> None:
    """The code was corrected: what failed for good is called anew with the right values; what may have happened is not another question."""
    keys = payer(shop, failing(1, lambda: EffectUncertain(key="k") if doubtful else PermanentError("no such name")))
    names = iter("ab")
    handle = one_step(shop, lambda ctx: ctx.call("pay", name=next(names)))
    shop.work()
    retry_run(shop.engine, handle.id)
    shop.work()
    if doubtful:
        with pytest.raises(RunFailed, match="with other values"):
            handle.get(1)
        assert len(keys) == 1
    else:
        assert handle.get(1) == "paid b" and len(set(keys)) == 1


@pytest.mark.spec("WF-14", "OP-5")
def test_what_is_recorded_does_not_shift_the_calls_behind_it(shop: Cashier) -> None:
    keys, tries = payer(shop, lambda: None), failing(1, lambda: TransientError("after both"))

    def buy(ctx: Ctx) -> Any:
        first = ctx.once("first", lambda: ctx.call("pay", name="a"))
        second = ctx.call("pay", name="b")
        if (error := tries()) is not None:
            raise error
        return [first, second]

    handle = one_step(shop, buy)
    shop.work(1)
    again(shop, handle)
    assert handle.get(1) == ["paid a", "paid b"] and len(keys) == 2


# Another life of the run.


@pytest.mark.spec("EFF-2", "WF-4", "WF-14")
@pytest.mark.parametrize("word", ["nothing", "landed", "absent"])
def test_a_call_in_doubt_is_not_repeated_by_a_retry_of_its_run_until_somebody_has_looked(shop: Cashier, word: str) -> None:
    keys = payer(shop, failing(1, lambda: EffectUncertain(key="k")))
    handle = one_step(shop, lambda ctx: ctx.call("pay", name="a"))
    shop.work()
    operation = shop.the_operation().operation_id
    if word != "nothing":
        told = acting.resolve(shop.engine, operation, happened=word == "landed", value="paid by hand")
        shop.work()
        assert isinstance(told, Failed) and len(keys) == 1, "it goes on with the run, and not before"
        assert read.find(shop.engine, operation).reason == "effect_in_doubt"
    retry_run(shop.engine, handle.id)
    shop.work()
    if word == "nothing":
        with pytest.raises(RunFailed, match="conductor resolve"):
            handle.get(1)
    else:
        assert handle.get(1) == ("paid by hand" if word == "landed" else "paid a")
    assert len(keys) == (2 if word == "absent" else 1) and len(set(keys)) == 1, "one key outside in all lives of the run"
    assert shop.the_operation().operation_id == operation


@pytest.mark.spec("EFF-2", "WF-4", "WF-14")
def test_a_retried_run_looks_whether_its_call_has_landed_before_it_calls_again(shop: Cashier) -> None:
    shop.effect("verify_first", failing(1, lambda: PermanentError("a bug after the booking")), lands=True)
    handle = one_step(shop, lambda ctx: ctx.call("pay", name="a"))
    shop.work()
    retry_run(shop.engine, handle.id)
    shop.work()
    assert handle.get(1)["post_write_recovery"] is True and shop.calls == ["a"]


@pytest.mark.spec("EFF-2", "CAN-4", "WF-14")
@pytest.mark.parametrize("met", [True, False])
def test_a_call_that_ended_with_its_run_keeps_its_doubt_and_its_key(shop: Cashier, met: bool) -> None:
    """Queued in doubt when another step failed the run; cancelled with it (`met`), or not yet."""
    keys = payer(shop, failing(1, lambda: EffectUncertain(key="k")), retry="replay")
    flow = Workflow("buy", on_failure="continue")

    @flow.step
    def buy(ctx: Ctx) -> Any:
        return ctx.call("pay", name="a")

    refuses = failing(1, lambda: PermanentError("no"))

    @flow.step(on_failure="fail")
    def check() -> None:
        if (error := refuses()) is not None:
            raise error

    handle = run_of(shop, flow)
    Drainer(shop.engine, worker_name="w").drain(0, "q")
    operation = shop.the_operation()
    assert handle.status == "failed" and operation.queued_for_retry
    if met:
        shop.work()
        assert shop.the_operation().reason == "run_ended"
    shop.blind, shop.landed = False, {"a"}  # now somebody can look, and it had happened
    retry_run(shop.engine, handle.id)
    shop.work()
    assert handle.get(1)["buy"]["post_write_recovery"] is True
    assert len(keys) == 1 and shop.the_operation().operation_id == operation.operation_id


@pytest.mark.spec("RUN-7", "WF-14")
def test_a_run_that_a_failure_has_paused_calls_anew_when_it_goes_on(shop: Cashier) -> None:
    keys = payer(shop, failing(1, lambda: PermanentError("no money")))
    handle = one_step(shop, lambda ctx: ctx.call("pay", name="a"), on_failure="pause")
    shop.work()
    assert handle.status == "paused"
    resume_failed(shop.engine, handle.id)
    shop.work()
    assert handle.get(1) == "paid a" and len(set(keys)) == 1


@pytest.mark.spec("WF-14", "RUN-5")
def test_a_call_begun_anew_twice_is_begun_once(shop: Cashier) -> None:
    """The reply of the first was lost: the second finds what it holds."""
    payer(shop, failing(1, lambda: PermanentError("no")), blind=False)
    handle = one_step(shop, lambda ctx: ctx.call("pay", name="a"))
    shop.work()
    retry_run(shop.engine, handle.id)
    client: Any = shop.store.client()
    operation, asked = shop.the_operation().operation_id, client.hget(shop.store.keys.run(handle.id, "once"), "0:call:1")
    record, bond = client.hget(shop.store.keys.run(operation), "h"), f"{handle.id};2;@0\ncall:1\n{asked}"
    for word in ("OK", "EXISTS"):
        told = shop.store.renew(operation, bond, graph=record, input='j1:{"name":"a"}', same=True, tag="mine")
        assert told.word == word and told.held is not None
    assert (told.held.generation, told.held.attempt) == (2, 1)
    assert shop.store.renew(operation, bond.replace(";2;", ";1;"), graph=record, input="j1:{}", same=True).word == "RUN_ENDED"
    shop.lose(operation)
    shop.work()
    assert handle.get(1) == "paid a"


@pytest.mark.spec("OP-6", "CAN-4")
def test_what_a_run_has_called_is_retried_with_that_run(shop: Cashier) -> None:
    keys = payer(shop, failing(9, lambda: PermanentError("no")))
    handle = one_step(shop, lambda ctx: ctx.call("pay", name="a"))
    shop.work()
    with pytest.raises(NotFailed, match=f"run {handle.id}, which called .* has ended or begun anew; retry the run"):
        acting.retry(shop.engine, shop.the_operation().operation_id)
    shop.work()
    assert shop.the_operation().state is OpState.FAILED and len(keys) == 1


# Waiting.


@pytest.mark.spec("WF-14")
def test_a_step_goes_on_as_soon_as_its_call_has_ended(shop: Cashier) -> None:
    payer(shop, failing(1, lambda: TransientError("later")), blind=False)
    handle = one_step(shop, lambda ctx: ctx.call("pay", name="a"))
    Drainer(shop.engine, worker_name="w").drain(0, "q")
    due, member = shop.store.keys.of(0, "due"), f"retry:{handle.id}:0"
    client: Any = shop.store.client()
    client.zadd(due, {member: client.zscore(due, member) + 3_600_000})
    shop.store.hasten(shop.the_operation().operation_id, 0)
    shop.work()
    assert handle.get(1) == "paid a"


@pytest.mark.spec("WF-14")
def test_a_step_looks_ever_less_often_while_its_call_cannot_run(shop: Cashier) -> None:
    payer(shop, failing(1, lambda: TransientError("later")), blind=False)
    handle = one_step(shop, lambda ctx: ctx.call("pay", name="a"))
    Drainer(shop.engine, worker_name="w").drain(0, "q")
    shop.store.hold("capability:pay", "stop")
    client: Any = shop.store.client()
    record = shop.store.keys.run(shop.the_operation().operation_id)
    waits, made = [], client.hget(record, "t")
    for age in (0, 20_000, 600_000):
        client.hset(record, "t", shop.store._now() - age)
        again(shop, handle)
        waits.append(client.zscore(shop.store.keys.of(0, "due"), f"retry:{handle.id}:0") - shop.store._now())
    client.hset(record, "t", made)
    assert 0 < waits[0] <= 1000 < waits[1] <= 12_000 < waits[2] <= 30_500
    shop.store.unhold("capability:pay")
    shop.work()
    again(shop, handle)
    assert handle.get(1) == "paid a"


@pytest.mark.spec("WF-14", "LANE-3")
def test_a_call_under_a_limit_is_left_to_a_worker_that_has_a_permit(shop: Cashier) -> None:
    @capability("ask", retry="replay", limit=Limit("api", concurrency=1))
    def ask(n: int) -> int:
        return n + 1

    handle = one_step(shop, lambda ctx: ctx.call("ask", n=1))
    shop.work(1)
    assert shop.the_operation().queued
    shop.work(1, "q!api")
    shop.work()
    assert handle.get(1) == 2


@pytest.mark.spec("WF-4", "EFF-2", "WF-14")
def test_an_effect_whose_call_was_queued_is_looked_at_before_its_code_runs_again(shop: Cashier) -> None:
    payer(shop, failing(1, lambda: TransientError("later")), blind=False)
    flow, sent, seen = Workflow("buy"), list[str](), list[str]()

    @flow.effect
    def charge(ctx: Ctx) -> str:
        sent.append(ctx.key)
        return str(ctx.call("pay", name="a"))

    @charge.verify
    def check(ctx: Ctx) -> str | None:
        seen.append(ctx.key)
        return "charged" if len(sent) == 1 else None

    handle = run_of(shop, flow)
    Drainer(shop.engine, worker_name="w").drain(0, "q")
    again(shop, handle)
    assert handle.get(1) == "charged" and len(sent) == len(seen) == 1


@pytest.mark.spec("RUN-12", "EFF-2", "WF-14")
def test_the_time_of_a_step_that_is_over_inside_its_call_is_the_steps(shop: Cashier) -> None:
    slow = failing(1, lambda: PermanentError("slow"))

    @capability("pay", retry="replay", backoff="none")
    def pay(name: str) -> str:
        until = time.monotonic() + (10 if slow() is not None else 0)
        while time.monotonic() < until:
            time.sleep(0.01)
        return f"paid {name}"

    handle = one_step(shop, lambda ctx: ctx.call("pay", name="a"), timeout=0.5)
    Drainer(shop.engine, worker_name="w").drain(0, "q")
    step = read.find(shop.engine, f"{handle.id}:buy")
    assert step.retry_history[0]["type"] == f"{StepTimeout.__module__}.{StepTimeout.__qualname__}"
    assert shop.the_operation().attempt <= 1 and not shop.the_operation().retry_history
    for _ in range(3):
        again(shop, handle)
    assert handle.get(1) == "paid a"


# `conductor.call` and `conductor.submit`.


@pytest.mark.spec("OP-5")
def test_a_repeated_step_submits_once(shop: Cashier) -> None:
    pay, tries = shop.effect("none", lambda: None), failing(2, lambda: TransientError("after it"))
    told: list[Submitted] = []

    def buy(ctx: Ctx) -> str:
        told.append(call.submit(shop.engine, pay, {"name": "mail"}))
        if (error := tries()) is not None:
            raise error
        return "bought"

    handle = one_step(shop, buy)
    shop.work(1)
    again(shop, handle)
    assert over(shop, told[0].operation_id), "it stands alone, and goes when its time is over"
    again(shop, handle)
    assert handle.get(1) == "bought" and shop.calls == ["mail"]
    assert len(told) == 3 and len({one.operation_id for one in told}) == 1


@pytest.mark.spec("OP-5", "WF-17", "WF-14")
def test_a_last_step_does_what_it_does_once_in_each_life_of_its_run(shop: Cashier) -> None:
    pay, noted = shop.effect("replay", lambda: None), list[str]()
    flow, tries = Workflow("buy"), failing(1, lambda: TransientError("later"))

    @flow.step
    def buy() -> None:
        raise PermanentError("no")

    @flow.on_failure
    def tell(ctx: Ctx) -> None:
        call.submit(shop.engine, pay, {"name": "submitted"})
        ctx.call("pay", name="called")
        ctx.once("note", noted.append, "noted")
        if (error := tries()) is not None:
            raise error

    handle = run_of(shop, flow)
    for life in (1, 2):
        shop.work()
        shop.store.hasten(handle.id, 1)
        shop.work()
        assert handle.status == "failed"
        assert sorted(shop.calls) == ["called"] * life + ["submitted"] * life and len(noted) == life
        if life == 1:
            retry_run(shop.engine, handle.id)


@pytest.mark.spec("OP-5", "CAN-4")
def test_a_call_of_the_app_inside_a_step_belongs_to_the_step(shop: Cashier) -> None:
    pay = shop.effect("replay", failing(1, lambda: TransientError("later")))
    told: list[Answer] = []

    def buy(ctx: Ctx) -> Any:
        told.append(answer := call.call(shop.engine, pay, {"name": "a"}))
        if not isinstance(answer, Completed):
            raise TransientError("not yet")
        return answer.result

    handle = one_step(shop, buy)
    Drainer(shop.engine, worker_name="w").drain(0, "q")
    assert isinstance(told[0], QueuedForRetry) and shop.the_operation().run_id == handle.id
    shop.store.hasten(told[0].operation_id, 0)
    shop.work()
    again(shop, handle)
    assert handle.get(1) == "paid a" and shop.calls == ["a", "a"]
    assert len({one.operation_id for one in told}) == 1


@pytest.mark.spec("OP-5", "CAN-4")
def test_a_call_of_the_app_inside_a_step_ends_with_the_run(shop: Cashier) -> None:
    pay = shop.effect("replay", failing(9, lambda: TransientError("later")))
    handle = one_step(shop, lambda ctx: str(call.call(shop.engine, pay, {"name": "a"}).status) * 0 or ctx.call("pay", name="b"))
    Drainer(shop.engine, worker_name="w").drain(0, "q")
    handle.cancel("enough")
    shop.work()
    ends = [call.answer_of(shop.engine, one.operation_id) for one in listing.list_operations(shop.engine, steps=False)]
    assert len(ends) == 2 and all(isinstance(one, Cancelled) for one in ends)


@pytest.mark.spec("WF-9", "OP-4")
def test_nobody_waits_for_a_worker_inside_a_step_and_nothing_is_written(shop: Cashier) -> None:
    pay, seen = shop.effect("none", lambda: None), list[str]()

    def buy(ctx: Ctx) -> None:
        with pytest.raises(GetInsideStep, match="capability pay inside a step"):
            call.call(shop.engine, pay, {"name": "a"}, remote=True)
        seen.append(ctx.key)

    handle = one_step(shop, buy)
    shop.work()
    assert handle.status == "completed" and seen
    assert listing.list_operations(shop.engine) == []


@pytest.mark.spec("WF-4")
def test_a_verifier_calls_nothing_in_the_name_of_its_step(shop: Cashier) -> None:
    pay = shop.effect("none", lambda: None)
    flow, tries = Workflow("buy"), failing(1, lambda: TransientError("later"))

    @flow.effect
    def charge(ctx: Ctx) -> str:
        paid = str(ctx.call("pay", name="a"))
        if (error := tries()) is not None:
            raise error
        return paid

    @charge.verify
    def check(ctx: Ctx) -> None:
        assert call.call(shop.engine, pay, {"name": "looked"}).ok

    handle = run_of(shop, flow)
    Drainer(shop.engine, worker_name="w").drain(0, "q")
    again(shop, handle)
    assert handle.get(1) == "paid a" and shop.calls == ["a", "looked"]
