"""Every use case as a Celery task by its name: what it answers is JSON, what it is given is checked strictly, and delivered twice it is done
once. The tasks run in this process, as a worker would run them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from conductor import Workflow
from conductor.broker.tasks import COMMANDS
from conductor.declare.effects import Verdict
from conductor.errors import BadInput, ConductorError, NotFailed, UnknownOperation, UnknownRun
from tests.integration.front import Front, opened
from tests.support.server import ValkeyServer

pytestmark = pytest.mark.spec("STK-1")


class Bureau:
    """The front without its door: messages are delivered to its tasks by hand."""

    def __init__(self, front: Front) -> None:
        self.front = front

    def send(self, name: str, *args: Any, message: str = "", **kwargs: Any) -> Any:
        """Deliver a message; its answer goes through JSON as it would on the way back."""
        task = self.front.app.tasks[f"conductor.{name}"]
        told = task.apply(json.loads(json.dumps(args)), json.loads(json.dumps(kwargs)), task_id=message or str(uuid.uuid4())).get()
        return json.loads(json.dumps(told))

    def failed_run(self, **options: Any) -> str:
        run_id = str(self.send("start_run", "cli_orders", {"number": 3, "bad": True}, **options)["run_id"])
        self.front.drain()
        assert self.front.state(run_id) == "failed"
        return run_id

    def generation(self, run_id: str) -> int:
        return int(self.send("show_run", run_id)["generation"])


@pytest.fixture
def bureau(valkey: ValkeyServer, namespace: str) -> Iterator[Bureau]:
    with opened(valkey, namespace) as front:
        yield Bureau(front)


def test_names_are_stable_and_every_command_says_what_it_does() -> None:
    nouns = {
        "start_run", "cancel_run", "pause_run", "resume_run", "retry_run", "fork_run", "signal_run", "advance_run", "grant_run", "revoke_run",
        "erase_run", "purge", "batch_runs", "show_batch", "list_runs", "show_run", "run_outcome", "run_events", "recover", "fsck",
        "call", "submit", "retry_operation", "cancel_operation", "resolve", "list_operations", "show_operation", "operation_status",
        "list_capabilities", "show_capability", "schedule", "list_schedules", "show_schedule", "pause_schedule", "resume_schedule",
        "drop_schedule", "list_lanes", "show_lane", "list_limits", "set_limit", "reset_limit", "list_queues", "pause_scope", "resume_scope",
        "register_session", "grant", "revoke", "list_grants", "inbox", "acknowledge", "list_workflows", "show_workflow",
    }
    assert {f"conductor.{noun}" for noun in nouns} <= set(COMMANDS)
    assert [name for name, command in COMMANDS.items() if not (command.__doc__ or "").strip()] == []


# Runs.


def test_a_run_is_started_looked_at_and_moved(bureau: Bureau) -> None:
    run_id = bureau.send("start_run", "cli_naps", tags=["night"], eta=(datetime.now(UTC) + timedelta(hours=1)).isoformat())["run_id"]
    shown = bureau.send("show_run", run_id, values=True)
    assert (shown["workflow"], shown["state"], shown["tags"], shown["input"]) == ("cli_naps", "running", ["night"], None)
    assert shown["why"]["sentence"]
    assert bureau.send("pause_run", run_id, reason="wait", actor="ada")["state"] == "paused"
    assert bureau.send("resume_run", run_id)["state"] == "running"
    assert bureau.send("run_outcome", run_id)["ended"] is False
    page = bureau.send("run_events", run_id, limit=2)
    assert [event["kind"] for event in page["events"]] == ["started", "paused"]
    assert page["events"][1]["actor"].startswith("ada message:")
    assert [event["kind"] for event in bureau.send("run_events", run_id, after=page["last"])["events"]] == ["resumed"]
    assert bureau.send("cancel_run", run_id, reason="over")["word"] == "OK"
    assert bureau.send("run_outcome", run_id)["error"]["code"] == "run_cancelled"
    assert bureau.send("erase_run", run_id)["erased"] is True
    with pytest.raises(UnknownRun):
        bureau.send("show_run", run_id)
    assert bureau.send("fsck")["differences"] == []
    assert bureau.send("recover", dry_run=True)["errors"] == []


def test_runs_are_listed_by_the_filters_of_every_list(bureau: Bureau) -> None:
    failed, napping = bureau.failed_run(), bureau.send("start_run", "cli_naps", session="ada", tags=["night"])["run_id"]

    def ids(**where: Any) -> list[str]:
        return [one["run_id"] for one in bureau.send("list_runs", **where)["runs"]]

    assert ids() == [napping, failed]
    assert ids(status="failed") == ids(status=["failed", "completed"]) == ids(workflow="cli_orders") == [failed]
    assert ids(session="ada", tag="night") == [napping]
    page = bureau.send("list_runs", limit=1)
    assert [one["run_id"] for one in bureau.send("list_runs", limit=1, cursor=page["cursor"])["runs"]] == [failed]


@pytest.mark.spec("CLI-4", "SVC-1")
def test_many_runs_are_moved_and_the_same_message_moves_none_twice(bureau: Bureau) -> None:
    runs, message = [bureau.failed_run() for _ in range(3)], str(uuid.uuid4())
    dry = bureau.send("batch_runs", "retry", {"status": "failed"})
    assert (dry["dry_run"], dry["count"], dry["more"], set(dry["examples"])) == (True, 3, False, set(runs))
    assert {row["run_id"] for row in dry["runs"]} == set(runs)
    asked = {"reason": "mended, token=xyz", "actor": "ada", "dry_run": False, "rate": 1000.0, "message": message}
    batch_id = bureau.send("batch_runs", "retry", {"status": "failed"}, **asked)["batch_id"]
    assert bureau.send("batch_runs", "retry", {"status": "failed"}, **asked)["batch_id"] == batch_id
    assert bureau.send("show_batch", batch_id)["state"] == "queued"
    for _ in range(3):
        bureau.front.drain()
    told = bureau.send("show_batch", batch_id)
    assert (told["state"], told["changed"], told["actor"], told["reason"]) == ("completed", 3, "ada", "mended, token=***")
    assert [bureau.generation(run_id) for run_id in runs] == [2, 2, 2]
    with pytest.raises(BadInput, match="'explode' is none of"):
        bureau.send("batch_runs", "explode", {"status": "failed"})
    with pytest.raises(UnknownOperation):
        bureau.send("show_batch", runs[0])


@pytest.mark.spec("CLI-3")
def test_what_has_ended_is_purged_by_tag_after_a_dry_run(bureau: Bureau) -> None:
    ended, live = bureau.failed_run(tags=["gdpr"]), bureau.send("start_run", "cli_naps", tags=["gdpr"])["run_id"]
    assert bureau.send("purge", tag="gdpr")["found"] == 2
    told = bureau.send("purge", tag="gdpr", dry_run=False)
    assert (told["purged"], told["kept"]) == (1, [live])
    with pytest.raises(UnknownRun):
        bureau.send("show_run", ended)
    for wrong in ({}, {"tag": "gdpr", "session": "ada"}):
        with pytest.raises(BadInput, match="name one of"):
            bureau.send("purge", **wrong)


def test_a_run_that_failed_again_is_not_retried_again_by_the_same_message(bureau: Bureau) -> None:
    run_id = bureau.failed_run()
    for expected in (2, 3):
        message = str(uuid.uuid4())
        assert bureau.send("retry_run", run_id, message=message)["word"] == "OK"
        bureau.front.drain()
        assert bureau.front.state(run_id) == "failed"
        assert bureau.send("retry_run", run_id, message=message) == {"run_id": run_id, "word": "OK", "state": "failed"}
        bureau.front.drain()
        assert bureau.generation(run_id) == expected
    bureau.front.mended = True
    bureau.send("retry_run", run_id)
    bureau.front.drain()
    with pytest.raises(NotFailed):
        bureau.send("retry_run", run_id)


def test_what_was_resumed_meanwhile_is_not_paused_again_by_the_same_message(bureau: Bureau) -> None:
    run_id = bureau.send("start_run", "cli_naps")["run_id"]
    bureau.send("pause_run", run_id, message="p1")
    bureau.send("resume_run", run_id, message="r1")
    assert bureau.send("pause_run", run_id, message="p1")["state"] == "running"
    bureau.send("pause_run", run_id, message="p2")
    assert bureau.send("resume_run", run_id, message="r1")["state"] == "paused"


def test_starts_and_forks_of_one_message_are_one(bureau: Bureau) -> None:
    first = bureau.send("start_run", "cli_orders", {"number": 3}, message="s1")
    assert bureau.send("start_run", "cli_orders", {"number": 3}, message="s1") == first
    bureau.front.drain()
    forked = bureau.send("fork_run", first["run_id"], "charge", changes={"number": 5}, message="f1")
    assert (forked["forked_from"], forked["effects_repeat"]) == (first["run_id"], True)
    assert bureau.send("fork_run", first["run_id"], "charge", changes={"number": 5}, message="f1") == forked
    other = bureau.send("fork_run", first["run_id"], "charge", message="f2")
    assert len({first["run_id"], forked["run_id"], other["run_id"]}) == 3
    bureau.front.drain()
    assert bureau.send("run_outcome", forked["run_id"])["result"] == 7
    assert bureau.send("fsck")["differences"] == []


def test_a_signal_and_an_answer_of_one_message_are_one(bureau: Bureau) -> None:
    asks: Workflow[Any] = Workflow("commands_asks")
    asks.wait("go", int)
    asks.agent("draft", str)
    run_id = bureau.send("start_run", "commands_asks", key="k1")["run_id"]
    bureau.front.drain()
    assert bureau.send("signal_run", run_id, "go", 5, message="m1")["word"] == "taken"
    assert bureau.send("signal_run", run_id, "go", 5, message="m1")["word"] == "repeated"
    assert bureau.send("advance_run", "commands_asks", "draft", "text", key="k1")["word"] == "taken"
    assert bureau.send("advance_run", run_id, "draft", "text")["word"] == "repeated"


# Operations and schedules.


@pytest.mark.spec("OP-4", "OP-5", "OP-6")
def test_operations_are_made_found_and_moved(bureau: Bureau) -> None:
    called = bureau.send("call", "lend", {"title": "Emma"}, session="ada", message="c1")
    assert (called["status"], called["result"]) == ("ok", {"title": "Emma", "days": 14})
    assert bureau.send("call", "lend", {"title": "Emma"}, session="ada", message="c1") == called
    queued = bureau.send("submit", "lend", {"title": "Emma"}, queue="slow", priority=1, message="c2")
    assert bureau.send("submit", "lend", {"title": "Emma"}, queue="slow", priority=1, message="c2") == queued
    found = bureau.send("list_operations")["operations"]
    assert [one["operation_id"] for one in found] == [queued["operation_id"], called["operation_id"]]
    assert bureau.send("list_operations", state="completed", session="ada", limit=1)["operations"][0]["operation_id"] == called["operation_id"]
    assert bureau.send("operation_status")["queued"]["deferred_submit"] == 1
    shown = bureau.send("show_operation", called["operation_id"], values=True)
    assert (shown["params"], shown["result"]["title"]) == ({"title": "Emma", "days": 14}, "Emma")
    assert "params" not in bureau.send("show_operation", called["operation_id"])
    assert bureau.send("cancel_operation", queued["operation_id"])["word"] == "OK"
    assert bureau.send("cancel_operation", queued["operation_id"])["word"] == "ALREADY"
    with pytest.raises(UnknownOperation):
        bureau.send("retry_operation", "nothing")


@pytest.mark.spec("EFF-2")
def test_an_effect_in_doubt_is_resolved_once_by_a_message(bureau: Bureau) -> None:
    bureau.front.verdict = Verdict.INDETERMINATE
    doubted = bureau.send("call", "pay", {"amount": 5})["operation_id"]
    bureau.send("resolve", doubted, False, message="r1")
    bureau.front.drain()
    assert bureau.send("show_operation", doubted)["reason"] == "effect_in_doubt"  # it was done again, and is in doubt again
    assert bureau.send("resolve", doubted, False, message="r1")["status"] == "failed"
    assert bureau.generation(doubted) == 2
    bureau.send("resolve", doubted, True, 7, message="r2")
    bureau.front.drain()
    assert bureau.send("show_operation", doubted, values=True)["result"] == 7
    with pytest.raises(BadInput, match="leave it out"):
        bureau.send("resolve", doubted, False, 7)


@pytest.mark.spec("OP-5")
def test_schedules_are_made_and_moved(bureau: Bureau) -> None:
    assert bureau.send("schedule", "hourly", "lend", 3600, {"title": "Emma"})["word"] == "CREATED"
    assert bureau.send("schedule", "hourly", "lend", 3600, {"title": "Emma"})["word"] == "SAME"
    assert bureau.send("schedule", "mornings", "lend", "30 6 * * 1-5", {"title": "Emma"}, tz="Europe/Berlin")["word"] == "CREATED"
    assert [one["name"] for one in bureau.send("list_schedules")["schedules"]] == ["hourly", "mornings"]
    assert bureau.send("pause_schedule", "hourly", reason="holidays")["word"] == "OK"
    assert bureau.send("show_schedule", "hourly")["paused_reason"] == "holidays"
    assert bureau.send("resume_schedule", "hourly")["word"] == "OK"
    assert [bureau.send("drop_schedule", "hourly")["word"] for _ in range(2)] == ["OK", "GONE"]
    for when in ("30 6 * *", "60 6 * * *", "a b c d e", -5, 0):
        with pytest.raises(ConductorError):
            bureau.send("schedule", "wrong", "lend", when, {"title": "Emma"})
    assert [one["name"] for one in bureau.send("list_schedules")["schedules"]] == ["mornings"]


# Gates, sessions, what there is.


@pytest.mark.spec("LANE-1", "LANE-3", "RUN-14")
def test_gates_are_looked_at_and_set(bureau: Bureau) -> None:
    assert [one["lane"] for one in bureau.send("list_lanes")["lanes"]] == ["desk"]
    run_id = bureau.send("start_run", "front_desk")["run_id"]
    assert bureau.send("show_lane", "desk")["active"] == [run_id]
    assert bureau.send("set_limit", "ai", rate="5/m", concurrency=2)["rate"] == 5
    assert bureau.send("set_limit", "ai", rate=None)["concurrency"] == 2
    assert bureau.send("list_limits")["limits"][0]["rate"] is None
    assert bureau.send("reset_limit", "ai")["rate"] == 1
    assert [bureau.send("pause_scope", "queue:celery", reason="x")["word"] for _ in range(2)] == ["OK", "ALREADY"]
    assert set(bureau.send("list_queues")["holds"]) == {"queue:celery"}
    assert [bureau.send("resume_scope", "queue:celery")["word"] for _ in range(2)] == ["OK", "NOT_HELD"]


@pytest.mark.spec("SES-1", "SES-2", "SES-3")
def test_sessions_grant_read_and_acknowledge(bureau: Bureau) -> None:
    for _ in range(2):
        assert bureau.send("grant", "ada", "erase", message="g1")["grant_id"] == "g1"
    assert len(bureau.send("list_grants", "ada")["grants"]) == 1
    bureau.send("grant", "ada", "erase", mode="until", lasting=60, by="me")
    assert bureau.send("revoke", "ada", "erase")["revoked"] is True
    assert bureau.send("list_grants", "ada")["grants"] == []
    run_id = bureau.send("start_run", "cli_naps", session="ada")["run_id"]
    bureau.send("grant_run", run_id)
    assert bureau.send("register_session", "ada")["kept"] == [run_id]
    assert [bureau.send("revoke_run", run_id)["consent"] for _ in range(2)] == [False, False]
    assert bureau.send("register_session", "ada")["kept"] == []
    bureau.send("submit", "lend", {"title": "Emma"}, session="ada")
    bureau.front.drain()
    bureau.front.tell()
    page = bureau.send("inbox", "ada")
    assert [one["kind"] for one in page["messages"]] == ["deferred_success"]
    assert bureau.send("acknowledge", "ada", page["messages"][0]["id"])["acknowledged"] is True
    assert bureau.send("acknowledge", "ada", "nothing")["acknowledged"] is False
    assert bureau.send("inbox", "ada")["messages"] == []


@pytest.mark.spec("CAP-1")
def test_what_can_be_started_and_called_is_told(bureau: Bureau) -> None:
    assert "cli_orders" in bureau.send("list_workflows")["workflows"]
    shown = bureau.send("show_workflow", "cli_orders")
    assert shown["input"]["required"] == ["number"]
    assert shown["mermaid"].startswith("flowchart LR")
    assert [one["name"] for one in bureau.send("list_capabilities", text="lend")["capabilities"]] == ["lend"]
    assert bureau.send("show_capability", "erase")["consent"] is True


# What is refused.


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize(("name", "args", "kwargs", "told"), [
    ("start_run", [7], {}, "workflow: 7 is not of type str"),
    ("start_run", ["cli_orders", {"number": 1}], {"prioritiy": 1}, "prioritiy"),
    ("start_run", ["cli_orders", {"number": 1}], {"eta": "tomorrow"}, "no time as ISO 8601"),
    ("start_run", ["cli_orders", {"number": 1}], {"eta": "2030-01-01T00:00:00"}, "no time zone"),
    ("cancel_run", ["x"], {"terminate": 1}, "terminate: 1 is not of type bool"),
    ("fork_run", ["x", "charge"], {"changes": [1]}, "changes: [1] is not of type"),
    ("run_events", ["x"], {"after": "0"}, "after: '0' is not of type int"),
    ("submit", ["lend"], {"priority": "1"}, "priority: '1' is not of type"),
    ("submit", ["lend", {"title": "x"}], {"priority": 11}, "priority"),
    ("list_operations", [], {"state": "odd"}, "'odd' is none of"),
    ("list_operations", [], {"limit": 0}, "outside 1 to 1000"),
    ("list_operations", [], {"limit": True}, "is not of type int"),
    ("list_operations", [], {"older_than": "5"}, "is not of type float"),
    ("list_runs", [], {"stauts": "failed"}, "did you mean status"),
    ("list_runs", [], {"status": "odd"}, "'odd' is no state"),
    ("list_runs", [], {"limit": 1001}, "outside 1 to 1000"),
    ("list_runs", [], {"limit": "5"}, "is not of type int"),
    ("list_runs", [], {"cursor": "1-x"}, "cursor"),
    ("resolve", ["x"], {}, "missing a required argument: 'landed'"),
    ("set_limit", ["ai"], {"concurrency": "4"}, "concurrency: '4' is not of type"),
    ("set_limit", ["ai"], {"rate": "soon"}, "rate is 'soon'"),
    ("set_limit", ["ai"], {"rate": 5}, "rate: 5 is not of type"),
    ("pause_scope", ["everything"], {}, "it is none of: all"),
    ("grant", ["ada", "erase"], {"mode": "twice"}, "'twice' is not of type"),
    ("grant", ["ada", "erase"], {"lasting": 5}, "duration"),
    ("grant", ["a\nb", "erase"], {}, "control character"),
    ("inbox", ["ada"], {"limit": 1001}, "outside 1 to 1000"),
    ("schedule", ["x", "lend", True], {}, "when: True is not of type"),
    ("show_run", [], {"run": "x"}, "missing a required argument"),
])
def test_a_message_with_wrong_arguments_is_refused_before_anything_is_done(
    bureau: Bureau, name: str, args: list[Any], kwargs: dict[str, Any], told: str,
) -> None:
    with pytest.raises(BadInput) as refused:
        bureau.send(name, *args, **kwargs)
    assert told in str(refused.value)
    namespace = bureau.front.engine.store.namespace
    assert list(bureau.front.engine.store.client().scan_iter(f"conductor:{{{namespace}:*")) == []


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize("run_id", ["", "x", "01997f3a-52a1-7c33-9d1e-6a1f2f0c4dff", "../01997f3a", "*"])
def test_an_id_of_wrong_form_is_an_unknown_run_for_every_command(bureau: Bureau, run_id: str) -> None:
    for name, args in {
        "cancel_run": [], "pause_run": [], "resume_run": [], "retry_run": [], "fork_run": ["charge"], "signal_run": ["go"], "advance_run": ["s"],
        "grant_run": [], "revoke_run": [], "erase_run": [], "show_run": [], "run_outcome": [], "run_events": [],
    }.items():
        with pytest.raises(UnknownRun):
            bureau.send(name, run_id, *args)
