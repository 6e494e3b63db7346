"""A whole plant: several workers, beat, the HTTP service, an archive on SQLite, and a client that starts runs over HTTP whatever happens.

Everything can be cut off at once and come back. What waits for days is known by what it waits for and until when, and is compared.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from conductor.runs.parking import awake
from conductor.runs.waiting import advance, signal
from conductor.store.reads import read_run
from conductor.store.stubs import read_stub
from tests.support import works
from tests.support.processes import Process
from tests.support.site import Began, Site
from tests.support.waiting import eventually

__all__ = ["QUICK", "WAITING", "WORKING", "Caller", "Plant", "Stand"]

QUICK = {
    "TEST_LEASE_SECONDS": "2", "CONDUCTOR_HEARTBEAT_SECONDS": "0.5", "CONDUCTOR_STALL_SWEEP_SECONDS": "0.3",
    "CONDUCTOR_PARKED_SWEEP_SECONDS": "0.2", "CONDUCTOR_CHECKPOINT_SECONDS": "0.2",
    "CONDUCTOR_PARK_AFTER_MINUTES": "0.02",
}
WORKING = ("chain", "diamond", "fan", "timed", "charged")
WAITING = ("patient", "advised", "drowsy", "waited")
_TIMES = {"patient": "lapse:{}:1", "drowsy": "timer:{}:0"}


@dataclass(frozen=True)
class Stand:
    """What a waiting run waits for, and until when (ms; None: for ever)."""

    waiting: tuple[int, ...]
    until: float | None


class Plant(Site):
    """`began` holds the runs that are to end by themselves, `patient` those that end when something is said to them."""

    workers, launched = 1, 0

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.patient: list[Began] = []
        self.service: Process | None = None

    @property
    def engine(self) -> Any:
        engine = super().engine
        engine.archive._url, engine.archive._namespace = self.env["CONDUCTOR_ARCHIVE_URL"], self.namespace
        return engine

    def everybody(self) -> None:
        """Start all processes, side by side."""
        self.launched += 1
        arguments = ["-m", "celery", "-A", "tests.support.app", "conductor", "serve", "--port", "0"]
        self.service = self.processes.python(f"serve{self.launched}", arguments, ready="serves http")
        for process in [self.service, self.beat(wait=False), *(self.worker(wait=False) for _ in range(self.workers))]:
            process.wait_ready()

    def power_cut(self, choose: random.Random) -> None:
        """Processes and server end by SIGKILL, in any order."""
        victims: list[Process | None] = [None, *(process for process in self.processes.started if process.alive)]
        choose.shuffle(victims)
        for one in victims:
            self.server.kill() if one is None else one.kill_whole()
        self.service = None

    def no_calm(self) -> None:
        """After the gap the stall sweep waits for 15 s, so that nobody is taken for dead; here all of them are."""
        keys, client = self.engine.store.keys, self.server.client()
        for partition in range(self.engine.store.partitions):
            client.hset(keys.head(partition), "calm", 1)

    def over(self) -> bool:
        self.no_calm()
        return not self.open_runs()

    # What waits.

    def stand(self, run_id: str) -> Stand | None:
        """What it waits for, in the store or parked; None while it does not wait."""
        keys, client, partition = self.engine.store.keys, self.server.client(), int(run_id[-2:], 16)
        run = read_run(self.engine.store, run_id)
        if run is not None:
            scores = [client.zscore(keys.of(partition, "due"), name.format(run_id)) for name in _TIMES.values()]
            scores.append(client.zscore(keys.of(partition, "orphans:due"), run_id))  # one that waits for agents alone
            return Stand(run.waiting, next(filter(None, scores), None)) if run.state == "waiting_signal" else None
        stub = read_stub(self.engine.store, run_id)
        if stub is None or stub.state != "waiting_signal":
            return None
        return Stand(stub.waiting, client.zscore(keys.of(partition, "wake"), run_id))

    def stands(self) -> dict[str, Stand]:
        found = {run.run_id: self.stand(run.run_id) for run in list(self.patient) if run.workflow != "waited" or self._has_lapsed(run.run_id)}
        return {run_id: stand for run_id, stand in found.items() if stand is not None}

    def still_there(self, known: dict[str, Stand]) -> dict[str, Stand]:
        """What waits now; all that waited before waits for the same, until the same moment."""

        def as_before() -> dict[str, Stand]:
            now = self.stands()
            assert {run_id: now.get(run_id) for run_id in known} == known
            return now

        return eventually(as_before, 5, what="what waited waits") if known else self.stands()  # one may be parked while it is looked at

    def _has_lapsed(self, run_id: str) -> bool:
        """`waited` waits for three things at first, one of which is over soon."""
        stand = self.stand(run_id)
        return stand is not None and len(stand.waiting) == 2

    def released(self, lapsed: Sequence[Began] = ()) -> None:
        """Each gets what it waits for; of some the three days are over instead."""
        for run in self.patient:
            match run.workflow:
                case "patient" if run not in lapsed:
                    signal(self.engine, run.run_id, "release", 100, signal_id="go")
                case "advised":
                    advance(self.engine, run.run_id, "advice", 20)
                case "waited":
                    signal(self.engine, run.run_id, "word", 10, signal_id="go")
                    advance(self.engine, run.run_id, "draft", 20)
        timed = [run for run in self.patient if run.workflow == "drowsy" or run in lapsed]
        eventually(lambda: not [run for run in timed if not self._elapsed(run)], 60, every=0.1, what="their days are over")
        self.began += self.patient
        self.patient = []

    def _elapsed(self, run: Began) -> bool:
        """Let its time be over: what is parked comes back first, and may be parked again before its time is moved."""
        awake(self.engine, run.run_id)
        due = self.engine.store.keys.of(int(run.run_id[-2:], 16), "due")
        self.server.client().zadd(due, {_TIMES[run.workflow].format(run.run_id): 1}, xx=True)
        return self.stand(run.run_id) is None and self.state(run.run_id) != ""

    # The client.

    def post(self, workflow: str, n: int, hold: float, key: str) -> str | None:
        """Start a run over HTTP; its id if the start was acknowledged."""
        found = re.search(r"serves http://([\d.]+):(\d+) ", self.service.text()) if self.service else None
        if found is None:
            return None
        connection = http.client.HTTPConnection(found[1], int(found[2]), timeout=10)
        try:
            body = json.dumps({"workflow": workflow, "input": works.Job(n=n, hold=hold).model_dump()})
            connection.request("POST", "/v1/runs", body, {"Content-Type": "application/json", "Idempotency-Key": key})
            answer = connection.getresponse()
            told = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()
        if answer.status == 503:
            return None  # the store is away
        assert answer.status in (200, 201), told
        return str(told["run_id"])


class Caller(threading.Thread):
    """Starts runs one after the other, each again under its key until it is acknowledged. `accepted` says when each was (ms)."""

    def __init__(self, plant: Plant, workflows: Iterable[str], name: str, hold: float = 0.1, pause: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.plant, self.workflows, self.tag, self.hold, self.pause = plant, list(workflows), name, hold, pause
        self.accepted: dict[str, float] = {}
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            for number, workflow in enumerate(self.workflows):
                while (run_id := self.plant.post(workflow, number, self.hold, f"{self.tag}-{number}")) is None:
                    time.sleep(0.05)
                self.accepted[run_id] = 1000 * time.time()
                began = Began(run_id, workflow, number)
                (self.plant.patient if workflow in WAITING else self.plant.began).append(began)
                time.sleep(self.pause)
        except BaseException as error:
            self.problem = error

    def done(self, timeout: float = 60) -> None:
        self.join(timeout)
        assert not self.is_alive() and self.problem is None, f"{len(self.accepted)} of {len(self.workflows)} accepted: {self.problem!r}"
