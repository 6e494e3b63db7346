"""One site of a fault or acceptance test: a server, a namespace, a ledger, a client in the test's own process, and the processes it starts.

`verdict` is what every campaign ends with: each acknowledged run ended exactly once and with the right answer, nothing was committed twice,
every effect is there once, and the store's own recount finds no difference.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from celery import Celery

from conductor import Conductor
from tests.support import works
from tests.support.ledger import Ledger
from tests.support.processes import Processes
from tests.support.server import BROKER_DB, STATE_DB, ValkeyServer
from tests.support.waiting import eventually
from tests.support.witness import Record, judge, record_of

__all__ = ["Began", "Site"]

ENDED = ("completed", "failed", "cancelled")


@dataclass(frozen=True)
class Began:
    """A run the client was told is accepted."""

    run_id: str
    workflow: str
    n: int


class Site:
    """Everything of one test, under one namespace. `env` is what its processes get; a test may add to it per process."""

    def __init__(self, server: ValkeyServer, directory: Path, namespace: str, env: Mapping[str, str] | None = None) -> None:
        self.server, self.namespace = server, namespace
        self.ledger = Ledger(directory / "ledger")
        self.env = {
            "CONDUCTOR_REDIS_URL": server.url(STATE_DB), "CONDUCTOR_NAMESPACE": namespace, "TEST_BROKER_URL": server.url(BROKER_DB),
            "TEST_LEDGER": str(self.ledger.directory), **(env or {}),
        }
        self.processes = Processes(directory, self.env)
        self.worker, self.beat = self.processes.worker, self.processes.beat
        self.began: list[Began] = []

    @cached_property
    def conductor(self) -> Any:
        """The client's side in this process; it publishes to the site's broker and writes to the site's server."""
        app = Celery("client", broker=self.env["TEST_BROKER_URL"], set_as_current=False)
        return Conductor(app, redis_url=self.server.url(STATE_DB), namespace=self.namespace)

    @property
    def engine(self) -> Any:
        return self.conductor.engine

    def start(self, workflow: str, n: int, hold: float = 0, **options: Any) -> str:
        """Start a run and remember that it was acknowledged."""
        handle = self.conductor.start(workflow, works.Job(n=n, hold=hold).model_dump(), **options)
        self.began.append(Began(handle.id, workflow, n))
        return str(handle.id)

    def start_mix(self, count: int, seed: int, hold: float = 0) -> list[str]:
        """`count` runs of the four reference graphs in an order that the seed decides."""
        choose = random.Random(seed)
        names = ("chain", "diamond", "fan", "timed")
        return [self.start(choose.choice(names), number, hold) for number in range(count)]

    def record(self, run_id: str) -> Record:
        found = record_of(self.server.client(), self.namespace, run_id)
        assert found is not None, f"{run_id} is not in the store"
        return found

    def state(self, run_id: str) -> str:
        return str(self.server.client().hget(f"conductor:{{{self.namespace}:{run_id[-2:]}}}:run:{run_id}", "st") or "")

    def open_runs(self) -> list[str]:
        """Runs that were acknowledged and have not ended."""
        return [run.run_id for run in self.began if self.state(run.run_id) not in ENDED]

    def wait_for_all(self, timeout: float) -> None:
        eventually(lambda: not self.open_runs(), timeout, every=0.1, what=self._progress)

    def _progress(self) -> str:
        still = [f"{run_id}: {[entry.code for entry in self.record(run_id).log][-12:]}" for run_id in self.open_runs()]
        return f"all {len(self.began)} runs end; {len(still)} have not, e.g. {still[:3]}\n{self.processes.logs()}"

    def verdict(self, cancelled: Collection[str] = (), failed: Collection[str] = ()) -> None:
        """Fail with every broken promise at once. All runs must have completed, but for those named."""
        wrong = judge(self.server.client(), self.namespace, [run.run_id for run in self.began], self.ledger)
        wrong += self._answers(cancelled, failed)
        wrong += [f"fsck: {difference}" for difference in self.fsck()]
        assert not wrong, f"{len(wrong)} broken promises:\n" + "\n".join(wrong[:40])

    def fsck(self) -> list[Any]:
        from conductor.runs.fsck import fsck

        return list(fsck(self.engine))

    def _answers(self, cancelled: Collection[str], failed: Collection[str]) -> Iterator[str]:
        effects = self.ledger.effects()
        for run in self.began:
            state = self.state(run.run_id)
            right = "cancelled" if run.run_id in cancelled else "failed" if run.run_id in failed else "completed"
            if state != right:
                yield f"{run.run_id} ({run.workflow}) is {state}, not {right}: {self.record(run.run_id).reason}"
            if right != "completed" or state != right:
                continue
            answer = self.conductor.run(run.run_id).get(timeout=5)
            if answer != works.expected(run.workflow, run.n):
                yield f"{run.run_id} ({run.workflow}) answered {answer}, not {works.expected(run.workflow, run.n)}"
            if missing := works.effect_keys(run.workflow, run.run_id) - effects:
                yield f"{run.run_id} ({run.workflow}) completed without its effects {sorted(missing)[:3]}"

    def close(self) -> None:
        self.processes.close()
