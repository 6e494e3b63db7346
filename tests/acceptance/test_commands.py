"""A plain Celery client that knows nothing but names and JSON, and a real worker: every use case is a task."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from tests.support.processes import Processes
from tests.support.server import BROKER_DB, STATE_DB, ValkeyServer
from tests.support.waiting import eventually

WAIT = 30.0


class Stranger:
    """Another program, with no code of ours and no store: a broker and a result backend are all it knows."""

    def __init__(self, server: ValkeyServer) -> None:
        self.app = Celery("stranger", broker=server.url(BROKER_DB), backend=server.url(2), set_as_current=False)
        self.app.conf.update(task_serializer="json", accept_content=["json"], result_serializer="json")

    def send(self, name: str, *args: Any, message: str = "", **kwargs: Any) -> Any:
        sent = self.app.send_task(f"conductor.{name}", list(args), kwargs, task_id=message or str(uuid.uuid4()))
        try:
            return sent.get(timeout=WAIT)
        finally:
            sent.forget()  # a message that comes twice must not be answered by what the first one left

    def ended(self, run_id: str, state: str) -> dict[str, Any]:
        told = eventually(lambda: (found := self.send("run_outcome", run_id))["ended"] and found, WAIT, every=0.1, what=f"run {run_id} ends")
        assert told["state"] == state, told
        return dict(told)


@pytest.fixture
def stranger(own_valkey: ValkeyServer, tmp_path: Path, namespace: str) -> Iterator[Stranger]:
    env = {
        "CONDUCTOR_REDIS_URL": own_valkey.url(STATE_DB), "CONDUCTOR_NAMESPACE": namespace, "TEST_BROKER_URL": own_valkey.url(BROKER_DB),
        "TEST_RESULTS": own_valkey.url(2),
    }
    processes = Processes(tmp_path, env, app="tests.acceptance.commands_app")
    processes.worker()
    try:
        yield Stranger(own_valkey)
    finally:
        processes.close()


@pytest.mark.spec("STK-1", "CAN-1", "OP-4", "OP-5", "SES-1", "SES-3")
def test_a_client_that_knows_only_names_does_everything(stranger: Stranger, tmp_path: Path) -> None:
    send, mended = stranger.send, tmp_path / "mended"

    # It learns what there is, and starts, follows, mends and forks a run.
    assert send("list_workflows")["workflows"] == ["asks", "orders"]
    assert send("show_workflow", "orders")["input"]["required"] == ["number"]
    run_id = send("start_run", "orders", {"number": 3, "mended": str(mended)}, message="start-1")["run_id"]
    assert send("start_run", "orders", {"number": 3, "mended": str(mended)}, message="start-1")["run_id"] == run_id
    assert "card refused" in stranger.ended(run_id, "failed")["error"]["message"]
    assert send("show_run", run_id)["why"]["command"].startswith("conductor ")
    send("retry_run", run_id, message="retry-1")
    stranger.ended(run_id, "failed")
    assert send("retry_run", run_id, message="retry-1")["state"] == "failed"  # the message came twice
    assert send("show_run", run_id)["generation"] == 2
    mended.touch()
    send("retry_run", run_id)
    assert stranger.ended(run_id, "completed")["result"] == 7
    forked = send("fork_run", run_id, "charge", changes={"number": 9})["run_id"]
    assert stranger.ended(forked, "completed")["result"] == 7
    assert send("run_events", run_id, limit=1)["events"][0]["kind"] == "started"

    # It answers for a person and for an agent, and cancels.
    asked = send("start_run", "asks", key="k1")["run_id"]
    assert send("signal_run", "asks", "go", 5, key="k1")["run_id"] == asked
    assert asked in send("show_lane", "desk")["active"]
    eventually(lambda: send("advance_run", asked, "draft", "text")["word"] in ("taken", "repeated"), WAIT)
    stranger.ended(asked, "completed")
    unwanted = send("start_run", "asks")["run_id"]
    assert send("pause_run", unwanted)["state"] == "paused"
    assert send("cancel_run", unwanted, reason="not wanted")["word"] == "OK"

    # It calls, submits and reads what became of it.
    assert send("call", "lend", {"title": "Emma"})["result"] == {"title": "Emma", "days": 14}
    assert send("call", "erase", session="ada")["status"] == "failed"
    send("grant", "ada", "erase")
    assert send("call", "erase", session="ada")["result"] == "erased"
    submitted = send("submit", "lend", {"title": "Emma"}, session="ada")["operation_id"]
    page = eventually(lambda: (found := send("inbox", "ada"))["messages"] and found, WAIT, every=0.2, what="the inbox is told")
    assert page["messages"][0]["operation_id"] == submitted
    assert send("acknowledge", "ada", page["messages"][0]["id"])["acknowledged"] is True
    assert {one["operation_id"] for one in send("list_operations", session="ada")["operations"]} >= {submitted}

    # It sets gates and schedules.
    assert send("set_limit", "bank", rate="500/m")["concurrency"] == 3
    assert send("pause_scope", "workflow:orders", reason="price change")["word"] == "OK"
    assert set(send("list_queues")["holds"]) == {"workflow:orders"}
    assert send("resume_scope", "workflow:orders")["word"] == "OK"
    assert send("schedule", "hourly", "lend", 3600, {"title": "Emma"})["word"] == "CREATED"
    assert send("drop_schedule", "hourly")["word"] == "OK"
    assert send("fsck")["differences"] == []

    # What is wrong is told by name.
    with pytest.raises(Exception, match="7 is not of type str"):
        send("start_run", 7)
    with pytest.raises(Exception, match="unknown run"):
        send("show_run", "nothing")
