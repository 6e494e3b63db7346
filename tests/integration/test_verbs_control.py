"""The verbs of the store: cancel, pause, hold, retry of a run, and code that is missing."""

from __future__ import annotations

import pytest

from conductor.ids import new_run_id
from conductor.records import OutcomeKind
from conductor.store import Store
from tests.integration.playing import Player, chain, fan, graph_of, node


@pytest.fixture
def play(store: Store) -> Player:
    return Player(store)


# Cancel, pause, hold.


@pytest.mark.spec("CAN-1", "CAN-2")
def test_cancel_is_idempotent_and_nothing_follows_it(play: Player) -> None:
    run_id = play.start(graph_of(node(0), node(1), node(2)))
    first, second = play.claim(2)
    play.retry_later(second)
    told = play.store.cancel(run_id, reason="wrong order", actor="eve")
    assert (told.word, told.state, told.reason) == ("OK", "cancelled", "wrong order")
    again = play.store.cancel(run_id, reason="another")
    assert (again.word, again.reason, again.at) == ("ALREADY", "wrong order", told.at)
    assert not play.redis.hexists(play.store.keys.of(0, "active"), run_id)
    assert play.complete(first) == "CANCELLED"
    play.due()
    play.lose(first)
    assert play.claim(10) == []
    assert play.log(run_id)[-1].startswith("K;")
    assert play.log(run_id)[-1].endswith(";wrong order;eve")
    assert play.store.pause(run_id, reason="x").word == play.store.resume(run_id).word == "ENDED"


@pytest.mark.spec("CAN-2")
def test_cancel_leaves_an_ended_run_and_does_not_know_an_unknown_one(play: Player) -> None:
    run_id = play.start(chain(1))
    play.drain()
    before = play.log(run_id)
    assert (play.store.cancel(run_id, reason="x").word, play.state(run_id)) == ("ENDED", "completed")
    assert play.log(run_id) == before
    assert play.store.cancel(new_run_id(1, 0), reason="x").word == "UNKNOWN"


@pytest.mark.spec("RUN-14")
def test_pause_stops_claims_only_and_resume_goes_on(play: Player) -> None:
    run_id = play.start(graph_of(node(0), node(1), node(2, 0)))
    held = play.one()
    assert [play.store.pause(run_id, reason="ops").word for _ in range(2)] == ["OK", "ALREADY"]
    assert play.claim(10) == []
    assert play.complete(held) == "OK"
    assert play.claim(10) == []
    assert play.redis.lrange(play.store.keys.run(run_id, "held"), 0, -1) == ["1", "2"]
    moved = play.store.resume(run_id)
    assert (moved.word, moved.state) == ("OK", "running")
    assert play.store.resume(run_id).word == "NOT_PAUSED"
    assert play.field(run_id, "r") == "2"
    assert play.keys_with(":held") == []
    assert sorted(play.drain()) == [(1, None), (2, None)]
    assert play.state(run_id) == "completed"


@pytest.mark.spec("RUN-14")
def test_timers_run_on_in_a_paused_run_but_start_nothing(play: Player) -> None:
    run_id = play.start(chain(1))
    play.retry_later(play.one())
    play.store.pause(run_id, reason="ops")
    play.due()
    assert play.claim() == []
    play.store.resume(run_id)
    assert play.one().attempt == 2


@pytest.mark.spec("RUN-14")
def test_an_each_is_paused_and_resumed(play: Player) -> None:
    run_id = play.start(fan(parallel=2))
    play.complete(play.one(), "j1:[]", total=4)
    held = play.one()
    play.store.pause(run_id, reason="ops")
    assert play.claim(10) == []
    assert play.complete(held) == "OK"
    assert play.claim(10) == []
    play.store.resume(run_id)
    assert play.drain() == [(1, 1), (1, 2), (1, 3), (2, None)]
    assert play.state(run_id) == "completed"


@pytest.mark.spec("RUN-14")
@pytest.mark.parametrize("scope", ["all", "queue:q", "workflow:flow"])
def test_a_hold_stops_claims_of_its_scope_until_it_is_lifted(play: Player, scope: str) -> None:
    before = play.start(chain(1))
    play.store.hold(scope, "maintenance")
    during = play.start(chain(1))
    assert play.claim(10) == []
    assert play.claim(10) == []
    assert [play.store.unhold(scope).word for _ in range(2)] == ["OK", "NOT_HELD"]
    assert {held.run_id for held in play.claim(10)} == {before, during}


@pytest.mark.spec("RUN-14")
def test_a_hold_leaves_other_scopes_alone(play: Player) -> None:
    play.start(chain(1))
    other = play.start(graph_of(node(0), workflow="other"))
    play.store.hold("workflow:flow", "x")
    play.store.hold("queue:gpu", "x")
    assert [held.run_id for held in play.claim(10)] == [other]


