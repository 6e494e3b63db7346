"""Gangs: worker processes of several slots each, that look into every queue as if each had been poked, and are killed now and then."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from conductor import Workflow
from conductor.runs.execute import Drainer
from conductor.settings import Settings
from conductor.sweeps.overdue import run_overdue
from conductor.wiring import Engine, build_engine

__all__ = ["FORK", "PARTITIONS", "Gang", "engine_of"]

FORK = multiprocessing.get_context("fork")
PARTITIONS = 4
_REST = 0.01  # seconds between two looks of a slot that found nothing


def engine_of(url: str, namespace: str, flow: Workflow[Any]) -> Engine:
    """A permit is leased for three beats: long enough for a busy machine, short enough for a kill to cost little."""
    settings = Settings.load(
        env_file=None, namespace=namespace, partitions=PARTITIONS, heartbeat_seconds=0.5, stall_sweep_seconds=0.1, due_sweep_seconds=0.05)
    return build_engine(settings, url=url, workflows={flow.name: flow}, poke=lambda pokes: None)


def _slot(engine: Engine, number: int, places: Sequence[tuple[int, str]]) -> None:
    drainer = Drainer(engine, worker_name=f"{os.getpid()}-{number}", may_stop_process=False)
    while True:
        for partition, queue in places:
            drainer.drain(partition, queue)
        time.sleep(_REST)


def _member(
    url: str, namespace: str, flow: Workflow[Any], places: Sequence[Sequence[tuple[int, str]]], prepared: Callable[[Any], None],
) -> None:
    """One process, until it is killed."""
    engine = engine_of(url, namespace, flow)
    prepared(engine.store)
    for number, mine in enumerate(places[1:], 1):
        threading.Thread(target=_slot, args=(engine, number, mine), daemon=True).start()
    _slot(engine, 0, places[0])


def _sweep(url: str, namespace: str, flow: Workflow[Any]) -> None:
    """A process that only sweeps, as beat's would. It is not killed: a sweeper that dies with the lock of its sweep keeps it for ten seconds,
    which would be measured instead of lanes and limits. It says that it looks, so that no busy moment is taken for a gap of the store."""
    engine = engine_of(url, namespace, flow)
    while True:
        for partition in range(PARTITIONS):
            engine.store._client.hset(engine.store.keys.head(partition), "look", int(time.time() * 1000))
        run_overdue(engine)
        time.sleep(_REST)


class Gang:
    """`number` processes. `places` says for each slot of one where it looks; `prepared` may watch what its store is asked."""

    def __init__(
        self, number: int, url: str, namespace: str, flow: Workflow[Any], places: Sequence[Sequence[tuple[int, str]]],
        prepared: Callable[[Any], None] = lambda store: None,
    ) -> None:
        self._given = (url, namespace, flow, places, prepared)
        self.killed: dict[int, float] = {}  # pid → when
        self._rng = random.Random(7)
        self._members: list[Any] = []
        for _ in range(number):
            self._join()
        self._sweeper = FORK.Process(target=_sweep, args=(url, namespace, flow), daemon=True)
        self._sweeper.start()

    def _join(self) -> None:
        one = FORK.Process(target=_member, args=self._given, daemon=True)
        one.start()
        self._members.append(one)

    def kill_one(self) -> None:
        victim = self._members.pop(self._rng.randrange(len(self._members)))
        self._kill(victim)
        self._join()

    def _kill(self, victim: Any) -> None:
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        self.killed[victim.pid] = time.time()

    def end(self) -> None:
        for one in (*self._members, self._sweeper):
            self._kill(one)
        self._members.clear()
