"""The verbs of the store: starts, claims and commits, one promise a test, on fakeredis and on a real server."""

from __future__ import annotations

import pytest

from conductor.records import NodeKind, OutcomeKind
from conductor.store import Store
from tests.integration.playing import Player, chain, diamond, graph_of, node


@pytest.fixture
def play(store: Store) -> Player:
    return Player(store)


# Start.


@pytest.mark.spec("RUN-1")
def test_start_is_idempotent_by_run_id(play: Player) -> None:
    run, graph = play.new(diamond()), diamond()
    first, second = play.store.start(run, graph), play.store.start(run, graph)
    assert (first.word, second.word) == ("OK", "EXISTS")
    assert first.run_id == second.run_id == run.run_id
    assert play.ready() == [f"{run.run_id}:0"]
    assert play.codes(run.run_id) == "s"
    assert play.redis.hget(play.store.keys.of(0, "graphs"), graph.hash) == "1"
    assert play.redis.hget(play.store.keys.of(0, "active"), run.run_id).startswith("running;flow;")


@pytest.mark.spec("RUN-1")
def test_the_same_key_gives_the_same_run_and_another_body_a_conflict(play: Player) -> None:
    graph = chain(1)
    first = play.store.start(play.new(graph, key="order-7", digest="aa"), graph)
    again = play.store.start(play.new(graph, key="order-7", digest="aa"), graph)
    other = play.store.start(play.new(graph, key="order-7", digest="bb"), graph)
    assert [told.word for told in (first, again, other)] == ["OK", "EXISTS", "CONFLICT"]
    assert first.run_id == again.run_id == other.run_id
    assert len(play.ready()) == 1


@pytest.mark.spec("RUN-1")
def test_a_key_outlives_its_run_for_its_retention(play: Player) -> None:
    graph = chain(1)
    run_id = play.start(graph, key="k", digest="aa", key_retention_ms=50_000)
    key = play.store.keys.of(0, "key:flow:k")
    assert play.redis.pttl(key) == -1
    play.drain()
    assert 0 < play.redis.pttl(key) <= 50_000
    assert play.store.purge(run_id).word == "OK"
    assert play.store.start(play.new(graph, key="k", digest="aa"), graph).word == "EXISTS"


@pytest.mark.spec("WF-9")
def test_a_delayed_start_begins_when_it_is_due(play: Player) -> None:
    run_id = play.start(diamond(), delay_ms=60_000)
    assert play.claim() == []
    assert play.store.fire_due(0).count == 0
    assert play.due().causes == [f"start:{run_id}"]
    assert play.field(run_id, "d") == "0"
    play.drain()
    assert play.state(run_id) == "completed"


@pytest.mark.spec("WF-9")
def test_a_start_that_expires_is_cancelled_unless_it_was_claimed(play: Player) -> None:
    late, begun = play.start(chain(1), expires_ms=60_000), play.start(chain(1), expires_ms=60_000, priority=1)
    held = play.one()
    assert held.run_id == begun
    play.due()
    assert play.ended(late) == ("cancelled", "expired")
    assert play.complete(held) == "OK"
    assert play.state(begun) == "completed"
    assert play.claim() == []


@pytest.mark.spec("RUN-14")
def test_a_paused_run_does_not_expire(play: Player) -> None:
    run_id = play.start(chain(1), expires_ms=60_000)
    play.store.pause(run_id, reason="ops")
    play.due()
    assert play.state(run_id) == "paused"


@pytest.mark.spec("WF-9")
def test_a_deadline_fails_the_run_and_refuses_what_still_runs(play: Player) -> None:
    run_id = play.start(chain(2), deadline_ms=60_000)
    held = play.one()
    assert held.deadline > held.at
    play.due()
    assert play.ended(run_id) == ("failed", "deadline")
    assert play.store.heartbeat(0, [held]) == ["LOST"]
    assert play.complete(held) == "LOST"


