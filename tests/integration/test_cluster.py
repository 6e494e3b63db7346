"""The state on a cluster of three real nodes: everything that holds on one server holds here, slots on the move and restarts included."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from conductor.declare import registry
from conductor.errors import NotWaiting, UnsafeServer
from conductor.ids import new_run_id
from conductor.records import NewRun
from conductor.runs.doctor import examine, found_durability, refuse_unsafe
from conductor.runs.fsck import fsck
from conductor.runs.parking import park, wake
from conductor.runs.recover import recover
from conductor.settings import Settings
from conductor.store import Store, connect
from conductor.store.indexes import record_ids
from conductor.store.reads import read_now, read_run, read_runs
from conductor.sweeps.archiving import hurries
from conductor.sweeps.checkpoints import lag_ms, sweep_checkpoints
from tests.integration.playing import Player, chain
from tests.integration.test_waiting_runs import Desk
from tests.support.cluster import ValkeyCluster
from tests.support.crew import Crew, engine_of, random_graph
from tests.support.leaks import forget
from tests.support.waiting import eventually

pytestmark = pytest.mark.spec("ACT-3", "SET-2")


@pytest.fixture
def spread(cluster: ValkeyCluster) -> Iterator[str]:
    """A namespace whose first three partitions stand on three nodes."""
    for number in range(10_000):
        name = f"c{random.randrange(2**32):x}{number}"
        if len({cluster.node_of(f"conductor:{{{name}:{partition:02x}}}:x").port for partition in range(3)}) == 3:
            yield name
            return


@pytest.fixture
def store(cluster: ValkeyCluster, spread: str) -> Store:
    return Store(connect(cluster.url), namespace=spread, partitions=3, url=cluster.url)


def _in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """Begin the call; what is returned waits for its result."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(20)
        assert found, "the call has not come back"
        return found[0]

    return result


@pytest.mark.spec("RUN-9", "RUN-11")
@pytest.mark.parametrize("number", range(2))
def test_every_run_ends_and_nothing_differs(store: Store, number: int) -> None:
    rng = random.Random(number)
    crew = Crew(store, rng, [random_graph(rng) for _ in range(3)])
    for _ in range(3):
        crew.start()  # one on each node
    for _ in range(40):
        crew.act()
    crew.finish()
    assert len({run_id[-2:] for run_id in crew.runs}) == 3, "on every node"
    assert all(run is None or run.ended for run in read_runs(store, crew.runs))
    assert fsck(engine_of(store)) == []


def test_declared_runs_calls_and_the_command_line_work_as_on_one_server(cluster: ValkeyCluster, spread: str) -> None:
    with registry.isolated():
        shop = Desk(cluster.url, spread)
        runs = [shop.begun() for _ in range(6)]
        assert {run_id[-2:] for run_id in runs} == {"00", "01"}, "on two nodes"
        with shop.working():
            for run_id in runs:
                handle = shop.conductor.run(run_id)
                assert handle.signal("approval", {"by": "Ada"}).word == "taken"
                eventually(partial(handle.advance, "draft", [4, 5]), 10, forgive=(NotWaiting,))
                assert handle.get(timeout=10) == {"price": 6, "by": "Ada", "sum": 27}
        assert {row["run_id"] for row in shop.json("runs")["runs"]} == set(runs)
        assert runs[0] in shop.ok("show", runs[0])
        checks = {check["name"]: check for check in shop.json("doctor")["checks"]}
        assert checks["persistence"]["status"] == checks["eviction"]["status"] == "ok"
        assert "(3 nodes)" in checks["persistence"]["found"]
        assert fsck(shop.engine) == []


@pytest.mark.spec("IDLE-6", "REC-6")
def test_runs_are_parked_copied_and_recovered_on_every_node(cluster: ValkeyCluster, spread: str, tmp_path: Path) -> None:
    with registry.isolated():
        shop = Desk(cluster.url, spread, archive_url=f"sqlite:///{tmp_path}/archive.db")
        runs = [shop.begun() for _ in range(6)]
        assert {run_id[-2:] for run_id in runs} == {"00", "01"}, "on two nodes"
        store = shop.engine.store
        assert set(park(shop.engine, runs[:3], read_now(store))) == set(runs[:3])
        eventually(lambda: sweep_checkpoints(shop.engine) is not None and lag_ms(shop.engine) == 0, 10, what="checkpoints catch up")
        assert shop.conductor.run(runs[0]).signal("approval", {"by": "Ada"}).word == "taken"
        assert wake(shop.engine, runs[0])[0] == "OK"
        for node in store.client().nodes().values():
            forget(node, spread)
        told = recover(shop.engine)
        assert (told.wiped, told.restored, told.errors) == (True, 6, [])
        assert {run_id for page in record_ids(store) for run_id in page} == set(runs)
        assert recover(shop.engine).skipped == 6
        assert not hurries(shop.engine)
        assert fsck(shop.engine) == []


def _run_at(store: Store, partition: int) -> tuple[Player, str]:
    """A run of two steps at home in a partition; the player works there."""
    play = Player(store)
    graph = chain(2)
    run_id = new_run_id(store.partitions, partition)
    store.start(NewRun(run_id, "flow", 'j1:"in"', "q"), graph)
    play.graphs[run_id] = graph
    return play, run_id


