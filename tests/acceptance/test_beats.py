"""Schedules under three real beat processes at once, with real workers whose own timers look as well."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conductor.ids import home_of_name
from conductor.store.jobs import JobRecord
from tests.support.desk import WAIT, Desk, new_tag, opened
from tests.support.waiting import eventually

HOUR = 3_600_000


@pytest.fixture
def tag() -> str:
    return new_tag()


@pytest.fixture
def desk(tmp_path: Path, tag: str, request: pytest.FixtureRequest) -> Iterator[Desk]:
    declared = {"TEST_TICKS": tag} if getattr(request, "param", "") == "declared" else {}
    with opened(tmp_path, {"TEST_SLOW_TICKS": "1", **declared}) as made:
        beats = [made.beat(wait=False) for _ in range(3)]
        workers = [made.worker(concurrency=2, wait=False) for _ in range(2)]
        for process in (*beats, *workers):
            process.wait_ready()
        yield made
        for beat in beats:
            assert "conductor.sweep_schedules" in beat.text(), "every beat has sent its sweep"
        judged = Counter(line.key for line in made.ledger.lines("judged"))
        assert max(judged.values()) >= 2, "nobody has judged a tick while another did"
        made.sound()


def job(desk: Desk, name: str) -> JobRecord:
    found = desk.engine.store.job(name)
    assert isinstance(found, JobRecord)
    return found


def started(desk: Desk, tag: str) -> list[str]:
    """The operation of every body that has begun, as often as it has."""
    return [line.key for line in desk.begun(tag)]


@pytest.mark.spec("OP-5", "WF-16", "STK-2")
def test_three_beats_start_each_tick_once_and_after_ten_missed_ones_only_the_latest(desk: Desk) -> None:
    every_second, hourly = new_tag(), new_tag()
    desk.conductor.schedule("ticking", "ops_echo", {"tag": every_second}, when=1, overlap="allow")
    desk.conductor.schedule("hourly", "ops_echo", {"tag": hourly}, when=HOUR / 1000)
    latest = miss(desk, "hourly", 10)

    # Long enough for each beat to send its sweep, beside the workers' own timers.
    with locks_lost(desk):
        eventually(lambda: job(desk, "ticking").fired >= 7, WAIT, what=desk.processes.logs)
    desk.engine.store.pause_job("ticking")
    ticks = eventually(lambda: settled(desk, "ticking", every_second), WAIT, what=desk.processes.logs)
    assert len(set(ticks.values())) == len(ticks) == job(desk, "ticking").fired
    assert max(Counter(started(desk, every_second)).values()) == 1
    assert operations(desk) == len(ticks) + 1

    found = job(desk, "hourly")
    assert [tick.word for tick in found.ticks] == ["missed"] * 9 + ["fired"]
    assert (found.fired, found.missed, found.last_at) == (1, 9, latest)
    assert len(started(desk, hourly)) == 1


@contextmanager
def locks_lost(desk: Desk) -> Iterator[None]:
    """The lock of the sweep only saves work: it is lost all the time, so that all look at once."""
    over, client, key = threading.Event(), desk.server.client(), desk.keys.of(0, "lock:sweep:schedules")
    notes = desk.keys.of(0, "sweeps")

    def lose() -> None:
        while not over.wait(0.002):
            client.delete(key)
            client.hdel(notes, "schedules")  # every timer finds the sweep overdue

    thread = threading.Thread(target=lose)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def miss(desk: Desk, name: str, ticks: int) -> int:
    """As if nobody had looked for so many ticks; tells the latest of them."""
    store = desk.engine.store
    home, latest = home_of_name(name, store.partitions), desk.now() // HOUR * HOUR
    earliest = latest - (ticks - 1) * HOUR
    client: Any = store.client()
    client.hset(store.keys.of(home, f"job:{name}"), mapping={"n": earliest, "cs": 1})
    client.zadd(store.keys.of(home, "jobs"), {name: earliest})
    return latest


def settled(desk: Desk, name: str, tag: str) -> dict[int, str]:
    """Nominal time → operation of every tick that fired, once all of them have run."""
    found = job(desk, name)
    fired = {tick.nominal: tick.id for tick in found.ticks if tick.word == "fired"}
    return fired if all(desk.state(one) == "completed" for one in fired.values()) and len(started(desk, tag)) >= len(fired) else {}


def operations(desk: Desk) -> int:
    return counted(desk, "ops")


def counted(desk: Desk, index: str) -> int:
    """How many runs, or operations, the store has."""
    store = desk.engine.store
    return sum(store.client().zcard(store.keys.of(partition, index)) for partition in range(store.partitions))


@pytest.mark.spec("WF-16", "STK-2")
@pytest.mark.parametrize("desk", ["declared"], indirect=True)
def test_what_code_declares_with_every_starts_one_run_per_tick_under_three_beats(desk: Desk, tag: str) -> None:
    """Five processes declare the same two schedules, one by seconds and one by a crontab of which ten ticks were missed."""
    eventually(lambda: desk.engine.store.job("ops-hours") and desk.engine.store.job("ops-seconds"), WAIT, what=desk.processes.logs)
    latest = miss(desk, "ops-hours", 10)
    with locks_lost(desk):
        eventually(lambda: job(desk, "ops-seconds").fired >= 7 and job(desk, "ops-hours").fired, WAIT, what=desk.processes.logs)
    desk.engine.store.pause_job("ops-seconds")
    ticks = eventually(lambda: ended(desk, "ops-seconds"), WAIT, what=desk.processes.logs)
    begun = Counter(started(desk, f"{tag}-ops-seconds"))
    assert (len(set(ticks.values())), max(begun.values())) == (len(ticks), 1)
    assert len(begun) == len(ticks) == job(desk, "ops-seconds").fired

    found = job(desk, "ops-hours")
    assert [tick.word for tick in found.ticks] == ["missed"] * 9 + ["fired"]
    assert (found.fired, found.missed, found.last_at) == (1, 9, latest)
    assert len(ended(desk, "ops-hours")) == len(started(desk, f"{tag}-ops-hours")) == 1
    assert counted(desk, "runs") == len(ticks) + 1


def ended(desk: Desk, name: str) -> dict[int, str]:
    """Nominal time → run of every tick that fired, once all of them have completed."""
    fired = {tick.nominal: tick.id for tick in job(desk, name).ticks if tick.word == "fired"}
    return fired if all(desk.conductor.run(one).status == "completed" for one in fired.values()) else {}
