"""A user's own Celery project with `Conductor(app)`: real prefork workers, real beat, hostile global settings."""

from __future__ import annotations

import contextlib
import json
import pickle
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.result import AsyncResult

from conductor import Conductor, RunFailed
from tests.support.processes import Processes
from tests.support.server import BROKER_DB, STATE_DB, ValkeyServer
from tests.support.waiting import eventually

FAST = {"CONDUCTOR_STEP_LEASE_SECONDS": "3", "CONDUCTOR_HEARTBEAT_SECONDS": "1", "CONDUCTOR_STALL_SWEEP_SECONDS": "0.5"}


class Project:
    """One broker, one store, processes of the user's app, and a client in this process."""

    def __init__(self, server: ValkeyServer, directory: Path, namespace: str) -> None:
        self.server, self.directory, self.namespace = server, directory, namespace
        env = {
            "CONDUCTOR_REDIS_URL": server.url(STATE_DB), "CONDUCTOR_NAMESPACE": namespace, "TEST_BROKER_URL": server.url(BROKER_DB),
            "TEST_RESULTS": server.url(2), **FAST,
        }
        self.processes = Processes(directory, env, app="tests.acceptance.celery_app")
        self.app = Celery("client", broker=server.url(BROKER_DB), backend=server.url(2), set_as_current=False)
        self.conductor = Conductor(self.app, redis_url=server.url(STATE_DB), namespace=namespace)

    @property
    def trace(self) -> Path:
        return self.directory / "trace"

    def traced(self) -> list[str]:
        return self.trace.read_text().split("\n")[:-1] if self.trace.exists() else []

    def start(self, workflow: str, seconds: float = 0, **options: Any) -> Any:
        return self.conductor.start(workflow, {"trace": str(self.trace), "seconds": seconds}, **options)

    def events_of(self, handle: Any) -> list[str]:
        return [event.kind for event in handle.events()]


