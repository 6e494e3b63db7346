"""A lean process for the sweep of crash points: it starts, drains, sweeps and acts by itself, without Celery, so that a case costs a moment.

What it does is the same the second time: starts carry keys, a cancel or a pause that has been is no error. So a process that was killed
anywhere is followed by another one that plays the same scenario to its end, and then judges it.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conductor import failpoints
from conductor.declare.starting import start_options
from conductor.declare.workflow import Workflow
from conductor.operations import call
from conductor.operations.read import find
from conductor.records import Poke
from conductor.runs.execute import Drainer
from conductor.runs.fsck import fsck
from conductor.runs.handle import Handle
from conductor.runs.start import start
from conductor.settings import Settings
from conductor.store.stubs import read_stub
from conductor.sweeps.overdue import run_overdue
from conductor.wiring import build_engine
from tests.faults.parking import WITH_ARCHIVE
from tests.faults.scenarios import SCENARIOS
from tests.support import ops_works, works
from tests.support.leaks import leaks
from tests.support.ledger import Ledger
from tests.support.witness import judge, record_of

__all__ = ["PARTITIONS", "Ground", "Lean", "play"]

LONGEST = 40.0
PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a case plays: everything a process needs to know, so that another can take over. The server itself is at `truth`; `url` may
    lead through a proxy."""

    truth: str
    namespace: str
    directory: str
    url: str

    @property
    def ledger(self) -> Ledger:
        return Ledger(Path(self.directory) / "ledger")

    @property
    def strikes(self) -> Path:
        return Path(self.directory) / "strikes"

    @property
    def report(self) -> Path:
        return Path(self.directory) / "report"


class Lean:
    """Client, worker, sweeper and operator in one process."""

    def __init__(self, ground: Ground, *, with_archive: bool = False) -> None:
        self.ground = ground
        self.pokes: deque[Poke] = deque(Poke(partition, "celery") for partition in range(PARTITIONS))
        settings = Settings.load(
            env_file=None, namespace=ground.namespace, partitions=PARTITIONS, heartbeat_seconds=0.3, step_lease_seconds=1,
            stall_sweep_seconds=0.1, due_sweep_seconds=0.05, retention_sweep_seconds=1, schedule_sweep_seconds=0.1, outbox_sweep_seconds=0.05,
            archive_url=f"sqlite:///{ground.directory}/archive.db" if with_archive else None,
            stale_after_seconds=1, stuck_sweep_seconds=1, sweep_interval_minutes=0.001,
        )
        flows = works.FLOWS | ops_works.FLOWS
        self.engine = build_engine(settings, url=ground.url, workflows=flows, poke=self._poke, capabilities=ops_works.CAPABILITIES)
        self.judge = build_engine(
            settings, url=ground.truth, workflows=flows, poke=lambda pokes: None, capabilities=ops_works.CAPABILITIES)
        self.truth = self.judge.store.client()
        self.store = self.engine.store
        self.drainer = Drainer(self.engine, worker_name=f"lean-{os.getpid()}", stopping=lambda: False)
        self.runs: dict[str, str] = {}
        self.inputs: dict[str, int] = {}
        self.answers: dict[str, int] = {}  # of operations
        self.stumbles: list[str] = []
        self.until = time.monotonic() + LONGEST

    def _poke(self, pokes: Iterable[Poke]) -> None:
        """Stands for the broker: a poke is a note in this process's memory, lost with it."""
        for poke in pokes:
            failpoints.hit("poke.before")
            self.pokes.append(poke)
            failpoints.hit("poke.sent")

    def start(self, name: str, workflow: str, n: int = 7, hold: float = 0, countdown: float | None = None) -> str:
        flow = works.FLOWS[workflow]
        payload = flow.encode_input(works.Job(n=n, hold=hold))
        accepted = start(self.engine, flow, payload=payload, options=start_options(workflow, key=name, countdown=countdown))
        self.runs[name], self.inputs[name] = accepted.run_id, n
        return accepted.run_id

    def start_bare(self, name: str, workflow: str) -> str:
        """A run without input."""
        flow = ops_works.FLOWS[workflow]
        accepted = start(self.engine, flow, payload=flow.encode_input(), options=start_options(workflow, key=name))
        self.runs[name], self.answers[name] = accepted.run_id, 7
        return accepted.run_id

    def call(self, name: str, capability: str, n: int, right: int) -> None:
        """Call a capability in this process, under a key."""
        answer = call.call(self.engine, ops_works.CAPABILITIES[capability], {"n": n}, key=name, session=ops_works.SESSION)
        self.runs[name], self.answers[name] = answer.operation_id, right

    def leave(self, name: str, capability: str, n: int, right: int) -> None:
        """Call it on a worker, and do not wait for the answer."""
        self.runs[name] = call.begin(self.engine, ops_works.CAPABILITIES[capability], {"n": n}, key=name, session=ops_works.SESSION)
        self.answers[name] = right
        call.leave(self.engine, self.runs[name])

    def submit(self, name: str, capability: str, n: int, right: int) -> None:
        told = call.submit(self.engine, ops_works.CAPABILITIES[capability], {"n": n}, key=name, session=ops_works.SESSION)
        self.runs[name], self.answers[name] = told.operation_id, right

    def turn(self) -> None:
        """One round: answer the pokes, then sweep what is overdue. Sweeps are taken to have looked a moment ago, as in a system that runs."""
        for _ in range(len(self.pokes)):
            poke = self.pokes.popleft()
            self._carefully(lambda poke=poke: self.drainer.drain(poke.partition, poke.queue))  # type: ignore[misc]
        for partition in range(PARTITIONS):
            self._carefully(lambda p=partition: self._looked(p))  # type: ignore[misc]
        self._carefully(lambda: run_overdue(self.engine))

    def _looked(self, partition: int) -> None:
        self.truth.hset(self.store.keys.head(partition), "look", int(time.time() * 1000))

    def _carefully(self, work: Callable[[], object]) -> None:
        """As the Celery task and the worker's timer do: an error ends this drain or sweep, not the worker. What it was is kept."""
        try:
            work()
        except Exception:
            self.stumbles.append(traceback.format_exc())

    def drain_with(self, workflows: dict[str, Workflow[Any]], partition: int) -> None:
        """Drain as a worker that has only this code."""
        poor = replace(self.engine, workflows=workflows)
        Drainer(poor, worker_name="poor").drain(partition, "celery")

    def state(self, name: str) -> str:
        found = self.truth.hget(self.store.keys.run(self.runs[name]), "st")
        if found is None and read_stub(self.judge.store, self.runs[name]) is not None:
            return "parked"
        return str(found or "gone")

    def drive(self, until: Callable[[], bool], what: str) -> None:
        while not until():
            if time.monotonic() > self.until:
                raise AssertionError(f"not within {LONGEST} s: {what}; {[(name, self.state(name)) for name in self.runs]}")
            self.turn()
            if not self.pokes:
                time.sleep(0.01)

    def ended(self, *names: str) -> Callable[[], bool]:
        return lambda: all(self.state(name) in ("completed", "failed", "cancelled", "gone") for name in names)


