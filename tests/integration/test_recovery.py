"""Recovery: indexes follow the records, one bad record stops nothing, and a wiped store gets back what a checkpoint had seen."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from conductor import Workflow
from conductor.archive import Kind
from conductor.archive.tables import runs as rows
from conductor.declare import registry
from conductor.runs.children import child_of
from conductor.runs.execute import Drainer
from conductor.runs.fsck import fsck
from conductor.runs.recover import recover
from conductor.runs.waiting import advance
from conductor.store import Want
from conductor.sweeps.checkpoints import lag_ms, sweep_checkpoints
from conductor.sweeps.overdue import run_overdue
from tests.integration.shop import Shop
from tests.support.backup import dump, load
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually


@pytest.fixture
def shop(own_valkey: ValkeyServer, namespace: str, tmp_path: Path) -> Iterator[Shop]:
    """On a server of its own, which is wiped."""
    with registry.isolated():
        url = f"sqlite:///{tmp_path}/archive.db"
        yield Shop(own_valkey.url(), namespace, archive_url=url, step_lease_seconds=1, heartbeat_seconds=0.3)


def partition_of(run_id: str) -> int:
    return int(run_id[-2:], 16)


def settled(shop: Shop) -> None:
    """Everything that has happened is copied: a notice is looked at when its window is over."""

    def copied() -> bool:
        sweep_checkpoints(shop.engine)
        return lag_ms(shop.engine) == 0

    eventually(copied, 5, what="checkpoints catch up")


def sound(shop: Shop) -> None:
    assert [str(one) for one in fsck(shop.engine)] == []


def drained(shop: Shop, *run_ids: str) -> None:
    def over() -> bool:
        for partition in range(2):
            head = shop.engine.store.keys.head(partition)
            shop.engine.store.client().hset(head, "look", shop.engine.store._now())
            shop.engine.store.client().hdel(head, "calm")
        run_overdue(shop.engine)
        shop.drain()
        return all(shop.state(run_id) == "completed" for run_id in run_ids)

    eventually(over, 20, what="they end")


@pytest.mark.spec("REC-1")
def test_the_active_hash_is_rebuilt_from_the_records(shop: Shop) -> None:
    live, done, waiting = shop.start(), shop.start(), shop.start("cli_naps")
    client, keys = shop.engine.store.client(), shop.engine.store.keys
    shop.drain()
    live = shop.start()
    untouched = shop.start()
    for run_id in (live, waiting):
        client.hdel(keys.of(partition_of(run_id), "active"), run_id)
        client.zrem(keys.of(partition_of(run_id), "progress"), run_id)
        client.zrem(keys.of(partition_of(run_id), "runs"), run_id)
    client.hset(keys.of(partition_of(done), "active"), done, "running;cli_orders;1;;;")
    client.zrem(keys.of(partition_of(done), "ended:completed"), done)
    assert fsck(shop.engine)
    looked = recover(shop.engine, dry_run=True)
    assert (looked.recovered, looked.finished) == (2, 1)
    assert fsck(shop.engine)
    told = recover(shop.engine)
    assert (told.recovered, told.finished, told.errors) == (2, 1, [])
    assert told.skipped >= 1
    sound(shop)
    again = recover(shop.engine)
    assert (again.recovered, again.finished, again.restored) == (0, 0, 0)
    drained(shop, live, untouched)
    assert shop.conductor.cancel(waiting)["word"] == "OK"


@pytest.mark.spec("REC-1")
def test_an_orphan_whose_time_is_over_is_expired_instead(shop: Shop) -> None:
    asked: Workflow[Any] = Workflow("asked", idle_timeout=timedelta(hours=1))
    asked.agent("draft", str)
    late, fresh = asked.delay().id, asked.delay().id
    client, keys = shop.engine.store.client(), shop.engine.store.keys
    client.hincrby(keys.run(late), "pg", -7_200_000)
    for run_id in (late, fresh):
        for tail in ("orphans", "orphans:due", "runs"):
            client.zrem(keys.of(partition_of(run_id), tail), run_id)
        client.hdel(keys.of(partition_of(run_id), "active"), run_id)
    told = recover(shop.engine)
    assert (told.recovered, told.expired) == (1, 1)
    assert (shop.state(late), shop.state(fresh)) == ("cancelled", "waiting_signal")
    sound(shop)
    assert advance(shop.engine, fresh, "draft", "done").word == "taken"


@pytest.mark.spec("REC-1")
def test_one_bad_record_stops_nothing(shop: Shop) -> None:
    bad, good = shop.start(), shop.start()
    client, keys = shop.engine.store.client(), shop.engine.store.keys
    client.hset(keys.run(bad), "t", "yesterday")
    client.hdel(keys.of(partition_of(good), "active"), good)
    told = recover(shop.engine)
    assert told.recovered == 1
    assert len(told.errors) == 1
    assert bad in told.errors[0]
    said = shop.call("recover", "--json")
    assert said.exit_code == 6
    settled(shop)
    assert shop.engine.archive.open().get(bad) is None
    assert shop.engine.archive.open().get(good) is not None, "nor does it keep the others from the archive"


@pytest.mark.spec("REC-1")
@pytest.mark.parametrize("damage", [{"waiting_for": "{bad"}, {"state": "hibernating"}, {"snapshot": b"damaged"}], ids=str)
def test_one_bad_row_of_the_archive_stops_nothing(shop: Shop, own_valkey: ValkeyServer, damage: dict[str, Any]) -> None:
    runs = [shop.start() for _ in range(5)]
    settled(shop)
    bad = sorted(runs)[2]
    with shop.engine.archive.open()._connections.writing() as connection:
        connection.execute(update(rows).where(rows.c.run_id == bad).values(**damage))
    own_valkey.client().flushall()
    told = recover(shop.engine)
    assert told.restored == 4
    assert len(told.errors) == 1
    assert bad in told.errors[0]
    drained(shop, *(run_id for run_id in runs if run_id != bad))
    assert shop.json("runs", "--archived")["runs"] is not None


@pytest.mark.spec("REC-1", "REC-2")
def test_it_is_safe_beside_live_workers_and_the_next_verb_works(shop: Shop) -> None:
    runs = [shop.start() for _ in range(20)]
    client, keys = shop.engine.store.client(), shop.engine.store.keys
    with shop.working():
        for run_id in runs:
            client.hdel(keys.of(partition_of(run_id), "active"), run_id)
            recover(shop.engine)
    for run_id in runs:
        assert shop.conductor.cancel(run_id)["word"] in ("OK", "ENDED")
    recover(shop.engine)
    sound(shop)


@pytest.mark.spec("REC-6")
def test_checkpoints_follow_what_happens_and_the_engine_does_not_wait(shop: Shop) -> None:
    run_id, waiting = shop.start(), shop.start("cli_naps")
    settled(shop)
    archive = shop.engine.archive.open()
    row = archive.get(run_id)
    assert row is not None
    assert (row.kind, row.state, row.n) == (Kind.CHECKPOINT, "running", 1)
    shop.drain()
    settled(shop)
    row = archive.get(run_id)
    assert row is not None
    assert (row.kind, row.state) == (Kind.CHECKPOINT, "completed")
    assert {row.run_id for page in archive.unfinished() for row in page} == {waiting}
    assert sweep_checkpoints(shop.engine).count == 0
    assert {moment.epoch for moment in archive.moments()} == {1}


@pytest.mark.spec("REC-6", "REC-2")
def test_a_wiped_store_gets_back_what_a_checkpoint_had_seen(shop: Shop, own_valkey: ValkeyServer) -> None:
    done, fresh, napping, begun = shop.start(), shop.start("cli_naps"), shop.start("cli_naps"), ""
    shop.drain()
    fresh, begun = shop.start(), shop.start()
    shop.conductor.grant_run(fresh)
    store = shop.engine.store
    store.register_code("doomed", Drainer(shop.engine, worker_name="w").signatures)
    store.register_code("doomed", Drainer(shop.engine, worker_name="w").signatures)
    assert store.claim(partition_of(begun), Want("celery", 10, "doomed", "tag", first=True)).attempts
    due_before = store.client().zscore(store.keys.of(partition_of(napping), "due"), f"timer:{napping}:1")
    settled(shop)
    logs = {run_id: store.log_of(run_id) for run_id in (fresh, napping, begun)}
    own_valkey.client().flushall()
    assert sweep_checkpoints(shop.engine).count == 0, "a wiped store overwrites nothing before it is recovered"
    told = recover(shop.engine)
    assert told.wiped
    assert (told.restored, told.errors, told.epoch) == (4, [], 2)
    assert told.moments
    for run_id, before in logs.items():
        assert store.log_of(run_id) == before
    assert store.client().zscore(store.keys.of(partition_of(napping), "due"), f"timer:{napping}:1") == due_before
    assert store.client().hget(store.keys.run(fresh), "bl") == "1"
    assert shop.call("show", done).exit_code == 0  # it had ended: the archive has it
    sound(shop)
    drained(shop, fresh, begun)
    assert shop.conductor.cancel(napping)["word"] == "OK"
    assert recover(shop.engine).restored == 0
    sound(shop)


@pytest.mark.spec("REC-6", "WF-7")
def test_a_parent_comes_back_before_its_child(shop: Shop, own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that meets a child without its parent would end it."""
    inner: Workflow[Any] = Workflow("inner")

    @inner.step
    def deep() -> int:
        return 3

    outer: Workflow[Any] = Workflow("outer")
    outer.call(inner, name="asks")
    shop.engine.store.hold("workflow:inner", "later")
    parents = [outer.delay().id for _ in range(6)]
    shop.drain()
    children = {child_of(shop.engine.store, run_id, 0): run_id for run_id in parents}
    assert len(children) == 6
    settled(shop)
    own_valkey.client().flushall()
    order, restore = [], shop.engine.store.restore

    def noted(snapshot: Any, **more: Any) -> Any:
        order.append(snapshot.run_id)
        return restore(snapshot, **more)

    monkeypatch.setattr(shop.engine.store, "restore", noted)
    told = recover(shop.engine)
    assert (told.restored, told.errors) == (12, [])
    assert all(order.index(parent) < order.index(child) for child, parent in children.items())
    assert len(order) == 12
    sound(shop)
    drained(shop, *parents)
    assert {shop.conductor.run(run_id).get(timeout=1) for run_id in parents} == {3}


