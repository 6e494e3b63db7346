"""A batch retry of many failed runs: dry run, then killed in the process that called it, killed on the worker that took it up, and ended by
a third. The runs fail again at once, so whoever repeats himself would find them as they were: each is retried exactly once all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conductor.operations import batches
from conductor.runs.around import worker_names
from conductor.runs.execute import Drainer
from conductor.store.reads import read_run
from tests.support.hopeless import hopeless
from tests.support.leaks import leaks
from tests.support.processes import Process
from tests.support.server import ValkeyServer
from tests.support.site import Site
from tests.support.waiting import eventually

APP = "tests.support.hopeless"
WHERE = "workflow=hopeless status=failed since=2h"
QUICK = {"CONDUCTOR_HEARTBEAT_SECONDS": "0.5", "CONDUCTOR_STALL_SWEEP_SECONDS": "0.3"}
COMMAND = "from conductor.cli import main; main()"


class Ward(Site):
    """A site full of runs that have failed."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.processes.app = APP
        self.runs: list[str] = []
        self.store = self.engine.store
        self.truth = self.server.client()

    def fail(self, count: int) -> None:
        """In this process, without a broker: what matters begins when they have failed."""
        drainer = Drainer(self.engine, worker_name="before")
        self.runs = [str(self.conductor.start(hopeless).id) for _ in range(count)]
        for partition in range(self.store.partitions):
            while self.truth.zcard(self.store.keys.of(partition, "ready:celery")):
                drainer.drain(partition, "celery")
        assert {self.state(run_id) for run_id in self.runs} == {"failed"}

    def command(self, name: str, *arguments: str) -> Process:
        return self.processes.python(name, ["-c", COMMAND, "-A", APP, "retry", "--where", WHERE, *arguments])

    def lives(self) -> dict[str, int]:
        """How often each run was retried, counted in its log."""
        pipe = self.truth.pipeline(transaction=False)
        for run_id in self.runs:
            pipe.lrange(self.store.keys.run(run_id, "log"), 0, -1)
        return {run_id: sum(entry.startswith("g;") for entry in log) for run_id, log in zip(self.runs, pipe.execute(), strict=True)}

    def retried(self) -> int:
        return sum(count > 0 for count in self.lives().values())

    def batch(self) -> str:
        (found,) = (one for number in range(self.store.partitions) for one in self.truth.zrange(self.store.keys.of(number, "ops"), 0, -1))
        return str(found)

    def holder(self, batch_id: str) -> Process | None:
        """The worker that has the batch now."""
        run = read_run(self.store, batch_id)
        if run is None or not run.active:
            return None
        name = worker_names(self.store, [run.orchestrator]).get(run.orchestrator, "")
        return next((one for one in self.processes.started if one.alive and f"{one.name}@test" in name), None)

    def over(self, batch_id: str) -> bool:
        """The lease of whoever is dead is over now, and so is the patience of a sweep that has not looked for a while."""
        partition = int(batch_id[-2:], 16)
        moved = self.truth.zadd(self.store.keys.of(partition, "leases"), {f"{batch_id}:0": 1}, xx=True, ch=True)
        if self.truth.hexists(self.store.keys.head(partition), "calm"):
            self.truth.hset(self.store.keys.head(partition), "calm", 1)
        return bool(moved)


@pytest.fixture
def ward(own_valkey: ValkeyServer, namespace: str, tmp_path: Path) -> Iterator[Ward]:
    one = Ward(own_valkey, tmp_path, namespace, QUICK)
    yield one
    one.close()


@pytest.mark.spec("CLI-4", "SVC-1")
@pytest.mark.parametrize(("count", "rate"), [(400, 200.0), pytest.param(8_000, 400.0, marks=[pytest.mark.faults, pytest.mark.timeout(900)])])
def test_a_batch_that_is_killed_twice_retries_each_run_once(ward: Ward, count: int, rate: float) -> None:
    ward.fail(count)
    dry = ward.command("dry", "--json")
    first, second = ward.worker(concurrency=1, wait=False), ward.worker(concurrency=1, wait=False)
    assert dry.wait(60) == 0, dry.text()
    told = json.loads(dry.text())
    assert (told["dry_run"], told["count"], told["more"], ward.retried()) == (True, count, False, 0)

    caller = ward.command("caller", "--yes", "--rate", f"{rate:g}", "--reason", "mended")
    eventually(lambda: ward.retried() >= count // 5, 120, every=0.05, what=lambda: f"a fifth is retried\n{ward.processes.logs()}")
    caller.kill_whole()
    batch_id = ward.batch()
    before = ward.retried()
    assert before < count, "it was killed in the middle"
    assert batches.standing(ward.engine, batch_id)["state"] == "running"

    for worker in (first, second):
        worker.wait_ready()
    _taken_up(ward, batch_id)
    victim = eventually(
        lambda: ward.holder(batch_id) if ward.retried() >= max(before + 1, count // 2) else None, 120, every=0.05,
        what=lambda: f"half is retried\n{ward.processes.logs()}")
    victim.kill_whole()
    assert ward.retried() < count, "it was killed in the middle again"

    _taken_up(ward, batch_id)
    eventually(
        lambda: batches.standing(ward.engine, batch_id)["state"] == "completed", 300, every=0.1,
        what=lambda: f"{batches.standing(ward.engine, batch_id)}\n{ward.processes.logs()}")
    told = batches.standing(ward.engine, batch_id)
    assert (told["done"], told["changed"], told["unchanged"], told["failed"], told["total"]) == (count, count, 0, 0, count), told
    assert (told["reason"], bool(told["actor"])) == ("mended", True)
    eventually(lambda: {ward.state(run_id) for run_id in ward.runs} == {"failed"}, 300, every=0.3, what="all have failed again")
    assert set(ward.lives().values()) == {1}, "each was retried exactly once"
    assert sum(entry.startswith("x;") for entry in ward.store.log_of(batch_id)) == 2, "it was lost twice, and by nobody else"
    assert {read_run(ward.store, run_id).generation for run_id in ward.runs} == {2}  # type: ignore[union-attr]
    assert ward.fsck() == []
    assert [line for line in leaks(ward.truth, ward.namespace, ward.store.partitions) if "index of runs" not in line] == []


def _taken_up(ward: Ward, batch_id: str) -> Process:
    """Whoever had the batch is dead; a worker that lives takes it up."""
    fence = _fence(ward, batch_id)
    eventually(lambda: _fence(ward, batch_id) != fence or ward.over(batch_id), 20, what="its lease is over")
    return eventually(
        lambda: ward.holder(batch_id) if _fence(ward, batch_id) != fence else None, 60, every=0.01,
        what=lambda: f"a worker takes the batch up\n{ward.processes.logs()}")


def _fence(ward: Ward, batch_id: str) -> str:
    return str(ward.truth.hget(ward.store.keys.run(batch_id), "0") or "").split(";")[1]
