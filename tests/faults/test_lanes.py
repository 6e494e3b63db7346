"""A lane under many submitters while its workers are killed: never more than its places, no place leaked, order kept, positions true."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from conductor import Lane, Limit, Workflow
from conductor.declare.starting import start_options
from conductor.runs.execute import Drainer
from conductor.runs.fsck import fsck
from conductor.runs.start import start
from conductor.settings import Settings
from conductor.store.lanes import read_lane
from conductor.store.limits import home_of_limit
from conductor.sweeps.overdue import run_overdue
from conductor.wiring import Engine, build_engine
from tests.support.server import ValkeyServer

_FORK = multiprocessing.get_context("fork")


def _engine(url: str, namespace: str, flow: Workflow[Any]) -> Engine:
    settings = Settings.load(
        env_file=None, namespace=namespace, partitions=4, heartbeat_seconds=0.2, stall_sweep_seconds=0.1, due_sweep_seconds=0.05)
    return build_engine(settings, url=url, workflows={flow.name: flow}, poke=lambda pokes: None)


def _write_permits(store: Any, ledger: Path) -> None:
    """Keeps a ledger of the permits that a worker is given; one that goes back unused was not spent."""
    real: Any = store.permit

    def permit(*asked: Any, returned: Sequence[tuple[str, str]] = (), **options: Any) -> Any:
        told = real(*asked, returned=returned, **options)
        lines = [f"-{fence}\n" for fence, how in returned if how == "unused"] + [f"{one.fence}\n" for one in told.permits]
        with ledger.open("a") as book:
            book.write("".join(lines))
        return told

    store.permit = permit


def _worker(url: str, namespace: str, flow: Workflow[Any], queues: list[str], ledger: Path | None = None) -> None:
    """Looks into every queue of every partition, as if each had been poked; sweeps what is overdue. Until it is killed."""
    engine = _engine(url, namespace, flow)
    if ledger is not None:
        _write_permits(engine.store, ledger)
    drainer = Drainer(engine, worker_name=str(os.getpid()))
    while True:
        for partition in range(4):
            engine.store._client.hset(engine.store.keys.head(partition), "look", int(time.time() * 1000))
            for queue in queues:
                drainer.drain(partition, queue)
        run_overdue(engine)


def _crew(number: int, *given: Any) -> list[Any]:
    crew = [_FORK.Process(target=_worker, args=given, daemon=True) for _ in range(number)]
    for one in crew:
        one.start()
    return crew


def _kill_one(crew: list[Any], rng: random.Random, *given: Any) -> None:
    victim = crew.pop(rng.randrange(len(crew)))
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    crew += _crew(1, *given)


@pytest.mark.spec("LANE-1", "LANE-2")
@pytest.mark.parametrize("many", [40, pytest.param(500, marks=[pytest.mark.faults, pytest.mark.timeout(300)])])
def test_a_lane_of_five_holds_while_workers_are_killed(valkey: ValkeyServer, namespace: str, many: int) -> None:
    flow: Workflow[Any] = Workflow("laned", lane=Lane("five", 5, None, None))
    flow.add(lambda: time.sleep(0.02), name="work", lease_seconds=1)
    given = (valkey.url(), namespace, flow, ["celery"])
    engine, rng = _engine(*given[:3]), random.Random(7)
    runs = [start(engine, flow, payload=flow.encode_input(), options=start_options("laned")).run_id for _ in range(many)]
    store = engine.store
    home, left = int(runs[0][-2:], 16), set(runs)
    crew = _crew(3, *given)
    try:
        until, kills, planned = time.monotonic() + 30 + many / 4, 0, 3 + many // 50
        while left and time.monotonic() < until:
            view = read_lane(store, home, "five")
            if view is not None:
                assert len(view.active) <= 5
                assert list(view.queue) == [run_id for run_id in runs if run_id in view.queue], "the order of arrival is not kept"
                assert not view.queue or runs.index(view.queue[0]) == many - len(view.queue), "somebody was admitted before his turn"
            if kills < planned and many - len(left) > many * kills // (planned + 1):  # spread over the work, however fast it goes
                _kill_one(crew, rng, *given)
                kills += 1
            left = {run_id for run_id in left if store.client().hget(store.keys.run(run_id), "st") != "completed"}
            time.sleep(0.01)
        assert not left
        assert kills == planned
    finally:
        for one in crew:
            os.kill(one.pid, signal.SIGKILL)
            one.join()
    assert read_lane(store, home, "five") is None
    assert fsck(engine) == []


@pytest.mark.spec("LANE-3")
@pytest.mark.parametrize(("rate", "many", "seconds"), [
    ("20/s", 50, 2.0), pytest.param("500/m", 1200, 120.0, marks=[pytest.mark.faults, pytest.mark.timeout(400)]),
])
def test_a_limit_holds_while_workers_are_killed(
    valkey: ValkeyServer, namespace: str, tmp_path: Path, rate: str, many: int, seconds: float
) -> None:
    """Judged by the permits: their fences are the moments at which the store gave them. No more of them in any window, and no more at once,
    than the limit says; no attempt begins without one; and it gives as much as it may."""
    begun, ledger = tmp_path / "begun", tmp_path / "permits"

    def work() -> None:
        with begun.open("a") as book:
            book.write(f"{time.time()}\n")
        time.sleep(0.03)

    flow: Workflow[Any] = Workflow("limited", limit=Limit("outside", rate, concurrency=20))
    flow.add(work, name="work", lease_seconds=1)
    given = (valkey.url(), namespace, flow, ["celery!outside"], ledger)
    engine, rng = _engine(*given[:3]), random.Random(7)
    runs = [start(engine, flow, payload=flow.encode_input(), options=start_options("limited")).run_id for _ in range(many)]
    store = engine.store
    key = store.keys.of(home_of_limit("outside", 4), "limit:outside:permits")
    left, crew = set(runs), _crew(4, *given)
    try:
        kill_at, until, kills = time.monotonic() + 0.4, time.monotonic() + 20 + 2 * seconds, 0
        while left and time.monotonic() < until:
            assert store.client().zcard(key) <= 20
            if time.monotonic() > kill_at and kills < 3:
                _kill_one(crew, rng, *given)
                kill_at, kills = time.monotonic() + 0.5, kills + 1
            left = {run_id for run_id in left if store.client().hget(store.keys.run(run_id), "st") != "completed"}
            time.sleep(0.05)
        assert not left
    finally:
        for one in crew:
            os.kill(one.pid, signal.SIGKILL)
            one.join()
    told = [int(line) for line in ledger.read_text().split()]
    unused = {-fence for fence in told if fence < 0}
    at = sorted(fence for fence in told if fence > 0 and fence not in unused)
    allowed, window = int(rate.partition("/")[0]), {"s": 1_000, "m": 60_000}[rate[-1]]
    assert [at[n + allowed] - at[n] for n in range(len(at) - allowed) if at[n + allowed] - at[n] < window] == []
    bodies = len(begun.read_text().split())
    assert many <= bodies <= len(at) + kills, "a body began without a permit; a worker that is killed may have had one it did not write down"
    assert at[-1] - at[0] <= (many / allowed) * window * 1.2 + 2_000, "the limit gives less than it should"
