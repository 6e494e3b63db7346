"""DBOS: durable workflows as a library, on PostgreSQL or SQLite. Run as a program it is one worker process.

A single workflow is started in the process that asks for it, which is DBOS's fastest road (no queue in between); many at once go over a
queue to the two worker processes, polled every 10 ms instead of every second.
"""

# mypy: disable-error-code="import-not-found,misc,untyped-decorator,no-any-return"

from __future__ import annotations

import os
import threading
import time
from typing import Any

import sqlalchemy
from dbos import DBOS, DBOSConfig

from ops.bench.works import NAP_SECONDS, Work

__all__ = ["connect"]

URL = os.environ["BENCH_URL"]
QUEUE = "bench"
CONFIG = DBOSConfig(
    name="bench", system_database_url=URL, application_version="1", executor_id=f"bench-{os.getpid()}", log_level="WARNING",
)


@DBOS.step()
def add(before: int, nap: float) -> int:
    if nap:
        time.sleep(nap)
    return before + 1


@DBOS.step()
def echo(number: int) -> int:
    return number


@DBOS.workflow()
def chain(size: int, nap: float) -> int:
    number = 0
    for _ in range(size):
        number = add(number, nap)
    return number


@DBOS.workflow()
def one(number: int) -> int:
    return echo(number)


class DBOSPlug:
    """The driver's side. It is a DBOS process itself; while many runs are measured it only enqueues, the workers execute."""

    def __init__(self) -> None:
        self._many = False
        engine_url = URL.replace("postgresql://", "postgresql+psycopg://")
        self._engine = sqlalchemy.create_engine(engine_url)
        prefix = "dbos." if URL.startswith("postgresql") else ""
        self._open = sqlalchemy.text(f"SELECT count(*) FROM {prefix}workflow_status WHERE status IN ('PENDING', 'ENQUEUED')")

    def begin(self, many: bool) -> None:
        self._many = many

    def start(self, work: Work, number: int) -> Any:
        nap = NAP_SECONDS if work.kind.startswith("nap") else 0.0
        match work.kind:
            case "one":
                return self._launch(one, number)
            case "chain" | "nap_chain":
                return self._launch(chain, work.size, nap)
        raise ValueError(f"DBOS is not given {work.kind}")

    def _launch(self, workflow: Any, *args: Any) -> Any:
        return DBOS.enqueue_workflow(QUEUE, workflow, *args) if self._many else DBOS.start_workflow(workflow, *args)

    def result(self, handle: Any, timeout: float) -> Any:
        return handle.get_result(polling_interval_sec=0.005)

    def outstanding(self) -> int:
        with self._engine.connect() as connection:
            return int(connection.execute(self._open).scalar_one())

    def results(self, handles: list[Any], timeout: float) -> list[Any]:
        return [handle.get_result(polling_interval_sec=0.005) for handle in handles]


def connect() -> DBOSPlug:
    """The driver listens to no queue, so that only the two worker processes execute what is enqueued."""
    DBOS(config=CONFIG)
    DBOS.listen_queues([])
    DBOS.launch()
    DBOS.register_queue(QUEUE, polling_interval_sec=0.01)
    return DBOSPlug()


def work_until_ended() -> None:
    DBOS(config=CONFIG)
    DBOS.launch()
    DBOS.register_queue(QUEUE, polling_interval_sec=0.01)
    threading.Event().wait()


if __name__ == "__main__":
    work_until_ended()
