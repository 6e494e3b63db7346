"""The verbs of the store: lost replies, purge, the clock and pokes."""

from __future__ import annotations

import pytest

from conductor.records import NodeKind
from conductor.store import Store
from tests.integration.playing import CODE, Player, chain, fan, graph_of, node


@pytest.fixture
def play(store: Store) -> Player:
    return Player(store)


# Lost replies.


@pytest.mark.spec("RUN-5")
def test_a_call_repeated_under_its_number_gets_the_first_answer(play: Player) -> None:
    graph = graph_of(node(0, wants_input=True), node(1, 0, needs=(0,)))
    run_id = play.start(graph)
    claim = ("q", 5, CODE, "w1", 1)
    first = play.raw("claim", 1, *claim)
    assert play.raw("claim", 1, *claim) == first
    assert first[4][0][3] == "j1:1"
    fence = first[4][0][0].split(";")[3]
    outcome = (run_id, 0, "", fence, 1, "C", 3, "1", "fail", "", "j1:42")
    second = play.raw("commit", 2, "q", 5, CODE, "w1", 1, *outcome)
    assert second[3] == ["OK"]
    assert second[4][0][4:] == ["j1:42"]
    assert play.raw("commit", 2, "q", 5, CODE, "w1", 1, *outcome) == second
    assert play.codes(run_id) == "skck"
    assert play.raw("claim", 1, *claim) == ["STALE"]
    assert play.raw("commit", 3, "q", 0, CODE, "w1", 1, *outcome)[3] == ["LOST"]


@pytest.mark.spec("RUN-5")
@pytest.mark.parametrize("name", ["pause_run", "resume_run", "heartbeat", "expire_leases", "fire_due", "repoke", "hold", "purge_run"])
def test_every_numbered_verb_repeats_its_answer(play: Player, name: str) -> None:
    run_id, due = play.start(chain(1), priority=1), play.start(chain(1), delay_ms=60_000)
    held = play.one()
    if name == "resume_run":
        play.store.pause(run_id, reason="x")
    elif name == "purge_run":
        play.complete(held)
    elif name == "expire_leases":
        play.backdate("leases")
    play.backdate("due")
    beat = (held.run_id, held.index, "", held.fence, held.generation, held.lease_ms)
    args = {
        "pause_run": (run_id, "x", "", ""), "resume_run": (run_id, "", ""), "heartbeat": (1, *beat), "expire_leases": (10, 0, 3), "fire_due": (10,),
        "repoke": (0,), "hold": ("all", "x"), "purge_run": (run_id, 0, "", ""),
    }[name]
    first = play.raw(name, 9, *args)
    logs = [play.log(one) for one in (run_id, due)]
    assert first[0] == "OK"
    assert play.raw(name, 9, *args) == first
    assert play.raw(name, 8, *args) == ["STALE"]
    assert [play.log(one) for one in (run_id, due)] == logs


@pytest.mark.spec("RUN-5")
def test_a_caller_reconnects_as_often_as_it_must(play: Player) -> None:
    play.start(chain(1))
    held = play.one()
    for _ in range(150):
        play.store._caller().close()
        assert play.store.heartbeat(0, [held]) == ["OK"]


# Purge.


@pytest.mark.spec("RET-1")
def test_purge_leaves_no_key_of_the_run(play: Player) -> None:
    nodes = [node(0), node(1, 0, kind=NodeKind.EACH, source=0, max_parallel=100), *(node(index, 1) for index in range(2, 40))]
    run_id = play.start(graph_of(*nodes))
    held = play.one()
    for number in range(2):
        assert play.store.stage(held, number, "j1:[]") == "OK"
    assert play.store.note(held, "cp", "j1:1") == play.store.note(held, "live", "{}") == "OK"
    assert play.store.purge(run_id).word == "NOT_ENDED"
    play.complete(held, f"@{held.fence}:130", total=130)
    play.retry_later(play.one())
    play.due()
    play.drain()
    assert play.state(run_id) == "completed"
    assert len(play.keys_with(run_id)) >= 8
    assert [play.store.purge(run_id).word for _ in range(2)] == ["OK", "UNKNOWN"]
    assert play.keys_with(run_id) == []
    assert play.keys_with("graph") == []
    assert play.redis.zcard(play.store.keys.of(0, "runs")) == 0
    play.backdate("staged")
    play.store.drop_staged(0)
    assert play.keys_with("staged") == []


