"""What a worker of an app with a Conductor does beside running tasks: all of it in its parent process.

At start it says in one line where the state is and how durable, refuses a server or pool that would break the promise, consumes the sweeps'
queue whatever `-Q` names (a sweep runs no user code, and without a consumer beat's sweeps would pile up), and starts timer and watchdog.
No setting of the app is changed: the queue is added to what this one worker consumes, as `add_consumer` would do.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from celery import bootsteps
from celery.apps.worker import Worker

from conductor.broker import shutdown
from conductor.broker.quiet import hush_sweeps
from conductor.broker.reclaiming import Reclaiming
from conductor.broker.timer import Timer
from conductor.broker.watchdog import Watchdog
from conductor.errors import ConductorError, SettingsError
from conductor.runs.recover import recover_at_start
from conductor.sweeps.overdue import run_slow

if TYPE_CHECKING:
    from conductor.broker.conductor import Conductor

__all__ = ["WorkerStep"]

_GREEN = ("gevent", "eventlet")
_OURS = "conductor."  # capabilities that come along
_NOTHING_TO_RUN = (
    ": every step that comes here is set aside for a worker that has its code; put workflows into a module workflows.py beside the app, "
    'or name their packages: Conductor(app, autodiscover=["shop.orders"])'
)

logger = logging.getLogger(__name__)


class WorkerStep(bootsteps.StartStopStep):
    """Starts after the pool, so that no thread of ours exists when the first children are forked."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._timer: Timer | None = None
        self._archivist: Timer | None = None
        self._watchdog: Watchdog | None = None
        self._is_program = isinstance(parent, Worker)

    def create(self, parent: Any) -> None:
        """Before anything runs: refuse what is unsafe, announce what is not."""
        shutdown.reset()
        hush_sweeps()
        shutdown.set_events_wanted(bool(parent.task_events))
        conductor: Conductor = parent.app.conductor
        try:
            refuse_green(parent.pool_cls)
            announce(conductor)
        except ConductorError as error:
            if not self._is_program:
                raise
            logger.critical("this worker does not start: %s", error)
            raise SystemExit(f"conductor: {error}") from None
        consume_sweeps(parent.app, conductor.settings.sweeps_queue)
        settings = conductor.settings
        self._watchdog = parent.conductor_watchdog = Watchdog(
            parent, every=settings.watchdog_seconds, deaf_after=settings.watchdog_deaf_seconds, liveness_file=settings.liveness_file,
            may_restart=self._is_program,
        )
        reclaiming = Reclaiming(parent, conductor, self._watchdog)

        def each_round() -> None:
            tell_children(parent)
            reclaiming.look()

        self._timer = Timer(lambda: conductor.engine, settings.due_sweep_seconds, each_round)
        if settings.archive_url:
            every = min(settings.parked_sweep_seconds, settings.checkpoint_seconds, settings.archive_sweep_seconds)
            self._archivist = Timer(lambda: conductor.engine, every, lambda: None, run_slow, "archivist")

    def start(self, parent: Any) -> None:
        if self._is_program:
            shutdown.stand_before_signals()
        if self._timer and self._watchdog:
            self._timer.start()
            self._watchdog.start()
            engine = parent.app.conductor.engine
            threading.Thread(target=recover_at_start, args=(engine,), name="conductor-recovery", daemon=True).start()
            if self._archivist:
                self._archivist.start()

    def close(self, parent: Any) -> None:
        """Told to stop, by whatever way: a signal, remote control, an error. Children must not claim from here on."""
        shutdown.begin()

    def stop(self, parent: Any) -> None:
        shutdown.begin()
        if self._watchdog:
            self._watchdog.stop()
        for timer in (self._timer, self._archivist):
            if timer:
                timer.stop()

    terminate = stop


def refuse_green(pool: Any) -> None:
    """Green pools share one thread: a step that computes would stop every heartbeat of its process and lose its lease."""
    name = pool if isinstance(pool, str) else getattr(pool, "__module__", "")
    for green in _GREEN:
        if green in str(name):
            raise SettingsError(
                setting=f"--pool {green}",
                problem=f"{green} runs heartbeats and steps in one thread, so a busy step loses its lease; use prefork, threads or solo",
            )


def announce(conductor: Conductor) -> None:
    """Check the server and say where the state is. A server that is away is no reason not to start: work begins when it is back."""
    from conductor.runs.doctor import examine, found_durability, refuse_unsafe
    from conductor.runs.read import counted

    settings, store = conductor.settings, conductor.engine.store
    checks = examine(store.client(), settings)
    if [check.name for check in checks if check.status == "failed"] == ["reachability"]:
        logger.warning(
            "conductor: the store %s cannot be reached yet: %s; this worker waits for it; %s", store.url, checks[0].found, checks[0].remedy,
        )
        return
    refuse_unsafe(checks, settings, url=store.url)
    workflows, capabilities = conductor.engine.workflows, conductor.engine.capabilities
    runs_something = workflows or any(not name.startswith(_OURS) for name in capabilities)
    level, more = (logging.INFO, "") if runs_something else (logging.WARNING, _NOTHING_TO_RUN)
    logger.log(
        level, "conductor: namespace %s, state in %s, durability %s, %s, %s%s", settings.namespace, store.url,
        found_durability(store.client(), settings) or "unknown", counted(store.partitions, "partition"),
        counted(len(workflows), "workflow"), more,
    )


def consume_sweeps(app: Any, name: str) -> None:
    """Let this worker consume the sweeps' queue too."""
    queues = app.amqp.queues
    queues.select_add(queues[name] if name in queues else queues.new_missing(name))


def tell_children(parent: Any) -> None:
    """Remote control may switch task events on and off while the worker runs; children read it from the shared page."""
    dispatcher = getattr(getattr(parent, "consumer", None), "event_dispatcher", None)
    if dispatcher is not None:
        shutdown.set_events_wanted(bool(dispatcher.enabled and (not dispatcher.groups or "task" in dispatcher.groups)))
