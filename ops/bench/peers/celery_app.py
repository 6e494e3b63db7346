"""Celery: prefork, late acknowledgement, results kept, chain and chord. Late acknowledgement and `reject_on_worker_lost` are what a
team switches on that does not want to lose tasks with a worker; without them Celery would promise less than what it is compared with.
"""

# mypy: disable-error-code="import-untyped,misc,untyped-decorator,no-untyped-call"

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery, chord
from celery import chain as celery_chain
from celery.result import AsyncResult, ResultSet

from ops.bench.works import NAP_SECONDS, Work, span

__all__ = ["app", "connect"]

URL = os.environ["BENCH_URL"]

app = Celery("bench", broker=URL, backend=URL)
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, broker_connection_retry_on_startup=True)


@app.task
def one(number: int) -> int:
    return number


@app.task
def add(before: int, nap: float = 0.0) -> int:
    if nap:
        time.sleep(nap)
    return before + 1


@app.task
def item(number: int, nap: float = 0.0) -> int:
    if nap:
        time.sleep(nap)
    return number


@app.task
def join(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def first() -> float:
    return time.monotonic()


@app.task
def middle(since: float) -> float:
    return since


@app.task
def last(since: float) -> float:
    return span(since)


@app.task(bind=True)
def spread(self: Any, size: int, nap: float = 0.0) -> Any:
    """1 → size → 1 as Celery's manual does it for a list known only at run time: the head replaces itself by a chord."""
    raise self.replace(chord([item.s(number, nap) for number in range(size)], join.s()))


class CeleryPlug:
    """The driver's side."""

    def __init__(self) -> None:
        self._redis = redis.Redis.from_url(URL)

    def begin(self, many: bool) -> None:
        """Celery has one road."""

    def start(self, work: Work, number: int) -> AsyncResult[Any]:
        nap = NAP_SECONDS if work.kind.startswith("nap") else 0.0
        match work.kind:
            case "one" | "op":
                return one.delay(number)
            case "chain" | "nap_chain":
                return celery_chain(add.s(0, nap), *(add.s(nap) for _ in range(work.size - 1))).delay()
            case "fan" | "nap_fan":
                return spread.delay(work.size, nap)
            case "timed_chain":
                return celery_chain(first.s(), *(middle.s() for _ in range(work.size - 2)), last.s()).delay()
        raise ValueError(f"Celery has no {work.kind}")

    def result(self, handle: AsyncResult[Any], timeout: float) -> Any:
        return handle.get(timeout=timeout)

    def outstanding(self) -> int:
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.llen("celery")
            pipe.hlen("unacked")
            return sum(pipe.execute())

    def results(self, handles: list[AsyncResult[Any]], timeout: float) -> list[Any]:
        answers: list[Any] = ResultSet(handles, app=app).join_native(timeout=timeout)
        return answers

    def messages(self) -> dict[str, Any]:
        """Tasks received by all workers since they began, by name."""
        found = app.control.inspect(timeout=2).stats() or {}
        totals = [worker["total"] for worker in found.values()]
        return {"tasks": {name: sum(total.get(name, 0) for total in totals) for name in {key for total in totals for key in total}}}


def connect() -> CeleryPlug:
    return CeleryPlug()
