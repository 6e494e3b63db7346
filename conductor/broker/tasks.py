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

from conductor.broker import gate_commands, operation_commands, run_commands
from conductor.broker.commanding import Call
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
            bound.arguments[next(iter(bound.signature.parameters))] = Call(conductor, task.request.id)
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


COMMANDS: dict[str, Callable[..., Any]] = {**run_commands.COMMANDS, **operation_commands.COMMANDS, **gate_commands.COMMANDS}
"""Name of the task → what it does. The names are stable: a client that knows nothing else sends them with `send_task`."""
_MORE = {"idle": ("older_than_hours",)}
SWEEP_TASKS = {f"conductor.sweep_{name}": name for name in SWEEPS}
