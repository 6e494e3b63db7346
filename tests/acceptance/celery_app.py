"""A user's project of the acceptance tests: global limits that would hurt, a queue of its own, and ways to break its worker on demand."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery.worker.control import control_command
from pydantic import BaseModel

from conductor import Conductor, Ctx, Retry, StepTimeout, Workflow

app = Celery("acceptance", broker=os.environ["TEST_BROKER_URL"], backend=os.environ.get("TEST_RESULTS"))
app.conf.update(
    broker_connection_retry_on_startup=True, task_time_limit=2, task_soft_time_limit=1, task_default_rate_limit="1/h",
    task_acks_late=True, worker_prefetch_multiplier=1,
    worker_soft_shutdown_timeout=float(os.environ.get("TEST_SOFT_SECONDS", "0")),
)
conductor = Conductor(app)


class Job(BaseModel):
    """How long to last, and where to leave a trace."""

    trace: str
    seconds: float = 0


def _leave(job: Job, line: str) -> None:
    with Path(job.trace).open("a") as file:
        file.write(line + "\n")


quick = Workflow("quick", input=Job)


@quick.step
def one(job: Job) -> int:
    return 1


@quick.step
def two(one: int) -> int:
    return one + 1


if not os.environ.get("TEST_OLD_CODE"):
    new = Workflow("new", input=Job)

    @new.step
    def only(job: Job) -> int:
        return 1


long = Workflow("lengthy", input=Job)


@long.step(timeout=60, lease_seconds=3)
def hold(job: Job, ctx: Ctx) -> str:
    """Lasts its time, or ends early when the worker stops."""
    _leave(job, f"begin {ctx.attempt}")
    until = time.monotonic() + job.seconds
    while time.monotonic() < until:
        time.sleep(0.02)
        if ctx.stopping and os.environ.get("TEST_LISTENS"):
            _leave(job, "saw stopping")
            break
    _leave(job, f"end {ctx.attempt}")
    return "held"


@long.step
def after(hold: str, job: Job) -> str:
    _leave(job, "after")
    return hold


watchful = Workflow("watchful", input=Job)


@watchful.step(timeout=60, lease_seconds=3)
def watch(job: Job, ctx: Ctx) -> str:
    """Ends when it learns that nobody wants it any more."""
    _leave(job, f"process {os.getpid()}")
    until = time.monotonic() + job.seconds
    while time.monotonic() < until and not ctx.cancelled:
        time.sleep(0.02)
    _leave(job, f"cancelled {ctx.cancelled}")
    return "watched"


endless = Workflow("endless", input=Job)


@endless.step(retry=Retry(max=0))
def endure(job: Job) -> str:
    """Has no timeout of its own. Listens to the one of the project, or goes on all the same."""
    _leave(job, f"process {os.getpid()}")
    until = time.monotonic() + job.seconds
    while time.monotonic() < until:
        try:
            time.sleep(0.02)
        except StepTimeout:
            _leave(job, "heard")
            if os.environ.get("TEST_LISTENS"):
                raise
    return "endured"


gpu = Workflow("gpu", input=Job)


@gpu.step(queue="gpu")
def render(job: Job) -> str:
    _leave(job, "rendered")
    return threading.current_thread().name


@control_command()
def deafen(state: Any) -> dict[str, str]:
    """The worker stays up and hears nothing more."""
    state.consumer.task_consumer.cancel()
    return {"ok": "deaf"}


@control_command()
def hang(state: Any) -> dict[str, str]:
    """The main thread hangs for good."""
    time.sleep(3600)
    return {"ok": "hung"}
