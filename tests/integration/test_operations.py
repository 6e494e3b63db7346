"""Stand-alone operations on the verbs of steps: answers, policies, doubt, budgets, telling, binding to a run. On both backends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from conductor import Ctx, EffectUncertain, PermanentError, TransientError, Workflow
from conductor.declare import registry
from conductor.declare.capability import capability
from conductor.declare.effects import EffectSpec
from conductor.declare.operation import operation_flow
from conductor.errors import KeyConflict, NotInDoubt, RunFailed, RunFinished, UnknownCapability, UnknownOperation
from conductor.ids import new_run_id
from conductor.operations import acting, call, listing, read
from conductor.operations.answers import Cancelled, Completed, Failed, QueuedForRetry, Submitted, TimedOut
from conductor.operations.messages import relay
from conductor.operations.start import start_operation
from conductor.records import Outcome, OutcomeKind, QueueReason
from conductor.runs.execute import Drainer
from conductor.sessions import inbox
from conductor.settings import Settings
from conductor.state import OpState
from conductor.store import Store, Want
from tests.integration.cashier import Cashier, failing, run_of
from tests.support.waiting import eventually

World = dict[str, Any]


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    with registry.isolated():
        yield


@pytest.fixture
def shop(store: Store) -> Iterator[Cashier]:
    made = Cashier(store)
    yield made
    made.clean()


# Answers.


@pytest.mark.spec("RUN-14", "OP-4")
@pytest.mark.parametrize("scope", ["all", "capability:send"])
def test_what_is_paused_is_not_called_either_but_queued(shop: Cashier, scope: str) -> None:
    @capability("send")
    def send(text: str) -> None:
        shop.calls.append(text)

    shop.store.hold(scope, "the mail server is down")
    answer = call.call(shop.engine, send, {"text": "hello"})
    assert isinstance(answer, Submitted)
    shop.work()
    assert (shop.calls, read.find(shop.engine, answer.operation_id).state) == ([], OpState.QUEUED)
    shop.store.unhold(scope)
    shop.work()
    assert (shop.calls, read.find(shop.engine, answer.operation_id).state) == (["hello"], OpState.COMPLETED)


@pytest.mark.spec("OP-4")
def test_a_call_runs_here_and_answers_with_its_result(shop: Cashier) -> None:
    @capability("add")
    def add(a: int, b: int) -> int:
        shop.calls.append(threading.current_thread().name)
        return a + b

    answer = call.call(shop.engine, add, {"a": 1, "b": 2})
    assert isinstance(answer, Completed) and answer.ok and answer.result == 3
    assert shop.calls == [threading.current_thread().name]
    found = read.find(shop.engine, answer.operation_id)
    assert (found.state, found.attempt, found.params, found.result, found.queued) == (OpState.COMPLETED, 1, {"a": 1, "b": 2}, 3, False)


@pytest.mark.spec("OP-4", "OP-2")
def test_a_passing_failure_is_queued_and_is_not_success(shop: Cashier) -> None:
    pay = shop.effect("replay", failing(1, lambda: TransientError("later")))
    answer = call.call(shop.engine, pay, {"name": "a"}, session="s")
    assert isinstance(answer, QueuedForRetry) and not answer.ok
    assert (answer.error_kind, answer.queued_for_retry) == ("transient", True)
    found = read.find(shop.engine, answer.operation_id)
    assert (found.state, found.status, found.queued, found.queued_for_retry) == (OpState.QUEUED, "queued_retry", True, True)
    assert found.retry_history[0]["error_kind"] == "transient" and found.originating_session_id == "s"
    shop.work()
    assert read.find(shop.engine, answer.operation_id).result == "paid a"


@pytest.mark.spec("OP-4", "OP-7")
@pytest.mark.parametrize(("retry", "error", "reason"), [
    ("none", lambda: TransientError("later"), "transient_error"), ("replay", lambda: PermanentError("no"), "permanent_error"),
    ("replay", lambda: RuntimeError("what"), "unknown_error"),
])
def test_what_is_not_repeated_fails_at_once(shop: Cashier, retry: str, error: Callable[[], Exception], reason: str) -> None:
    answer = call.call(shop.engine, shop.effect(retry, failing(9, error)), {"name": "a"})
    assert isinstance(answer, Failed) and (answer.status, answer.reason) == ("failed", reason)
    shop.work()
    assert shop.calls == ["a"]


@pytest.mark.spec("OP-4")
def test_an_unknown_error_is_repeated_if_the_capability_says_so(shop: Cashier) -> None:
    pay = shop.effect("replay", failing(1, lambda: RuntimeError("what")), retry_unknown=True)
    assert isinstance(call.call(shop.engine, pay, {"name": "a"}), QueuedForRetry)


@pytest.mark.spec("OP-3")
def test_a_stated_lease_holds_for_deferred_operations_too(shop: Cashier) -> None:
    pay = shop.effect("replay", lambda: None, lease_seconds=7)
    assert read.find(shop.engine, call.submit(shop.engine, pay, {"name": "a"}).operation_id).lease_seconds == 7


@pytest.mark.spec("OP-5")
def test_a_deferred_operation_has_one_attempt_and_a_long_lease(shop: Cashier) -> None:
    pay = shop.effect("replay", failing(9, lambda: TransientError("later")))
    told = call.submit(shop.engine, pay, {"name": "a"}, session="s")
    assert isinstance(told, Submitted) and told.queue_reason == "deferred_submit"
    assert read.find(shop.engine, told.operation_id).lease_seconds == 600
    assert listing.status(shop.engine)["queued"]["deferred_submit"] == 1
    shop.work()
    found = read.find(shop.engine, told.operation_id)
    assert (found.state, found.reason, shop.calls) == (OpState.EXHAUSTED, "retries_exhausted", ["a"])


@pytest.mark.spec("OP-5", "OP-3")
def test_a_lost_worker_is_not_the_one_attempt_of_a_deferred_operation(shop: Cashier) -> None:
    pay = shop.effect("replay", lambda: None)
    operation_id = shop.hold(pay, QueueReason.DEFERRED, name="a")
    shop.lose(operation_id)
    shop.work()
    found = read.find(shop.engine, operation_id)
    assert (found.state, found.attempt) == (OpState.COMPLETED, 1)


@pytest.mark.spec("OP-5", "OP-6")
def test_a_key_is_one_operation(shop: Cashier) -> None:
    pay = shop.effect("none", lambda: None)
    first, again = (call.call(shop.engine, pay, {"name": "a"}, key="k") for _ in range(2))
    assert first == again and shop.calls == ["a"]
    with pytest.raises(KeyConflict, match="capability pay"):
        call.call(shop.engine, pay, {"name": "b"}, key="k")


@pytest.mark.spec("OP-6")
def test_a_call_that_waits_too_long_says_that_its_outcome_is_unknown(shop: Cashier) -> None:
    pay = shop.effect("none", lambda: None)
    answer = call.call(shop.engine, pay, {"name": "a"}, remote=True, timeout=0.05)
    assert isinstance(answer, TimedOut) and answer.status == "timeout"
    shop.work()
    assert call.wait_for(shop.engine, answer.operation_id, 5).ok


@pytest.mark.spec("CAP-1", "BAD-1")
def test_bad_parameters_and_unknown_names_write_nothing(shop: Cashier) -> None:
    pay = shop.effect("none", lambda: None)
    for params in ({"name": 7}, {"name": "a", "extra": 1}, {}, [1]):
        with pytest.raises(Exception, match="parameters of capability pay refused"):
            call.call(shop.engine, pay, params)
    with pytest.raises(UnknownCapability, match="did you mean 'pay'"):
        call.call(shop.engine, "pays", {})
    with pytest.raises(UnknownOperation):
        read.find(shop.engine, "01a1ee99-cab2-7719-949d-4334bc6aa800")
    assert not list(shop.store.client().scan_iter(f"conductor:{{{shop.store.namespace}:*"))


# In doubt.


@pytest.mark.spec("EFF-2", "WF-4")
@pytest.mark.parametrize("retry", ["replay", "verify_first"])
def test_an_effect_that_landed_although_the_call_failed_is_not_repeated(shop: Cashier, retry: str) -> None:
    pay = shop.effect(retry, failing(1, lambda: TimeoutError("slow")), lands=True)
    answer = call.call(shop.engine, pay, {"name": "a"})
    assert isinstance(answer, Completed) and (answer.post_write_recovery, answer.effects_verified) == (True, 1)
    shop.work()
    assert shop.calls == ["a"]
    log = shop.store.log_of(answer.operation_id)
    assert any(entry.startswith("c;") and entry.endswith("verified") for entry in log)


@pytest.mark.spec("EFF-2")
def test_an_effect_that_did_not_land_is_repeated(shop: Cashier) -> None:
    pay = shop.effect("verify_first", failing(1, lambda: EffectUncertain(key="a")))
    answer = call.call(shop.engine, pay, {"name": "a"})
    assert isinstance(answer, QueuedForRetry)
    shop.work()
    assert (shop.calls, read.find(shop.engine, answer.operation_id).result) == (["a", "a"], "paid a")


@pytest.mark.spec("EFF-2")
def test_what_lands_between_two_attempts_is_found_before_the_repeat(shop: Cashier) -> None:
    pay = shop.effect("verify_first", failing(1, lambda: TimeoutError("slow")))
    answer = call.call(shop.engine, pay, {"name": "a"})
    shop.landed.add("a")  # the first request was only slow
    shop.work()
    assert shop.calls == ["a"]
    assert read.find(shop.engine, answer.operation_id).result["post_write_recovery"] is True


@pytest.mark.spec("EFF-2")
@pytest.mark.parametrize("value", ["paid by hand", None])
def test_what_cannot_be_judged_fails_and_waits_for_a_persons_word(shop: Cashier, value: str | None) -> None:
    shop.blind = True
    pay = shop.effect("verify_first", failing(1, lambda: TimeoutError("slow")))
    answer = call.call(shop.engine, pay, {"name": "a"})
    assert isinstance(answer, Failed) and answer.error_kind == "effect_in_doubt"
    assert "conductor resolve" in str(answer.error)
    acting.retry(shop.engine, answer.operation_id)  # a person who retries blindly gets no further
    shop.work()
    assert (shop.calls, read.find(shop.engine, answer.operation_id).reason) == (["a"], "effect_in_doubt")
    acting.resolve(shop.engine, answer.operation_id, happened=value is not None, value=value)
    shop.work()
    found = read.find(shop.engine, answer.operation_id)
    assert (found.state, found.result) == (OpState.COMPLETED, value or "paid a")
    assert len(shop.calls) == (1 if value else 2)
    with pytest.raises(NotInDoubt):
        acting.resolve(shop.engine, answer.operation_id, happened=False)


@pytest.mark.spec("EFF-2", "OP-3")
def test_a_verifier_that_hangs_is_not_waited_for_and_nothing_is_called_success(shop: Cashier) -> None:
    free = threading.Event()
    shop.engine = replace(shop.engine, settings=Settings(namespace=shop.store.namespace, partitions=1, verify_seconds=0.2))

    @capability("wire", retry="verify_first", effects=(EffectSpec("booking", lambda: free.wait(30)),))
    def wire() -> str:
        raise EffectUncertain("no answer from the bank")

    answer = call.call(shop.engine, wire)
    free.set()  # too late: what it says now is not heard
    assert isinstance(answer, Failed)
    assert (answer.status, answer.reason) == ("failed", "effect_in_doubt")
    assert "did not answer within 0.2 s" in (answer.error or "")
    shop.work()
    assert read.find(shop.engine, answer.operation_id).state is OpState.FAILED


@pytest.mark.spec("OP-3", "EFF-2")
@pytest.mark.parametrize(("retry", "options", "blind", "ends"), [
    ("none", {}, False, ("failed", "outcome_unknown")), ("none", {"idempotent": True}, True, ("completed", "")),
    ("replay", {}, True, ("completed", "")), ("verify_first", {}, False, ("completed", "")),
    ("verify_first", {}, True, ("failed", "effect_in_doubt")), ("verify_first", {"idempotent": True}, True, ("completed", "")),
])
def test_after_a_lost_worker_the_policy_decides(
    shop: Cashier, retry: str, options: dict[str, Any], blind: bool, ends: tuple[str, str]
) -> None:
    shop.blind = blind
    pay = shop.effect(retry, lambda: None, **options)
    operation_id = shop.hold(pay, name="a")
    assert read.find(shop.engine, operation_id).state is OpState.RUNNING
    shop.lose(operation_id)
    shop.work()
    found = read.find(shop.engine, operation_id)
    assert (found.state, found.reason, found.attempt) == (*ends, 1)


@pytest.mark.spec("OP-3")
def test_a_late_result_is_refused_and_the_fence_has_grown(shop: Cashier) -> None:
    pay = shop.effect("replay", lambda: None)
    told = start_operation(shop.engine, pay, pay.encode({"name": "a"}), reason="retry", tag="slow")
    assert told.held is not None
    shop.lose(told.run_id)
    shop.work()
    late = Drainer(shop.engine, worker_name="slow").perform(told.held, operation_flow(pay).graph)
    assert late.word == "LOST"
    assert read.find(shop.engine, told.run_id).fence > told.held.fence


@pytest.mark.spec("EFF-3")
def test_a_result_with_unverified_effects_is_queued_again(shop: Cashier) -> None:
    answers = iter([{"verified": {"file": True, "index": "absent"}}, {"verified": {"file": True, "index": "verified"}}])

    @capability("make", retry="replay", backoff="none")
    def make() -> dict[str, Any]:
        return next(answers)

    answer = call.call(shop.engine, make)
    assert isinstance(answer, QueuedForRetry) and "index" in str(answer.error)
    shop.work()
    assert read.find(shop.engine, answer.operation_id).result == {"verified": {"file": True, "index": "verified"}}


@pytest.mark.spec("ERR-1", "OP-4")
def test_a_soft_failure_in_a_result_is_queued(shop: Cashier) -> None:
    answers = iter([{"error": "rate limited, try again later", "status": 429}, {"ok": True}])

    @capability("ask", retry="replay", backoff="none")
    def ask() -> dict[str, Any]:
        return next(answers)

    assert isinstance(call.call(shop.engine, ask), QueuedForRetry)


@pytest.mark.spec("EFF-4")
@pytest.mark.parametrize(("landed", "calls"), [({"a", "b"}, 0), ({"a"}, 1), (set(), 1)])
def test_a_retry_of_a_retry_verifies_the_inner_operation(shop: Cashier, landed: set[str], calls: int) -> None:
    """The manifest of the inner operation is asked with its own parameters: half of it is not all of it."""
    from conductor.operations import built_in

    class Bound:
        engine = shop.engine

    registry.bind(Bound())  # type: ignore[arg-type]
    registry.capabilities[built_in.RETRY] = built_in.replay
    effects = [EffectSpec(name, lambda params, name=name: shop.verdict(getattr(params, name))) for name in ("first", "second")]

    @capability("two", retry="verify_first", backoff="none", max_retries=0, effects=effects)
    def two(first: str, second: str) -> str:
        shop.calls.append(first)
        if len(shop.calls) == 1:
            raise TransientError("later")
        return "both"

    inner = call.call(shop.engine, two, {"first": "a", "second": "b"})
    assert isinstance(inner, Failed) and inner.status == "exhausted"
    shop.calls[:] = ["earlier"]
    shop.landed |= landed
    outer = shop.hold(built_in.replay, operation_id=inner.operation_id)
    shop.lose(outer)
    over = threading.Event()

    def second_worker() -> None:
        while not over.is_set():
            shop.work(1)

    worker = threading.Thread(target=second_worker)
    worker.start()
    try:
        eventually(lambda: shop.work(1) or read.find(shop.engine, outer).ended_at, 30, what="the outer operation ends")
    finally:
        over.set()
        worker.join(30)
    found = read.find(shop.engine, outer)
    assert found.state is OpState.COMPLETED
    assert len(shop.calls) == 1 + calls
    assert (found.result == "both") == bool(calls)


# Retry, cancel, budget.


@pytest.mark.spec("OP-6", "OP-7")
def test_retry_begins_anew_with_a_fresh_budget_and_without_parameters(shop: Cashier) -> None:
    pay = shop.effect("replay", failing(2, lambda: TransientError("later")), max_retries=1)
    answer = call.call(shop.engine, pay, {"name": "a"})
    shop.work()
    assert read.find(shop.engine, answer.operation_id).state is OpState.EXHAUSTED
    acting.retry(shop.engine, answer.operation_id)
    shop.work()
    assert (read.find(shop.engine, answer.operation_id).result, shop.calls) == ("paid a", ["a", "a", "a"])


@pytest.mark.spec("OP-6")
def test_a_health_check_that_fails_burns_no_attempt(shop: Cashier) -> None:
    pay = shop.effect("replay", failing(1, lambda: TransientError("later")))
    answer = call.call(shop.engine, pay, {"name": "a"})
    with pytest.raises(Exception, match="the health check said no"):
        acting.retry(shop.engine, answer.operation_id, health_check=lambda: False)
    assert read.find(shop.engine, answer.operation_id).attempt == 1
    acting.retry(shop.engine, answer.operation_id, health_check=lambda: True)


@pytest.mark.spec("CAN-2", "OP-2")
def test_a_cancelled_operation_never_runs(shop: Cashier) -> None:
    pay = shop.effect("replay", lambda: None)
    told = call.submit(shop.engine, pay, {"name": "a"})
    assert acting.cancel(shop.engine, told.operation_id, reason="no").word == "OK"
    assert acting.cancel(shop.engine, told.operation_id).word == "ALREADY"
    shop.work()
    assert shop.calls == [] and isinstance(call.answer_of(shop.engine, told.operation_id), Cancelled)
    assert listing.status(shop.engine)["queued"]["deferred_submit"] == 0


@pytest.mark.spec("OP-12", "OP-7")
def test_past_its_retry_budget_an_operation_waits_and_says_so(shop: Cashier) -> None:
    pay = shop.effect("replay", failing(9, lambda: TransientError("later")), retry_budget=2)
    ids = [call.call(shop.engine, pay, {"name": str(number)}).operation_id for number in range(3)]
    client: Any = shop.store.client()
    client.zadd(shop.store.keys.of(0, "due"), {f"retry:{one}:0": 1000 for one in ids}, xx=True)
    shop.store.fire_due(0)
    waiting = [one for one in (read.find(shop.engine, op) for op in ids) if one.reason == "retry_budget"]
    assert len(waiting) == 1 and waiting[0].queued and waiting[0].retry_at is not None
    client.hset(shop.store.keys.of(0, "budget:pay"), "minute", 1)
    client.zadd(shop.store.keys.of(0, "due"), {f"retry:{waiting[0].operation_id}:0": 1000}, xx=True)
    shop.store.fire_due(0)
    assert read.find(shop.engine, waiting[0].operation_id).reason == ""


# Telling.


@pytest.mark.spec("OP-9", "SES-3")
def test_each_end_is_told_once_with_the_full_result(shop: Cashier) -> None:
    pay = shop.effect("replay", failing(1, lambda: TransientError("later")))
    retried = call.call(shop.engine, pay, {"name": "a"}, session="s")
    deferred = call.submit(shop.engine, pay, {"name": "b"}, session="s")
    call.call(shop.engine, pay, {"name": "c"}, session="s")  # answered at once: nothing is owed
    shop.work()
    members = shop.store.outbox(0, 10)
    list(relay(shop.engine, 0))
    for member in members:  # a relay that died before it removed its entry
        shop.store.client().zadd(shop.store.keys.of(0, "outbox"), {member: 1})
    list(relay(shop.engine, 0))
    told = {(one.kind, one.operation_id, one.body["result"]) for one in inbox.read(shop.store, "s")}
    assert told == {("retry_success", retried.operation_id, "paid a"), ("deferred_success", deferred.operation_id, "paid b")}
    assert len(inbox.read(shop.store, "s")) == 2 and not shop.store.outbox(0, 10)


@pytest.mark.spec("OP-9", "OP-6", "SES-3")
def test_an_end_that_a_retry_overtook_is_not_told_as_the_end_of_the_new_life(shop: Cashier) -> None:
    """The relay comes only after a person has retried: one message, of the life that has really ended."""
    pay = shop.effect("replay", failing(2, lambda: TransientError("later")), max_retries=1)
    operation_id = call.call(shop.engine, pay, {"name": "a"}, session="ada").operation_id
    client: Any = shop.store.client()
    client.zadd(shop.store.keys.of(0, "due"), {f"retry:{operation_id}:0": 1000}, xx=True)
    shop.store.fire_due(0)
    shop.work()
    assert read.find(shop.engine, operation_id).state is OpState.EXHAUSTED
    acting.retry(shop.engine, operation_id)
    list(relay(shop.engine, 0))
    assert inbox.read(shop.store, "ada") == []
    client.zadd(shop.store.keys.of(0, "outbox"), {f"{operation_id};1": 1})  # a second relay still has the old entry
    shop.work()
    for _ in range(2):
        list(relay(shop.engine, 0))
    assert [one.id for one in inbox.read(shop.store, "ada")] == [f"{operation_id}:2:retry_success"]


@pytest.mark.spec("OP-9", "OP-3", "SES-3")
def test_what_a_lost_caller_began_is_told_also_after_an_outage_of_the_store(shop: Cashier) -> None:
    """Such a loss does not count towards poison; the caller is gone all the same, and only the inbox can tell the session."""
    pay = shop.effect("replay", failing(0, ValueError))
    told = start_operation(shop.engine, pay, pay.encode({"name": "a"}), reason=QueueReason.RETRY, session="ada", tag="gone")
    client: Any = shop.store.client()
    client.zadd(shop.store.keys.of(0, "leases"), {f"{told.run_id}:0": 1000}, xx=True)
    client.hset(shop.store.keys.head(0), mapping={"look": shop.store._now(), "calm": shop.store._now() - 1})
    shop.store.expire_leases(0)
    shop.work()
    for _ in range(2):
        list(relay(shop.engine, 0))
    assert [(one.kind, one.id) for one in inbox.read(shop.store, "ada")] == [("retry_success", f"{told.run_id}:1:retry_success")]


@pytest.mark.spec("OP-9", "SES-4")
def test_an_exhausted_retry_is_told_to_every_surface_by_an_operation_of_its_own(shop: Cashier) -> None:
    from conductor.operations import built_in

    registry.capabilities[built_in.NOTIFY] = built_in.notify  # type: ignore[assignment]
    pay = shop.effect("replay", failing(9, lambda: TransientError("later")), max_retries=1)
    answer = call.call(shop.engine, pay, {"name": "a"}, session="s")
    shop.work()
    list(relay(shop.engine, 0))
    list(relay(shop.engine, 0))
    assert [one.kind for one in inbox.read(shop.store, "s")] == ["retry_exhausted"]
    told = listing.list_operations(shop.engine, read.OpFilter(capability="conductor.notify"))
    assert len(told) == 1
    assert read.find(shop.engine, told[0].operation_id).params["message"]["operation_id"] == answer.operation_id


# In runs.


@pytest.mark.spec("WF-14", "OP-5")
def test_a_repeated_step_finds_its_earlier_operations(shop: Cashier) -> None:
    shop.effect("none", lambda: None)
    tries: list[int] = []
    flow = Workflow("buy")

    @flow.step
    def buy(ctx: Ctx) -> list[str]:
        tries.append(1)
        paid = [ctx.call("pay", name="a"), ctx.call("pay", name="b")]
        if len(tries) == 1:
            raise TransientError("after both calls")
        return paid

    handle = run_of(shop, flow)
    shop.work(1)
    shop.store.hasten(handle.id, 0)
    shop.work()
    assert handle.get(1) == ["paid a", "paid b"]
    assert shop.calls == ["a", "b"] and len(tries) == 2


@pytest.mark.spec("WF-14")
def test_a_step_whose_call_is_queued_waits_for_it_and_burns_no_attempt(shop: Cashier) -> None:
    shop.effect("replay", failing(2, lambda: TransientError("later")))
    flow = Workflow("buy")

    @flow.step
    def buy(ctx: Ctx) -> Any:
        return ctx.call("pay", name="a")

    handle = run_of(shop, flow)
    for _ in range(8):
        shop.work(1)
        shop.store.hasten(handle.id, 0)
    assert handle.get(1) == "paid a"
    assert shop.calls == ["a", "a", "a"]


@pytest.mark.spec("WF-14")
def test_a_call_that_failed_for_good_fails_its_step(shop: Cashier) -> None:
    shop.effect("none", failing(1, lambda: PermanentError("no money")))
    flow = Workflow("buy")

    @flow.step
    def buy(ctx: Ctx) -> Any:
        return ctx.call("pay", name="a")

    handle = run_of(shop, flow)
    shop.work()
    with pytest.raises(RunFailed, match="no money"):
        handle.get(1)


@pytest.mark.spec("CAN-4")
def test_operations_of_a_run_end_with_it_and_submitted_ones_do_not(shop: Cashier) -> None:
    pay = shop.effect("replay", failing(9, lambda: TransientError("later")))
    flow = Workflow("buy")

    @flow.step
    def buy(ctx: Ctx) -> Any:
        call.submit(shop.engine, pay, {"name": "free"})
        return ctx.call("pay", name="bound")

    handle = run_of(shop, flow)
    Drainer(shop.engine, worker_name="w").drain(0, "q")
    handle.cancel("enough")
    (bound,) = (one for one in listing.list_operations(shop.engine) if one.queue_reason == "retry" and one.run_id == handle.id)
    with pytest.raises(RunFinished):
        start_operation(shop.engine, pay, pay.encode({"name": "x"}), reason="retry", bound_to=f"{handle.id};1")
    shop.store.hasten(bound.operation_id, 0)
    shop.work()
    assert read.find(shop.engine, bound.operation_id).state is OpState.CANCELLED
    assert sorted(shop.calls) == ["bound", "free"]


@pytest.mark.spec("CAN-4", "RUN-2")
def test_an_operation_that_runs_while_its_run_is_cancelled_is_not_heard(shop: Cashier) -> None:
    pay, held = shop.effect("replay", failing(0, ValueError)), Workflow("held")

    @held.step
    def idle() -> None: ...

    handle = run_of(shop, held)
    told = start_operation(
        shop.engine, pay, pay.encode({"name": "x"}), reason=QueueReason.RETRY, bound_to=f"{handle.id};1", tag="caller", op_id=new_run_id(1, 0))
    assert told.held is not None
    handle.cancel("enough")
    done = Outcome(told.held, OutcomeKind.COMPLETED, payload='j1:"paid x"')
    assert shop.store.commit(0, [(done, "")], Want("q", 0, "c", "caller")).answers == ["CANCELLED"]
    assert shop.store.heartbeat(0, [told.held]) != ["OK"]
    shop.work()
    assert read.find(shop.engine, told.run_id).state is OpState.CANCELLED


@pytest.mark.spec("OP-10", "OP-11")
def test_a_step_is_its_own_operation(shop: Cashier) -> None:
    flow = Workflow("buy")
    errors = failing(1, lambda: TransientError("later"))

    @flow.step
    def buy() -> str:
        if (error := errors()) is not None:
            raise error
        return "bought"

    handle = run_of(shop, flow)
    Drainer(shop.engine, worker_name="w").drain(0, "q")
    (listed,) = listing.list_operations(shop.engine, read.OpFilter(state="queued_retry"))
    assert (listed.operation_id, listed.run_id, listed.step) == (f"{handle.id}:buy", handle.id, "buy")
    assert listed.retry_at is not None and listed.max_retries == 5
    acting.retry(shop.engine, listed.operation_id)
    shop.work()
    assert handle.get(1) == "bought"


@pytest.mark.spec("CAP-1", "WF-3")
def test_a_capability_is_a_step_wired_by_names(shop: Cashier) -> None:
    shop.effect("verify_first", failing(1, lambda: TimeoutError("slow")), lands=True)
    flow = Workflow("buy")

    @flow.step
    def name() -> str:
        return "a"

    paid = flow.step("pay")

    @flow.step
    def done(pay: str) -> str:
        return f"{pay}!"

    handle = run_of(shop, flow)
    shop.work()
    assert paid.name == "pay"
    view = handle.status
    # It landed, but what it gave is not known and its type is text: a person must say it.
    assert view == "paused"
    acting.resolve(shop.engine, f"{handle.id}:pay", happened=True, value="paid by hand")
    shop.work()
    assert handle.get(1) == "paid by hand!" and shop.calls == ["a"]
