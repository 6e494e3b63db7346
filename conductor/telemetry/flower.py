"""Steps and runs as Celery task events, so that stock Flower shows them: a row per attempt and a row per run, linked by root and parent.

The code that runs steps only puts a small record into a queue in memory; one thread per process turns records into events and publishes
them in batches. If the broker is slow the oldest records are dropped: telemetry never slows a run. Events carry names, ids, times and the
first line of an error, never payloads.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from conductor.errors import redact

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Connection

    from conductor.runs.execute import StepEvent

__all__ = ["FlowerEvents", "RunLook", "attempt_uuid", "run_events", "step_events"]

_BATCH = 200
_KEPT = 10_000
_EVERY_SECONDS = 0.2
_LOOK_SECONDS = 2.0
_WATCHED = 2_000
_ENDED = ("completed", "failed", "cancelled")
_LONGEST_ERROR = 500
_OLDEST_SECONDS = 10.0  # Celery warns of drift at 16

logger = logging.getLogger(__name__)

Event = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class RunLook:
    """How a run stands: its state (empty if the store no longer has it), the reason, how long an ended one took, and when it began; of a
    child run also the first run above it and the one that called it."""

    state: str
    reason: str = ""
    seconds: float = 0.0
    began: float = 0.0
    root: str = ""
    parent: str = ""


def attempt_uuid(run_id: str, step: str, item: int | None = None, attempt: int = 1) -> str:
    """The id of an attempt's row: the same however often it is told."""
    name = step if item is None else f"{step}:{item}"
    return str(uuid.uuid5(uuid.UUID(run_id), name if attempt <= 1 else f"{name}:{attempt}"))


def step_events(event: StepEvent) -> Iterator[Event]:
    """The task events that tell one step event."""
    row = attempt_uuid(event.run_id, event.step, event.item, event.attempt)
    if event.kind == "started":
        item = "" if event.item is None else f"[{event.item}]"
        name, flow = (event.step, "") if _is_operation(event.workflow) else (f"{event.workflow}.{event.step}", f"{event.workflow} · ")
        yield "task-received", {
            "uuid": row, "name": name, "root_id": event.run_id, "parent_id": event.run_id,
            "retries": event.attempt - 1, "args": "", "kwargs": f"{flow}{event.step}{item} · attempt {event.attempt}",
            "eta": None, "expires": None,
        }
        yield "task-started", {"uuid": row}
    elif event.kind == "succeeded":
        yield "task-succeeded", {"uuid": row, "result": "", "runtime": (event.ran_ms or 0) / 1000}
    elif event.kind in ("failed", "retried"):
        yield f"task-{event.kind}", {"uuid": row, "exception": _first_line(event.error), "traceback": ""}
    else:
        yield f"task-{event.kind}", {"uuid": row}


def _is_operation(workflow: str) -> bool:
    """A stand-alone operation is one row under its capability's name; it has no run to show beside it."""
    return workflow.startswith("op:")


def run_events(run_id: str, workflow: str, look: RunLook, *, now: float = 0.0) -> Iterator[Event]:
    """The row of a run: `running`, `waiting_signal`, `paused`, or how it ended. It begins when the run did, so that it stands before its
    steps; but a run that waited long for a worker is told as of late, because Celery takes an old time for a clock that is wrong."""
    state = look.state
    if state == "running":
        began = max(look.began, now - _OLDEST_SECONDS) if look.began and now else look.began
        yield "task-received", {
            "uuid": run_id, "name": workflow, "root_id": look.root or run_id, "parent_id": look.parent or None, "retries": 0, "args": "",
            "kwargs": f"{workflow} · run",
            "eta": None, "expires": None, **({"timestamp": began} if began else {}),
        }
        yield "task-started", {"uuid": run_id, **({"timestamp": began} if began else {})}
    elif state == "completed":
        yield "task-succeeded", {"uuid": run_id, "result": "", "runtime": look.seconds}
    elif state == "failed":
        yield "task-failed", {"uuid": run_id, "exception": _first_line(look.reason), "traceback": ""}
    elif state == "cancelled":
        yield "task-revoked", {"uuid": run_id, "terminated": False, "signum": None, "expired": False}
    else:
        yield f"task-{'waiting' if state == 'waiting_signal' else state}", {"uuid": run_id}


def _first_line(error: Any) -> str:
    return redact(str(error or "").strip().split("\n", 1)[0][:_LONGEST_ERROR])


class FlowerEvents:
    """The sender of one process. `wanted` is asked for every event: task events may be switched on and off while a worker runs.

    Steps are told as they happen. Runs are told by looking: of the runs that this process had steps of, those not yet ended are looked up
    every now and then, and a state that changed is an event. So a cancel from elsewhere is seen too.
    """

    def __init__(
        self, app: Celery, hostname: str, *, wanted: Callable[[], bool], connect: Callable[[], Connection],
        look: Callable[[list[str]], dict[str, RunLook]],
    ) -> None:
        self._app, self._hostname, self._wanted, self._connect, self._look = app, hostname, wanted, connect, look
        self._waiting: deque[Event] = deque(maxlen=_KEPT)
        self._watched: OrderedDict[str, tuple[str, str]] = OrderedDict()  # run → workflow, state last told; the sending thread's own
        self._met: deque[tuple[str, str]] = deque(maxlen=_WATCHED)
        self._awake = threading.Event()
        self._thread: threading.Thread | None = None
        self._dispatcher: Any = None
        self._starting = threading.Lock()

    def step(self, event: StepEvent) -> None:
        if not self._wanted():
            return
        now = time.time()
        if not _is_operation(event.workflow):
            self._met.append((event.run_id, event.workflow))
        self._waiting.extend((kind, {**fields, "timestamp": now}) for kind, fields in step_events(event))
        if self._thread is None:
            self._begin()
        self._awake.set()

    def _begin(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="conductor-events", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            self._awake.wait(_LOOK_SECONDS if self._watched else None)
            self._awake.clear()
            time.sleep(_EVERY_SECONDS)  # let a batch gather
            self.flush()

    def flush(self) -> None:
        """Publish what is waiting. An unreachable broker or store costs these events and nothing else."""
        try:
            self._tell_runs()
            while self._waiting:
                self._publish([self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))])
        except Exception as error:
            logger.debug("task events were dropped: %s", redact(f"{type(error).__name__}: {error}"))
            self._waiting.clear()
            self._dispatcher = None

    def _tell_runs(self) -> None:
        while self._met:
            run_id, workflow = self._met.popleft()
            if run_id not in self._watched:
                self._watched[run_id] = (workflow, "")
        while len(self._watched) > _WATCHED:
            self._watched.popitem(last=False)
        for run_id, seen in self._look(list(self._watched)).items() if self._watched else ():
            workflow, told = self._watched[run_id]
            if not told:  # a row begins with its name, however the run stands by now
                self._waiting.extend(run_events(run_id, workflow, replace(seen, state="running"), now=time.time()))
            if seen.state and seen.state != (told or "running"):
                self._waiting.extend(run_events(run_id, workflow, seen))
            self._watched[run_id] = (workflow, seen.state)
            if seen.state in _ENDED or not seen.state:
                del self._watched[run_id]

    def _publish(self, events: list[Event]) -> None:
        if self._dispatcher is None:
            self._dispatcher = self._app.events.Dispatcher(
                self._connect(), hostname=self._hostname, enabled=True, buffer_while_offline=False, buffer_group=["task"],
                buffer_limit=_BATCH + 1,
            )
        for kind, fields in events:
            self._dispatcher.send(kind, **fields)
        self._dispatcher.flush()
