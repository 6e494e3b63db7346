"""A store that was set back, by a failover that lost the last writes or by an old backup: parked runs are not lost, and the archive's word on
what came after counts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from conductor import Workflow
from conductor.archive import Kind
from conductor.declare import registry
from conductor.runs.parking import park
from conductor.runs.recover import recover, recover_at_start
from conductor.store.stubs import read_stub
from conductor.sweeps.checkpoints import lag_ms, sweep_checkpoints
from conductor.sweeps.parked import sweep_parked
from tests.integration.test_parking import Waiting
from tests.support.backup import dump, load
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually


@pytest.fixture
def shop(own_valkey: ValkeyServer, namespace: str, tmp_path: Path) -> Iterator[Waiting]:
    with registry.isolated():
        yield Waiting(own_valkey.url(), namespace, archive_url=f"sqlite:///{tmp_path}/archive.db")


def copied(shop: Waiting) -> None:
    eventually(lambda: sweep_checkpoints(shop.engine) is not None and lag_ms(shop.engine) == 0, 10, what="checkpoints catch up")


def row_of(shop: Waiting, run_id: str) -> Any:
    found = shop.engine.archive.open().get(run_id)
    assert found is not None
    return found


def goes_on(shop: Waiting, run_id: str, *names: str) -> None:
    """Signals come, are taken, and what follows is copied."""
    for name in names:
        assert shop.say(run_id, name, "ada", signal_id=f"first-{name}") == "taken"
        eventually(lambda: shop.turned() or shop.is_there(run_id), 10, what="it is awake")
        eventually(lambda: shop.turned() or shop.state(run_id) in ("waiting_signal", "completed"), 10, what="it has moved")
    copied(shop)


@pytest.mark.spec("IDLE-6", "REC-6")
@pytest.mark.parametrize("restored", [True, False])
def test_a_stub_that_was_set_back_comes_back_as_the_archive_knows_it(shop: Waiting, own_valkey: ValkeyServer, restored: bool) -> None:
    moved, ended, same = shop.parked(), shop.parked(key="one"), shop.parked()
    copied(shop)
    backup = dump(own_valkey)
    goes_on(shop, moved, "approval")
    goes_on(shop, ended, "approval", "release")
    log = shop.engine.store.log_of(moved)
    load(own_valkey, backup)
    assert row_of(shop, moved).n > read_stub(shop.engine.store, moved).n  # type: ignore[union-attr]
    if restored:
        told = recover(shop.engine, restored=True)
        assert (told.restored, told.finished, told.errors) == (1, 1, [])
        assert shop.engine.store.log_of(moved) == log
        again = recover(shop.engine, restored=True)
        assert (again.restored, again.finished) == (0, 0)
    assert shop.say(moved, "approval", "eve", signal_id="first-approval") == ("repeated" if restored else "taken")
    assert shop.say(moved, "release", "eve") in ("taken", "kept")
    if not restored:
        assert shop.say(ended, "approval", "eve") == "taken", "nobody knows yet that it has ended"
    shop.ends(moved)
    assert shop.conductor.run(moved).get(timeout=5) == "ada eve 2000", "what was lost is not taken anew, what is new is taken"
    shop.ends(ended)
    assert shop.conductor.run(ended).get(timeout=5) == "ada ada 2000"
    assert registry.declared["approve"].apply_async(key="one").id == ended
    assert read_stub(shop.engine.store, same) is not None, "one that had not moved stays parked"
    shop.sound()


@pytest.mark.spec("IDLE-6", "CAN-3")
@pytest.mark.parametrize("over", [True, False])
def test_a_cancel_of_a_stub_that_was_set_back(shop: Waiting, own_valkey: ValkeyServer, over: bool) -> None:
    run_id = shop.parked()
    copied(shop)
    backup = dump(own_valkey)
    goes_on(shop, run_id, *(("approval", "release") if over else ("approval",)))
    load(own_valkey, backup)
    assert shop.conductor.cancel(run_id, reason="not wanted")["word"] == "OK"
    shop.ends(run_id, "completed" if over else "cancelled")
    assert read_stub(shop.engine.store, run_id) is None
    shop.sound()


@pytest.mark.spec("IDLE-6")
def test_a_run_is_not_parked_where_the_archive_would_bring_back_another(shop: Waiting, own_valkey: ValkeyServer) -> None:
    run_id = shop.approve()
    copied(shop)
    backup = dump(own_valkey)
    goes_on(shop, run_id, "approval")
    load(own_valkey, backup)
    assert park(shop.engine, [run_id], shop.now()) == []
    assert shop.is_there(run_id)
    assert row_of(shop, run_id).n > len(shop.engine.store.log_of(run_id))
    assert shop.say(run_id, "approval", "eve") == "taken"
    shop.drain()
    while len(shop.engine.store.log_of(run_id)) <= row_of(shop, run_id).n:
        shop.say(run_id, "release", "early")  # until its own history is the longer one
    shop.drain()
    if shop.state(run_id) == "waiting_signal":
        assert park(shop.engine, [run_id], shop.now()) == [run_id]
    shop.ends(run_id)
    assert "eve" in shop.conductor.run(run_id).get(timeout=5)


@pytest.mark.spec("REC-6")
def test_a_run_that_was_being_undone_in_the_backup_is_not_undone_again(shop: Waiting, own_valkey: ValkeyServer) -> None:
    run_id: str = registry.declared["trip"].delay().id
    shop.drain()
    assert shop.conductor.cancel(run_id, reason="not wanted", compensate=True)["state"] == "compensating"
    backup = dump(own_valkey)
    shop.ends(run_id, "cancelled")
    assert shop.undone == [7]
    copied(shop)
    log = shop.engine.store.log_of(run_id)
    load(own_valkey, backup)
    assert shop.state(run_id) == "compensating"
    told = recover(shop.engine, restored=True)
    assert (told.finished, told.restored, told.errors) == (1, 0, [])
    assert (shop.state(run_id), shop.engine.store.log_of(run_id)) == ("cancelled", log)
    shop.turned()
    assert shop.undone == [7]
    shop.sound()


@pytest.mark.spec("REC-6", "RUN-11")
def test_a_new_life_that_the_backup_does_not_know_goes_on(shop: Waiting, own_valkey: ValkeyServer) -> None:
    run_id = shop.start(value={"number": 4, "bad": True})
    shop.drain()
    assert shop.state(run_id) == "failed"
    backup = dump(own_valkey)
    shop.mended = True
    shop.ok("retry", run_id)
    copied(shop)
    load(own_valkey, backup)
    told = recover(shop.engine, restored=True)
    assert (told.restored, told.errors) == (1, [])
    shop.ends(run_id)
    shop.sound()


@pytest.mark.spec("RET-1", "REC-6")
def test_what_was_erased_goes_again(shop: Waiting, own_valkey: ValkeyServer) -> None:
    run_id, other = shop.start(), shop.start()
    shop.drain()
    copied(shop)
    backup = dump(own_valkey)
    shop.ok("purge", run_id, "--yes")
    load(own_valkey, backup)
    assert recover(shop.engine, restored=True).finished == 1
    assert not shop.is_there(run_id)
    assert shop.is_there(other)
    shop.sound()


@pytest.mark.spec("REC-6", "RUN-1")
@pytest.mark.parametrize("wiped", [True, False])
def test_a_key_outlives_the_store(shop: Waiting, own_valkey: ValkeyServer, wiped: bool) -> None:
    backup = dump(own_valkey)
    ended, in_lane = [registry.declared["approve"].apply_async(key="one", lane=lane).id for lane in (None, "desk")]
    shop.drain()
    for run_id in (ended, in_lane):
        goes_on(shop, run_id, "approval", "release")
        assert shop.state(run_id) == "completed"
    own_valkey.client().flushall()
    if not wiped:
        load(own_valkey, backup)
    assert recover(shop.engine, restored=not wiped).errors == []
    assert registry.declared["approve"].apply_async(key="one").id == ended
    assert registry.declared["approve"].apply_async(key="one", lane="desk").id == in_lane
    keys = own_valkey.client().keys("conductor:*:key:*")
    assert len(keys) == 2
    for key in keys:
        assert 6 * 86_400_000 < own_valkey.client().pttl(key) <= 7 * 86_400_000


@pytest.mark.spec("REC-1")
def test_a_process_that_starts_recovers_only_what_may_have_changed(shop: Waiting, own_valkey: ValkeyServer) -> None:
    client, store = own_valkey.client(), shop.engine.store
    shop.start()

    def started() -> bool:
        client.hdel(store.keys.of(0, "sweeps"), "recover")
        return recover_at_start(shop.engine) is not None

    assert started()
    assert not started(), "the same server: indexes and records have changed together"
    assert recover(shop.engine).errors == [], "on demand it always does"
    backup = dump(own_valkey)
    own_valkey.kill()
    own_valkey.restart()
    assert started()
    assert not started()
    recover(shop.engine, restored=True)
    assert not started()
    load(own_valkey, backup)
    assert started(), "its epoch is another"
    client.flushall()
    assert started()


@pytest.mark.spec("IDLE-6")
def test_the_leftovers_of_another_restorer_are_taken_away(shop: Waiting) -> None:
    run_id = shop.approve()
    shop.say(run_id, "release", "early")
    assert park(shop.engine, [run_id], shop.now()) == [run_id]
    client, keys = shop.engine.store.client(), shop.engine.store.keys
    client.rpush(keys.run(run_id, "log"), "of", "somebody", "else")
    client.rpush(keys.run(run_id, "held"), "0:0")
    client.hset(keys.run(run_id, "sig"), "#other", "")
    assert shop.say(run_id, "approval", "ada") == "taken"
    shop.ends(run_id)
    assert shop.conductor.run(run_id).get(timeout=5) == "ada early 2000"
    shop.sound()


@pytest.mark.spec("CAN-1", "CAN-3")
def test_a_parked_run_was_cancelled_when_that_was_acknowledged(shop: Waiting) -> None:
    run_id = shop.parked()
    told = shop.conductor.cancel(run_id, reason="not wanted")
    stub = read_stub(shop.engine.store, run_id)
    assert stub is not None
    client, key = shop.engine.store.client(), shop.key(run_id, "parked")
    line, at = client.hget(key, run_id), stub.ended_at - 5000  # it is brought back some seconds later
    client.hset(key, run_id, line.replace(str(stub.ended_at), str(at)))
    sweep_parked(shop.engine)
    shown = shop.json("show", run_id)
    assert (told["word"], shown["state"], shown["ended_at"]) == ("OK", "cancelled", at)
    keep = int(client.hget(shop.engine.store.keys.run(run_id), "rf"))
    assert client.zscore(shop.key(run_id, "ended:cancelled"), run_id) == at + keep
    shop.sound()


@pytest.mark.spec("REC-2")
def test_consent_is_copied_though_no_event_tells_of_it(shop: Waiting, own_valkey: ValkeyServer) -> None:
    live, parked, taken = shop.approve(), shop.parked(), shop.approve()
    shop.conductor.grant_run(taken)
    copied(shop)
    shop.conductor.grant_run(live)
    shop.conductor.grant_run(parked)
    shop.conductor.grant_run(taken, on=False)
    eventually(lambda: lag_ms(shop.engine) > 0, 5, what="what was noted counts as not copied")
    shop.turned()
    assert row_of(shop, parked).kind == Kind.PARKED
    copied(shop)
    shop.engine.settings.__dict__["park_after_minutes"] = 0.00001
    assert set(park(shop.engine, [live, parked, taken], shop.now())) == {live, parked, taken}, "its row is the later one"
    own_valkey.client().flushall()
    assert recover(shop.engine).restored == 3
    found = [own_valkey.client().hget(shop.engine.store.keys.run(run_id), "bl") for run_id in (live, parked, taken)]
    assert found == ["1", "1", None]
    progress = {run["run_id"]: run["progress_at"] <= run["idle_since"] for run in shop.json("runs")["runs"]}
    assert all(progress.values()), "it is no progress"


@pytest.mark.spec("REC-6", "WF-12", "WF-14")
def test_what_a_long_step_has_kept_is_copied_while_it_runs(shop: Waiting) -> None:
    from conductor.runs.archiving import open_snapshot
    from conductor.store import Want

    waits: Workflow[Any] = Workflow("long", idle_timeout=timedelta(days=1))

    @waits.step
    def work() -> int:
        return 1

    run_id = waits.delay().id
    store, partition = shop.engine.store, int(run_id[-2:], 16)
    store.register_code("code", [node.signature for node in waits.graph.nodes])
    (held,) = store.claim(partition, Want("celery", 1, "code", "tag", first=True)).attempts
    copied(shop)
    before = row_of(shop, run_id).n
    for number, kind in enumerate(("cp", "once", "cp")):
        assert store.note(held, kind, f"j1:{number}", **({"name": "seen"} if kind == "once" else {})) == "OK"
        copied(shop)
        row = shop.engine.archive.open().get(run_id, with_snapshot=True)
        assert row is not None
        assert (row.n, f"j1:{number}" in open_snapshot(row).keys[kind]) == (before, True)
