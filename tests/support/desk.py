"""One desk of the operation tests: a server, a namespace, a ledger, a client in the test's own process, and real workers of
`tests.acceptance.operations_app`.

Tests share a desk and its workers; each chooses a tag under which its bodies write into the ledger. Time is moved by moving records into
the past (`due_now`, `grow_old`, `no_grace`), never by waiting for it.
"""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from celery import Celery

from conductor import Conductor
from conductor.log import Event
from conductor.store.keys import Keys
from conductor.store.reads import read_events
from tests.support.ledger import Ledger, Line
from tests.support.processes import Process, Processes
from tests.support.server import BROKER_DB, STATE_DB, ValkeyServer
from tests.support.waiting import eventually

__all__ = ["Desk", "new_tag", "opened"]

APP = "tests.acceptance.operations_app"
QUICK = {"CONDUCTOR_STEP_LEASE_SECONDS": "3", "CONDUCTOR_HEARTBEAT_SECONDS": "0.5", "CONDUCTOR_STALL_SWEEP_SECONDS": "0.3"}
HOUR = 3_600_000
WAIT = 30.0  # seconds: generous, because other tests share the machine
_UNEXPECTED = ("unexpected error", "could not be told", "could not be swept")


def new_tag() -> str:
    return f"t{uuid.uuid4().hex[:10]}"


@contextmanager
def opened(directory: Path, env: Mapping[str, str] | None = None, **settings: Any) -> Iterator[Desk]:
    """A desk on a server of its own."""
    server = ValkeyServer().start()
    desk = Desk(server, directory, f"t{uuid.uuid4().hex[:12]}", env, **settings)
    before = os.environ.get("TEST_LEDGER")
    try:
        yield desk
    finally:
        desk.processes.close()
        server.stop()
        os.environ.pop("TEST_LEDGER", None)
        if before is not None:
            os.environ["TEST_LEDGER"] = before


