"""Workers that are killed, stopped, paused and told to go: the work goes on, once."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from tests.support.processes import Process
from tests.support.site import Site
from tests.support.waiting import eventually
from tests.support.witness import Entry

QUICK = {"TEST_LEASE_SECONDS": "2", "CONDUCTOR_HEARTBEAT_SECONDS": "0.5", "CONDUCTOR_STALL_SWEEP_SECONDS": "0.5"}


def codes(site: Site, run_id: str) -> str:
    return "".join(entry.code for entry in site.record(run_id).log)


def lost(site: Site) -> list[Entry]:
    return [entry for run in site.began for entry in site.record(run.run_id).log if entry.code == "x"]


def begun_by(site: Site, run_id: str) -> list[tuple[int, float]]:
    """Process and time of each beginning of the run's bodies."""
    return [(line.pid, line.at) for line in site.ledger.lines("begin") if line.key.startswith(run_id)]


@pytest.mark.spec("REC-3", "REC-4", "RUN-2")
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.faults)], ids=["child", "host"])
def test_a_killed_workers_step_runs_again_within_20_seconds(site: Site, whole: bool) -> None:
    """With the shipped settings: lease 15 s, sweep 2 s. The system has been idle for a while, as most systems are."""
    first, second = site.worker(concurrency=1), site.worker(concurrency=1)
    warm = site.start("chain", 1)
    eventually(lambda: site.state(warm) == "completed", 20)
    run_id = site.start("long", 7, hold=2)
    ((pid, _),) = eventually(lambda: begun_by(site, run_id), what="the body begins")
    victim = first if pid in first.children else second
    killed_at = time.monotonic()
    if whole:
        victim.kill_whole()
    else:
        assert victim.signal_children(signal.SIGKILL) == [pid]
    again = eventually(lambda: begun_by(site, run_id)[1:], 30, what="the step runs again")
    assert again[0][1] - killed_at <= 20
    site.wait_for_all(15)
    assert len(lost(site)) == 1
    site.verdict()


@pytest.mark.spec("RUN-2")
@pytest.mark.parametrize("site", [QUICK], indirect=True)
def test_a_worker_that_stood_still_past_its_lease_cannot_commit(site: Site) -> None:
    zombie = site.worker(concurrency=1)
    run_id = site.start("long", 7, hold=1)
    eventually(lambda: begun_by(site, run_id), what="the body begins")
    zombie.stop_whole()
    other = site.worker(concurrency=1)
    eventually(lambda: site.state(run_id) == "completed", 40, what="another worker completes it")
    told = len(site.record(run_id).log)
    zombie.continue_whole()
    pid = begun_by(site, run_id)[0][0]
    eventually(lambda: [line for line in site.ledger.lines("end") if line.pid == pid], what="the zombie finishes its body")
    other.terminate()
    after = site.start("chain", 3)
    eventually(lambda: site.state(after) == "completed", 20, what="the zombie is a good worker again")
    assert len(site.record(run_id).log) == told
    assert codes(site, run_id).count("x") == 1
    site.verdict()