@pytest.mark.spec("WF-10", "RET-1")
def test_a_graph_stays_while_a_run_uses_it(play: Player) -> None:
    first, second = play.start(chain(1)), play.start(chain(1))
    play.drain()
    play.store.purge(first)
    assert len(play.keys_with(":graph:")) == 1
    play.store.purge(second)
    assert play.keys_with(":graph:") == []


@pytest.mark.spec("WF-6")
def test_chunks_of_a_lost_fence_are_swept(play: Player) -> None:
    run_id = play.start(fan())
    held = play.one()
    play.store.stage(held, 0, "j1:[]")
    play.backdate("staged")
    assert play.store.drop_staged(0) == 0
    play.lose(held)
    assert play.store.drop_staged(0) == 1
    assert play.keys_with(f"{run_id}:v") == []


@pytest.mark.spec("RET-1")
def test_retention_says_when_a_run_may_be_purged(play: Player) -> None:
    run_id = play.start(chain(1), retain_completed_ms=60_000)
    play.drain()
    assert play.store.due_for_purge(0) == []
    play.backdate("ended:completed")
    assert play.store.due_for_purge(0) == [run_id]
    assert play.store.glance().purgeable == [0]


# The clock and pokes.


@pytest.mark.spec("ACT-5")
def test_a_small_step_back_of_the_clock_is_not_seen(play: Player) -> None:
    head, ahead = play.store.keys.head(0), play.now() + 4000
    play.redis.hset(head, "clock", ahead)
    run_id = play.start(chain(1))
    assert int(play.field(run_id, "t")) == ahead
    assert play.codes(run_id) == "s"


@pytest.mark.spec("ACT-5")
def test_a_great_step_back_is_told_and_leases_are_shortened(play: Player) -> None:
    run_id = play.start(chain(1))
    held = play.one()
    head, leases, ahead = play.store.keys.head(0), play.store.keys.of(0, "leases"), play.now() + 3_600_000
    play.redis.zadd(leases, {held.ref: ahead + 15_000})
    play.redis.hset(head, mapping={"clock": ahead, "fence": ahead})
    play.store.pause(run_id, reason="x")
    play.store.resume(run_id)
    assert play.codes(run_id) == "skCpr"
    play.look_now()
    play.store.expire_leases(0)
    assert play.redis.zscore(leases, held.ref) <= play.now() + 15_000
    assert play.store.heartbeat(0, [held]) == ["OK"]
    play.start(chain(1))
    assert play.one().fence > ahead


@pytest.mark.spec("RUN-4")
def test_pokes_are_coalesced_until_they_are_answered(play: Player) -> None:
    graph = chain(1)
    tell = [play.store.start(play.new(graph), graph).pokes for _ in range(5)]
    assert [len(pokes) for pokes in tell] == [1, 0, 0, 0, 0]
    play.store.claim(0, play.want(10, first=True))
    assert len(play.store.start(play.new(graph), graph).pokes) == 1
    play.redis.hset(play.store.keys.of(0, "pokes"), "q", play.now() - 1001)
    assert len(play.store.start(play.new(graph), graph).pokes) == 1


@pytest.mark.spec("RUN-6", "REC-3")
def test_what_nobody_claims_is_poked_again_with_growing_pauses(play: Player) -> None:
    play.start(chain(1))
    assert play.store.repoke(0).count == 0
    play.backdate("ready:q")
    first = play.store.repoke(0)
    assert (first.causes, [poke.queue for poke in first.pokes]) == (["q unclaimed"], ["q"])
    assert play.store.repoke(0).count == 0
    play.redis.hset(play.store.keys.of(0, "repokes"), "q", f"{play.now() - 2001};2000")
    assert play.store.repoke(0).count == 1
    assert play.redis.hget(play.store.keys.of(0, "repokes"), "q").endswith(";4000")
