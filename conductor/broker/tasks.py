"""Our Celery tasks, under stable names. Each is made for one app only and carries its own options, so that no global setting has to
change.

`conductor.execute` answers a poke: it drains one queue of one partition for a short while. It is acknowledged before it runs (a poke
that is redelivered an hour later helps nobody), keeps no result, sends no task event (the steps it runs send theirs), and has time and
rate limits so wide that none of the project's global ones can end or delay a drain: Celery reads 0 and None as "use the global one".
Commands such as `conductor.cancel_run` are acknowledged late and may be delivered twice, which their own ids make harmless. Sweeps
have a queue of their own.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery import Celery, Task

from conductor.broker.pokes import EXECUTE
from conductor.broker.refusal import checked_arguments, checked_poke
from conductor.broker.watchdog import PULSE
from conductor.errors import BadInput, ConductorError, StoreUnreachable
from conductor.sweeps.overdue import SWEEPS

if TYPE_CHECKING:
    from conductor.broker.conductor import Conductor

__all__ = ["COMMANDS", "SWEEP_TASKS", "ConductorTask", "register_tasks"]

TEN_YEARS = 315_360_000
_COMPLAIN_SECONDS = 60.0
_PINNED = (
    "acks_late", "ignore_result", "rate_limit", "reject_on_worker_lost", "send_events", "serializer", "soft_time_limit", "time_limit",
    "track_started", "store_errors_even_if_ignored", "retry_on_worker_lost",
)

logger = logging.getLogger(__name__)


class ConductorTask(Task):  # type: ignore[type-arg]
    """What all of ours have in common. `task_annotations` for `*` may add to them, but not take these options away."""

    abstract = True
    Strategy = "conductor.broker.refusal:json_only"
    serializer = "json"
    time_limit = TEN_YEARS
    soft_time_limit = TEN_YEARS
    rate_limit: Any = 0  # None would mean the global default
    track_started = False
    store_errors_even_if_ignored = False
    retry_on_worker_lost = False
    reject_on_worker_lost = False
    acks_late = False
    ignore_result = True
    send_events = False
    max_retries = 0
    throws = (ConductorError,)
    typing = False  # we check arguments ourselves, where the message arrives

    @classmethod
    def annotate(cls) -> None:
        pinned = {name: getattr(cls, name) for name in _PINNED}
        super().annotate()
        for name, value in pinned.items():
            setattr(cls, name, value)


_LATE = {"acks_late": True, "reject_on_worker_lost": True, "ignore_result": False, "send_events": True}


def register_tasks(conductor: Conductor) -> None:
    """Add our tasks to the conductor's app, and to no other."""
    app = conductor.app
    _add(app, EXECUTE, _execute(conductor))
    for name, command in COMMANDS.items():
        _add(app, name, _command(conductor, name, command), **_LATE)
    for name, sweep in SWEEP_TASKS.items():
        _add(app, name, _sweep_task(conductor, name, sweep))
    _add(app, PULSE, _pulse, Strategy="conductor.broker.watchdog:note_pulse")


def _add(app: Celery, name: str, function: Callable[..., Any], **options: Any) -> None:
    make: Any = app.task(name=name, base=ConductorTask, bind=True, shared=False, **options)
    make(function)


def _pulse(task: Any, *args: Any, **kwargs: Any) -> None:
    """A worker's message to itself. It is noted where it arrives and never comes here."""


def _execute(conductor: Conductor) -> Callable[..., None]:
    complained_at = -_COMPLAIN_SECONDS

    def execute(task: Any, *args: Any, **kwargs: Any) -> None:
        """Drain one queue of one partition for a while: (namespace, partition, queue)."""
        nonlocal complained_at
        try:
            settings = conductor.settings
            partition, queue = checked_poke(args, kwargs, settings.namespace, conductor.engine.store.partitions)
            conductor.drainer(task.request.hostname or "").drain(partition, queue)
        except BadInput as refused:
            logger.warning("%s", refused)
        except StoreUnreachable as error:
            # Every poke would say so; the work stands in the store and is poked again when it is back.
            if time.monotonic() - complained_at >= _COMPLAIN_SECONDS:
                complained_at = time.monotonic()
                logger.warning("a drain ended early: %s", error)
        except Exception:
            logger.exception("a drain of %r ended with an unexpected error; what it had claimed is taken back when its lease ends", args)

    return execute


