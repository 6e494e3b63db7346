"""A worker that lives but hears nothing restarts itself.

After a broken connection a Celery worker sometimes stays up, answers the supervisor and consumes no message. So the parent sends
itself a small message every `watchdog_seconds` over a private queue. The queue hangs on the worker's own task consumer, the same
channel that brings pokes: a second channel would have its own connection and hear well while the first is deaf. The message is noted
in the parent when it arrives and never enters the pool.

Deaf means: none came for `watchdog_deaf_seconds`, although the broker answered an independent connection all that time and the pool
had a free slot all that time (a full worker stops reading on purpose). An outage of the broker and a busy pool therefore never count.

Restarting: claims stop, running steps get the worker's soft shutdown time, then Celery's own warm shutdown is asked for with `exec` of
the same command line at its end. If the main thread does not even react to that (it hangs in a socket), this thread ends the pool and
executes the command itself. `exec` keeps the process id, so it works the same in a container (process 1 stays), under systemd or
supervisord, and in a bare shell where nobody would start the worker again after an exit.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Celery, bootsteps
from celery.worker import state as worker_state
from kombu import Exchange, Producer, Queue

from conductor.broker import shutdown
from conductor.broker.pokes import open_connection
from conductor.errors import redact

__all__ = ["PULSE", "Ears", "Watchdog", "WatchdogQueue", "note_pulse", "private_queue"]

PULSE = "conductor.pulse"
_HANG_SECONDS = 10.0

logger = logging.getLogger(__name__)


def private_queue(name: str) -> Queue:
    """A queue of this process alone. On the nameless exchange it leaves no binding behind, and it expires when nobody uses it."""
    return Queue(name, Exchange(""), name, auto_delete=True, expires=3600.0)


@dataclass
class Ears:
    """What the watchdog knows of its worker, in seconds of the monotonic clock. Pure: `deaf_for` decides, nothing else."""

    heard_at: float
    broker_since: float | None = None  # the broker has answered every question since then
    free_since: float | None = None  # the pool has had a free slot at every look since then

    def look(self, now: float, *, broker_answers: bool, saturated: bool) -> None:
        self.broker_since = None if not broker_answers else self.broker_since if self.broker_since is not None else now
        self.free_since = None if saturated else self.free_since if self.free_since is not None else now

    def deaf_for(self, now: float) -> float:
        """How long it should have heard something and did not."""
        if self.broker_since is None or self.free_since is None:
            return 0.0
        return max(0.0, now - max(self.heard_at, self.broker_since, self.free_since))


def note_pulse(task: Any, app: Celery, consumer: Any, **_options: Any) -> Callable[..., Any]:
    """The strategy of `conductor.pulse`: the message is noted where it arrives and goes no further."""

    def handle(message: Any, *_rest: Any, **_more: Any) -> None:
        dog = getattr(consumer.controller, "conductor_watchdog", None)
        message.ack_log_error(logger, consumer.connection_errors)
        if dog is not None:
            dog.heard()

    return handle


class WatchdogQueue(bootsteps.StartStopStep):
    """Hangs the private queue on the task consumer each time the worker has (again) a connection."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, parent: Any) -> None:
        dog = getattr(parent.controller, "conductor_watchdog", None)
        if dog is not None:
            parent.task_consumer.add_queue(dog.queue)

    def stop(self, parent: Any) -> None:
        """The consumer itself ends with its connection."""


class Watchdog:
    """One thread of the worker's parent process."""

    def __init__(self, worker: Any, *, every: float, deaf_after: float, liveness_file: Path | None, may_restart: bool) -> None:
        self._worker = worker
        self._every = every
        self._deaf_after = deaf_after
        self._file = liveness_file
        self._may_restart = may_restart
        self._ears = Ears(heard_at=time.monotonic())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="conductor-watchdog", daemon=True)
        self._connection: Any = None
        self._said = False
        self.queue = private_queue(f"conductor.pulse.{uuid.uuid4().hex}")

    def start(self) -> None:
        self._ears.heard_at = time.monotonic()
        self._touch()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def heard(self) -> None:
        """A message came in: the worker hears."""
        self._ears.heard_at = time.monotonic()
        self._said = False

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            try:
                self._round()
            except Exception:
                logger.exception("the watchdog met an unexpected error; it goes on")

    def _round(self) -> None:
        saturated = self.saturated()
        answers = self._ask(send=not saturated)
        self._ears.look(time.monotonic(), broker_answers=answers, saturated=saturated)
        deaf_for = self._ears.deaf_for(time.monotonic())
        if deaf_for < self._deaf_after:
            self._touch()
        elif not self._may_restart:
            self._say_once(deaf_for)
        else:
            logger.critical(
                "this worker has heard nothing for %.0f s although the broker answers and the pool has room; it restarts itself", deaf_for
            )
            self._restart()

    def _ask(self, send: bool) -> bool:
        """Whether the broker answers a connection of our own; with `send` also give it a pulse for our worker."""
        try:
            if self._connection is None:
                self._connection = open_connection(self._worker.app)
            channel = self._connection.default_channel
            self.queue(channel).declare()  # asks for an answer, which a bare publish does not on every transport
            if send:  # a full worker would not read it, and pulses would pile up
                self._send(channel)
            return True
        except Exception as error:
            logger.debug("the broker did not answer the watchdog: %s", redact(f"{type(error).__name__}: {error}"))
            self._close()
            return False

    def _send(self, channel: Any) -> None:
        task_id = str(uuid.uuid4())
        Producer(channel, auto_declare=False).publish(
            [[], {}, {}], serializer="json", exchange="", routing_key=self.queue.name, delivery_mode=1, correlation_id=task_id,
            headers={"lang": "py", "task": PULSE, "id": task_id, "root_id": task_id, "argsrepr": "()", "kwargsrepr": "{}", "retries": 0},
        )

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.collect(socket_timeout=1.0)
            except Exception:
                logger.debug("the watchdog's connection could not be closed", exc_info=True)

    def saturated(self) -> bool:
        """All slots taken: the worker then stops reading, so silence says nothing."""
        pool = self._worker.pool
        slots = getattr(pool, "num_processes", None) or 1
        return len(worker_state.reserved_requests) >= slots

    def _touch(self) -> None:
        if self._file is None:
            return
        try:
            self._file.touch()
        except OSError as error:
            logger.warning("the liveness file %s cannot be touched: %s", self._file, error.strerror)

    def _say_once(self, deaf_for: float) -> None:
        if not self._said:
            self._said = True
            logger.critical("this worker has heard nothing for %.0f s; it runs inside another program and cannot restart itself", deaf_for)

    def _restart(self) -> None:
        """First the polite way, then the other."""
        shutdown.begin()
        grace = float(self._worker.app.conf.worker_soft_shutdown_timeout or 0) + _HANG_SECONDS
        _wait(lambda: not worker_state.active_requests, grace)
        atexit.register(_execute_again)
        worker_state.should_stop = 0  # type: ignore[assignment]
        _wait(lambda: False, _HANG_SECONDS)
        logger.critical("the worker's main thread does not react; its pool is ended and the command is executed again")
        self._end_pool()
        _execute_again()

    def _end_pool(self) -> None:
        for process in list(getattr(getattr(self._worker.pool, "_pool", None), "_pool", None) or ()):
            try:
                os.kill(process.pid, signal.SIGKILL)
            except (OSError, AttributeError):
                continue


def _wait(done: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not done() and time.monotonic() < until:
        time.sleep(0.1)


def _execute_again() -> None:
    """Become the same command again. `orig_argv` keeps `-m celery`, which `argv` has lost."""
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            stream.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