@pytest.mark.spec("WF-9", "WF-17")
def test_last_steps_run_after_a_deadline_whatever_lapses_meanwhile(play: Player) -> None:
    graph = graph_of(node(0), node(1), node(2), node(3, kind=NodeKind.ON_FAILURE))
    run_id = play.start(graph, deadline_ms=60_000)
    first, second = play.one(), play.one()
    assert play.retry_later(second, 90_000) == "OK"
    play.backdate("due", f"deadline:{run_id}")
    play.store.fire_due(0)
    play.lose(first)
    play.due()
    assert (play.field(run_id, "a"), play.field(run_id, "d")) == ("0", "0")
    assert play.drain() == [(3, None)]
    assert play.ended(run_id) == ("failed", "deadline")


@pytest.mark.spec("WF-9")
def test_a_delayed_start_never_begins_after_its_deadline(play: Player) -> None:
    graph = graph_of(node(0), node(1, kind=NodeKind.ON_FINISH))
    run_id = play.start(graph, deadline_ms=60_000, delay_ms=90_000)
    play.backdate("due", f"deadline:{run_id}")
    play.store.fire_due(0)
    play.due()
    assert play.drain() == [(1, None)]
    assert play.ended(run_id) == ("failed", "deadline")


# Claim and commit.


@pytest.mark.spec("RUN-2")
def test_a_diamond_joins_once_with_the_results_of_both_sides(play: Player) -> None:
    run_id = play.start(diamond())
    first = play.one()
    batch = play.send(play.outcome(first, OutcomeKind.COMPLETED, payload="j1:0"), limit=5)
    assert [held.index for held in batch.attempts] == [1, 2]
    left, right = batch.attempts
    assert play.complete(left, "j1:1") == "OK"
    assert play.claim() == []
    batch = play.send(play.outcome(right, OutcomeKind.COMPLETED, payload="j1:2"), limit=5)
    (join,) = batch.attempts
    assert (join.index, join.needs) == (3, ("j1:1", "j1:2"))
    assert play.complete(join) == "OK"
    assert play.state(run_id) == "completed"
    assert play.codes(run_id) == "skckkcckce"
    assert not play.redis.hexists(play.store.keys.of(0, "active"), run_id)


@pytest.mark.spec("RUN-2")
def test_fences_only_grow(play: Player) -> None:
    play.start(graph_of(*(node(index) for index in range(20))))
    fences = [held.fence for _ in range(4) for held in play.claim(5)]
    assert fences == sorted(set(fences))
    assert len(fences) == 20


@pytest.mark.spec("RUN-2")
def test_a_stale_fence_is_refused_and_changes_nothing(play: Player) -> None:
    run_id = play.start(chain(2))
    stale = play.one()
    assert play.lose(stale).causes == [f"{stale.ref} lease_expired"]
    fresh = play.one()
    assert fresh.fence > stale.fence
    before = play.log(run_id)
    assert play.complete(stale, "j1:13") == "LOST"
    assert play.retry_later(stale) == "LOST"
    assert play.give_back(stale) == "LOST"
    assert play.store.heartbeat(0, [stale, fresh]) == ["LOST", "OK"]
    assert play.store.note(stale, "cp", "j1:1") == "LOST"
    assert play.store.stage(stale, 0, "j1:1") == "LOST"
    assert play.log(run_id) == before
    assert play.complete(fresh, "j1:7") == "OK"
    assert play.redis.hget(play.store.keys.run(run_id), "0r") == "j1:7"


@pytest.mark.spec("RUN-2")
def test_a_second_commit_of_one_attempt_is_lost(play: Player) -> None:
    run_id = play.start(diamond())
    held = play.one()
    assert [play.complete(held), play.complete(held), play.fail(held)] == ["OK", "LOST", "LOST"]
    assert play.field(run_id, "l") == "3"
    assert len(play.ready()) == 2


@pytest.mark.spec("RUN-2")
def test_a_lease_that_ended_is_still_the_holders_until_the_sweep_comes(play: Player) -> None:
    play.start(chain(2))
    held = play.one()
    play.backdate("leases")
    assert play.store.heartbeat(0, [held]) == ["OK"]
    assert play.store.expire_leases(0).count == 0
    play.backdate("leases")
    assert play.complete(held) == "OK"


