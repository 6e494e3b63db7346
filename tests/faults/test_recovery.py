"""A store that is wiped under load: what a checkpoint had seen comes back and ends, verified effects are not repeated, waits stay waits.

What a checkpoint had seen is read from the archive itself, just before the store is wiped; nothing is taken off that list afterwards.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conductor.archive import Kind
from conductor.runs.archiving import open_snapshot
from conductor.runs.recover import Recovery, recover
from conductor.sweeps.checkpoints import lag_ms, sweep_checkpoints
from tests.faults.plant import QUICK, WAITING, WORKING, Caller, Plant
from tests.support import works
from tests.support.server import ValkeyServer
from tests.support.site import ENDED
from tests.support.waiting import eventually


@pytest.fixture
def plant(own_valkey: ValkeyServer, namespace: str, tmp_path: Path) -> Iterator[Plant]:
    one = Plant(own_valkey, tmp_path, namespace, {**QUICK, "CONDUCTOR_ARCHIVE_URL": f"sqlite:///{tmp_path}/archive.db"})
    yield one
    one.close()


def seen(plant: Plant) -> dict[str, str]:
    """Every run of which the archive has a copy now, and its state there."""
    pages = plant.engine.archive.open().unfinished(kinds=(Kind.CHECKPOINT, Kind.PARKED))
    found = {row.run_id: str(row.state) for page in pages for row in page}
    known = [run.run_id for run in [*plant.began, *plant.patient]]
    rows = (plant.engine.archive.open().get(run_id) for run_id in known if run_id not in found)
    return found | {row.run_id: str(row.state) for row in rows if row is not None}


def state(plant: Plant, run_id: str) -> str:
    """How a run stands: in the store, or in the archive alone."""
    if found := plant.state(run_id):
        return found
    if plant.stand(run_id) is not None:
        return "parked"
    row = plant.engine.archive.open().get(run_id)
    return str(row.state) if row is not None and row.is_terminal else "lost"


def begun(plant: Plant) -> set[str]:
    """The charges that the archive knows to have begun, by their keys."""
    rows = (plant.engine.archive.open().get(run.run_id, with_snapshot=True) for run in plant.began if run.workflow == "charged")
    logs = {row.run_id: open_snapshot(row).keys["log"] for row in rows if row is not None}
    return {f"{run_id}:charge" for run_id, log in logs.items() if any(line.startswith("k;") for line in log)}


def again(plant: Plant) -> set[str]:
    """The charges that were brought about although they were there."""
    return {line.key for line in plant.ledger.lines("repeat") if line.key.endswith(":charge")}


def wiped(plant: Plant, accepted: dict[str, float], *, still: bool) -> tuple[set[str], Recovery]:
    """Wipe the store, whatever is under way, and recover it: the runs that had been seen, and the report, whose moments are true.

    `still`: nobody looks into the store while it is empty. What may go wrong then is held by `tests/integration/test_wiped_store.py`.
    """
    had, frozen = seen(plant), [process for process in plant.processes.started if still and process.alive]
    for process in frozen:
        process.stop_whole()
    plant.server.client().flushall()
    at = 1000 * time.time()
    told = recover(plant.engine)
    for process in frozen:
        process.continue_whole()
    assert told.wiped
    assert not told.errors
    assert {int(run_id[-2:], 16) for run_id in had} <= set(told.moments), "the report names no moment for a partition that had runs"
    assert all(0 < moment <= at for moment in told.moments.values())
    early = {run_id for run_id, accepted_at in accepted.items() if accepted_at <= told.moments.get(int(run_id[-2:], 16), 0)}
    assert early <= set(seen(plant)), "accepted before the moment that the report names, and in no checkpoint"
    return set(had), told


@pytest.mark.spec("REC-6", "REC-2", "EFF-2")
@pytest.mark.parametrize(("rounds", "runs", "workers"), [
    (1, 20, 1), pytest.param(10, 40, 2, marks=[pytest.mark.faults, pytest.mark.timeout(1800)]),
])
def test_a_store_that_is_wiped_under_load_is_recovered(plant: Plant, rounds: int, runs: int, workers: int, seed: int) -> None:
    """Steps that ran after the checkpoint are done again, so the ledger may show their bodies twice; every run ends with its answer."""
    choose, known, late, plant.workers = random.Random(seed), set[str](), 0, workers
    plant.everybody()
    waits = Caller(plant, [*WAITING, *WAITING], "waits", hold=0.0)
    waits.start()
    waits.done()
    eventually(lambda: len(plant.stands()) == len(waits.accepted), 30, what="they wait")
    for number in range(rounds):
        before = plant.stands()
        caller = Caller(plant, choose.choices((*WORKING, "charged"), k=runs), f"round{number}", hold=0.2, pause=2.0 / runs)
        caller.start()
        eventually(lambda: caller.accepted, 20, what="the first start is acknowledged")  # noqa: B023
        time.sleep(choose.uniform(0.5, 3))  # the moment is the seed's, whatever is under way
        eventually(lambda: sweep_checkpoints(plant.engine) and lag_ms(plant.engine) < 300, 30, what="checkpoints have nearly caught up")
        at_work = len(still_open(plant))
        known, repeated = known | begun(plant), again(plant)
        had, told = wiped(plant, caller.accepted, still=rounds == 1)
        caller.done()
        plant.still_there(before)
        gone = {run.run_id for run in plant.began if state(plant, run.run_id) == "lost"}
        print(f"round {number}: {at_work} at work, {told.restored} restored, {len(gone)} unseen and gone")
        assert not gone & had, "a checkpoint had seen it, and it did not come back"
        plant.began = [run for run in plant.began if run.run_id not in gone]
        eventually(lambda: not still_open(plant), 60, every=0.2, what=lambda: f"all end but {still_open(plant)}\n{plant.processes.logs()}")
        repeated = again(plant) - repeated
        late += len(repeated - known)
        assert not repeated & known, "an effect that had begun before the checkpoint, and could be verified, was brought about again"
    print(f"{len(known)} effects had begun before a checkpoint; of those that began after one {late} were repeated")
    plant.released()
    eventually(lambda: not still_open(plant), 60, every=0.2, what=lambda: f"all end but {still_open(plant)}\n{plant.processes.logs()}")
    assert wrong_ends(plant) == []
    assert plant.fsck() == []


def still_open(plant: Plant) -> list[str]:
    plant.no_calm()
    found = {run: state(plant, run.run_id) for run in plant.began}
    return [f"{run} is {one}" for run, one in found.items() if one not in ENDED]


def wrong_ends(plant: Plant) -> list[str]:
    """Of those whose end only the archive has, the state; of the others state and answer, and of all that their effects are there."""
    effects, wrong = plant.ledger.effects(), []
    for run in plant.began:
        found = state(plant, run.run_id)
        missing = works.effect_keys(run.workflow, run.run_id) - effects
        if found != "completed":
            wrong.append(f"{run} is {found}: {plant.server.client().hgetall(plant.engine.store.keys.run(run.run_id, 'err'))}")
        wrong += [f"{run} lacks {sorted(missing)[:3]}"] * bool(missing)
        if plant.state(run.run_id) == "completed" and (answer := plant.conductor.run(run.run_id).get(timeout=5)) != works.expected(run.workflow, run.n):
            wrong.append(f"{run} answered {answer}")
    return wrong