@pytest.mark.spec("REC-6")
def test_an_old_backup_gives_way_to_what_the_archive_knows(shop: Shop, own_valkey: ValkeyServer) -> None:
    store = shop.engine.store
    ended, moved, same = shop.start(value={"number": 1}), shop.start("cli_naps"), shop.start("cli_naps")
    settled(shop)
    backup = dump(own_valkey)
    shop.drain()
    settled(shop)
    after = store.log_of(moved)
    load(own_valkey, backup)
    assert shop.state(ended) == "running"
    assert recover(shop.engine).restored == 0, "without --restored the store is believed"
    told = shop.json("recover", "--restored")
    assert (told["epoch"], told["errors"]) == (2, [])
    assert told["finished"] == 1
    assert store.log_of(moved) == after
    assert shop.json("show", ended)["state"] == "completed"
    assert shop.conductor.run(ended).get(timeout=1) == 3
    assert shop.state(same) == "waiting_signal"
    sound(shop)


@pytest.mark.spec("REC-6")
def test_a_shipper_that_was_cut_off_looks_at_every_run(shop: Shop) -> None:
    first = shop.start()
    settled(shop)
    for partition in range(2):
        shop.engine.store.set_shipping(partition, gap="", looked=0)
    second = shop.start("cli_naps")
    client, keys = shop.engine.store.client(), shop.engine.store.keys
    shop.drain()
    for partition in range(2):
        client.xtrim(keys.of(partition, "notices"), maxlen=0)
        client.xadd(keys.of(partition, "notices"), {"r": first, "n": 1, "s": "running"})
    settled(shop)
    row = shop.engine.archive.open().get(second)
    assert row is not None
    assert row.n == len(shop.engine.store.log_of(second))
