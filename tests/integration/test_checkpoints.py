"""Checkpoints: lag says the truth whatever was cut off, a run that would not hold still keeps the place, a busy one is copied all the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conductor import Workflow
from conductor.archive import Archive
from conductor.declare import registry
from conductor.runs import archiving
from conductor.runs.execute import Drainer
from conductor.store.copying import Restless
from conductor.sweeps import checkpoints, overlooked
from conductor.sweeps.checkpoints import lag_ms, sweep_checkpoints
from tests.integration.shop import Shop
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually


@pytest.fixture
def shop(valkey: ValkeyServer, namespace: str, clean_keys: None, tmp_path: Path) -> Iterator[Shop]:
    with registry.isolated():
        yield Shop(valkey.url(), namespace, archive_url=f"sqlite:///{tmp_path}/archive.db")


def copied(shop: Shop) -> None:
    eventually(lambda: sweep_checkpoints(shop.engine) is not None and lag_ms(shop.engine) == 0, 10, what="checkpoints catch up")


def cut_off(shop: Shop, partition: int, run_id: str) -> None:
    """What happens to old notices where much happens: only newer ones are left."""
    key = shop.engine.store.keys.of(partition, "notices")
    shop.engine.store.client().xtrim(key, maxlen=0)
    shop.engine.store.client().xadd(key, {"r": run_id, "n": 1, "s": "running"})


def aged(shop: Shop, ms: int) -> None:
    """As if the shipper had looked so much earlier: its places and its notes move back."""
    store = shop.engine.store
    client = store.client()
    for partition in range(store.partitions):
        place, gap, looked = store.shipping(partition)
        if place:
            at, _, rest = place.partition("-")
            store.set_shipped(partition, f"{int(at) - ms}-{rest}")
        store.set_shipping(partition, gap=gap, looked=max(0, looked - ms))
    client.hincrby(store.keys.of(0, "sweeps"), "checkpoints_begun", -ms)


def in_each(shop: Shop, workflow: str) -> list[str]:
    """Runs in each partition."""
    runs: list[str] = []
    while len(runs) < 4 or {int(run_id[-2:], 16) for run_id in runs} != {0, 1}:
        runs.append(shop.start(workflow))
    return runs


def moments(shop: Shop) -> dict[int, int]:
    archive: Archive = shop.engine.archive.open()
    return {one.partition: one.shipped_ms for one in archive.moments()}


@pytest.mark.spec("REC-6")
def test_lag_is_not_hidden_by_what_was_cut_off(shop: Shop) -> None:
    first = in_each(shop, "cli_orders")
    copied(shop)
    assert lag_ms(shop.engine) == 0
    aged(shop, 7000)
    second = in_each(shop, "cli_naps")
    shop.drain()
    for partition in range(2):
        cut_off(shop, partition, first[0])
    assert 6500 < lag_ms(shop.engine) < 20_000
    store = shop.engine.store
    before = moments(shop)
    for partition in range(2):  # it has looked at every run a moment ago, so what was missed stays missing for a while
        store.set_shipping(partition, gap="", looked=store._now())
    time.sleep(0.15)
    sweep_checkpoints(shop.engine)
    assert lag_ms(shop.engine) > 6500, "what it copied from then on is not all"
    assert moments(shop) == before, "nor does the archive believe so"
    for partition in range(2):
        store.set_shipping(partition, gap=store.shipping(partition)[1], looked=0)
    copied(shop)
    assert all(moments(shop)[partition] > before[partition] for partition in before)
    positions = shop.engine.archive.open().positions(second)
    assert {run_id: positions[run_id].n for run_id in second} == {run_id: len(store.log_of(run_id)) for run_id in second}


@pytest.mark.spec("REC-6", "ACT-2")
def test_after_notices_were_cut_off_only_what_changed_is_copied(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, idle = [shop.start() for _ in range(4)], [shop.start("cli_naps") for _ in range(4)]
    shop.drain()
    copied(shop)
    going_on = [shop.start() for _ in range(4)]
    copied(shop)
    late = idle.pop()
    shop.conductor.cancel(late)
    shop.drain()
    fresh = shop.start("cli_naps")
    read: list[str] = []
    real = archiving.read_snapshot
    monkeypatch.setattr(archiving, "read_snapshot", lambda store, run_id: (read.append(run_id), real(store, run_id))[1])
    for partition in range(2):
        cut_off(shop, partition, fresh)
        shop.engine.store.set_shipping(partition, gap="", looked=0)
    copied(shop)
    assert set(read) == {*going_on, late, fresh}
    positions = shop.engine.archive.open().positions([*going_on, late])
    assert all(place.terminal for place in positions.values())
    assert len(positions) == 5
    assert not set(read) & {*ended, *idle}


@pytest.mark.spec("REC-6")
def test_a_run_that_would_not_hold_still_keeps_the_place(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    restless, other = shop.start("cli_naps"), shop.start("cli_naps")
    copied(shop)
    real = archiving.read_snapshot

    def moving(store: Any, run_id: str) -> Any:
        if run_id == restless:
            raise Restless(run_id)
        return real(store, run_id)

    before = moments(shop)
    begun = time.monotonic()
    shop.drain()
    with monkeypatch.context() as patch:
        patch.setattr(archiving, "read_snapshot", moving)
        time.sleep(1.2)
        for _ in range(3):
            sweep_checkpoints(shop.engine)
        assert 1000 < lag_ms(shop.engine) <= (time.monotonic() - begun) * 1000 + 100
        assert shop.engine.archive.open().positions([other])[other].n == len(shop.engine.store.log_of(other)), "the others are copied"
        assert moments(shop)[int(restless[-2:], 16)] == before[int(restless[-2:], 16)]
    copied(shop)
    assert shop.engine.archive.open().positions([restless])[restless].n == len(shop.engine.store.log_of(restless))


@pytest.mark.spec("REC-6", "WF-6")
def test_a_large_run_is_copied_while_workers_are_at_it(shop: Shop) -> None:
    wide: Workflow[Any] = Workflow("wide", input=int)

    @wide.step
    def split(n: int) -> list[int]:
        return list(range(n))

    @wide.each(split, max_parallel=50)
    def work(x: int) -> int:
        return x

    @wide.step
    def total(work: list[int]) -> int:
        return sum(work)

    run_id, stop = wide.delay(4000).id, threading.Event()

    def drain() -> None:
        drainer = Drainer(shop.engine, worker_name="w", may_stop_process=False)
        while not stop.is_set():
            for partition in range(2):
                drainer.drain(partition, shop.engine.default_queue)

    threads = [threading.Thread(target=drain, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    seen: set[int] = set()
    try:

        def ended() -> bool:
            sweep_checkpoints(shop.engine)
            if place := shop.engine.archive.open().positions([run_id]).get(run_id):
                seen.add(place.n)
            return shop.state(run_id) == "completed"

        eventually(ended, 120, what=lambda: f"it ends: {shop.state(run_id)}, copied at {sorted(seen)}")
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)
    assert len(seen) >= 3, "copied again and again while it ran"


def test_candidates_are_those_that_may_have_changed(shop: Shop) -> None:
    runs = [shop.start("cli_naps") for _ in range(3)]
    partition = int(runs[0][-2:], 16)
    now = shop.engine.store._now()
    found = [run_id for page in overlooked.overlooked(shop.engine, partition, now) for run_id in page]
    assert set(found) == {run_id for run_id in runs if int(run_id[-2:], 16) == partition}
    assert checkpoints.NAME == "checkpoints"
