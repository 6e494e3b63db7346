"""Huey on Redis: two worker processes, results kept and announced, pipelines and chords.

Huey takes a task off the queue when it hands it out, so a worker that dies loses the task: it promises less than the others here.
"""

# mypy: disable-error-code="import-not-found,import-untyped,misc,untyped-decorator,no-any-return"

from __future__ import annotations

import os
import time
from typing import Any

from huey import RedisHuey
from huey.api import chord

from ops.bench.works import NAP_SECONDS, Work, span

__all__ = ["connect", "huey"]

# redis-py gives up a blocking read after five seconds unless told otherwise; Huey would report that as a missing result.
huey = RedisHuey("bench", url=f"{os.environ['BENCH_URL']}?socket_timeout=600", notify_result=True)


@huey.task()
def one(number: int) -> int:
    return number


@huey.task()
def add(nap: float, before: int) -> int:
    """A pipeline hands the result on as the last argument."""
    if nap:
        time.sleep(nap)
    return before + 1


@huey.task()
def item(number: int, nap: float = 0.0) -> int:
    if nap:
        time.sleep(nap)
    return number


@huey.task()
def join(numbers: list[int]) -> int:
    return sum(numbers)


@huey.task()
def head() -> int:
    return 0


@huey.task()
def first() -> float:
    return time.monotonic()


@huey.task()
def middle(since: float) -> float:
    return since


@huey.task()
def last(since: float) -> float:
    return span(since)


class HueyPlug:
    """The driver's side. A handle is the result of the last task."""

    def __init__(self) -> None:
        self._known, self._started = 0, 0

    def begin(self, many: bool) -> None:
        self._known, self._started = huey.result_count(), 0

    def start(self, work: Work, number: int) -> Any:
        self._started += 1
        nap = NAP_SECONDS if work.kind.startswith("nap") else 0.0
        match work.kind:
            case "one":
                return one(number)
            case "chain" | "nap_chain":
                pipeline = add.s(nap, 0)
                for _ in range(work.size - 1):
                    pipeline = pipeline.then(add, nap)
                return self._last(huey.enqueue(pipeline))
            case "timed_chain":
                pipeline = first.s()
                for _ in range(work.size - 2):
                    pipeline = pipeline.then(middle)
                return self._last(huey.enqueue(pipeline.then(last)))
            case "fan" | "nap_fan":
                # Huey has no fan-out over a list made at run time: the head is waited for, then the chord is sent.
                head().get(blocking=True, timeout=60)
                return huey.enqueue(chord([item.s(number, nap) for number in range(work.size)], join.s()))
        raise ValueError(f"Huey has no {work.kind}")

    @staticmethod
    def _last(found: Any) -> Any:
        """The last result of a pipeline (indexing a group would wait for it at once)."""
        return list(found)[-1] if hasattr(found, "__iter__") else found

    def result(self, handle: Any, timeout: float) -> Any:
        return handle.get(blocking=True, timeout=timeout)

    def outstanding(self) -> int:
        """By counting results: the queue is already empty while the last tasks run."""
        return self._known + self._started - huey.result_count()

    def results(self, handles: list[Any], timeout: float) -> list[Any]:
        return [handle.get(blocking=True, timeout=timeout) for handle in handles]


def connect() -> HueyPlug:
    return HueyPlug()