@pytest.mark.spec("RUN-2")
def test_what_the_heartbeat_brings_back(play: Player) -> None:
    soft, hard, gone, fine = (play.start(chain(1)) for _ in range(4))
    held = {attempt.run_id: attempt for attempt in play.claim(4)}
    play.store.cancel(soft, reason="no")
    play.store.cancel(hard, reason="no", terminate=True)
    play.lose(held[gone])
    assert play.store.heartbeat(0, [held[one] for one in (soft, hard, gone, fine)]) == ["CANCELLED", "TERMINATE", "LOST", "OK"]


@pytest.mark.spec("RUN-13", "RUN-4")
def test_a_returned_step_is_ready_at_once_and_burns_no_attempt(play: Player) -> None:
    run_id = play.start(chain(1))
    first = play.one()
    assert play.give_back(first) == "OK"
    second = play.one()
    assert (first.attempt, second.attempt) == (1, 1)
    assert play.record(run_id, 0)[3] == "0"
    assert play.codes(run_id) == "skbk"


@pytest.mark.spec("WF-3", "OP-10")
def test_a_failed_attempt_is_repeated_when_it_is_due(play: Player) -> None:
    run_id = play.start(chain(1))
    assert play.retry_later(play.one()) == "OK"
    assert play.step(run_id, 0) == "T"
    assert play.claim() == []
    assert play.store.fire_due(0).count == 0
    assert play.due().count == 1
    held = play.one()
    assert held.attempt == 2
    assert play.complete(held) == "OK"
    assert play.codes(run_id) == "sktukce"
    assert play.redis.hkeys(play.store.keys.run(run_id, "err")) == ["0:1"]


@pytest.mark.spec("WF-5")
def test_a_sleep_waits_for_its_time(play: Player) -> None:
    run_id = play.start(graph_of(node(0), node(1, 0, kind=NodeKind.SLEEP, delay_ms=3_600_000), node(2, 1)))
    assert play.drain() == [(0, None)]
    assert play.step(run_id, 1) == "W"
    play.due()
    assert play.drain() == [(1, None), (2, None)]
    assert play.state(run_id) == "completed"


@pytest.mark.spec("WF-9", "RUN-4")
def test_urgent_steps_are_claimed_first(play: Player) -> None:
    runs = {priority: play.start(chain(1), priority=priority) for priority in (7, 2, 9, 0, 5)}
    order = [held.run_id for held in play.claim(10)]
    assert order == [runs[priority] for priority in sorted(runs)]


@pytest.mark.spec("WF-9", "RUN-4")
def test_what_became_ready_does_not_overtake_what_is_more_urgent(play: Player) -> None:
    slow = play.start(chain(2), priority=5)
    held = play.one()
    urgent = play.start(chain(1), priority=1)
    batch = play.send(play.outcome(held, OutcomeKind.COMPLETED, payload="j1:1"), limit=1)
    assert [one.run_id for one in batch.attempts] == [urgent]
    assert play.one().run_id == slow


@pytest.mark.spec("RUN-4")
def test_queues_are_apart(play: Player) -> None:
    run_id = play.start(graph_of(node(0), node(1, queue="gpu")))
    assert [held.index for held in play.claim(10)] == [0]
    assert [held.index for held in play.claim(10, "gpu")] == [1]
    assert play.claim(10, "other") == []
    assert play.field(run_id, "a") == "2"


@pytest.mark.spec("RUN-4", "WF-4")
def test_a_step_that_wants_to_be_alone_is_never_in_a_batch(play: Player) -> None:
    play.start(graph_of(node(0), node(1, alone=True), node(2), node(3, alone=True)))
    batches = [play.claim(10) for _ in range(4)]
    sizes = {held.index: len(batch) for batch in batches for held in batch}
    assert set(sizes) == {0, 1, 2, 3}
    assert (sizes[1], sizes[3]) == (1, 1)


@pytest.mark.spec("RUN-3")
def test_steps_beyond_the_first_shard(play: Player) -> None:
    run_id = play.start(chain(40))
    assert len(play.drain()) == 40
    assert play.state(run_id) == "completed"
    assert play.step(run_id, 35) == "C"
