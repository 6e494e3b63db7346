"""Where things stand: the active-runs hash, one slot per script, and namespaces that do not see each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from conductor.ids import home_of_key, new_run_id, partition_of
from conductor.records import FailurePolicy, NodeKind
from conductor.runs.fsck import fsck
from conductor.settings import Settings
from conductor.store import Store, connect
from conductor.wiring import Engine
from tests.conftest import MakeStore
from tests.integration.playing import Player, chain, graph_of, node, shapes
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually

ENTRY = ("state", "workflow", "progress_at", "idle_since", "orchestrator", "session")


def active(play: Player) -> dict[str, dict[str, str]]:
    found: Any = play.redis.hgetall(play.store.keys.of(0, "active"))
    return {run_id: dict(zip(ENTRY, text.split(";"), strict=True)) for run_id, text in found.items()}


@pytest.fixture
def play(store: Store) -> Player:
    return Player(store)


@pytest.mark.spec("ACT-1")
def test_a_run_stands_in_the_active_hash_from_its_start_to_its_end(play: Player) -> None:
    run_id = play.start(chain(2), session="anna")
    entry = active(play)[run_id]
    assert (entry["state"], entry["workflow"], entry["session"], entry["idle_since"]) == ("running", "flow", "anna", "")
    assert int(entry["progress_at"]) > 0
    play.complete(play.one())
    later = active(play)[run_id]
    assert int(later["progress_at"]) >= int(entry["progress_at"])
    assert later["orchestrator"] != entry["orchestrator"], "the latest claim"
    play.store.pause(run_id, reason="x")
    assert active(play)[run_id]["state"] == "paused", "a pause neither keeps nor drops it"
    play.store.resume(run_id)
    play.complete(play.one())
    assert active(play) == {}


@pytest.mark.spec("ACT-1")
def test_failure_and_cancel_drop_it_and_a_retry_brings_it_back(play: Player) -> None:
    failed, cancelled = play.start(chain(1)), play.start(chain(1))
    play.fail(play.one(), FailurePolicy.FAIL)
    play.store.cancel(cancelled, reason="x")
    assert active(play) == {}
    play.reopen(failed)
    assert set(active(play)) == {failed}


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyServer]:
    """One node that owns every slot: a script that touched a key of another slot would be refused, as on a real cluster."""
    server = ValkeyServer(**{"cluster-enabled": "yes"}).start()
    client: Any = server.client(0)
    client.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
    eventually(lambda: client.cluster("info")["cluster_state"] == "ok", 10)
    yield server
    server.stop()


@pytest.mark.spec("ACT-3")
def test_every_script_keeps_to_the_slot_of_its_partition(cluster: ValkeyServer, namespace: str) -> None:
    store = Store(connect(cluster.url(0)), namespace=namespace, partitions=1)
    play = Player(store)
    for graph in shapes():
        play.start(graph, key=f"k{graph.hash}", digest="d")
        failing, held, lost = play.start(graph), play.start(graph), play.start(graph)
        play.answer_everything()
        play.fail(play.one())
        play.retry_later(play.one())
        play.lose(play.one())
        play.store.pause(held, reason="x")
        play.store.cancel(lost, reason="x")
        play.due()
        play.store.repoke(0)
        play.store.resume(held)
        play.drain(2000)
        if play.state(failing) == "failed":
            play.reopen(failing)
        for run_id in (failing, held, lost):
            play.store.cancel(run_id, reason="over")
            assert play.store.purge(run_id).word == "OK"
            play.graphs.pop(run_id)
    orphan = play.start(graph_of(node(0, kind=NodeKind.AGENT, idle_ms=1)))
    assert play.store.expire_idle(orphan, before=2**52)[0] == "OK"
    engine = Engine(Settings(namespace=namespace, partitions=1), store, {}, lambda pokes: None, "q")
    assert fsck(engine) == []
    client: Any = cluster.client(0)
    assert len({client.execute_command("CLUSTER", "KEYSLOT", key) for key in client.scan_iter(f"conductor:{{{namespace}:*")}) == 1


@pytest.mark.spec("ACT-3")
def test_the_home_of_a_run_is_read_from_its_id_and_given_by_its_key(make_store: MakeStore) -> None:
    keys = make_store(16).keys
    home = home_of_key("order", "order-42", 16)
    run_id = new_run_id(16, home)
    assert partition_of(run_id) == home == home_of_key("order", "order-42", 16)
    assert f"{{{keys.namespace}:{home:02x}}}" in keys.run(run_id)


@pytest.mark.spec("ACT-3")
def test_without_a_key_the_home_is_random_and_kept_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started in one go shares a home, so that one poke serves it; over time every partition gets its share."""
    homes: Counter[int] = Counter()
    for moment in range(1600):
        monkeypatch.setattr("conductor.ids.time", SimpleNamespace(monotonic_ns=lambda moment=moment: moment * 20_000_000))
        (home,) = {partition_of(new_run_id(16)) for _ in range(3)}
        homes[home] += 1
    assert set(homes) == set(range(16))
    assert max(homes.values()) < 2 * min(homes.values())


@pytest.mark.spec("ACT-4")
def test_namespaces_on_one_server_do_not_see_each_other(valkey: ValkeyServer, namespace: str, clean_keys: None) -> None:
    ours, theirs = (Player(Store(connect(valkey.url()), namespace=name, partitions=1)) for name in (namespace, f"{namespace}-b"))
    run_id = ours.start(chain(1))
    try:
        assert theirs.claim(10) == []
        assert theirs.store.cancel(run_id, reason="not mine").word == "UNKNOWN"
        assert theirs.store.expire_leases(0).count == theirs.store.fire_due(0).count == 0
        assert (ours.drain(), ours.state(run_id)) == ([(0, None)], "completed")
    finally:
        client: Any = valkey.client()
        client.delete(*client.scan_iter(f"conductor:{{{namespace}-b:*", count=1000))