@pytest.mark.spec("RUN-13")
@pytest.mark.parametrize("runs", [12, pytest.param(120, marks=pytest.mark.faults)])
def test_sigterm_under_load_repeats_nothing_and_burns_no_attempt(site: Site, runs: int, seed: int) -> None:
    leaving, staying = site.worker(), site.worker()
    site.start_mix(runs, seed, hold=0.1)
    pool = set(leaving.children)
    eventually(lambda: any(line.pid in pool for line in site.ledger.open()), 20, what="the leaving worker is in the middle of a body")
    told_at, clock = time.monotonic(), site.server.client().time()
    leaving.terminate(20)
    assert staying.alive
    site.wait_for_all(60 + runs)
    claimed = claimed_after(site, leaving, clock[0] * 1000 + clock[1] // 1000 + 100)
    assert not claimed, f"claimed after SIGTERM: {claimed}"
    late = [line for line in site.ledger.lines("begin") if line.pid in pool and line.at > told_at + 0.3]
    assert not late, f"begun after SIGTERM: {late}"
    assert not lost(site), "a lease was left to expire"
    assert_ran_once(site)
    site.verdict()


@pytest.mark.spec("RUN-13")
@pytest.mark.parametrize("site", [{"CONDUCTOR_DRAIN_SECONDS": "3"}], indirect=True)
def test_a_worker_that_looks_around_claims_nothing_after_sigterm(site: Site) -> None:
    """Runs come thick and fast, and it stays as long as it may; what it claimed now it could only give back."""
    leaving, over = site.worker(concurrency=1), threading.Event()
    feeder = threading.Thread(target=lambda: [site.start("chain", 1) for _ in iter(over.is_set, True)])
    feeder.start()
    try:
        eventually(lambda: len(site.ledger.lines("begin")) > 300, 30, what="it has begun to stay")
        told_at = site.server.client().time()
        leaving.terminate(20)
    finally:
        over.set()
        feeder.join()
    claimed = claimed_after(site, leaving, told_at[0] * 1000 + told_at[1] // 1000 + 100)
    assert not claimed, f"claimed after SIGTERM: {claimed}"
    site.worker()
    site.wait_for_all(60)
    site.verdict()


def claimed_after(site: Site, worker: Process, ms: int) -> list[Entry]:
    """What the processes of a worker have claimed after this moment of the server's clock, as the logs of the runs say."""
    known = site.server.client().hgetall(f"conductor:{{{site.namespace}:00}}:workers")
    tags = {tag for tag, text in known.items() if text.partition(";")[2].startswith(f"{worker.name}@")}
    assert tags, known
    entries = (entry for run in site.began for entry in site.record(run.run_id).log)
    return [entry for entry in entries if entry.code == "k" and entry.at > ms and entry.fields[-1] in tags]


def assert_ran_once(site: Site) -> None:
    """Every body began once; only `flaky`, which always fails once, began twice and has an attempt 2."""
    repeated = {key: count for key, count in site.ledger.begun().items() if count > (2 if key.endswith(":flaky") else 1)}
    assert not repeated
    burnt = [line for line in site.ledger.lines("begin") if line.attempt > (2 if line.key.endswith(":flaky") else 1)]
    assert not burnt


@pytest.mark.spec("RUN-13")
def test_a_step_longer_than_the_grace_is_given_back_not_left_to_expire(site: Site) -> None:
    leaving = site.worker(concurrency=1)
    run_id = site.start("long", 7, hold=8)
    eventually(lambda: begun_by(site, run_id), what="the body begins")
    leaving.terminate(15)
    staying = site.worker(concurrency=1)
    eventually(lambda: len(begun_by(site, run_id)) == 2, 12, what="another worker takes it without waiting for the lease")
    assert staying.alive
    site.wait_for_all(20)
    assert "b" in codes(site, run_id) and "x" not in codes(site, run_id)
    assert {line.attempt for line in site.ledger.lines("begin")} == {1}
    site.verdict()


@pytest.mark.spec("RUN-8")
@pytest.mark.parametrize("site", [QUICK], indirect=True)
def test_a_step_that_kills_every_worker_is_called_poison_and_harms_nobody_else(site: Site) -> None:
    site.worker(), site.worker()
    deadly = site.start("deadly", 1)
    site.start_mix(8, 1)
    eventually(lambda: site.state(deadly) == "failed", 60, what="the deadly run ends")
    site.wait_for_all(40)
    assert site.record(deadly).log[-1].fields[0] == "failed" and codes(site, deadly).count("x") == 3
    assert len(begun_by(site, deadly)) == 3
    site.verdict(failed={deadly})


@pytest.mark.faults
@pytest.mark.spec("RUN-2", "RUN-3", "REC-3")
@pytest.mark.parametrize("site", [QUICK], indirect=True)
def test_workers_killed_again_and_again_lose_nothing(site: Site, seed: int) -> None:
    """Random kills of children and hosts under a mixed load; the sweep of crash points is exhaustive, this one is blind."""
    import random

    choose = random.Random(seed)
    fleet: list[Process] = [site.worker() for _ in range(3)]
    site.start_mix(200, seed, hold=0.05)
    kills = 0
    while kills < 25 and site.open_runs():
        victim = choose.choice(fleet)
        in_body = {line.pid for line in site.ledger.open()} & set(victim.children)
        if not in_body:
            time.sleep(0.02)
            continue
        if choose.random() < 0.3:
            victim.kill_whole()
            fleet[fleet.index(victim)] = site.worker()
        else:
            victim.signal_children(signal.SIGKILL)
        kills += 1
        time.sleep(choose.uniform(0.2, 1.0))
    assert kills >= 20, f"only {kills} kills landed in a running body"
    site.wait_for_all(120)
    assert lost(site)
    site.verdict()
