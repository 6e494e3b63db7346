"""Reopening a run whose `each` has many items: in batches, so that no call is long, and exact at every moment in between."""

from __future__ import annotations

from typing import Any

import pytest

from conductor.records import FailurePolicy
from conductor.runs.fsck import fsck
from conductor.runs.mend import mend
from conductor.store import Store
from conductor.store.reads import read_run
from tests.integration.playing import Player, fan, graph_of, node
from tests.support.crew import engine_of
from tests.support.server import ValkeyServer

ITEMS = 135  # of 64 a page: three pages


@pytest.fixture
def play(store: Store) -> Player:
    player = Player(store)
    player.store.pages = 1
    return player


def failed_fan(play: Player, *, deadline_ms: int = 0, policy: FailurePolicy = FailurePolicy.CONTINUE) -> str:
    """The first 70 items completed, all others failed. With a deadline: others are still held or wait for a retry."""
    graph = fan(parallel=ITEMS, policy=policy)
    run_id = play.start(graph, deadline_ms=deadline_ms)
    play.complete(play.one(), "j1:[]", total=ITEMS)
    while held := play.claim(10):
        for one in held:
            if one.item is None:
                play.by_flags(one)
            elif one.item < 70:
                play.complete(one)
            elif deadline_ms and one.item % 3:
                play.retry_later(one) if one.item % 3 == 1 else None  # or kept, by a worker that is never heard of again
            else:
                play.fail(one)
    if deadline_ms:
        key = play.store.keys.of(0, "due")
        play.redis.zadd(key, {f"deadline:{run_id}": 1000}, xx=True)
        play.store.fire_due(0)
    play.drain()
    assert play.state(run_id) == "failed"
    return run_id


