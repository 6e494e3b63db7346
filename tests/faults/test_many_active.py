"""The idle sweep among very many active runs: the server is asked exactly as much as among few, because ten are due in either case.

Counted by the server itself (`INFO commandstats`), so that what scripts call is in it, and what any of our code might call beside them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from conductor.ids import new_run_id
from conductor.records import Graph, NewRun, NodeKind
from conductor.settings import Settings
from conductor.store import Store, connect
from conductor.store.reads import read_run
from conductor.sweeps.idle import sweep_idle
from conductor.wiring import Engine
from tests.integration.playing import graph_of, node
from tests.support.server import ValkeyServer

PARTITIONS, DUE, HOUR = 4, 10, 3_600_000
AGENT = graph_of(node(0, kind=NodeKind.AGENT), workflow="agent")
KINDS = (
    AGENT,
    graph_of(node(0, kind=NodeKind.WAIT, signal="go"), workflow="wait"),
    graph_of(node(0, kind=NodeKind.AGENT), node(1, kind=NodeKind.WAIT, signal="go"), workflow="both"),
    graph_of(node(0, kind=NodeKind.SLEEP, delay_ms=72 * HOUR), workflow="sleep"),
    graph_of(node(0), workflow="ready"),
)


class Crowd:
    """A store that fills up. It is never restarted, so its server need not sync."""

    def __init__(self, server: ValkeyServer, namespace: str) -> None:
        store = Store(connect(server.url()), namespace=namespace, partitions=PARTITIONS)
        self.engine = Engine(Settings(namespace=namespace, partitions=PARTITIONS), store, {}, lambda pokes: None, "q")
        self.client: Any = server.client()
        self.runs: list[str] = []

    def start(self, graph: Graph) -> str:
        run_id = new_run_id(PARTITIONS, len(self.runs) % PARTITIONS)
        run = NewRun(run_id, graph.workflow, "j1:1", "q", idle_timeout_ms=24 * HOUR)
        assert self.engine.store.start(run, graph).word == "OK"
        self.runs.append(run_id)
        return run_id

    def grow(self, count: int) -> None:
        while len(self.runs) < count:
            self.start(KINDS[len(self.runs) % len(KINDS)])

    def orphan(self) -> str:
        """One whose agent has not come for more than a day: its record and its places in the indexes are moved back."""
        run_id, back = self.start(AGENT), -25 * HOUR
        keys, partition = self.engine.store.keys, int(self.runs[-1][-2:], 16)
        self.client.hincrby(keys.run(run_id), "pg", back)
        for tail in ("orphans", "orphans:due"):
            self.client.zincrby(keys.of(partition, tail), back, run_id)
        return run_id

    def active(self) -> int:
        keys = self.engine.store.keys
        return sum(int(self.client.hlen(keys.of(partition, "active"))) for partition in range(PARTITIONS))

    def swept(self) -> Counter[str]:
        """What the server was asked for while a sweep cancelled the ten that were due."""
        due = {self.orphan() for _ in range(DUE)}
        self.client.config_resetstat()
        began = time.perf_counter()
        causes = sweep_idle(self.engine).causes
        took = 1000 * (time.perf_counter() - began)
        stats = self.client.info("commandstats")
        assert {cause.partition(" ")[0] for cause in causes} == due
        assert {str(run.state) for run_id in due if (run := read_run(self.engine.store, run_id))} == {"cancelled"}
        asked = Counter({name.removeprefix("cmdstat_"): int(told["calls"]) for name, told in stats.items()})
        print(f"{self.active()} active runs: {asked.total()} calls, {asked['evalsha']} scripts, {took:.1f} ms")
        return asked


@pytest.fixture
def crowd(namespace: str) -> Iterator[Crowd]:
    server = ValkeyServer(fsync="no").start()
    yield Crowd(server, namespace)
    server.stop()


@pytest.mark.spec("IDLE-5", "ACT-2", "IDLE-4")
@pytest.mark.parametrize(("few", "many"), [(100, 2_000), pytest.param(1_000, 100_000, marks=[pytest.mark.faults, pytest.mark.timeout(900)])])
def test_ten_due_runs_cost_the_same_among_few_and_among_many(crowd: Crowd, few: int, many: int) -> None:
    crowd.swept()  # the scripts are known from here on
    told = {}
    for count in (few, many):
        crowd.grow(count)
        told[count] = crowd.swept()
        assert crowd.active() >= count - 3 * DUE
    assert told[few] == told[many]
    assert told[few]["evalsha"] <= DUE + 2, "one script a run, and those of the lock"
    assert told[few].total() < 40 * DUE
