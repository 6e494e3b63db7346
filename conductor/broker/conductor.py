"""`Conductor(app)`: the one line that gives a Celery app durable runs, and whose deletion takes them out again.

It adds tasks under names of our own, beat entries of our own, and two bootsteps. It changes no setting of the app. Nothing is
connected and no setting is judged before it is needed: importing a module must not fail because a server is away. Each process builds
its own engine, also a pool child after fork, so that no connection, lock or number is shared between two processes.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from billiard import current_process
from celery import Celery, signals

from conductor.broker import shutdown
from conductor.broker.answering import Answering
from conductor.broker.discovery import module_beside, own_packages
from conductor.broker.operating import Operating
from conductor.broker.pokes import Pokes, open_connection
from conductor.broker.schedule import beat_entries
from conductor.broker.serving import Serving
from conductor.broker.tasks import register_tasks
from conductor.broker.watchdog import WatchdogQueue
from conductor.broker.worker import WorkerStep
from conductor.codec import BLOB_LIMIT
from conductor.declare import registry
from conductor.declare.starting import StartOptions, start_options
from conductor.declare.workflow import Workflow
from conductor.embedded import EmbeddedServer
from conductor.errors import DeclarationError, SettingsError, UnknownRun, UnknownWorkflow
from conductor.ids import is_run_id
from conductor.locations import EMBEDDED
from conductor.settings import Settings
from conductor.telemetry.flower import FlowerEvents, RunLook
from conductor.telemetry.lines import LOGGED, log_step
from conductor.telemetry.signals import announce, anyone_listens
from conductor.wiring import Engine, build_engine

if TYPE_CHECKING:
    from conductor.runs.execute import Drainer, StepEvent
    from conductor.runs.handle import Handle

__all__ = ["Conductor"]

logger = logging.getLogger(__name__)


class Conductor(Operating, Answering, Serving):
    """Durable runs on a Celery app. `settings` are those of `conductor.settings`, without prefix: `Conductor(app, namespace="shop")`.

    `autodiscover=True` looks for `workflows.py` in the package that holds the app, beside the modules of `include=` and `imports`, and in
    Django's apps; a list of packages looks there and nowhere else.
    """

    def __init__(self, app: Celery, *, autodiscover: bool | Iterable[str] = True, **settings: Any) -> None:
        if getattr(app, "conductor", None) is not None:
            raise SettingsError(setting="Conductor(app)", problem=f"the app {app.main!r} already has one; keep one of the two lines")
        self.app = app
        self._given = settings
        self._url = ""
        self._settings: Settings | None = None
        self._engines: dict[int, Engine] = {}
        self._flowers: dict[int, FlowerEvents] = {}
        self._pokes: Pokes | None = None
        self._threads = threading.local()
        self._home = sys._getframe(1).f_globals  # of the module with the line `Conductor(app)`
        app.conductor = self  # type: ignore[attr-defined]
        self._join(autodiscover)

    def _join(self, autodiscover: bool | Iterable[str]) -> None:
        app = self.app
        registry.bind(self)
        register_tasks(self)
        app.steps["worker"].add(WorkerStep)
        app.steps["consumer"].add(WatchdogQueue)
        signals.worker_shutting_down.connect(shutdown.begin, weak=False, dispatch_uid="conductor.shutdown")
        if autodiscover is True:
            self.autodiscover_workflows()  # Django's apps
            self.autodiscover_workflows(lambda: own_packages(app, self._home))
            self.autodiscover_workflows(lambda: module_beside(self._home, "workflows"), related_name="")
        elif autodiscover:
            self.autodiscover_workflows(list(autodiscover))
        if app.finalized:  # type: ignore[attr-defined]
            self._add_beat_entries()
        else:
            app.on_after_finalize.connect(self._add_beat_entries, weak=False)

    def _add_beat_entries(self, **_signal: Any) -> None:
        """Our own names only, and none that is already there. Wrong settings are told by whoever needs them, not by every import."""
        try:
            entries = beat_entries(self.settings)
        except SettingsError:
            return
        conf = self.app.conf
        known = conf.beat_schedule or {}
        missing = {name: entry for name, entry in entries.items() if name not in known}
        if missing:
            conf.beat_schedule = {**known, **missing}
        if not conf.task_create_missing_queues and self.settings.sweeps_queue not in self.app.amqp.queues:
            # Known for sending only; which queues a worker consumes is decided when it starts.
            self.app.amqp.queues.add(self.app.amqp.queues.new_missing(self.settings.sweeps_queue))

    def autodiscover_workflows(self, packages: list[str] | Callable[[], list[str]] | None = None, related_name: str = "workflows") -> None:
        """Import `<package>.workflows` when the app imports its modules, exactly as `autodiscover_tasks` does for tasks."""
        self.app.autodiscover_tasks(packages, related_name=related_name)

    # What is built when it is needed.

    @property
    def settings(self) -> Settings:
        """All settings with their sources; judged at the first use."""
        if self._settings is None:
            conf = self.app.conf
            given = dict(self._given)
            loaded = Settings.load(conf, app_name=self.app.main, **given)
            limit = conf.task_soft_time_limit or conf.task_time_limit
            if loaded.default_step_timeout is None and limit:
                loaded = Settings.load(conf, app_name=self.app.main, **{**given, "default_step_timeout": float(limit)})
            self._settings = loaded
        return self._settings

    @property
    def engine(self) -> Engine:
        """What the use cases need, for this process. Nothing is connected by building it."""
        engine = self._engines.get(os.getpid())
        return engine or self._engines.setdefault(os.getpid(), self._build())

    @property
    def payload_limit(self) -> int:
        """How large an input may be: known without building anything, because input is judged first."""
        limit = self.settings.max_payload_bytes
        return max(limit, BLOB_LIMIT) if self.settings.blobs else limit

    def _build(self) -> Engine:
        return build_engine(
            self.settings, url=self._state_url(), workflows=registry.declared, poke=self.pokes,
            default_queue=self.app.conf.task_default_queue, capabilities=registry.capabilities,
        )

    def _state_url(self) -> str:
        """Found once and kept over fork: a pool child must not start, or announce, an embedded server of its own."""
        if not self._url:
            broker = self.app.conf.broker_url
            url = self.settings.state_url(broker if isinstance(broker, str) else ";".join(broker or ()), ready_made=False)
            self._url = EmbeddedServer(self.settings.embedded_directory).start().url if url == EMBEDDED else url
        return self._url

    @property
    def pokes(self) -> Pokes:
        """The publisher; it keeps a connection per thread and process."""
        if self._pokes is None:
            self._pokes = Pokes(self.app, self.settings.namespace)
        return self._pokes

    def drainer(self, worker_name: str) -> Drainer:
        """The drainer of this thread of this process."""
        held: tuple[int, Drainer] | None = getattr(self._threads, "drainer", None)
        if held is None or held[0] != os.getpid():
            held = self._threads.drainer = (os.getpid(), self._new_drainer(worker_name))
        return held[1]

    def _new_drainer(self, worker_name: str) -> Drainer:
        from conductor.runs.execute import Drainer

        soft = float(self.app.conf.worker_soft_shutdown_timeout or 0)
        flower = self._flower(worker_name)

        def tell(event: StepEvent) -> None:
            flower.step(event)
            log_step(event)
            announce(
                f"step_{event.kind}", event.workflow, run_id=event.run_id, step=event.step, item=event.item, attempt=event.attempt,
                ran_ms=event.ran_ms, error=event.error,
            )

        def hears(kind: str) -> bool:
            return kind in LOGGED or shutdown.events_wanted() or anyone_listens(f"step_{kind}")

        self._examine_needs()
        # Without a soft shutdown time Celery waits for what runs, however long, and so do we: the lease is kept meanwhile.
        return Drainer(
            self.engine, worker_name=worker_name, stopping=shutdown.stopping, on_step=tell, hears=hears,
            overdue=lambda: 0 < soft <= shutdown.stopping_for(), leave_when_over=current_process().name != "MainProcess",
        )

    def _examine_needs(self) -> None:
        """Probe what this worker's capabilities need. A need that nobody has declared is told, and never keeps the others from running."""
        for name, found in self.engine.capabilities.items():
            try:
                if found.options.needs:
                    self.engine.needs.examine({name: found.options.needs})
            except DeclarationError as error:
                logger.error("%s", error)

    def _flower(self, worker_name: str) -> FlowerEvents:
        known = self._flowers.get(os.getpid())
        if known is None:
            made = FlowerEvents(
                self.app, worker_name, wanted=shutdown.events_wanted, connect=lambda: open_connection(self.app), look=self._states_of
            )
            known = self._flowers.setdefault(os.getpid(), made)
        return known

    def _states_of(self, runs: list[str]) -> dict[str, RunLook]:
        """How several runs stand, in one round trip."""
        store = self.engine.store
        pipe = store.client().pipeline(transaction=False)
        for run_id in runs:
            pipe.hmget(store.keys.run(run_id), ["st", "wy", "t", "e", "rt", "up"])
        return {
            run_id: RunLook(
                state or "", reason or "", max(0, int(ended or 0) - int(began or 0)) / 1000, int(began or 0) / 1000, root or "",
                (above or "").partition(";")[0])
            for run_id, (state, reason, began, ended, root, above) in zip(runs, pipe.execute(), strict=True)
        }

    # What callers do.

    def start(
        self, flow: Workflow[Any] | str, input: Any = None, *, payload: str | None = None, options: StartOptions | None = None, **more: Any,
    ) -> Handle:
        """Start a run: `conductor.start("order", {"id": 42}, key="order-42")`. `payload` and `options` are what a workflow has checked."""
        from conductor.runs.start import start

        known = self.workflow(flow) if isinstance(flow, str) else flow
        text = known.encode_input(input, limit=self.payload_limit) if payload is None else payload
        accepted = start(self.engine, known, payload=text, options=options or start_options(known.name, **more))
        return self.run(accepted.run_id, notice=accepted.notice)

    def workflow(self, name: str) -> Workflow[Any]:
        """A declared workflow by name; what the app would import at a worker's start is imported before it is called unknown."""
        if name not in registry.declared:
            self.app.loader.import_default_modules()
        try:
            return registry.declared[name]
        except KeyError:
            raise UnknownWorkflow(workflow=name, known=", ".join(sorted(registry.declared)) or "none") from None

    def _import_modules(self, wanted: str) -> None:
        """What the app would import at a worker's start, unless it has declared what is wanted."""
        if wanted not in registry.capabilities:
            self.app.loader.import_default_modules()

    def run(self, run_id: str, *, notice: str = "") -> Handle:
        """The handle of a run, whoever started it. It looks into the store only when asked something."""
        from conductor.runs.handle import Handle

        self._check_id(run_id)
        return Handle(self.engine, run_id, notice=notice)

    def cancel(
        self, run_id: str, *, reason: str = "", actor: str = "", terminate: bool = False, compensate: bool = False,
    ) -> dict[str, Any]:
        """Cancel a run; with `compensate` undo first what it had done. Cancelling again, or one that has ended, changes nothing and says
        so."""
        from conductor.runs.cancelling import cancel

        self._check_id(run_id)
        told = cancel(self.engine, run_id, reason=reason, actor=actor, terminate=terminate, compensate=compensate)
        self._known(told.word, run_id)
        return {"run_id": run_id, "word": told.word, "state": told.state, "reason": told.reason, "at": told.at}

    def pause(self, run_id: str, *, reason: str = "", actor: str = "") -> dict[str, Any]:
        """Stop claims of a run; running attempts may commit."""
        from conductor.runs.pausing import pause_run

        self._check_id(run_id)
        told = pause_run(self.engine, run_id, reason=reason, actor=actor)
        self._known(told.word, run_id)
        return {"run_id": run_id, "word": told.word, "state": told.state}

    def resume(self, run_id: str, *, actor: str = "") -> dict[str, Any]:
        """Let a paused run go on; one that a failed step has paused gets fresh budgets for what failed."""
        from conductor.runs.pausing import resume_run

        self._check_id(run_id)
        told = resume_run(self.engine, run_id, actor=actor)
        self._known(told.word, run_id)
        return {"run_id": run_id, "word": told.word, "state": told.state}

    def retry(self, run_id: str, *, actor: str = "") -> dict[str, Any]:
        """Open a new generation of a failed run."""
        from conductor.runs.retry import retry_run

        self._check_id(run_id)
        told = retry_run(self.engine, run_id, actor=actor)
        return {"run_id": run_id, "word": told.word, "state": told.state}

    def _check_id(self, run_id: str) -> None:
        """The id names its partition, so one of wrong form would look into a partition that does not exist."""
        if not isinstance(run_id, str) or not is_run_id(run_id) or int(run_id[-2:], 16) >= self.settings.partitions:
            raise UnknownRun(run_id=run_id, namespace=self.settings.namespace)

    def _known(self, word: str, run_id: str) -> None:
        if word == "UNKNOWN":
            raise UnknownRun(run_id=run_id, namespace=self.settings.namespace)