def reopen_and_die(play: Player, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is killed right after the first call."""
    called = play.store._call

    def dying(name: str, *args: Any) -> Any:
        if name == "reopen_items":
            raise KeyboardInterrupt
        return called(name, *args)

    with monkeypatch.context() as patched:
        patched.setattr(play.store, "_call", dying)
        with pytest.raises(KeyboardInterrupt):
            play.reopen(run_id)


def clean(play: Player) -> None:
    assert [str(found) for found in fsck(engine_of(play.store))] == []


@pytest.mark.spec("RUN-11", "WF-6")
def test_items_begin_anew_some_pages_at_a_time(play: Player) -> None:
    run_id = failed_fan(play)
    assert play.reopen(run_id).word == "OK"
    assert [entry.split(";", 2)[2] for entry in play.log(run_id) if entry.startswith("G")] == ["1;0-63", "1;64-127", "1;128-134"]
    assert play.redis.zcard(play.store.keys.run(run_id, "e1:again")) == ITEMS - 70
    assert play.redis.zscore(play.store.keys.of(0, "due"), f"anew:{run_id}") is None
    clean(play)
    assert len(play.drain(ITEMS)) == ITEMS - 70 + 1
    assert play.state(run_id) == "completed"
    clean(play)


@pytest.mark.spec("RUN-11", "RUN-9", "WF-6")
@pytest.mark.parametrize("deadline_ms", [0, 60_000])
def test_a_caller_that_dies_in_between_is_followed_by_the_due_sweep(
    play: Player, monkeypatch: pytest.MonkeyPatch, deadline_ms: int
) -> None:
    """Meanwhile no lease, timer or claim of the life before moves an item that has yet to begin anew."""
    run_id = failed_fan(play, deadline_ms=deadline_ms)
    reopen_and_die(play, run_id, monkeypatch)
    clean(play)
    assert mend(engine_of(play.store), read_run(play.store, run_id)) == []  # type: ignore[arg-type]
    due, anew = play.store.keys.of(0, "due"), f"anew:{run_id}"
    play.backdate("due")
    play.redis.zadd(due, {anew: play.now() + 60_000}, xx=True)
    for sweep in (play.store.expire_leases, play.store.fire_due):
        play.backdate("leases")
        play.look_now()
        sweep(0)
        clean(play)
    while play.redis.zscore(due, anew) is not None:
        play.due()
    play.backdate("leases")
    play.look_now()
    while play.redis.zcard(play.store.keys.of(0, "leases")):
        play.store.expire_leases(0)
    play.drain(ITEMS + 10)
    assert play.state(run_id) == "completed"
    clean(play)


@pytest.mark.spec("RUN-11")
def test_a_run_that_fails_again_in_between_is_reopened_from_the_beginning(play: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = failed_fan(play, policy=FailurePolicy.FAIL)
    reopen_and_die(play, run_id, monkeypatch)
    play.fail(play.one())  # the first item that had not been claimed; those that failed are yet to be reached
    assert play.redis.hget(play.store.keys.run(run_id, "e1"), "anew") == "64-79"
    assert play.state(run_id) == "failed"
    play.store.fire_due(0)
    clean(play)
    assert play.reopen(run_id).word == "OK"
    clean(play)
    assert len(play.drain(ITEMS)) == ITEMS - 70 + 1
    assert play.state(run_id) == "completed"


@pytest.mark.spec("RUN-9")
def test_what_is_wrong_in_a_later_generation_is_found(play: Player) -> None:
    """Leases and timers of the life before go with it, so that an entry in the wrong place is a fault in any generation."""
    graph = graph_of(node(0), node(1, delay_ms=0), node(2), node(3, 0, 1, 2), node(4, 3))
    run_id = play.start(graph)
    waits, fails, _lost = play.one(), play.one(), play.one()
    play.retry_later(waits)
    play.fail(fails)
    play.redis.zadd(play.store.keys.of(0, "ready:q"), {f"{run_id}:4": 1})  # since before the reopening: whoever meets it drops it
    play.lose(_lost)
    assert play.state(run_id) == "failed"
    assert play.reopen(run_id).word == "OK"
    assert play.redis.zcard(play.store.keys.of(0, "due")) == play.redis.zcard(play.store.keys.of(0, "leases")) == 0
    clean(play)
    of, now = play.store.keys.of, play.now()
    for key, entry, score in (("ready:q", f"{run_id}:3", 5 * 10**13 + now), ("leases", f"{run_id}:0", now), ("due", f"retry:{run_id}:1", now)):
        play.redis.zadd(of(0, key), {entry: score})
        assert any(entry in str(found) for found in fsck(engine_of(play.store))), entry
        play.redis.zrem(of(0, key), entry)
    clean(play)


@pytest.mark.spec("RUN-11", "RUN-3")
def test_no_call_of_a_reopening_holds_the_server_for_long(valkey: ValkeyServer, make_store: Any) -> None:
    """20,000 failed items; each call of the server stays under 50 ms, however many there are. A busy machine may stop the server itself for
    longer, so the best of three counts: a call that is long by itself is so each time."""
    play = Player(make_store(1))
    tries = [slow_calls(valkey, play, 20_000)]
    while tries[-1] and len(tries) < 3:
        tries.append(slow_calls(valkey, play, 20_000))
    assert tries[-1] == [], f"microseconds of calls over 50 ms: {tries}"


def slow_calls(valkey: ValkeyServer, play: Player, items: int) -> list[int]:
    """How long each call took that took long, while a run of so many failed items was reopened."""
    run_id = play.start(fan(parallel=1000))
    head = next(held for held in play.claim(10) if held.run_id == run_id)
    play.complete(head, "j1:[]", total=items)
    keys = play.store.keys
    pipe = play.redis.pipeline()
    for first in range(0, items, 64):
        pipe.hset(keys.items(run_id, 1, first), mapping={str(n): f"F;{1000 + n};1;0;1;0;0;" for n in range(first, min(items, first + 64))})
    pipe.hset(keys.run(run_id, "e1"), mapping={"cursor": items, "failed": items, "listed": 0})
    pipe.hset(keys.run(run_id), mapping={"st": "failed", "ph": "F", "1": "F;0;0;0;1;0;0;"})
    pipe.execute()
    server: Any = valkey.client()
    server.config_set("slowlog-log-slower-than", 50_000)
    server.slowlog_reset()
    assert play.reopen(run_id).word == "OK"
    slow = [entry["duration"] for entry in server.slowlog_get(10)]
    server.config_set("slowlog-log-slower-than", 10_000)
    assert play.redis.zcard(keys.run(run_id, "e1:again")) == items
    return slow
