"""What the tests of schedules share: a job, engines on a store, and time that passes by moving the record into the past."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from conductor import Workflow
from conductor.declare import registry
from conductor.declare.cadence import Cadence
from conductor.ids import home_of_name
from conductor.operations.schedules import Job
from conductor.records import Poke
from conductor.settings import Settings
from conductor.store import Store
from conductor.store.jobs import JobRecord
from conductor.wiring import Engine

__all__ = ["SPAN", "Report", "at_once", "engine_of", "job", "make_due", "nightly", "record", "runs", "words"]

# About a day, and now in the middle of it: no tick comes while a test is looking.
SPAN = next(span for span in range(86_400_000, 2 * 86_400_000, 1_000_000) if 0.4 < time.time() * 1000 % span / span < 0.6)


class Report(BaseModel):
    """What a nightly report is about."""

    region: str


def nightly() -> Workflow[Report]:
    flow = Workflow("nightly", input=Report)

    @flow.step
    def build(report: Report) -> str:
        return report.region

    return flow


def engine_of(store: Store, pokes: list[Poke] | None = None) -> Engine:
    return Engine(Settings(), store, registry.declared, (pokes if pokes is not None else []).extend, capabilities=registry.capabilities)


def job(**changes: Any) -> Job:
    return replace(Job("report", "run", "nightly", Cadence(every_ms=SPAN), 'j1:{"region":"north"}', overlap="allow"), **changes)


def record(store: Store, name: str = "report") -> JobRecord:
    found = store.job(name)
    assert found is not None
    return found


def make_due(store: Store, ticks: int = 1, name: str = "report", late: int = 0) -> int:
    """Move the next tick into the past, so that `ticks` of the job are due; answers the earliest. `late` ms make it another tick."""
    earliest = store.job_clock() // SPAN * SPAN - (ticks - 1) * SPAN + late
    home = home_of_name(name, store.partitions)
    store.client().hset(store.keys.of(home, f"job:{name}"), mapping={"n": earliest, "cs": 1})
    store.client().zadd(store.keys.of(home, "jobs"), {name: earliest})
    return earliest


def runs(store: Store) -> list[str]:
    """Every run and every operation in the store."""
    client, of = store.client(), store.keys.of
    return [str(run) for number in range(store.partitions) for tail in ("runs", "ops") for run in client.zrange(of(number, tail), 0, -1)]


def words(store: Store, name: str = "report") -> list[str]:
    return [tick.word for tick in record(store, name).ticks]


def at_once(work: Callable[[], Any], times: int = 3) -> list[Any]:
    """Let so many threads do it at the same moment; each has a caller of its own."""
    barrier, answers = threading.Barrier(times), list[Any]()

    def one() -> None:
        barrier.wait()
        answers.append(work())

    threads = [threading.Thread(target=one) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == times
    return answers