class Desk:
    """`env` is what its processes get, `settings` what the client in this process gets beside the quick heartbeat."""

    def __init__(self, server: ValkeyServer, directory: Path, namespace: str, env: Mapping[str, str] | None = None, **settings: Any) -> None:
        self.server, self.directory, self.namespace, self._settings = server, directory, namespace, settings
        self.ledger = Ledger(directory / "ledger")
        self.env = {
            "CONDUCTOR_REDIS_URL": server.url(STATE_DB), "CONDUCTOR_NAMESPACE": namespace, "TEST_BROKER_URL": server.url(BROKER_DB),
            "TEST_LEDGER": str(self.ledger.directory), **QUICK, **(env or {}),
        }
        self.processes = Processes(directory, self.env, app=APP)
        self.worker, self.beat = self.processes.worker, self.processes.beat

    @property
    def conductor(self) -> Any:
        """The caller's side in this process. Bodies that run here write into the ledger of the desk that was used last."""
        os.environ["TEST_LEDGER"] = str(self.ledger.directory)
        return self._conductor

    @cached_property
    def _conductor(self) -> Any:
        from tests.acceptance import operations_app  # noqa: F401 - declares what is called

        app = Celery("client", broker=self.env["TEST_BROKER_URL"], set_as_current=False)
        quick = {"heartbeat_seconds": 0.5, "step_lease_seconds": 3.0}
        return Conductor(app, redis_url=self.server.url(STATE_DB), namespace=self.namespace, **{**quick, **self._settings})

    @property
    def engine(self) -> Any:
        return self.conductor.engine

    def caller(self, capability: str, params: Mapping[str, Any], session: str = "", env: Mapping[str, str] | None = None) -> Process:
        """A process of its own that calls the capability in itself."""
        arguments = ["-m", APP, capability, json.dumps(dict(params)), session]
        return self.processes.python(f"caller-{new_tag()}", arguments, env)

    # Operations.

    def ask(self, capability: str, params: Mapping[str, Any], **options: Any) -> str:
        """A call for a worker whose answer is not waited for; tells its id."""
        told = self.conductor.call(capability, dict(params), remote=True, timeout=0, **options)
        return str(told.operation_id)

    def op(self, operation_id: str) -> Any:
        return self.conductor.operation(operation_id)

    def state(self, operation_id: str) -> str:
        return str(self.op(operation_id).state)

    def ended(self, operation_id: str, state: str, timeout: float = WAIT) -> Any:
        """Wait until the operation has ended; it must have ended so."""
        eventually(lambda: self.state(operation_id) not in ("queued", "running"), timeout, every=0.05, what=lambda: self.told(operation_id))
        found = self.op(operation_id)
        assert found.state == state, self.told(operation_id)
        return found

    def queued_again(self, operation_id: str, attempts: int, timeout: float = WAIT) -> Any:
        """Wait until so many attempts have failed and the next is due some time; tells the record."""

        def waits() -> Any:
            found = self.op(operation_id)
            return found if found.queued and found.retry_at and found.attempt == attempts else None

        return eventually(waits, timeout, every=0.05, what=lambda: self.told(operation_id))

    def told(self, operation_id: str) -> str:
        """Everything about an operation, for a failing test."""
        events = [f"{event.kind}" for event in self.events(operation_id)]
        return f"{self.op(operation_id).to_json()} {events}\n{self.processes.logs()[-6000:]}"

    def events(self, operation_id: str) -> list[Event]:
        return list(read_events(self.engine.store, operation_id.partition(":")[0], 0))

    def kinds(self, operation_id: str) -> list[str]:
        return [event.kind for event in self.events(operation_id)]

    # Runs.

    def run(self, workflow: str, job: Mapping[str, Any], **options: Any) -> Any:
        return self.conductor.start(workflow, dict(job), **options)

    def run_is(self, run: Any, state: str, timeout: float = WAIT) -> None:
        eventually(lambda: run.status == state, timeout, every=0.05, what=lambda: f"{run} is {state}, but {run.status}: {self.kinds(run.id)}")

    def reason(self, run_id: str) -> str:
        return str(self._client.hget(self.keys.run(run_id), "wy") or "")

    # The ledger.

    def begun(self, tag: str) -> list[Line]:
        return [line for line in self.ledger.lines("begin") if line.key.startswith(f"{tag}:")]

    def facts(self, fact: str, tag: str) -> list[Line]:
        return [line for line in self.ledger.lines(fact) if line.key == tag or line.key.startswith(f"{tag}:")]

    def in_body(self, tag: str, number: int = 1, timeout: float = WAIT) -> Line:
        """Wait until the body of this tag has begun so often; tells its last beginning."""
        return eventually(
            lambda: self.begun(tag)[number - 1 : number], timeout, what=lambda: f"body {tag} begins #{number}\n{self.processes.logs()}")[0]

    def go(self, tag: str) -> None:
        """Let the bodies of this tag end."""
        self.ledger.effect(f"{tag}:go")

    def strike(self, line: Line) -> None:
        """SIGKILL the process that is in this body."""
        os.kill(line.pid, signal.SIGKILL)

    # Time.

    @property
    def _client(self) -> Any:
        return self.server.client()

    @property
    def keys(self) -> Keys:
        keys: Keys = self.engine.store.keys
        return keys

    def now(self) -> int:
        seconds, micros = self._client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def no_grace(self) -> None:
        """Before its first look into a partition the stall sweep waits 15 s; that time is over. Called when leases are held."""
        began, partitions = self.now(), range(self.engine.store.partitions)

        def unseen() -> list[int]:
            leased = [number for number in partitions if self._client.zcard(self.keys.of(number, "leases"))]
            return [number for number in leased if int(self._client.hget(self.keys.head(number), "look") or 0) < began]

        eventually(lambda: not unseen(), WAIT, what="the stall sweep looks where leases are held")
        for number in partitions:
            if self._client.hexists(self.keys.head(number), "calm"):
                self._client.hset(self.keys.head(number), "calm", 1)

    def due_at(self, operation_id: str, at: int, *, must: bool = True) -> None:
        """Move the time of the next attempt. Without `must` it may have begun meanwhile."""
        partition = int(operation_id[-2:], 16)
        moved = self._client.zadd(self.keys.of(partition, "due"), {f"retry:{operation_id}:0": at}, xx=True, ch=True)
        assert moved or not must, "no retry is due"
        self._client.zadd(self.keys.of(partition, "queued:retry"), {operation_id: at}, xx=True)

    def grow_old(self, operation_id: str, ms: int) -> None:
        """Everything that has happened to this operation happened so much earlier, and its next attempt was due then."""
        errors, partition = self.keys.run(operation_id, "err"), int(operation_id[-2:], 16)
        self.asked_earlier(operation_id, ms)
        for name, text in self._client.hgetall(errors).items():
            error = json.loads(text)
            self._client.hset(errors, name, json.dumps(error | {"at": error["at"] - ms}))
        due = self._client.zscore(self.keys.of(partition, "due"), f"retry:{operation_id}:0")
        if due is not None:
            self.due_at(operation_id, int(due) - ms)

    def asked_earlier(self, operation_id: str, ms: int) -> None:
        """It was asked for so much earlier, and everything else is as it is."""
        self._client.hincrby(self.keys.run(operation_id), "t", -ms)
        self._client.zincrby(self.keys.of(int(operation_id[-2:], 16), "ops"), -ms, operation_id)

    # What every test ends with.

    def sound(self) -> None:
        """Nothing runs for ever, the recount finds no difference, every key has its place in the catalogue, no log tells of surprises."""
        from conductor.runs.fsck import fsck

        wrong = [str(difference) for difference in fsck(self.engine)]
        assert not wrong, f"fsck: {wrong}"
        strangers = [key for key in self._client.scan_iter(f"conductor:{{{self.namespace}:*") if self.keys.kind_of(key) is None]
        assert not strangers, f"not in the catalogue: {strangers}"
        surprised = [
            f"{process.name}: {line}" for process in self.processes.started for line in process.text().splitlines()
            if any(word in line for word in _UNEXPECTED)
        ]
        assert not surprised, f"{surprised}\n{self.processes.logs()[-6000:]}"
