"""Workers, beat, service and server are killed in the middle of everything and started again: each accepted run ends once, waits stay waits."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.plant import QUICK, WAITING, WORKING, Caller, Plant, Stand
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually


@pytest.fixture
def plant(own_valkey: ValkeyServer, namespace: str, tmp_path: Path) -> Iterator[Plant]:
    one = Plant(own_valkey, tmp_path, namespace, {**QUICK, "CONDUCTOR_ARCHIVE_URL": f"sqlite:///{tmp_path}/archive.db"})
    yield one
    one.close()


def mixed(choose: random.Random, count: int) -> list[str]:
    """Every kind, a fifth of them runs that wait, in any order."""
    waits = [WAITING[number % len(WAITING)] for number in range(max(len(WAITING), count // 5))]
    work = [WORKING[number % len(WORKING)] for number in range(count - len(waits))]
    return choose.sample(waits + work, count)


@pytest.mark.spec("REC-6", "REC-1", "IDLE-6", "RUN-1", "SVC-1")
@pytest.mark.parametrize(("rounds", "runs", "workers"), [
    (1, 14, 1), pytest.param(20, 50, 3, marks=[pytest.mark.faults, pytest.mark.timeout(3600)]),
])
def test_everything_is_killed_at_any_moment_and_started_again(plant: Plant, rounds: int, runs: int, workers: int, seed: int) -> None:
    choose, known, plant.workers = random.Random(seed), dict[str, Stand](), workers
    plant.everybody()
    for number in range(rounds):
        caller = Caller(plant, mixed(choose, runs), f"round{number}", pause=2.0 / runs)
        caller.start()
        eventually(lambda: caller.accepted, 20, what="the first start is acknowledged")  # noqa: B023
        moment = choose.uniform(0, 3)
        time.sleep(moment)  # the moment is the seed's, whatever is under way
        at_work, told = len(plant.open_runs()), len(caller.accepted)
        plant.power_cut(choose)
        plant.server.restart()
        known = plant.still_there(known)
        plant.everybody()
        plant.no_calm()
        caller.done()
        eventually(plant.over, 90, every=0.2, what=plant._progress)
        eventually(lambda: len(plant.stands()) == len(plant.patient), 30, what="all others wait")
        print(f"round {number}: cut after {moment:.2f} s, {told} accepted, {at_work} at work; {len(plant.patient)} wait")
        known = plant.still_there(known)
    assert {run.workflow for run in plant.patient} == set(WAITING)
    lapsed = [run for run in plant.patient if run.workflow == "patient"][::3]
    eventually(lambda: all(plant.state(run.run_id) == "" for run in plant.patient), 30, what="workers park what waits")
    assert plant.still_there(known) == known
    plant.released(lapsed)
    eventually(plant.over, 90, every=0.2, what=plant._progress)
    plant.verdict(failed={run.run_id for run in lapsed})