def judged(lean: Lean, right: dict[str, str]) -> list[str]:
    """Every broken promise of a scenario that has been played to its end."""
    store, ledger = lean.judge.store, lean.ground.ledger
    present = [lean.runs[name] for name, state in right.items() if state != "gone"]
    wrong = judge(lean.truth, store.namespace, present, ledger)
    for name, state in right.items():
        if lean.state(name) != state:
            wrong.append(f"{name} is {lean.state(name)}, not {state}")
        elif state == "completed":
            wrong += _answer(lean, name, ledger)
    wrong += [f"fsck: {difference}" for difference in fsck(lean.judge)]
    return wrong + leaks(lean.truth, store.namespace, store.partitions)


def _answer(lean: Lean, name: str, ledger: Ledger) -> list[str]:
    run_id = lean.runs[name]
    record = record_of(lean.truth, lean.store.namespace, run_id)
    assert record is not None
    if name in lean.answers:
        return _told(lean, name, record.workflow)
    answer, right = Handle(lean.judge, run_id).get(timeout=5), works.expected(record.workflow, lean.inputs[name])
    missing = works.effect_keys(record.workflow, run_id) - ledger.effects()
    return [f"{name} answered {answer}, not {right}"] * (answer != right) + [f"{name} lacks effects {sorted(missing)[:3]}"] * bool(missing)


def _told(lean: Lean, name: str, workflow: str) -> list[str]:
    """The recorded answer of an operation, or of a run whose answers are known beforehand."""
    run_id, right = lean.runs[name], lean.answers[name]
    answer = find(lean.judge, run_id).result if workflow.startswith("op:") else Handle(lean.judge, run_id).get(timeout=5)
    wrong = [f"{name} answered {answer}, not {right}"] * (answer != right)
    again = Counter(line.fact for line in lean.ground.ledger.lines() if line.fact.startswith("inner"))
    # Before its record is there an inner call may be repeated, once for each time the step was struck.
    return wrong + [f"{fact} ran {count} times" for fact, count in again.items() if count > 2]


def play(ground: Ground, scenario: str, armed: str = "", may_stumble: bool = False) -> None:
    """The whole life of one process: arm the failpoints, play, judge, report. A killed one does not get to the report.

    A lost reply of a script is made good where it happens; only where plain reads are struck may a drain or sweep end early.
    """
    os.environ |= {"TEST_LEDGER": str(ground.ledger.directory), "CONDUCTOR_FAILPOINTS_LEDGER": str(ground.strikes)}
    failpoints._armed.clear()  # this process was forked from one that had imported them unarmed
    failpoints._armed.update(failpoints._parse(armed))
    try:
        lean = Lean(ground, with_archive=scenario in WITH_ARCHIVE)
        right = SCENARIOS[scenario](lean)
        failpoints._armed.clear()
        wrong = judged(lean, right) + (lean.stumbles if not may_stumble else [])
    except BaseException:
        wrong = [traceback.format_exc()]
    ground.report.write_text(json.dumps(wrong))