def _command(conductor: Conductor, name: str, command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def run(task: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            bound = checked_arguments(name, command, args, kwargs)
            bound.arguments[next(iter(bound.signature.parameters))] = _Call(conductor, task.request.id)
            return command(*bound.args, **bound.kwargs)
        except ConductorError as error:
            logger.warning("%s refused: %s", name, error)
            # A result backend keeps only `args`, so the sentence must be one of them to reach the caller.
            raise type(error)(str(error)) from None

    del run.__wrapped__  # Celery would take the signature of the wrapped one
    return run


def _sweep_task(conductor: Conductor, name: str, sweep: str) -> Callable[..., Any]:
    def run(task: Any, *args: Any, **kwargs: Any) -> Any:
        takes = {"dry_run", *_MORE.get(sweep, ())}
        if args or set(kwargs) - takes or type(kwargs.get("dry_run", False)) is not bool:
            logger.warning("%s refused: it takes %s by name, and dry_run is true or false", name, " and ".join(sorted(takes)))
            return None
        try:
            return SWEEPS[sweep](conductor.engine, **kwargs).to_json()
        except ConductorError as error:
            logger.warning("sweep %s did not run: %s", sweep, error)
        except Exception:
            logger.exception("sweep %s ended with an unexpected error; the next one goes on", sweep)
        return None

    run.__doc__ = SWEEPS[sweep].__doc__
    return run


class _Call:
    """What a command knows of its message: whose it is and which id it has."""

    def __init__(self, conductor: Conductor, message_id: str | None) -> None:
        self.conductor = conductor
        self.message_id = message_id or ""


def start_run(call: _Call, workflow: str, input: Any = None, **options: Any) -> dict[str, Any]:
    """Start a run by its workflow's name. Without a key the message's id serves as one: a redelivered message starts nothing twice."""
    if call.message_id:
        options.setdefault("key", f"message:{call.message_id}")
    handle = call.conductor.start(workflow, input, **options)
    return {"run_id": handle.id}


def cancel_run(
    call: _Call, run_id: str, reason: str = "", actor: str = "", terminate: bool = False, compensate: bool = False,
) -> dict[str, Any]:
    """Cancel a run; with `compensate` undo first what it had done."""
    return call.conductor.cancel(run_id, reason=reason, actor=actor, terminate=terminate, compensate=compensate)


def pause_run(call: _Call, run_id: str, reason: str = "", actor: str = "") -> dict[str, Any]:
    """Stop claims of a run; running attempts may commit."""
    return call.conductor.pause(run_id, reason=reason, actor=actor)


def resume_run(call: _Call, run_id: str, actor: str = "") -> dict[str, Any]:
    """Let a paused run go on."""
    return call.conductor.resume(run_id, actor=actor)


def signal_run(
    call: _Call, run: str, signal: str, value: Any = None, key: str | None = None, id: str = "",
) -> dict[str, Any]:
    """Send a signal to a run, or with a key to a workflow's run. Without an id the message's own serves: delivered twice
    it is one signal."""
    return call.conductor.signal(run, signal, value, key=key, id=id or call.message_id)


def advance_run(call: _Call, run: str, step: str, result: Any = None, key: str | None = None, actor: str = "") -> dict[str, Any]:
    """Answer for an agent step of a run, or with a key of a workflow's run."""
    return call.conductor.advance(run, step, result, key=key, actor=actor)


def retry_run(call: _Call, run_id: str, actor: str = "") -> dict[str, Any]:
    """Open a new generation of a failed run."""
    return call.conductor.retry(run_id, actor=actor)


def call_capability(call: _Call, capability: str, params: Any = None, session: str = "", key: str = "") -> dict[str, Any]:
    """Run a capability on this worker and answer as `Conductor.call` does. A redelivered message finds the first call."""
    return call.conductor.call(capability, params, session=session, key=key or f"message:{call.message_id}").to_json()


def submit_capability(call: _Call, capability: str, params: Any = None, session: str = "", key: str = "") -> dict[str, Any]:
    """Queue a deferred operation."""
    return call.conductor.submit(capability, params, session=session, key=key or f"message:{call.message_id}").to_json()


def retry_operation(call: _Call, operation_id: str, actor: str = "") -> dict[str, Any]:
    """Replay an operation from its record."""
    return call.conductor.retry_operation(operation_id, actor=actor).to_json()


def cancel_operation(call: _Call, operation_id: str, reason: str = "", actor: str = "") -> dict[str, Any]:
    """Cancel a stand-alone operation."""
    return call.conductor.cancel_operation(operation_id, reason=reason or "requested", actor=actor)


COMMANDS: dict[str, Callable[..., Any]] = {
    "conductor.start_run": start_run, "conductor.cancel_run": cancel_run, "conductor.pause_run": pause_run,
    "conductor.resume_run": resume_run, "conductor.retry_run": retry_run, "conductor.signal_run": signal_run,
    "conductor.advance_run": advance_run,
    "conductor.call": call_capability, "conductor.submit": submit_capability, "conductor.retry_operation": retry_operation,
    "conductor.cancel_operation": cancel_operation,
}
_MORE = {"idle": ("older_than_hours",)}
SWEEP_TASKS = {f"conductor.sweep_{name}": name for name in SWEEPS}
