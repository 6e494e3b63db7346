"""A worker that stays a while: which messages it spares, and that nothing waits for one that was spared."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from conductor.ids import new_run_id
from conductor.records import NewRun, OutcomeKind, Poke
from conductor.runs.lingering import Lingering
from conductor.store import Store, Want
from conductor.store.scripts import ATTENDED_MS
from tests.integration.playing import CODE, Player, chain
from tests.integration.shift import Shift, step


@pytest.fixture
def play(store: Store) -> Player:
    return Player(store)


def started(play: Player, **options: Any) -> list[str]:
    """Start a run of one step; tells the queues that are poked for it."""
    graph = chain(1)
    return [poke.queue for poke in play.store.start(play.new(graph, **options), graph).pokes]


def attend(play: Player, limit: int = 1) -> Any:
    return play.store.claim(0, Want("q", limit, CODE, "w1", first=True, attends=True))


@pytest.mark.spec("RUN-4")
def test_what_starts_while_a_drain_attends_needs_no_message(play: Player) -> None:
    assert started(play) == ["q"]
    attend(play)
    assert started(play) == []
    assert len(attend(play).attempts) == 1


@pytest.mark.spec("RUN-4", "RUN-6")
def test_leaving_pokes_for_what_came_after_the_last_look(play: Player) -> None:
    attend(play)
    assert started(play) == []
    left = play.store.claim(0, Want("q", 0, CODE, "w1", first=True))
    assert (left.attempts, [poke.queue for poke in left.pokes]) == ([], ["q"])
    assert play.store.claim(0, Want("q", 0, CODE, "w1", first=True)).pokes != [], "it is still there, and the first poke was answered"
    play.claim(9)
    assert play.store.claim(0, Want("q", 0, CODE, "w1", first=True)).pokes == []
    assert started(play) == ["q"], "nobody attends any more"


@pytest.mark.spec("RUN-4")
def test_a_promise_ends_by_itself(play: Player) -> None:
    attend(play)
    key = play.store.keys.of(0, "attended")
    until = int(play.redis.hget(key, "q"))
    assert 0 < until - play.now() <= ATTENDED_MS
    play.redis.hset(key, "q", play.now() - 1)
    assert started(play) == ["q"]


@pytest.mark.spec("RUN-4")
def test_a_worker_that_leaves_something_ready_calls_others_although_it_attends(play: Player) -> None:
    for _ in range(3):
        started(play)
    claimed = attend(play, limit=1)
    assert [poke.queue for poke in claimed.pokes] == ["q"]
    play.redis.hset(play.store.keys.of(0, "pokes"), "q", 0)
    told = play.store.commit(0, [play.outcome(claimed.attempts[0], OutcomeKind.COMPLETED, payload="j1:1")], Want("q", 1, CODE, "w1"))
    assert [poke.queue for poke in told.pokes] == ["q"]


@pytest.mark.spec("RUN-4", "RUN-6")
def test_all_partitions_are_looked_at_and_left(make_store: Any) -> None:
    """Whoever drains what it is told of, and then leaves, has taken everything or has called somebody for it."""
    store: Store = make_store(partitions=3)
    store.register_code(CODE, ["sig0"])
    called: list[Poke] = []
    lingering = Lingering(store, lambda: Want("q", 0, CODE, "w1"), called.extend)

    def start(partition: int) -> list[Poke]:
        return store.start(NewRun(new_run_id(3, partition), "flow", "j1:1", "q"), chain(1)).pokes

    start(0), start(2)
    met = []
    for partition in lingering.partitions(time.monotonic() + 5):
        met.append(partition)
        lingering.worked()
        assert store.claim(partition, Want("q", 10, CODE, "w1", first=True, attends=True)).attempts
        if len(met) == 2:
            assert start(0) == []
            assert start(1) == [Poke(1, "q")], "it has not been there, so it has promised nothing"
    assert met == [0, 2, 0, 1]
    assert start(2) == []
    lingering.leave()
    assert called == [Poke(2, "q")]


@pytest.mark.spec("RUN-4")
def test_a_drain_that_follows_closely_takes_what_is_ready_elsewhere(make_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conductor.runs.lingering.THICK", 60)
    flow = step("one", lambda: None)
    shift = Shift(make_store(partitions=4), flow)
    drainer = shift.quick_worker(flow)
    runs = [shift.start(flow, partition) for partition in (0, 1, 3)]
    drainer.drain(0, "q")
    assert [shift.state(run_id) for run_id in runs] == ["completed"] * 3


@pytest.mark.spec("RUN-13")
def test_a_worker_that_is_told_to_stop_claims_nothing_more(make_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where it drains, not where it looks around: what it claimed it could only give back, again and again."""
    monkeypatch.setattr("conductor.runs.lingering.THICK", 60)
    told, later = threading.Event(), list[str]()

    def body() -> None:
        later.extend(shift.start(flow, number % 2) for number in range(6))
        told.set()

    flow, last = step("one", lambda: None), step("last", body)
    shift = Shift(make_store(partitions=2), flow, last)
    drainer = shift.worker(stopping=told.is_set)
    shift.start(flow), drainer.drain(0, "q")
    run_id = shift.start(last)
    drainer.drain(0, "q")
    assert (shift.state(run_id), len(later)) == ("completed", 6)
    assert [shift.moves(one, "kb") for one in later] == [[]] * 6


@pytest.mark.spec("RUN-4", "OP-8")
def test_while_a_body_lasts_others_are_called_to_where_it_had_promised_to_look(make_store: Any) -> None:
    """Otherwise a run that starts behind a long step would wait for the stall sweep."""
    called: list[Poke] = []
    late = threading.Event()

    def body() -> None:
        assert late.wait(10)

    short, lasting = step("short", lambda: None), step("lasting", body)
    shift = Shift(make_store(partitions=2), short, lasting)
    shift.engine.poke = lambda pokes: (called.extend(pokes), late.set() if Poke(1, "q") in called else None)
    drainer = shift.worker()
    drainer._lingering._attended.add(1)
    drainer._queue = "q"
    shift.store.claim(1, Want("q", 0, CODE, "w1", first=True, attends=True))
    run_id = new_run_id(2, 1)
    assert shift.store.start(NewRun(run_id, "short", "j1:null", "q"), short.graph).pokes == []
    shift.start(lasting)
    drainer.drain(0, "q")
    assert late.is_set()
    assert Poke(1, "q") in called
