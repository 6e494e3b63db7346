"""What the worker's log says of steps: a final failure is an error, an attempt that will be repeated a warning, the rest is for dashboards.

A Celery task that fails leaves a line in the log; so does a step. The traceback is in the run's record, where `conductor show` finds it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from conductor.errors import redact

if TYPE_CHECKING:
    from conductor.runs.execute import StepEvent

__all__ = ["LOGGED", "log_step"]

LOGGED = ("failed", "retried")
_LONGEST_ERROR = 500

logger = logging.getLogger("conductor.steps")


def log_step(event: StepEvent) -> None:
    """One line, or none."""
    if event.kind not in LOGGED:
        return
    name = f"{event.workflow}.{event.step}" if event.item is None else f"{event.workflow}.{event.step}[{event.item}]"
    level, more = (logging.ERROR, "failed") if event.kind == "failed" else (logging.WARNING, "will be tried again")
    error = redact(event.error.strip().split("\n", 1)[0][:_LONGEST_ERROR])
    logger.log(level, "%s of run %s %s after attempt %d: %s", name, event.run_id, more, event.attempt, error)
