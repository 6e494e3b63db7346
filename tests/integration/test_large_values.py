"""Large values go by reference to a blob store, and die with their run; without one a clear error names size and limit."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conductor import Workflow, codec
from conductor.blobs import FileBlobs
from conductor.declare import registry
from conductor.errors import ForkRefused, ValueTooLarge
from conductor.runs.children import child_of
from conductor.runs.erasing import drop_orphan_blobs, erase_run
from conductor.runs.fsck import fsck
from conductor.sweeps.archiving import sweep_archive
from conductor.sweeps.retention import sweep_retention
from tests.integration.shop import Shop
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually

LARGE = "x" * 3_000_000
Open = Callable[..., Shop]


@pytest.fixture
def open_shop(valkey: ValkeyServer, namespace: str, clean_keys: None, tmp_path: Path) -> Iterator[Open]:
    def make(**settings: Any) -> Shop:
        shop = Shop(valkey.url(), namespace, **{"blobs": f"file://{tmp_path}/blobs", "retention_completed_seconds": 0, **settings})
        _declare()
        return shop

    with registry.isolated():
        yield make
    codec.use_blobs(None)


def _declare() -> None:
    big: Workflow[Any] = Workflow("big", input=dict[str, str])

    @big.step
    def grow(start: dict[str, str]) -> list[str]:
        return [start["text"], "small"]

    @big.each(grow)
    def longer(member: str) -> str:
        return member + "!"

    @big.step
    def last(longer: list[str]) -> str:
        return "".join(longer)


def drained(shop: Shop, run: Any) -> Any:
    """What a worker and its pokes do: large values take longer than one drain."""

    def ended() -> bool:
        shop.drain()
        return run.status not in ("running", "paused")

    eventually(ended, 20, what=lambda: f"{run} is {run.status}")
    return run.get(timeout=1)


def files(tmp_path: Path) -> list[str]:
    return sorted(FileBlobs(f"file://{tmp_path}/blobs").names())


def largest_value(shop: Shop, run_id: str) -> int:
    """The longest text that the store keeps of the run."""
    client, found = shop.engine.store.client(), 0
    for key in client.scan_iter(f"*{run_id}*"):
        if client.type(key) == "hash":
            found = max([found, *map(len, client.hvals(key))])
    return found


@pytest.mark.spec("RUN-10")
def test_large_values_leave_the_store_and_come_back_whole(open_shop: Open, tmp_path: Path) -> None:
    shop = open_shop()
    run = registry.declared["big"].delay({"text": LARGE})
    assert drained(shop, run) == LARGE + "!small!"
    assert largest_value(shop, run.id) < 1000
    whats = [name.split("/")[2].partition(".")[0] for name in files(tmp_path)]
    assert whats == ["input", "list-0-0", "result-1-0", "result-2"]
    assert {name.split("/")[1] for name in files(tmp_path)} == {run.id}
    assert not fsck(shop.engine)
    assert sweep_retention(shop.engine).count == 1
    assert files(tmp_path) == []


@pytest.mark.spec("RUN-10", "RET-1")
def test_blobs_outlive_the_store_with_an_archive_and_die_with_the_row(open_shop: Open, tmp_path: Path) -> None:
    shop = open_shop(archive_url=f"sqlite:///{tmp_path}/archive.db")
    run = registry.declared["big"].delay({"text": LARGE})
    drained(shop, run)
    before = files(tmp_path)
    sweep_archive(shop.engine)
    row = shop.engine.archive.open().get(run.id)
    assert row is not None
    assert row.blobs == tuple(before) == tuple(files(tmp_path))
    assert shop.json("show", run.id, "--values")["result"] == LARGE + "!small!"
    shop.ok("purge", run.id, "--yes")
    assert files(tmp_path) == []


@pytest.mark.spec("RUN-10")
def test_without_a_blob_store_the_error_names_size_and_limit(open_shop: Open) -> None:
    shop = open_shop(blobs=None)
    with pytest.raises(ValueTooLarge, match=r"3000\d\d\d.*1048576"):
        registry.declared["big"].delay({"text": LARGE})
    refused = shop.call("start", "big", json.dumps({"text": LARGE}))
    assert "1048576" in refused.stderr


@pytest.mark.spec("RUN-10")
def test_a_repeated_start_leaves_no_blob_behind(open_shop: Open, tmp_path: Path) -> None:
    open_shop()
    first = registry.declared["big"].apply_async({"text": LARGE}, key="one")
    assert registry.declared["big"].apply_async({"text": LARGE}, key="one").id == first.id
    assert {name.split("/")[1] for name in files(tmp_path)} == {first.id}


@pytest.mark.spec("RUN-10")
def test_a_blob_store_that_is_away_fails_the_attempt_and_not_the_run(open_shop: Open, tmp_path: Path) -> None:
    class Away(FileBlobs):
        times = 0

        def put(self, name: str, data: bytes, /) -> None:
            if "result" in name and not Away.times:
                Away.times += 1
                raise OSError("no space left")
            super().put(name, data)

    shop = open_shop(blobs=Away(f"file://{tmp_path}/blobs"))
    run = registry.declared["big"].delay({"text": LARGE})
    client, keys = shop.engine.store.client(), shop.engine.store.keys
    due = keys.of(int(run.id[-2:], 16), "due")
    waiting = eventually(lambda: shop.drain() or client.zrange(due, 0, -1), 10, what="it is to be repeated")
    client.zadd(due, {waiting[0]: 1})
    shop.engine.store.fire_due(int(run.id[-2:], 16))
    assert drained(shop, run) == LARGE + "!small!"


@pytest.mark.spec("RUN-10")
def test_blobs_that_nobody_names_are_found_by_their_age(open_shop: Open, tmp_path: Path) -> None:
    shop = open_shop()
    run = registry.declared["big"].delay({"text": LARGE})
    kept = files(tmp_path)
    codec.offload("j1:" + "y" * 100_000, f"{shop.engine.store.namespace}/{run.id[:-4]}ff01/orphan")
    assert len(files(tmp_path)) == len(kept) + 1
    assert drop_orphan_blobs(shop.engine, time.time()) == 0
    assert drop_orphan_blobs(shop.engine, time.time() + 90_000) == 1
    assert files(tmp_path) == kept


@pytest.mark.spec("RUN-10")
def test_a_fork_that_would_refer_to_another_runs_blobs_is_refused(open_shop: Open) -> None:
    shop = open_shop(retention_completed_seconds=60)
    run = registry.declared["big"].delay({"text": LARGE})
    drained(shop, run)
    with pytest.raises(ForkRefused, match="blob store"):
        shop.conductor.run(run.id).fork("last")
    fresh = shop.conductor.run(run.id).fork("grow")
    assert drained(shop, fresh) == LARGE + "!small!"


@pytest.mark.spec("WF-7")
def test_what_a_child_gave_outlives_the_child(open_shop: Open, tmp_path: Path) -> None:
    shop = open_shop(retention_completed_seconds=3600)
    outer: Workflow[Any] = Workflow("outer", input=dict[str, str])
    outer.call(registry.declared["big"], name="asks")
    run = outer.delay({"text": LARGE})
    assert drained(shop, run) == LARGE + "!small!"
    child = child_of(shop.engine.store, run.id, 0)
    assert child
    assert erase_run(shop.engine, child)
    assert not any(child in name for name in files(tmp_path))
    assert run.get(timeout=1) == LARGE + "!small!"
    assert erase_run(shop.engine, run.id)
    assert files(tmp_path) == []
