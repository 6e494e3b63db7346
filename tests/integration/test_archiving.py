"""Retention with an archive: ended runs go to SQL first and leave the store afterwards, each step repeatable; people still find them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conductor import capability, codec
from conductor.archive import Archive, Kind
from conductor.cli import exits
from conductor.declare import registry
from conductor.errors import ArchiveUnreachable, ResultExpired
from conductor.ids import new_run_id
from conductor.runs.archiving import open_snapshot
from conductor.runs.fsck import fsck
from conductor.runs.handle import Handle
from conductor.sweeps.archiving import sweep_archive
from conductor.sweeps.overdue import run_overdue, run_slow
from conductor.sweeps.retention import sweep_retention
from tests.integration.shop import Shop
from tests.support.server import ValkeyServer


@pytest.fixture
def shop(valkey: ValkeyServer, namespace: str, clean_keys: None, tmp_path: Path) -> Iterator[Shop]:
    with registry.isolated():
        yield Shop(valkey.url(), namespace, archive_url=f"sqlite:///{tmp_path}/archive.db", retention_completed_seconds=0)


@pytest.fixture
def blobs() -> Iterator[None]:
    yield
    codec.use_blobs(None)


def archive_of(shop: Shop) -> Archive:
    opened: Archive = shop.engine.archive.open()
    return opened


def ended(shop: Shop, **value: Any) -> str:
    run_id = shop.start(value={"number": 3, **value})
    shop.drain()
    return run_id


def there(shop: Shop, run_id: str) -> bool:
    return bool(shop.engine.store.client().exists(shop.engine.store.keys.run(run_id)))


@pytest.mark.spec("RET-1")
def test_an_ended_run_moves_to_the_archive_and_is_still_shown(shop: Shop) -> None:
    run_id = ended(shop)
    before = shop.json("show", run_id, "--values")
    report = sweep_archive(shop.engine)
    assert report.causes == (f"{run_id} archived",)
    assert not there(shop, run_id)
    row = archive_of(shop).get(run_id)
    assert row is not None
    assert (row.kind, row.state, row.workflow) == (Kind.FINISHED, "completed", "cli_orders")
    with pytest.raises(ResultExpired, match="archive, where it is completed"):
        Handle(shop.engine, run_id).get(timeout=1)
    after = shop.json("show", run_id[:18], "--values")
    assert after["archived"] == "finished"
    assert (after["result"], after["input"], after["events"]) == (before["result"], before["input"], before["events"])
    assert [(step["name"], step["state"]) for step in after["steps"]] == [("price", "completed"), ("charge", "completed")]
    assert "in the archive (finished)" in shop.ok("show", run_id)
    assert not fsck(shop.engine)
    assert sweep_archive(shop.engine).count == 0


@pytest.mark.spec("RET-1")
def test_archived_runs_are_found_by_what_people_search_for(shop: Shop) -> None:
    done = str(shop.json("start", "cli_orders", json.dumps({"number": 3}), "--tag", "eu", "--key", "order-3", "--session", "ada")["run_id"])
    failed = shop.start(value={"number": 4, "bad": True})
    shop.drain()
    client, keys = shop.engine.store.client(), shop.engine.store.keys
    for partition in range(2):
        client.zadd(keys.of(partition, "ended:failed"), {failed: 1}, xx=True)
    assert sweep_archive(shop.engine).count == 2

    def found(*options: str) -> set[str]:
        return {run["run_id"] for run in shop.json("runs", "--archived", *options)["runs"]}

    assert found() == {done, failed}
    assert found("--state", "failed") == {failed}
    assert found("--tag", "eu") == found("--key", "order-3") == found("--session", "ada") == {done}
    assert found("--workflow", "cli_naps") == found("--until", "1h") == set()
    assert found("--since", "1h") == {done, failed}
    told = next(run for run in shop.json("runs", "--archived")["runs"] if run["run_id"] == failed)
    assert (told["failed_steps"], told["error_kind"]) == (["charge"], "ValueError")
    assert "charge" in shop.ok("runs", "--archived")
    assert shop.json("show", failed)["steps"][1]["error"]["message"] == "card refused"


@pytest.mark.spec("RET-1", "CAN-3")
def test_a_cancelled_run_is_kept_for_audit(shop: Shop) -> None:
    run_id = shop.start("cli_naps")
    shop.conductor.cancel(run_id, reason="not wanted", actor="ada")
    shop.engine.store.client().zadd(shop.engine.store.keys.of(int(run_id[-2:], 16), "ended:cancelled"), {run_id: 1}, xx=True)
    sweep_archive(shop.engine)
    told = shop.json("runs", "--archived", "--state", "cancelled")["runs"]
    assert [(run["run_id"], run["reason"]) for run in told] == [(run_id, "not wanted")]
    assert "by ada" in shop.ok("show", run_id)
    told = shop.conductor.cancel(run_id)
    assert (told["word"], told["state"], told["reason"]) == ("ALREADY", "cancelled", "not wanted")


@pytest.mark.spec("RET-1")
def test_each_step_may_be_repeated_and_a_retry_in_between_wins(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = shop.start(value={"number": 4, "bad": True})
    shop.drain()
    store = shop.engine.store
    client, ends = store.client(), store.keys.of(int(run_id[-2:], 16), "ended:failed")
    client.zadd(ends, {run_id: 1}, xx=True)
    real = store.purge

    def retried_meanwhile(*asked: Any, **how: Any) -> Any:
        shop.ok("retry", run_id)
        shop.drain()
        client.zadd(ends, {run_id: 1}, xx=True)
        return real(*asked, **how)

    with monkeypatch.context() as patch:
        patch.setattr(store, "purge", retried_meanwhile)
        assert sweep_archive(shop.engine).count == 0
    assert there(shop, run_id)
    row = archive_of(shop).get(run_id)
    assert row is not None
    assert row.generation == 1
    assert sweep_archive(shop.engine).count == 1
    row = archive_of(shop).get(run_id, with_snapshot=True)
    assert row is not None
    assert row.generation == 2
    assert open_snapshot(row).fields["g"] == "2"


@pytest.mark.spec("RET-1")
def test_runs_stay_while_the_archive_is_away_and_other_sweeps_go_on(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = ended(shop)

    def away() -> Any:
        raise ArchiveUnreachable(url="postgresql://away", problem="away", remedy="bring it back")

    monkeypatch.setattr(shop.engine.archive, "open", away)
    with pytest.raises(ArchiveUnreachable):
        run_slow(shop.engine)
    reports = {report.name: report for report in run_overdue(shop.engine)}  # the sweeps that move steps never ask the archive
    assert "archive" not in reports
    assert reports["retention"].ran
    assert there(shop, run_id)


@pytest.mark.spec("RET-1")
def test_without_an_archive_they_are_deleted(valkey: ValkeyServer, namespace: str, clean_keys: None) -> None:
    with registry.isolated():
        shop = Shop(valkey.url(), namespace, retention_completed_seconds=0)
        run_id = ended(shop)
        assert sweep_retention(shop.engine).count == 1
        assert not there(shop, run_id)
        assert not sweep_archive(shop.engine).ran
        assert "conductor_archive_url" in shop.call("archive", "status").stderr


@pytest.mark.spec("RET-1")
def test_the_archive_forgets_after_its_own_retention(valkey: ValkeyServer, namespace: str, clean_keys: None, tmp_path: Path) -> None:
    with registry.isolated():
        url = f"sqlite:///{tmp_path}/archive.db"
        shop = Shop(valkey.url(), namespace, archive_url=url, retention_completed_seconds=0, archive_retention_days=0)
        run_id = ended(shop)
        sweep_archive(shop.engine)
        report = sweep_archive(shop.engine)
        assert report.count in (0, 1)  # it may have gone in the first one, in the same millisecond or later
        assert archive_of(shop).get(run_id) is None


@pytest.mark.spec("RET-1")
def test_when_memory_is_short_ended_runs_go_before_their_time(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = shop.start(value={"number": 4, "bad": True})
    shop.drain()
    assert sweep_archive(shop.engine).count == 0  # failed runs are kept for a week
    monkeypatch.setattr("conductor.sweeps.archiving.hurries", lambda engine: True)
    assert sweep_archive(shop.engine).count == 0  # it has only just ended: somebody may wait for it
    shop.engine.store.client().hincrby(shop.engine.store.keys.run(kept), "e", -61_000)
    assert sweep_archive(shop.engine).causes == (f"{kept} archived",)


def crowd(shop: Shop, partition: int, number: int, *, operations: bool) -> list[str]:
    """Entries of what ended long ago and stands before everything else."""
    client, keys = shop.engine.store.client(), shop.engine.store.keys
    ids = {new_run_id(2, partition): at + 1 for at in range(number)}
    client.zadd(keys.of(partition, "ended:completed"), ids)
    if operations:
        client.zadd(keys.of(partition, "ops"), ids)
    return list(ids)


@pytest.mark.spec("RET-1")
def test_operations_that_stand_before_it_keep_no_run_from_the_archive(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = shop.start(value={"number": 4, "bad": True})
    shop.drain()
    partition, client = int(run_id[-2:], 16), shop.engine.store.client()
    ops = crowd(shop, partition, 1200, operations=True)
    client.hincrby(shop.engine.store.keys.run(run_id), "e", -61_000)
    monkeypatch.setattr("conductor.sweeps.archiving.hurries", lambda engine: True)
    assert sweep_archive(shop.engine).causes == (f"{run_id} archived",)
    assert client.zcard(shop.engine.store.keys.of(partition, "ops")) == len(ops), "nobody else has them: they stay until their time is over"


@pytest.mark.spec("RET-1")
def test_runs_that_wait_for_the_archive_keep_no_operation_from_its_end(shop: Shop) -> None:
    @capability("archiving_touch")
    def touch(n: int) -> int:
        return n

    told = shop.conductor.call("archiving_touch", {"n": 1})
    partition, client = int(told.operation_id[-2:], 16), shop.engine.store.client()
    crowd(shop, partition, 2500, operations=False)
    client.zadd(shop.engine.store.keys.of(partition, "ended:completed"), {told.operation_id: 5000}, xx=True)
    assert sweep_retention(shop.engine).causes == (f"{told.operation_id} retention_over",)


@pytest.mark.spec("RET-1", "ACT-2")
def test_blobs_are_deleted_when_the_sweep_holds_its_lock_no_more(shop: Shop, blobs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    @capability("archiving_large")
    def large(n: int) -> str:
        return "x" * 100_000

    store, locked, kept = shop.engine.store, list[bool](), dict[str, bytes]()

    class Slow:
        def put(self, name: str, data: bytes) -> None:
            kept[name] = data

        def get(self, name: str) -> bytes:
            return kept[name]

        def delete(self, name: str) -> None:
            locked.append(bool(store.client().exists(store.keys.of(0, "lock:sweep:retention"))))

    codec.use_blobs(Slow())
    told = shop.conductor.call("archiving_large", {"n": 1})
    store.client().zadd(store.keys.of(int(told.operation_id[-2:], 16), "ended:completed"), {told.operation_id: 1}, xx=True)
    assert sweep_retention(shop.engine).count == 1
    assert locked == [False]


@pytest.mark.spec("ACT-2")
def test_of_many_workers_one_asks_the_archive_and_one_that_hangs_keeps_nobody_out_for_long(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, real = threading.Event(), threading.Event(), shop.engine.archive.open
    first: list[str] = []

    def hangs() -> Any:
        if threading.current_thread() is slow:
            begun.set()
            go_on.wait(10)
        return real()

    slow = threading.Thread(target=lambda: first.extend(report.name for report in run_slow(shop.engine)))
    monkeypatch.setattr(shop.engine.archive, "open", hangs)
    slow.start()
    begun.wait(10)
    assert {report.name for report in run_slow(shop.engine)} == {"parked", "checkpoints"}, "the other has begun the third"
    turn = shop.engine.store.keys.of(0, "lock:turn:archive")
    assert 0 < shop.engine.store.client().pttl(turn) <= 10_000
    shop.engine.store.client().delete(turn)  # its seconds are over
    assert "archive" in {report.name for report in run_slow(shop.engine)}
    go_on.set()
    slow.join(10)
    assert "archive" in first
    assert "archive" not in {report.name for report in run_slow(shop.engine)}, "it has been done"


@pytest.mark.spec("RET-1")
def test_memory_is_short_from_80_percent_on(shop: Shop, own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from conductor.store import connect
    from conductor.sweeps.archiving import hurries

    client: Any = own_valkey.client()
    monkeypatch.setattr(shop.engine.store, "_client", connect(own_valkey.url()))
    assert not hurries(shop.engine)
    used = int(client.info("memory")["used_memory"])
    client.config_set("maxmemory", int(used / 0.75))
    assert not hurries(shop.engine)
    client.config_set("maxmemory", int(used / 0.85))
    assert hurries(shop.engine)


@pytest.mark.spec("RET-1", "CLI-3")
def test_purge_erases_everywhere(shop: Shop) -> None:
    def start(number: int, *more: str) -> str:
        return str(shop.json("start", "cli_orders", json.dumps({"number": number}), *more)["run_id"])

    tagged, of_session, other = start(1, "--tag", "gdpr"), start(2, "--session", "ada"), start(3)
    shop.drain()
    sweep_archive(shop.engine)
    fresh, live = start(4, "--tag", "gdpr"), start(5, "--session", "ada")
    shop.conductor.grant("ada", "pay", "always")
    assert not shop.json("purge", "--tag", "gdpr", "--dry-run")["purged"]
    refused = shop.call("purge", "--tag", "gdpr", "--yes")
    assert refused.exit_code == exits.FAILED
    assert "--cancel" in refused.stderr
    assert shop.json("purge", "--tag", "gdpr", "--yes", "--cancel")["purged"] == 2
    assert shop.json("purge", "--session", "ada", "--yes", "--cancel")["purged"] == 2
    assert shop.conductor.grants("ada") == []
    assert {run["run_id"] for run in shop.json("runs", "--archived")["runs"]} == {other}
    assert [shop.call("show", run_id).exit_code for run_id in (tagged, of_session, fresh, live)] == [exits.NOT_FOUND] * 4
    assert shop.json("purge", "--run", other, "--yes")["purged"] == 1
    assert archive_of(shop).count() == 0
    assert not fsck(shop.engine)


@pytest.mark.spec("RET-1")
def test_what_was_erased_is_not_brought_back_by_a_slow_sweeper(shop: Shop) -> None:
    run_id = ended(shop)
    sweep_archive(shop.engine)
    row = archive_of(shop).get(run_id, with_snapshot=True)
    assert row is not None
    shop.ok("purge", run_id, "--yes")
    assert archive_of(shop).put([row]) == 0
    assert archive_of(shop).get(run_id) is None


def test_archive_status_and_sweep(shop: Shop) -> None:
    ended(shop)
    assert shop.json("archive", "sweep", "--dry-run")["count"] == 1
    assert shop.json("archive", "sweep")["count"] == 1
    told = shop.json("archive")
    assert (told["reachable"], told["rows"]["finished"]) == (True, 1)
    assert "1 run finished" in shop.ok("archive", "status")