@pytest.fixture
def project(own_valkey: ValkeyServer, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.setenv("TEST_BROKER_URL", own_valkey.url(BROKER_DB))
    from tests.acceptance import celery_app  # noqa: F401 - declares the workflows for the client

    made = Project(own_valkey, tmp_path, namespace)
    yield made
    made.processes.close()


@pytest.mark.spec("STK-1", "WF-11", "SET-3")
def test_a_run_goes_through_an_ordinary_worker_which_says_where_the_state_is(project: Project) -> None:
    worker = project.processes.worker()
    assert project.start("quick").get(timeout=15) == 2
    line = next(line for line in worker.text().split("\n") if "conductor: namespace" in line)
    assert f"namespace {project.namespace}" in line
    assert "durability always" in line
    assert worker.terminate() == 0


@pytest.mark.spec("RUN-12", "WF-11")
def test_global_time_and_rate_limits_never_end_or_delay_a_drain(project: Project) -> None:
    """The project's limits are 1 s soft, 2 s hard and one task an hour; the step names its own timeout and lasts longer."""
    worker = project.processes.worker(concurrency=1)
    first, second = project.start("lengthy", 4), project.start("quick")
    assert first.get(timeout=20) == "held"
    assert second.get(timeout=10) == 2
    assert "time limit" not in worker.text().lower().replace("task_time_limit", "")
    assert project.traced() == ["begin 1", "end 1", "after"]


@pytest.mark.spec("RUN-4", "STK-1")
def test_a_step_of_queue_gpu_runs_only_where_gpu_is_consumed(project: Project) -> None:
    project.processes.worker()
    handle = project.start("gpu")
    other = project.start("quick")
    assert other.get(timeout=15) == 2
    assert handle.status == "running"
    worker = project.processes.worker(queues=["gpu"])
    handle.get(timeout=15)
    assert project.traced() == ["rendered"]
    assert "conductor.sweeps" in worker.text()


@pytest.mark.spec("WF-10")
def test_of_many_workers_the_one_that_has_the_code_gets_the_step(project: Project) -> None:
    """A poke reaches any of them; whoever lacks the code sets the step aside, and the one that has it comes for it."""
    for _ in range(4):
        project.processes.worker(concurrency=1, env={"TEST_OLD_CODE": "1"}, wait=False)
    project.processes.worker(concurrency=1)
    began = time.monotonic()
    logs = []
    for _ in range(6):
        handle = project.start("new")
        assert handle.get(timeout=15) == 1
        logs.append(project.events_of(handle))
    assert time.monotonic() - began < 15
    assert max(log.count("set_aside") for log in logs) >= 1, "no poke reached a worker without the code"
    assert max(log.count("set_aside") for log in logs) <= 2


@pytest.mark.spec("RUN-13")
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_after_sigterm_a_running_step_ends_and_nothing_new_is_claimed(project: Project, pool: str) -> None:
    worker = project.processes.worker(concurrency=1, pool=pool)
    handle = project.start("lengthy", 2)
    eventually(lambda: "begin 1" in project.traced())
    worker.signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    assert project.traced() == ["begin 1", "end 1"]
    assert project.events_of(handle) == ["started", "claimed", "completed"]
    project.processes.worker(concurrency=1)
    assert handle.get(timeout=20) == "held"
    assert project.traced() == ["begin 1", "end 1", "after"]


@pytest.mark.spec("RUN-13", "WF-12")
def test_a_step_that_listens_sees_that_its_worker_stops(project: Project) -> None:
    worker = project.processes.worker(concurrency=1, env={"TEST_LISTENS": "1"})
    project.start("lengthy", 60)
    eventually(lambda: "begin 1" in project.traced())
    worker.signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    assert "saw stopping" in project.traced()


@pytest.mark.spec("RUN-13", "RUN-8")
def test_after_the_soft_shutdown_time_the_lease_is_given_back(project: Project) -> None:
    worker = project.processes.worker(concurrency=1, env={"TEST_SOFT_SECONDS": "1"})
    handle = project.start("lengthy", 25)
    eventually(lambda: "begin 1" in project.traced())
    worker.signal(signal.SIGTERM)
    eventually(lambda: "given_back" in project.events_of(handle), 10)
    assert "lost" not in project.events_of(handle)
    assert eventually(lambda: not worker.alive, 15, what="the worker leaves, although the step would last 25 s")
    assert worker.returncode == 0


@pytest.mark.spec("REC-5", "REC-3", "REC-4")
def test_without_beat_the_steps_of_a_killed_worker_run_again(project: Project) -> None:
    worker = project.processes.worker(concurrency=1)
    handle = project.start("lengthy", 3)
    eventually(lambda: "begin 1" in project.traced())
    worker.kill_whole()
    project.processes.worker(concurrency=1)
    assert handle.get(timeout=30) == "held"
    assert "lost" in project.events_of(handle)


@pytest.mark.spec("REC-5", "OP-8")
def test_without_beat_what_is_due_runs_within_a_second(project: Project) -> None:
    project.processes.worker()
    assert project.start("quick").get(timeout=15) == 2
    began = time.monotonic()
    assert project.start("quick", countdown=1).get(timeout=15) == 2
    assert 1.0 <= time.monotonic() - began < 2.5


@pytest.mark.spec("RUN-6", "RUN-4")
def test_a_wiped_broker_costs_time_only(project: Project) -> None:
    handle = project.start("quick")
    assert project.server.flush_broker() > 0
    project.processes.worker()
    assert handle.get(timeout=20) == 2


@pytest.mark.spec("CAN-4", "WF-12")
def test_a_running_step_learns_of_its_cancel_at_the_next_heartbeat(project: Project) -> None:
    project.processes.worker(concurrency=1)
    handle = project.start("watchful", 60)
    eventually(lambda: project.traced())
    assert project.conductor.cancel(handle.id, reason="not wanted")["word"] == "OK"
    eventually(lambda: "cancelled True" in project.traced(), 5)  # a heartbeat each second
    assert handle.status == "cancelled"
    assert project.events_of(handle)[-1] == "cancelled", "what it returned was not taken"


@pytest.mark.spec("CAN-4", "CAN-1")
def test_a_cancel_that_terminates_stops_the_process_and_the_worker_goes_on(project: Project) -> None:
    worker = project.processes.worker(concurrency=1)
    handle = project.start("lengthy", 60)
    eventually(lambda: "begin 1" in project.traced())
    project.conductor.cancel(handle.id, reason="not wanted", actor="anna", terminate=True)
    eventually(lambda: "was cancelled with terminate" in worker.text(), 10)
    assert project.start("quick").get(timeout=15) == 2
    assert "end 1" not in project.traced()
    last = list(handle.events())[-1]
    assert (last.kind, last.reason, last.actor) == ("cancelled", "not wanted", "anna")


@pytest.mark.spec("RUN-12")
@pytest.mark.parametrize("listens", ["1", ""])
def test_the_projects_time_limit_is_the_timeout_of_a_step_without_one(project: Project, listens: str) -> None:
    """It is raised in the step after a second; a step that goes on all the same loses its process five seconds later."""
    worker = project.processes.worker(concurrency=1, env={"TEST_LISTENS": listens})
    handle = project.start("endless", 60)
    with pytest.raises(RunFailed, match="StepTimeout"):
        handle.get(timeout=20)
    assert project.traced()[1:2] == ["heard"]
    assert ("did not stop 5 s after its timeout" in worker.text()) is not bool(listens)
    assert project.start("quick").get(timeout=15) == 2


@pytest.mark.spec("STK-2", "REC-5", "STK-1")
def test_beat_sends_the_sweeps_and_a_worker_runs_them(project: Project) -> None:
    beat = project.processes.beat()
    worker = project.processes.worker("-l", "DEBUG")
    eventually(lambda: "conductor.sweep_stalled" in beat.text(), 20)
    eventually(lambda: "Task conductor.sweep_stalled" in worker.text() and "succeeded" in worker.text(), 20)
    notes = project.conductor.engine.store.glance().last_ok
    assert {"retries", "stalled", "retention"} <= set(notes)


@pytest.mark.spec("STK-2")
def test_of_two_redbeats_the_second_goes_on_when_the_first_is_killed(project: Project) -> None:
    """RedBeat keeps the schedule in Redis and lets one beat lead; its lock lapses five intervals after the leader's death."""
    scheduler = ("-S", "redbeat.RedBeatScheduler", "--max-interval", "1")
    leader = project.processes.beat(*scheduler)
    eventually(lambda: "conductor.sweep_stalled" in leader.text(), 20)
    follower = project.processes.beat(*scheduler)
    entries = list(project.server.client(BROKER_DB).scan_iter("redbeat:conductor.sweep_*"))
    assert len(entries) >= 7
    assert "conductor.sweep" not in follower.text()
    leader.kill()
    eventually(lambda: "conductor.sweep_stalled" in follower.text(), 20, what=follower.text)


@pytest.mark.spec("STK-1")
def test_every_command_works_by_name(project: Project) -> None:
    project.processes.worker()
    send = project.app.send_task
    trace = {"trace": str(project.trace)}

    def result(task: AsyncResult[Any]) -> Any:
        return task.get(timeout=15)

    run_id = result(send("conductor.start_run", ("quick", trace)))["run_id"]
    assert project.conductor.run(run_id).get(timeout=15) == 2
    assert result(send("conductor.cancel_run", (run_id,), {"reason": "late"}))["word"] == "ENDED"
    waiting = project.start("quick", countdown=60)
    assert result(send("conductor.pause_run", (waiting.id,)))["word"] == "OK"
    assert result(send("conductor.resume_run", (waiting.id,)))["word"] == "OK"
    assert result(send("conductor.cancel_run", (waiting.id,)))["state"] == "cancelled"
    assert result(send("conductor.sweep_stalled", kwargs={"dry_run": True}, ignore_result=False))["name"] == "stalled"
    for name, args in (("cancel_run", ("nonsense",)), ("retry_run", (run_id,)), ("start_run", ("no-such", {})), ("pause_run", (5,))):
        with pytest.raises(Exception, match=r"unknown run|only a failed run|unknown workflow|is not of type str"):
            result(send(f"conductor.{name}", args))


@pytest.mark.spec("STK-1", "RUN-5")
def test_a_start_that_is_delivered_twice_starts_one_run(project: Project) -> None:
    project.processes.worker()
    task_id = str(uuid.uuid4())
    ids = {
        project.app.send_task("conductor.start_run", ("quick", {"trace": str(project.trace)}), task_id=task_id).get(timeout=15)["run_id"]
        for _ in range(2)
    }
    assert len(ids) == 1


@pytest.mark.spec("BAD-1", "ACT-4")
def test_forged_foreign_and_pickled_messages_change_nothing(project: Project) -> None:
    worker = project.processes.worker(concurrency=1)
    assert project.start("quick").get(timeout=15) == 2
    before = _contents(project)
    for args in (["other", 0, "celery"], [project.namespace, 99, "celery"], [project.namespace, "0", "celery"], [], ["x"] * 9):
        project.app.send_task("conductor.execute", args, queue="celery")
    project.app.send_task("conductor.sweep_stalled", ["what"], queue="celery")
    _send_pickle(project)
    eventually(lambda: worker.text().count("refused") >= 7, 15)
    after = _contents(project)
    assert before == {key: after.get(key) for key in before}
    assert not (project.directory / "pwned").exists()
    assert "Traceback" not in worker.text()
    assert project.start("quick").get(timeout=15) == 2


def _contents(project: Project) -> dict[str, Any]:
    """Everything in the store but what time alone moves: clocks, notes of sweeps, callers' last numbers."""
    store, moving = project.server.client(), (":head", ":pokes", ":workers", ":sweeps")
    keys = [key for key in store.scan_iter("conductor:*") if not key.endswith(moving) and ":caller:" not in key and ":lock:" not in key]
    return {key: _content(store, key) for key in keys}


def _content(store: Any, key: str) -> Any:
    kind = store.type(key)
    reads = {
        "hash": lambda: store.hgetall(key), "list": lambda: store.lrange(key, 0, -1), "set": lambda: store.smembers(key),
        "zset": lambda: store.zrange(key, 0, -1, withscores=True), "stream": lambda: store.xrange(key), "string": lambda: store.get(key),
    }
    return reads[kind]() if kind in reads else None


class _Bomb:
    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.file, "w"))


