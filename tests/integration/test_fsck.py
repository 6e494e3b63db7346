"""Recounting: whatever a crew of workers, sweeps and people does, the log folds to what the records show, and every entry has its place."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import fakeredis
import pytest

from conductor.ids import new_run_id
from conductor.records import NewRun, Node, Outcome, OutcomeKind
from conductor.runs.fsck import Progress, fsck
from conductor.store import Store, Want, connect
from conductor.store.reads import read_run
from tests.support.crew import Crew, engine_of, graph_of, random_graph
from tests.support.server import ValkeyServer


def _crew(store: Store, seed: int) -> Crew:
    rng = random.Random(seed)
    return Crew(store, rng, [random_graph(rng) for _ in range(3)])


@pytest.mark.spec("RUN-9", "ACT-1")
@pytest.mark.parametrize("number", range(25))
def test_nothing_differs_whatever_happens(store: Store, number: int) -> None:
    """After every few moves of a random crew a recount finds no difference."""
    crew = _crew(store, number)
    for _ in range(25):
        for _ in range(4):
            crew.act()
        found = fsck(engine_of(store))
        assert not found, f"seed {number} after {crew.done[-8:]}:\n" + "\n".join(map(str, found[:10]))


@pytest.mark.spec("RUN-9", "RUN-11")
@pytest.mark.parametrize("number", range(100, 125))
def test_every_run_ends_and_still_nothing_differs(store: Store, number: int) -> None:
    """Whatever state a crew left, good workers bring every run to its end."""
    crew = _crew(store, number)
    for _ in range(60):
        crew.act()
    crew.finish()
    open_runs = [run for run_id in crew.runs if (run := read_run(store, run_id)) and not run.ended]
    assert not open_runs, f"seed {number}: {open_runs}"
    assert fsck(engine_of(store)) == []


def _settled(store: Store) -> tuple[Store, str]:
    """One run in the middle of things: a step running, a step ready, one waiting for its retry, one pending."""
    graph = graph_of(
        Node(0, "a", signature="a"), Node(1, "b", signature="b"), Node(2, "c", signature="c"), Node(3, "d", parents=(0, 1, 2), signature="d"),
    )
    run_id = new_run_id(store.partitions)
    store.start(NewRun(run_id, "flow", "j1:1", "q", key="k", digest="d"), graph)
    store.register_code("all", ["a", "b", "c", "d"])
    first, _ = store.claim(0, Want("q", 2, "all", "w", first=True)).attempts
    store.commit(0, [(Outcome(first, OutcomeKind.RETRY, reason="transient", delay_ms=60_000, error="{}"), "3")], Want("q", 0, "all", "w"))
    assert fsck(engine_of(store)) == []
    return store, run_id


FAULTS: dict[str, tuple[Callable[[Any, Store, str], Any], str]] = {
    "a ready entry lost": (lambda c, s, r: c.zrem(s.keys.of(0, "ready:q"), f"{r}:2"), "stands nowhere"),
    "a ready entry too many": (lambda c, s, r: c.zadd(s.keys.of(0, "ready:q"), {f"{r}:3": 1}), "points to a step that is pending"),
    "a lease lost": (lambda c, s, r: c.delete(s.keys.of(0, "leases")), "has no entry in leases"),
    "a lease too many": (lambda c, s, r: c.zadd(s.keys.of(0, "leases"), {f"{r}:2": 1}), "points to a step that is ready"),
    "a retry lost": (lambda c, s, r: c.delete(s.keys.of(0, "due")), "has no entry in due"),
    "a retry too many": (lambda c, s, r: c.zadd(s.keys.of(0, "due"), {f"retry:{r}:1": 1}), "points to a step that is running"),
    "a counter": (lambda c, s, r: c.hincrby(s.keys.run(r), "a", 1), "counter a: 1 expected, 2 found"),
    "a state": (lambda c, s, r: c.hset(s.keys.run(r), "st", "completed"), "state: running expected, completed found"),
    "a record": (lambda c, s, r: c.hset(s.keys.run(r), "2", "C;1;1;0;0;0;0;"), "step c: ready expected, completed found"),
    "a join": (lambda c, s, r: c.hset(s.keys.run(r), "3", "P;1;"), "open parents: 3 expected, 1 found"),
    "a fence": (lambda c, s, r: c.hset(s.keys.run(r), "1", "X;7;1;0;0;0;0;"), "fence"),
    "an event lost": (lambda c, s, r: c.rpop(s.keys.run(r, "log")), "retry_pending found"),
    "an event doubled": (lambda c, s, r: c.rpush(s.keys.run(r, "log"), c.lindex(s.keys.run(r, "log"), -1)), "cannot be retry_scheduled"),
    "an unreadable event": (lambda c, s, r: c.rpush(s.keys.run(r, "log"), "?;1"), "is not known to this release"),
    "the active entry": (lambda c, s, r: c.delete(s.keys.of(0, "active")), "entry in active: one expected, nothing found"),
    "a foreign active entry": (lambda c, s, r: c.hset(s.keys.of(0, "active"), new_run_id(1, 0), "running;w;1;;;"), "is gone and has an entry"),
    "the progress entry": (lambda c, s, r: c.delete(s.keys.of(0, "progress")), "entry in progress"),
    "an ended entry too many": (lambda c, s, r: c.zadd(s.keys.of(0, "ended:failed"), {r: 1}), "entry in ended:failed"),
    "the key": (lambda c, s, r: c.delete(s.keys.of(0, "key:flow:k")), "run of its key"),
    "a key of nobody": (lambda c, s, r: c.set(s.keys.of(0, "key:flow:x"), "01700000-0000-7000-8000-000000000000;d"), "never dies"),
    "a graph count": (lambda c, s, r: c.hincrby(s.keys.of(0, "graphs"), read_run(s, r).graph, 1), "1 runs use it, 2 are counted"),  # type: ignore[union-attr]
    "an orphan of a run": (lambda c, s, r: c.hset(s.keys.run("01700000-0000-7000-8000-000000000000", "err"), "0:1", "{}"), "its run is gone"),
    "an orphan graph": (lambda c, s, r: c.hset(s.keys.of(0, "graph:abcdef"), "doc", "{}"), "no run uses it"),
    "an unknown key": (lambda c, s, r: c.set(s.keys.of(0, "mystery"), 1), "nobody owns it"),
    "an aside list without index": (lambda c, s, r: c.rpush(s.keys.of(0, "aside:x"), "q\n1\nx:1"), "not as both"),
}


@pytest.mark.spec("RUN-9")
@pytest.mark.parametrize("fault", FAULTS)
def test_every_kind_of_damage_is_found(fault: str, namespace: str) -> None:
    store = Store(fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=True), namespace=namespace, partitions=1)
    _, run_id = _settled(store)
    damage, words = FAULTS[fault]
    damage(store.client(), store, run_id)
    found = [str(difference) for difference in fsck(engine_of(store))]
    assert any(words in text for text in found), found


def test_leftovers_of_ended_runs_are_no_differences(store: Store) -> None:
    _, run_id = _settled(store)
    store.cancel(run_id, reason="no")
    assert store.client().zcard(store.keys.of(0, "ready:q")) == 1
    assert fsck(engine_of(store)) == []


def test_progress_is_told(make_store: Any) -> None:
    store = make_store(3)
    for number in range(3):
        store.start(NewRun(new_run_id(3, number), "flow", "j1:1", "q"), graph_of(Node(0, "a", signature="a")))
    told: list[Progress] = []
    fsck(engine_of(store), told.append)
    assert (told[-1].partition, told[-1].partitions, told[-1].runs, told[-1].differences) == (2, 3, 3, 0)


@pytest.mark.spec("RUN-9")
def test_a_run_that_moves_meanwhile_is_no_difference(valkey: ValkeyServer, namespace: str, clean_keys: None) -> None:
    """Beside live workers nothing is reported that a second look at the same event number does not confirm."""
    store = Store(connect(valkey.url()), namespace=namespace, partitions=1)
    crew = Crew(Store(connect(valkey.url()), namespace=namespace, partitions=1), random.Random(5), [random_graph(random.Random(6))])
    over = threading.Event()
    failure: list[BaseException] = []

    def live() -> None:
        try:
            while not over.is_set():
                crew.act()
        except BaseException as error:
            failure.append(error)

    worker = threading.Thread(target=live)
    worker.start()
    try:
        found = [difference for _ in range(5) for difference in fsck(engine_of(store))]
    finally:
        over.set()
        worker.join()
    assert not failure
    assert not found, "\n".join(map(str, found[:10]))