# Retry of a run.


@pytest.mark.spec("RUN-11")
def test_reopening_keeps_what_completed_and_ends_again(play: Player) -> None:
    run_id = play.start(graph_of(node(0), node(1, 0), node(2, 1)))
    play.complete(play.one())
    zombie = play.one()
    play.fail(zombie)
    assert play.ended(run_id) == ("failed", "step_failed")
    assert play.reopen(run_id, at_event=len(play.log(run_id)) - 1).word == "CHANGED"
    assert play.state(run_id) == "failed"
    assert play.reopen(run_id).word == "OK"
    assert play.reopen(run_id).word == "REFUSED"
    assert play.complete(zombie) == "LOST"
    held = play.one()
    assert (held.index, held.attempt, held.generation) == (1, 1, 2)
    play.complete(held)
    assert play.drain() == [(2, None)]
    assert play.ended(run_id) == ("completed", "")
    assert play.codes(run_id).count("e") == 2


@pytest.mark.spec("RUN-11")
def test_reopening_keeps_completed_items(play: Player) -> None:
    run_id = play.start(fan(parallel=3))
    play.complete(play.one(), "j1:[]", total=5)
    first, second, third = play.claim(3)
    play.complete(first)
    play.retry_later(third)
    play.fail(second)
    assert play.state(run_id) == "failed"
    assert play.reopen(run_id).word == "OK"
    assert play.drain() == [(1, 1), (1, 2), (1, 3), (1, 4), (2, None)]
    assert play.state(run_id) == "completed"


@pytest.mark.spec("RUN-11")
def test_a_zombie_of_the_old_generation_is_refused(play: Player) -> None:
    run_id = play.start(chain(1), deadline_ms=60_000)
    zombie = play.one()
    play.due()
    assert play.reopen(run_id).word == "OK"
    assert play.complete(zombie) == "LOST"
    assert play.store.heartbeat(0, [zombie]) == ["LOST"]
    assert play.drain() == [(0, None)]
    assert play.state(run_id) == "completed"


# Missing code.


@pytest.mark.spec("WF-10")
def test_what_a_worker_has_no_code_for_is_set_aside_and_taken_back(play: Player) -> None:
    run_id = play.start(graph_of(node(0, signature="new")))
    assert play.claim(10) == []
    assert play.ready() == []
    assert play.codes(run_id) == "sm"
    assert play.store.take_back(0, ["old"]).count == 0
    assert play.state(run_id) == "running"
    assert play.store.take_back(0, ["old", "new"]).count == 1
    assert play.keys_with(":aside") == []
    play.store.register_code("next", ["new"])
    assert [held.index for held in play.claim(10, code="next")] == [0]


@pytest.mark.spec("WF-10")
def test_code_missing_too_long_pauses_the_run_and_lifts_itself(play: Player) -> None:
    run_id = play.start(graph_of(node(0, signature="new")))
    play.claim()
    play.backdate("aside")
    assert play.store.take_back(0, ["old"]).causes == [f"{run_id} code_missing"]
    assert play.ended(run_id) == ("paused", "code_missing")
    play.store.take_back(0, ["new"])
    assert play.ended(run_id) == ("running", "")
    play.store.register_code("next", ["new"])
    (held,) = play.claim(code="next")
    assert play.complete(held) == "OK"
    assert play.codes(run_id) == "smpnrkce"


@pytest.mark.spec("WF-10")
def test_a_worker_that_the_store_has_forgotten_is_told_so(play: Player) -> None:
    play.start(chain(1))
    batch = play.store.claim(0, play.want(code="forgotten", first=True))
    assert (batch.word, batch.attempts) == ("NO_CODE", [])
    assert len(play.ready()) == 1
    assert batch.pokes == [], "a poke would bring the same worker back to the same answer, for ever"


@pytest.mark.spec("WF-10")
def test_a_commit_to_a_store_that_has_forgotten_the_worker_pokes_nobody(play: Player) -> None:
    play.start(chain(2))
    (held,) = play.store.claim(0, play.want(first=True)).attempts
    outcome = play.outcome(held, OutcomeKind.COMPLETED, payload="j1:1")
    batch = play.store.commit(0, [outcome], play.want(code="forgotten"))
    assert (batch.word, batch.answers, batch.pokes) == ("NO_CODE", ["OK"], [])
    assert len(play.ready()) == 1


@pytest.mark.spec("WF-10")
def test_a_worker_without_any_code_sets_steps_aside(play: Player) -> None:
    run_id = play.start(chain(1))
    play.store.register_code("empty", [])
    batch = play.store.claim(0, play.want(code="empty", first=True))
    assert (batch.word, batch.attempts, batch.pokes) == ("OK", [], [])
    assert play.ready() == []
    assert play.codes(run_id) == "sm"