@pytest.mark.spec("RUN-5")
def test_a_slot_that_moves_holds_a_script_up_and_loses_nothing(cluster: ValkeyCluster, spread: str) -> None:
    """Between the first key and the last a script would take what has gone ahead for missing, so it waits; reads find both halves."""
    store = Store(connect(cluster.url), namespace=spread, partitions=1, url=cluster.url)
    play = Player(store)
    run_id = play.start(chain(2), key="k", digest="d")
    head = store.keys.head(0)
    here = cluster.node_of(head)
    other = next(node for node in cluster.nodes if node is not here)
    cluster.begin_move(head, other)
    try:
        assert cluster.move_keys(head, other, 2) == 2
        asked = _refusals(here)
        committed = _in_thread(lambda: play.complete(play.one()))
        eventually(lambda: _refusals(here) > asked, 10, what="the script was refused")
        assert read_run(store, run_id) is not None, "a read follows its key"
        store.swept("test")  # so does a plain write
        assert "test" in store.last_sweeps()[0]
        while cluster.move_keys(head, other):
            pass
    finally:
        cluster.end_move(head, other)
    committed()
    assert cluster.node_of(head) is other
    assert (play.drain(), play.state(run_id)) == ([(1, None)], "completed")
    cluster.move_at_once(head, here)
    again = play.start(chain(1))
    assert (play.drain(), play.state(again)) == ([(0, None)], "completed")
    assert cluster.node_of(head) is here
    assert fsck(engine_of(store)) == []


def _refusals(node: Any) -> int:
    found = node.info("errorstats")
    return sum(int(found.get(f"errorstat_{word}", {"count": 0})["count"]) for word in ("ASK", "TRYAGAIN"))


@pytest.mark.spec("RUN-5")
def test_an_answer_that_was_lost_is_asked_for_again_under_the_same_number(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Player(store)
    for _ in range(2):
        run_id = new_run_id(store.partitions, 0)
        store.start(NewRun(run_id, "flow", 'j1:"in"', "q"), chain(1))
    store.register_code("c0de", ["sig0"])
    connection = store._caller()._connected(store.keys.head(0))  # type: ignore[attr-defined]
    read = connection.read_response

    def once(*args: Any, **options: Any) -> Any:
        read(*args, **options)
        raise redis.exceptions.ConnectionError("cut")

    monkeypatch.setattr(connection, "read_response", once)
    first = play.claim()
    assert len(first) == 1
    second = play.claim()
    assert len(second) == 1
    assert first[0].run_id != second[0].run_id


@pytest.mark.spec("RUN-5", "SET-3")
def test_a_node_that_is_killed_comes_back_with_everything_and_whoever_called_goes_on(cluster: ValkeyCluster, store: Store) -> None:
    runs = [_run_at(store, partition)[1] for partition in range(3)]
    dead = cluster.node_of(store.keys.head(1))
    dead.kill()
    waiting = _in_thread(lambda: store.pause(runs[1], reason="x").word)
    with pytest.raises((redis.exceptions.ConnectionError, OSError)):
        read_run(store, runs[1])
    dead.start()
    assert waiting() == "OK"
    cluster.settled()
    assert [run.state for run in read_runs(store, runs) if run] == ["running", "paused", "running"]
    assert store.resume(runs[1]).word == "OK"
    assert fsck(engine_of(store)) == []


@pytest.mark.spec("RUN-5", "SET-3")
def test_a_replica_that_takes_over_is_found_and_must_have_been_accepted(cluster: ValkeyCluster, spread: str) -> None:
    store = Store(connect(cluster.url), namespace=spread, partitions=3, url=cluster.url)
    play, run_id = _run_at(store, 1)
    with cluster.replica_of(cluster.node_of(store.keys.head(1))) as replica:
        store = Store(connect(cluster.url), namespace=spread, partitions=3, url=cluster.url)
        assert found_durability(store.client(), Settings()) == "replicated"
        with pytest.raises(UnsafeServer, match="a failover may lose the last writes; accept it: conductor_durability=replicated"):
            refuse_unsafe(examine(store.client(), Settings()), Settings())
        accepted = Settings(durability="replicated")
        refuse_unsafe(examine(store.client(), accepted), accepted)
        cluster.fail_over(replica)
        assert store.pause(run_id, reason="x").word == "OK"
        assert play.store.resume(run_id).word == "OK", "a caller with the old table too"
        found = read_run(play.store, run_id)
        assert found is not None
        assert found.state == "running"
    assert fsck(engine_of(store)) == []


@pytest.mark.spec("SET-3")
def test_the_weakest_node_says_what_holds(cluster: ValkeyCluster, store: Store) -> None:
    weak: Any = cluster.nodes[2].client()
    assert found_durability(store.client(), Settings()) == "always"
    weak.config_set("appendfsync", "everysec")
    weak.config_set("maxmemory-policy", "allkeys-lru")
    try:
        checks = {check.name: check for check in examine(store.client(), Settings())}
        assert found_durability(store.client(), Settings()) == "everysec"
        assert (checks["persistence"].status, checks["eviction"].status) == ("warn", "failed")
        assert checks["eviction"].found.startswith(f"127.0.0.1:{cluster.nodes[2].port}: maxmemory-policy allkeys-lru")
        with pytest.raises(UnsafeServer, match="noeviction"):
            refuse_unsafe(list(checks.values()), Settings())
    finally:
        weak.config_set("appendfsync", "always")
        weak.config_set("maxmemory-policy", "noeviction")


def test_one_node_named_as_a_server_is_refused_with_what_to_name(cluster: ValkeyCluster) -> None:
    with pytest.raises(UnsafeServer, match=r"one node of a cluster; name the whole cluster: redis\+cluster://host:port,host:port"):
        refuse_unsafe(examine(connect(cluster.nodes[0].url()), Settings()), Settings())


def test_only_one_of_two_holds_a_lock_and_there_is_one_clock(store: Store) -> None:
    with store.lock("test", 5) as mine, store.lock("test", 5) as theirs:
        assert (mine, theirs) == (True, False)
    with store.lock("test", 5) as again:
        assert again
    assert abs(store.last_sweeps()[1] - read_now(store)) < 5000
