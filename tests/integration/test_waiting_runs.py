"""Waits as users meet them: declared, answered through handles, the app and the command line, run by real drainers."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from conductor import (
    AlreadyAdvanced,
    BadInput,
    CodeNotHere,
    NotWaiting,
    RunFailed,
    RunFinished,
    TooManySignals,
    UnknownKey,
    UnknownSignal,
    UnknownStep,
    WaitOver,
    Workflow,
)
from conductor.declare import registry
from conductor.runs.fsck import fsck
from conductor.sessions import inbox
from conductor.sweeps.built_in import workflow_cancel, workflow_sweep_idle
from conductor.sweeps.idle import sweep_idle
from conductor.sweeps.outbox import sweep_outbox
from conductor.sweeps.retries import sweep_retries
from conductor.telemetry.signals import run_waiting
from tests.integration.shop import Order, Shop


class Approval(BaseModel):
    """What the signal carries."""

    by: str
    ok: bool = True


class Desk(Shop):
    """The shop with runs that wait."""

    def declare(self) -> None:
        super().declare()
        orders = Workflow("desk_orders", input=Order)

        @orders.step
        def price(order: Order) -> int:
            return order.number * 2

        approval = orders.wait("approval", Approval, timeout=timedelta(hours=1), after=price)
        draft = orders.agent("draft", list[int], instructions="give two numbers", after=approval)

        @orders.each(draft)
        def tripled(number: int) -> int:
            return 3 * number

        @orders.step
        def told(price: int, approval: Approval, tripled: list[int]) -> dict[str, Any]:
            return {"price": price, "by": approval.by, "sum": sum(tripled)}

        lapsing = Workflow("desk_lapsing")
        word = lapsing.wait("word", str | None, timeout=timedelta(hours=1), default=None)

        @lapsing.step(after=word)
        def said(word: str | None) -> str:
            return word or "nothing"

        lonely = Workflow("desk_lonely")
        lonely.agent("opinion", str)

    def begun(self, workflow: str = "desk_orders", **options: Any) -> str:
        value = {"number": 3} if workflow == "desk_orders" else None
        run_id = self.conductor.start(workflow, value, **options).id
        self.drain()
        return str(run_id)

    def pass_time(self) -> None:
        """Whatever is due at some time is due now."""
        store = self.engine.store
        for partition in range(store.partitions):
            key = store.keys.of(partition, "due")
            for member in store.client().zrange(key, 0, -1):
                store.client().zadd(key, {member: 1})
        sweep_retries(self.engine)
        self.drain()


@pytest.fixture
def shop(redis_url: str, namespace: str, clean_keys: None) -> Iterator[Desk]:
    with registry.isolated():
        made = Desk(redis_url, namespace)
        yield made
        assert fsck(made.engine) == []


@pytest.mark.spec("WF-5", "WF-9")
def test_a_run_waits_for_a_person_and_an_agent_and_goes_on_with_what_they_say(shop: Desk) -> None:
    heard: list[tuple[str, str]] = []

    def hear(sender: str, run_id: str, **_: Any) -> None:
        heard.append((sender, run_id))

    run_waiting.connect(hear, weak=False)
    try:
        run_id = shop.begun()
        handle = shop.conductor.run(run_id)
        assert handle.status == "waiting_signal"
        assert handle.signal("approval", {"by": "Ada"}).word == "taken"
        shop.drain()
        assert handle.advance("draft", [4, 5]).word == "taken"
        shop.drain()
        assert handle.get(timeout=5) == {"price": 6, "by": "Ada", "sum": 27}
        assert heard == [("desk_orders", run_id)] * 2
    finally:
        run_waiting.disconnect(hear)


@pytest.mark.spec("WF-5", "BAD-1")
def test_what_does_not_fit_is_refused_before_anything_is_written(shop: Desk) -> None:
    run_id = shop.begun()
    handle, log = shop.conductor.run(run_id), shop.engine.store.keys.run(run_id, "log")
    before = shop.engine.store.client().llen(log)
    for value, message in (
        ({"by": 5}, r"signal approval of run .* refused: by: .* a whole number was given"), ({}, "by: Field required"),
        (None, "nothing was given; Approval was expected"), ({"by": "x", "more": 1}, r"more: no such field \(known: by, ok\)"),
        ({"by": "a\0b"}, "it holds a NUL character"), ("Ada", "Approval|object"),
    ):
        with pytest.raises(BadInput, match=message):
            handle.signal("approval", value)
    for id_ in ("a b", "a;b", "x" * 129, "a,b"):
        with pytest.raises(BadInput, match="id: it is not 1 to 128"):
            handle.signal("approval", {"by": "x"}, id=id_)
    with pytest.raises(UnknownSignal, match=r"waits nowhere for signal 'aproval'; it knows approval; did you mean 'approval'\?"):
        handle.signal("aproval", {"by": "x"})
    with pytest.raises(UnknownStep, match="it has draft"):
        handle.advance("drafts", [1])
    with pytest.raises(BadInput, match=r"waits for no agent \(agents: draft\); send signal approval"):
        handle.advance("approval", {"by": "x"})
    with pytest.raises(NotWaiting, match="it is pending and the run is waiting_signal"):
        handle.advance("draft", [1])
    assert shop.engine.store.client().llen(log) == before
    assert not shop.engine.store.client().exists(shop.engine.store.keys.run(run_id, "sig"))


@pytest.mark.spec("WF-5")
def test_each_way_of_being_too_late_has_its_own_word(shop: Desk) -> None:
    run_id = shop.begun()
    handle = shop.conductor.run(run_id)
    assert handle.signal("approval", {"by": "Ada"}, id="s1").word == "taken"
    assert handle.signal("approval", {"by": "Eve"}, id="s1").word == "repeated"
    with pytest.raises(WaitOver) as over:
        handle.signal("approval", {"by": "Eve"})
    shop.drain()
    assert handle.advance("draft", [1]).word == "taken"
    assert handle.advance("draft", [1]).word == "repeated"
    with pytest.raises(AlreadyAdvanced) as advanced:
        handle.advance("draft", [2])
    shop.drain()
    with pytest.raises(RunFinished) as finished:
        handle.signal("approval", {"by": "Eve"})
    codes = (over.value.code, advanced.value.code, finished.value.code, UnknownSignal.code)
    assert codes == ("wait_over", "already_advanced", "run_finished", "unknown_signal")


@pytest.mark.spec("WF-5")
def test_a_run_is_named_by_its_workflow_and_key_as_well(shop: Desk) -> None:
    shop.begun(key="42")
    assert shop.conductor.signal("desk_orders", "approval", {"by": "Ada"}, key="42")["step"] == "approval"
    shop.drain()
    assert shop.conductor.advance("desk_orders", "draft", [1], key="42")["word"] == "taken"
    with pytest.raises(UnknownKey, match="workflow desk_orders has no run with key '43'"):
        shop.conductor.signal("desk_orders", "approval", {"by": "Ada"}, key="43")


@pytest.mark.spec("WF-5")
def test_on_timeout_a_wait_gives_its_default_or_fails(shop: Desk) -> None:
    lapsing, failing = shop.begun("desk_lapsing"), shop.begun()
    assert "waits for" in shop.ok("why", lapsing)
    shop.pass_time()
    assert shop.conductor.run(lapsing).get(timeout=5) == "nothing"
    with pytest.raises(RunFailed, match="approval"):
        shop.conductor.run(failing).get(timeout=5)
    step = next(step for step in shop.json("show", failing)["steps"] if step["name"] == "approval")
    assert (step["reason"], step["error"]["type"]) == ("wait_timeout", "conductor.errors.WaitTimeout")
    assert "did not come in time" in shop.ok("why", failing)


@pytest.mark.spec("WF-5")
def test_early_signals_reach_the_run_that_asks_later(shop: Desk) -> None:
    handle = shop.conductor.start("desk_orders", {"number": 1})
    assert handle.signal("approval", {"by": "Ada"}).word == "kept"
    for number in range(99):
        handle.signal("approval", {"by": "Eve"}, id=f"e{number}")
    with pytest.raises(TooManySignals, match="already keeps 100 signals"):
        handle.signal("approval", {"by": "Eve"})
    shop.drain()
    assert handle.advance("draft", []).word == "taken"
    shop.drain()
    assert handle.get(timeout=5) == {"price": 2, "by": "Ada", "sum": 0}


@pytest.mark.spec("WF-5", "BAD-1")
def test_a_process_without_the_workflows_code_refuses_and_names_the_remedy(shop: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = shop.begun()
    monkeypatch.setattr(shop.engine, "workflows", {})
    with pytest.raises(CodeNotHere, match=r"does not have the code of step approval of workflow desk_orders; .* conductor.signal_run"):
        shop.conductor.run(run_id).signal("approval", {"by": "Ada"})


@pytest.mark.spec("STK-1", "WF-5")
def test_the_tasks_do_the_same_and_a_redelivered_message_is_one_signal(shop: Desk) -> None:
    run_id = shop.begun(key="k")
    task = shop.app.tasks["conductor.signal_run"]
    first = task.apply(args=("desk_orders", "approval", {"by": "Ada"}), kwargs={"key": "k"}, task_id="m1").get()
    again = task.apply(args=("desk_orders", "approval", {"by": "Ada"}), kwargs={"key": "k"}, task_id="m1").get()
    assert (first["run_id"], first["word"], again["word"]) == (run_id, "taken", "repeated")
    shop.drain()
    assert shop.app.tasks["conductor.advance_run"].apply(args=(run_id, "draft", [1])).get()["word"] == "taken"
    told = shop.app.tasks["conductor.sweep_idle"].apply(kwargs={"dry_run": True, "older_than_hours": 1}).get()
    assert told["count"] == 0
    assert shop.app.tasks["conductor.sweep_idle"].apply(kwargs={"other": 1}).get() is None


@pytest.mark.spec("IDLE-5", "CAN-1")
def test_capabilities_sweep_and_cancel(shop: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for capability in (workflow_cancel, workflow_sweep_idle):
        monkeypatch.setitem(registry.capabilities, capability.name, capability)
    run_id = shop.begun("desk_lonely")
    told = shop.conductor.call("workflow_sweep_idle", {"dry_run": True, "older_than_hours": 0})
    assert told.to_json()["result"]["causes"] == [f"{run_id} idle_timeout"]
    cancelled = shop.conductor.call("workflow_cancel", {"run_id": run_id, "reason": "not wanted"}).to_json()["result"]
    assert (cancelled["word"], shop.state(run_id)) == ("OK", "cancelled")
    assert shop.conductor.call("workflow_cancel", {"run_id": run_id}).to_json()["result"]["word"] == "ALREADY"


@pytest.mark.spec("IDLE-4")
def test_an_orphan_is_told_to_its_session_like_a_failure(shop: Desk) -> None:
    run_id = shop.begun("desk_lonely", session="ann")
    sweep_idle(shop.engine, older_than_hours=0)
    assert (shop.state(run_id), shop.json("show", run_id)["reason"]) == ("cancelled", "idle_timeout")
    for _ in range(2):
        sweep_outbox(shop.engine)
    (message,) = inbox.read(shop.engine.store, "ann")
    assert (message.kind, message.operation_id, message.body["waited_for"]) == ("run_cancelled", run_id, ["opinion"])
    assert "an agent that did not come" in shop.ok("why", run_id)


@pytest.mark.spec("IDLE-7", "CLI-3")
def test_the_command_line_shows_filters_and_moves_what_waits(shop: Desk) -> None:
    run_id, lonely, asleep = shop.begun(key="k"), shop.begun("desk_lonely"), shop.start("cli_naps")
    shop.drain()
    busy = shop.start()

    def listed(*options: str) -> set[str]:
        return {run["run_id"] for run in shop.json("runs", *options)["runs"]}

    assert listed("--idle") == {run_id, lonely, asleep}
    assert listed("--not-idle") == {busy}
    assert listed("--waiting-for", "approval") == {run_id}
    assert listed("--waiting-for", "opinion") == {lonely}
    assert listed("--idle-longer-than", "1h") == set()
    shop.engine.store.client().hset(shop.engine.store.keys.run(lonely), "is", 1000)
    assert listed("--idle-longer-than", "1h") == {lonely}
    shop.engine.store.client().hset(shop.engine.store.keys.run(lonely), "is", str(shop.json("show", lonely)["created_at"]))
    told = shop.json("show", run_id)
    assert told["idle_since"] and told["idle_ms"] >= 0
    assert [(waiter["kind"], waiter["signal"]) for waiter in told["active_waiters"]] == [("signal", "approval")]
    assert told["active_waiters"][0]["until"] > told["idle_since"]
    assert "waits for signal approval" in shop.ok("show", run_id)
    assert "waits for signal approval" in shop.ok("runs", "--idle").replace("\n", " ")
    assert f"signal {run_id} approval JSON" in shop.ok("why", run_id)
    assert "without an answer it is cancelled at" in shop.ok("why", lonely)
    assert "sleeps in rest until" in shop.ok("why", asleep)
    assert "goes on with approval" in shop.ok("signal", "desk_orders", "approval", '{"by": "Ada"}', "--key", "k")
    shop.drain()
    assert f"advance {run_id} draft JSON" in shop.ok("why", run_id)
    assert shop.json("advance", run_id[:13], "draft", "[1, 2]")["word"] == "taken"
    assert "had this answer" in shop.ok("advance", run_id, "draft", "[1, 2]")
    shop.drain()
    assert shop.state(run_id) == "completed"
    for arguments, code in (
        (("signal", run_id, "approval", "{}"), 1), (("signal", lonely, "nothing"), 3), (("signal", "x", "y", "--key", "z"), 3),
        (("advance", lonely, "opinion", "7"), 1), (("advance", lonely, "nobody", "7"), 3), (("signal", lonely, "x", "{"), 2),
    ):
        assert shop.call(*arguments).exit_code == code, arguments
    assert json.loads(shop.call("signal", run_id, "nothing", "--json").stderr)["error"]["code"] == "unknown_signal"


@pytest.mark.spec("WF-5")
def test_the_examples_wait_and_go_on(shop: Desk) -> None:
    approvals, drafts = (importlib.import_module("tests.unit.test_examples").example(name) for name in ("approvals", "drafts"))
    flows = {"expense": approvals.flow, "article": drafts.flow}
    shop.engine.workflows = {**shop.engine.workflows, **flows}  # type: ignore[assignment]
    expense = shop.conductor.start(approvals.flow, {"who": "Ada", "cents": 4200})
    article = shop.conductor.start(drafts.flow, {"topic": "runs"})
    shop.drain()
    expense.signal("approval", {"by": "Grace", "ok": True})
    article.advance("draft", {"title": "On runs", "text": "They run."})
    shop.drain()
    article.advance("review", {"ok": True})
    shop.drain()
    assert expense.get(timeout=5) == "Ada: 42.00 paid, said Grace"
    assert article.get(timeout=5) == "On runs\n\nThey run."
