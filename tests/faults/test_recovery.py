"""Everything killed at once and started again, and a store that is wiped under load: what waits still waits for as long, and all runs end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conductor.runs.recover import recover
from conductor.runs.waiting import signal
from conductor.sweeps.checkpoints import lag_ms, sweep_checkpoints
from tests.support.server import ValkeyServer
from tests.support.site import Site
from tests.support.waiting import eventually

QUICK = {
    "TEST_LEASE_SECONDS": "2", "CONDUCTOR_HEARTBEAT_SECONDS": "0.5", "CONDUCTOR_STALL_SWEEP_SECONDS": "0.3",
    "CONDUCTOR_PARKED_SWEEP_SECONDS": "0.2", "CONDUCTOR_CHECKPOINT_SECONDS": "0.2",
    "CONDUCTOR_PARK_AFTER_MINUTES": "0.02",
}


class Archived(Site):
    """A site with an archive."""

    @property
    def engine(self) -> Any:
        engine = super().engine
        engine.archive._url, engine.archive._namespace = self.env["CONDUCTOR_ARCHIVE_URL"], self.namespace
        return engine

    def everybody(self) -> None:
        self.worker()
        self.processes.beat()

    def power_cut(self) -> None:
        for process in self.processes.started:
            if process.alive:
                process.kill_whole()
        self.server.kill()

    def power_back(self) -> None:
        self.server.restart()
        self.everybody()

    def no_calm(self) -> None:
        """After the gap the stall sweep waits for 15 s, so that nobody is taken for dead; here all of them are."""
        keys, client = self.engine.store.keys, self.server.client()
        for partition in range(self.engine.store.partitions):
            client.hset(keys.head(partition), "calm", 1)

    def deadlines(self, runs: list[str]) -> dict[str, Any]:
        """When the waits of these runs lapse, whether they are in the store or parked."""
        keys, client, found = self.engine.store.keys, self.server.client(), {}
        for run_id in runs:
            partition = int(run_id[-2:], 16)
            due = client.zscore(keys.of(partition, "due"), f"lapse:{run_id}:1")
            found[run_id] = due or client.zscore(keys.of(partition, "wake"), run_id)
        return found

    def waiting(self, count: int) -> list[str]:
        began, runs = len(self.began), [self.start("patient", number) for number in range(count)]
        eventually(lambda: all(self.deadlines(runs).values()), 30, what="they wait")
        self.patient = self.began[began:]
        del self.began[began:]  # they end when they are told to
        return runs

    def released(self, runs: list[str]) -> None:
        for run_id in runs:
            signal(self.engine, run_id, "release", 100, signal_id="go")
        self.began += self.patient


@pytest.fixture
def archived(own_valkey: ValkeyServer, namespace: str, tmp_path: Path) -> Iterator[Archived]:
    one = Archived(own_valkey, tmp_path, namespace, {**QUICK, "CONDUCTOR_ARCHIVE_URL": f"sqlite:///{tmp_path}/archive.db"})
    yield one
    one.close()


@pytest.mark.spec("REC-6", "REC-1", "IDLE-6")
@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.faults)])
def test_everything_is_killed_and_started_again(archived: Archived, rounds: int, seed: int) -> None:
    archived.everybody()
    runs = archived.waiting(6)
    before = archived.deadlines(runs)
    for number in range(rounds):
        archived.start_mix(8, seed + number, hold=0.2)
        eventually(lambda: archived.ledger.open(), 30, what="bodies run")
        archived.power_cut()
        archived.power_back()
        archived.no_calm()
        assert archived.deadlines(runs) == before
        eventually(lambda: archived.no_calm() or not archived.open_runs(), 60, every=0.2, what=archived._progress)
    parked = [archived.engine.store.keys.of(int(run_id[-2:], 16), "parked") for run_id in runs]
    client = archived.server.client()
    eventually(lambda: all(map(client.hexists, parked, runs)), 30, what="workers park what waits")
    archived.released(runs)
    archived.wait_for_all(60)
    archived.verdict()


@pytest.mark.spec("REC-6", "REC-2")
@pytest.mark.parametrize("rounds", [pytest.param(10, marks=pytest.mark.faults)])
def test_a_store_that_is_wiped_under_load_is_recovered(archived: Archived, rounds: int, seed: int) -> None:
    """Work after the checkpoint is done again, so the ledger may show it twice; every run ends with its answer all the same."""
    archived.everybody()
    runs = archived.waiting(4)
    for number in range(rounds):
        archived.start_mix(8, seed + number, hold=0.2)
        before = archived.deadlines(runs)

        def copied() -> bool:
            sweep_checkpoints(archived.engine)
            return lag_ms(archived.engine) < 300

        eventually(copied, 30, what="checkpoints catch up")
        everything = {run_id for page in archived.engine.archive.open().unfinished() for run_id in (row.run_id for row in page)}
        archived.server.client().flushall()
        told = recover(archived.engine)
        assert told.wiped
        assert not told.errors
        assert archived.deadlines(runs) == before
        archived.began = [run for run in archived.began if run.run_id in everything and archived.state(run.run_id)]
        eventually(lambda: archived.no_calm() or not archived.open_runs(), 60, every=0.2, what=archived._progress)
    archived.released(runs)
    archived.wait_for_all(60)
    assert list(archived._answers((), ())) == []
    assert archived.fsck() == []
