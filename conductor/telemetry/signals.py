"""Signals in Celery's style: `@run_failed.connect`. They fire in the process where the thing happened, after it is recorded.

A signal is a convenience for logs and counters, not a part of a run: a process killed between the record and the signal sends none.
What must happen is a step, or `@flow.on_failure` and `@flow.on_finish`. A receiver that raises is logged and harms nobody. The sender
is the workflow's name, so `run_failed.connect(tell, sender="order")` hears of one workflow only.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.utils.dispatch import Signal

__all__ = [
    "announce", "anyone_listens", "run_cancelled", "run_completed", "run_failed", "run_paused", "run_started", "run_waiting",
    "step_failed", "step_retried", "step_skipped", "step_started", "step_succeeded",
]

logger = logging.getLogger(__name__)

_RUN = ["run_id", "workflow", "reason"]
_STEP = ["run_id", "workflow", "step", "item", "attempt", "ran_ms", "error"]

run_started = Signal(name="run_started", providing_args=_RUN)
run_completed = Signal(name="run_completed", providing_args=_RUN)
run_failed = Signal(name="run_failed", providing_args=_RUN)
run_cancelled = Signal(name="run_cancelled", providing_args=_RUN)
run_paused = Signal(name="run_paused", providing_args=_RUN)
run_waiting = Signal(name="run_waiting", providing_args=_RUN)
step_started = Signal(name="step_started", providing_args=_STEP)
step_succeeded = Signal(name="step_succeeded", providing_args=_STEP)
step_failed = Signal(name="step_failed", providing_args=_STEP)
step_retried = Signal(name="step_retried", providing_args=_STEP)
step_skipped = Signal(name="step_skipped", providing_args=_STEP)

_ALL = {name: found for name, found in globals().items() if isinstance(found, Signal)}


def announce(name: str, workflow: str, **facts: Any) -> None:
    """Send the signal `name` if there is one and anybody listens; costs one look-up otherwise."""
    signal = _ALL.get(name)
    if signal is not None and signal.receivers:
        signal.send(sender=workflow, workflow=workflow, **facts)


def anyone_listens(*names: str) -> bool:
    """Whether one of these signals has a receiver: what only serves a signal is not done for nobody."""
    return any(_ALL[name].receivers for name in names)
