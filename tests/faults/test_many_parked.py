"""Very many waiting runs: they leave the store's memory for the archive, a signal wakes each of them, and each ends once.

Two processes park and wake side by side, two do the work, and nobody is told who does what.
"""

from __future__ import annotations

import multiprocessing
import os
import signal as signals
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from conductor import Ctx, Workflow
from conductor.declare.starting import start_options
from conductor.errors import RunFinished
from conductor.runs.execute import Drainer
from conductor.runs.fsck import fsck
from conductor.runs.handle import Handle
from conductor.runs.start import start
from conductor.runs.waiting import signal
from conductor.settings import Settings
from conductor.sweeps.parked import sweep_parked
from conductor.wiring import Engine, build_engine
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually

PARTITIONS = 4
_FORK = multiprocessing.get_context("fork")
_BUFFERS = ("mem_clients_normal", "mem_aof_buffer", "mem_replication_backlog")


class Dormitory:
    """A server, an archive, a workflow that waits for three days, and the processes that park, wake and work."""

    def __init__(self, server: ValkeyServer, directory: Path, namespace: str) -> None:
        self.server, self.namespace, self.ledger = server, namespace, directory / "settled"
        self.archive = f"sqlite:///{directory}/archive.db"
        self.flow: Workflow[Any] = Workflow("wordless")
        self.flow.add(lambda: "x" * 2000, name="prepares")
        release = self.flow.wait("release", int, timeout=timedelta(days=3), after=["prepares"])
        self.flow.add(self.settles, name="settles", after=[release])
        self.engine = self.built()

    def settles(self, release: int, ctx: Ctx) -> int:
        with self.ledger.open("a") as book:
            book.write(f"{ctx.run_id}\n")
        return release + 1

    def built(self) -> Engine:
        """An engine of the process that calls this."""
        settings = Settings.load(
            env_file=None, namespace=self.namespace, partitions=PARTITIONS, archive_url=self.archive, park_after_minutes=0.0001)
        return build_engine(settings, url=self.server.url(), workflows={self.flow.name: self.flow}, poke=lambda pokes: None)

    @contextmanager
    def staffed(self) -> Iterator[None]:
        crew = [_FORK.Process(target=work, args=(self,), daemon=True) for work in (_sweeps, _sweeps, _drains, _drains)]
        for one in crew:
            one.start()
        try:
            yield
            assert all(one.is_alive() for one in crew)
        finally:
            for one in crew:
                if one.pid is not None and one.is_alive():
                    os.kill(one.pid, signals.SIGKILL)
                one.join()

    def start(self, number: int) -> str:
        options = start_options("wordless", key=f"order-{number:08}")
        return start(self.engine, self.flow, payload=self.flow.encode_input(), options=options).run_id

    def count(self, ask: Callable[[Any, str], int], tail: str) -> int:
        keys, client = self.engine.store.keys, self.server.client()
        return sum(int(ask(client, keys.of(partition, tail))) for partition in range(PARTITIONS))

    def parked(self) -> int:
        return self.count(lambda client, key: client.hlen(key), "parked")

    def completed(self) -> int:
        return self.count(lambda client, key: client.zcard(key), "ended:completed")

    def used(self) -> int:
        """All that the server holds but buffers of connections and files, and the notices, which are capped."""
        client: Any = self.server.client()
        client.delete(*(self.engine.store.keys.of(partition, "notices") for partition in range(PARTITIONS)))
        client.memory_purge()
        memory = client.info("memory")
        return int(memory["used_memory"]) - sum(int(memory.get(name, 0)) for name in _BUFFERS)

    def said(self, run_id: str, value: int) -> str:
        try:
            return signal(self.engine, run_id, "release", value, signal_id="go").word
        except RunFinished:
            return "finished"


def _sweeps(place: Dormitory) -> None:
    engine = place.built()
    while True:
        if not sweep_parked(engine).count:
            time.sleep(0.05)


def _drains(place: Dormitory) -> None:
    drainer = Drainer(place.built(), worker_name=str(os.getpid()))
    while True:
        for partition in range(PARTITIONS):
            drainer.drain(partition, "celery")
        time.sleep(0.02)  # stands for waiting until it is poked


@pytest.fixture
def dormitory(namespace: str, tmp_path: Path) -> Iterator[Dormitory]:
    server = ValkeyServer(fsync="everysec").start()
    yield Dormitory(server, tmp_path, namespace)
    server.stop()


def told(what: str, began: float) -> None:
    print(f"{what}: {time.monotonic() - began:.0f} s", file=sys.__stderr__, flush=True)


@pytest.mark.spec("IDLE-6", "WF-5")
@pytest.mark.parametrize("many", [300, pytest.param(100_000, marks=[pytest.mark.faults, pytest.mark.timeout(3600)])])
def test_many_wait_in_the_archive_and_each_is_woken_once(dormitory: Dormitory, many: int) -> None:
    place, patience, began = dormitory, 20 + many / 40, time.monotonic()
    with place.staffed():
        warm = place.start(many)
        eventually(lambda: place.parked() == 1, 20, what="the first is parked")
        empty = place.used()
        runs = [place.start(number) for number in range(many)]
        told(f"{many} started", began)
        eventually(lambda: place.parked() == many + 1, patience, every=0.1, what=lambda: f"all are parked, {place.parked()} are")
        told("parked", began)
        each = (place.used() - empty) / many
        print(f"{many} parked runs, {each:.0f} bytes each")
        assert each <= 500

        words: Counter[str] = Counter()
        for number, run_id in enumerate(runs):
            assert place.said(run_id, number) == "taken"
            words[place.said(run_id, -1)] += 1  # the same id, whatever it says: to the stub, to the run that is back, to one that has ended
        told(f"signalled, the second time {dict(words)}", began)
        assert set(words) <= {"repeated", "finished"}
        eventually(lambda: place.completed() == many, patience, every=0.1, what=lambda: f"all end, {place.completed()} have")
        told("ended", began)
        assert place.said(warm, 0) == "taken"
        eventually(lambda: place.completed() == many + 1, 20, what="the first ends last")
    bodies = Counter(place.ledger.read_text().split())
    assert bodies == dict.fromkeys([*runs, warm], 1)
    for number, run_id in enumerate(runs):
        codes = Counter(line.partition(";")[0] for line in place.engine.store.log_of(run_id))
        assert (codes["v"], codes["k"] - codes["b"], codes["c"], codes["e"]) == (1, 3, 3, 1), f"{run_id}: {codes}"  # b: not begun, given back
        assert place.said(run_id, -1) in ("repeated", "finished")
        assert Handle(place.engine, run_id).get(timeout=5) == number + 1
    assert (place.parked(), place.count(lambda client, key: client.zcard(key), "wake")) == (0, 0)
    assert [str(one) for one in fsck(place.engine)] == []
    told("counted again", began)