def _send_pickle(project: Project) -> None:
    """A pickled task message with a bomb in its body."""
    task_id = str(uuid.uuid4())
    body = pickle.dumps(([project.namespace, 0, _Bomb(str(project.directory / "pwned"))], {}, {}))
    with project.app.connection_for_write() as connection:
        connection.Producer().publish(
            body, content_type="application/x-python-serialize", content_encoding="binary", routing_key="celery", correlation_id=task_id,
            headers={"task": "conductor.execute", "id": task_id, "lang": "py", "argsrepr": "", "kwargsrepr": "", "root_id": task_id},
        )


@pytest.mark.spec("STK-3")
def test_with_events_on_every_step_and_run_is_told(project: Project) -> None:
    project.processes.worker("-E")
    seen: list[dict[str, Any]] = []
    with project.app.connection_for_read() as connection:
        receiver = project.app.events.Receiver(connection, handlers={"*": seen.append})
        with receiver.consumer_context() as (line, _channel, _consumers):
            handle = project.start("quick")
            assert handle.get(timeout=15) == 2

            def told() -> bool:
                with contextlib.suppress(TimeoutError, OSError):
                    line.drain_events(timeout=0.3)
                return any(event["type"] == "task-succeeded" and event.get("uuid") == handle.id for event in seen)

            eventually(told, 15)
    names = {event.get("name") for event in seen if event["type"] == "task-received"}
    assert {"quick.one", "quick.two", "quick"} <= names
    assert all(event.get("root_id") in (None, handle.id) for event in seen if str(event.get("name", "")).startswith("quick"))
    assert str(project.trace) not in json.dumps(seen, default=str)
    assert "conductor.execute" not in names
