"""Waits, agents and idleness at the level of scripts: who moves what, once, and what the record says meanwhile. On both backends."""

from __future__ import annotations

from typing import Any

import pytest

from conductor.fold import fold
from conductor.idleness import active_waiters, is_idle, is_orphan
from conductor.log import parse_all
from conductor.records import FailurePolicy, Graph, NodeKind, OutcomeKind
from conductor.runs.fsck import fsck
from conductor.store import Answered, Store
from conductor.store.reads import read_run
from tests.integration.playing import Player, graph_of, node
from tests.support.crew import engine_of

WAIT, AGENT, SLEEP = NodeKind.WAIT, NodeKind.AGENT, NodeKind.SLEEP


@pytest.fixture
def play(store: Store) -> Player:
    return Player(store)


def approved(timeout_ms: int = 0, default: str | None = None, **options: Any) -> Graph:
    """0 → wait 1 → 2."""
    return graph_of(
        node(0), node(1, 0, kind=WAIT, signal="go", delay_ms=timeout_ms, default=default, **options), node(2, 1, needs=(1,)))


def send(play: Player, run_id: str, signal_id: str = "s1", name: str = "go", payload: str = "j1:7") -> Answered:
    waits = play.graphs[run_id].waits_for(name)
    return play.store.signal(run_id, name=name, signal_id=signal_id, payload=payload, waits=waits)


def answer(play: Player, run_id: str, index: int, payload: str = "j1:7") -> str:
    return play.store.advance(run_id, index, digest=payload, payload=payload).word


def accounts(play: Player, run_id: str) -> None:
    """The log folds to what the record says, and nothing stands where it should not."""
    assert fold(parse_all(play.log(run_id)), play.graphs[run_id]).violations == []
    assert fsck(engine_of(play.store)) == []


def finished(play: Player, run_id: str) -> str:
    """A worker takes what is there, keeping what was answered."""
    while held := play.claim():
        for one in held:
            answered = "v" in one.flags
            outcome = play.outcome(one, OutcomeKind.COMPLETED, payload="" if answered else "j1:1", how="answered" if answered else "")
            assert play.send(outcome).answers == ["OK"]
    accounts(play, run_id)
    return play.state(run_id)


def result(play: Player, run_id: str, index: int) -> str:
    return play.field(run_id, f"{index}r")


@pytest.mark.spec("WF-5", "IDLE-1", "IDLE-2")
def test_a_waiting_run_holds_nothing_and_a_signal_moves_it(play: Player) -> None:
    run_id = play.start(approved())
    assert play.drain() == [(0, None)]
    assert play.state(run_id) == "waiting_signal"
    assert int(play.field(run_id, "is")) > 0
    assert play.ready() == [] and play.redis.zcard(play.store.keys.of(0, "leases")) == 0
    assert play.redis.zcard(play.store.keys.of(0, "due")) == 0, "nobody looks at it, and nothing is due"
    accounts(play, run_id)
    told = send(play, run_id)
    assert (told.word, told.index, told.state) == ("OK", 1, "running")
    assert play.field(run_id, "is") == ""
    assert play.ready() == [f"{run_id}:1"]
    accounts(play, run_id)
    assert finished(play, run_id) == "completed"
    assert result(play, run_id, 1) == "j1:7"
    assert play.codes(run_id) == "skcivjkckce"


@pytest.mark.spec("WF-5")
def test_a_signal_is_taken_once_however_often_it_is_sent(play: Player) -> None:
    run_id = play.start(approved())
    play.drain()
    assert [send(play, run_id).word for _ in range(3)] == ["OK", "ALREADY", "ALREADY"]
    assert send(play, run_id, "s2").word == "OVER"
    assert finished(play, run_id) == "completed"
    assert (send(play, run_id).word, send(play, run_id, "s3").word) == ("ALREADY", "ENDED")
    assert play.codes(run_id).count("v") == 1


@pytest.mark.spec("WF-5")
def test_early_signals_are_kept_in_order_and_taken_by_the_first_wait_of_their_name(play: Player) -> None:
    graph = graph_of(
        node(0), node(1, 0, kind=WAIT, signal="go"), node(2, 1, kind=WAIT, signal="go"), node(3, 2, kind=WAIT, signal="stop"), node(4, 3))
    run_id = play.start(graph)
    for number in range(3):
        assert send(play, run_id, f"g{number}", payload=f"j1:{number}").word == "KEPT"
    assert send(play, run_id, "s", "stop", "j1:9").word == "KEPT"
    assert send(play, run_id, "g0").word == "ALREADY"
    accounts(play, run_id)
    assert finished(play, run_id) == "completed"
    assert [result(play, run_id, index) for index in (1, 2, 3)] == ["j1:0", "j1:1", "j1:9"]
    assert "i" not in play.codes(run_id), "it never had to wait"


@pytest.mark.spec("WF-5")
def test_a_hundred_early_signals_are_kept_and_the_next_is_refused(play: Player) -> None:
    run_id = play.start(approved())
    words = [send(play, run_id, f"s{number}").word for number in range(101)]
    assert words == ["KEPT"] * 100 + ["FULL"]
    assert send(play, run_id, "s100").word == "FULL", "a refused one is not remembered as one that came"
    assert finished(play, run_id) == "completed"


@pytest.mark.spec("WF-5")
def test_of_a_signal_and_a_timeout_the_first_script_wins(play: Player) -> None:
    """Either way round, the other finds the step no longer waiting, and both have one outcome."""
    first, second = (play.start(approved(timeout_ms=60_000)) for _ in range(2))
    play.drain()
    assert send(play, first).word == "OK"
    assert play.redis.zcard(play.store.keys.of(0, "due")) == 1
    assert play.due().causes == [f"lapse:{second}:1"]
    assert send(play, second).word == "OVER"
    flags = {held.run_id: held.flags for held in (play.one(), play.one())}
    assert flags == {first: "v", second: "y"}
    for run_id in (first, second):
        accounts(play, run_id)


@pytest.mark.spec("WF-5")
def test_an_old_timeout_that_is_met_later_changes_nothing(play: Player) -> None:
    run_id = play.start(approved(timeout_ms=60_000))
    play.drain()
    assert send(play, run_id).word == "OK"
    play.redis.zadd(play.store.keys.of(0, "due"), {f"lapse:{run_id}:1": 1})
    play.store.fire_due(0)
    assert finished(play, run_id) == "completed"
    assert play.codes(run_id).count("u") == 0


@pytest.mark.spec("WF-5")
def test_the_first_answer_for_an_agent_wins(play: Player) -> None:
    run_id = play.start(graph_of(node(0), node(1, 0, kind=AGENT), node(2, 1)))
    assert answer(play, run_id, 1) == "NOT_WAITING"
    play.drain()
    assert play.state(run_id) == "waiting_signal"
    assert [answer(play, run_id, 1), answer(play, run_id, 1), answer(play, run_id, 1, "j1:8")] == ["OK", "SAME", "TAKEN"]
    assert finished(play, run_id) == "completed"
    assert result(play, run_id, 1) == "j1:7"
    assert [answer(play, run_id, 1), answer(play, run_id, 1, "j1:8")] == ["SAME", "TAKEN"]


@pytest.mark.spec("WF-5")
def test_an_agent_that_nobody_has_asked_yet_cannot_be_answered_for(play: Player) -> None:
    """Not while one of its predecessors is open, nor while its run is failing."""
    graph = graph_of(node(0), node(1), node(2, 0, 1, kind=AGENT), node(3, 0, kind=AGENT))
    run_id = play.start(graph)
    first, second = play.claim(2)
    play.complete(first)
    assert play.record(run_id, 2)[0] == "P"
    assert answer(play, run_id, 2) == "NOT_WAITING"
    play.redis.hset(play.store.keys.run(run_id), "ph", "F")
    assert answer(play, run_id, 3) == "NOT_WAITING"
    play.redis.hset(play.store.keys.run(run_id), "ph", "")
    play.complete(second)
    assert [answer(play, run_id, index) for index in (2, 3)] == ["OK", "OK"]
    assert finished(play, run_id) == "completed"


@pytest.mark.spec("IDLE-1", "IDLE-2")
def test_a_run_is_idle_only_when_nothing_but_waiters_is_left(play: Player) -> None:
    """A sleep, a wait and an agent beside a step that runs, fails and waits for its retry."""
    graph = graph_of(
        node(0), node(1, 0, kind=WAIT, signal="go"), node(2, 0, kind=AGENT), node(3, 0, kind=SLEEP, delay_ms=60_000), node(4, 0))
    run_id = play.start(graph)
    play.complete(play.one())
    seen = [play.state(run_id)]
    held = play.one()
    seen.append(play.state(run_id))
    play.retry_later(held)
    seen.append(play.state(run_id))
    play.backdate("due", f"retry:{run_id}:4")
    play.store.fire_due(0)
    seen.append(play.state(run_id))
    assert seen == ["running"] * 4
    play.complete(play.one())
    assert play.state(run_id) == "waiting_signal"
    run = read_run(play.store, run_id)
    assert run is not None and is_idle(run) and not is_orphan(run)
    assert [str(waiter) for waiter in active_waiters(run, graph)] == ["signal go", "agent s2", "time s3"]
    assert next(entry for entry in play.log(run_id) if entry[0] == "i").endswith(";1,2,3")
    for move in (lambda: send(play, run_id), lambda: play.due(), lambda: answer(play, run_id, 2)):
        move()
        assert play.state(run_id) == "running"
        for one in play.claim(5):
            play.complete(one)
    assert play.state(run_id) == "completed"
    codes = play.codes(run_id)
    assert (codes.count("i"), codes.count("j")) == (3, 3), "once per transition"
    accounts(play, run_id)


@pytest.mark.spec("IDLE-1", "RUN-14")
def test_a_paused_run_is_not_idle_keeps_its_signals_and_is_idle_again_after(play: Player) -> None:
    run_id = play.start(approved())
    play.drain()
    play.store.pause(run_id, reason="lunch")
    assert (play.state(run_id), play.field(run_id, "is")) == ("paused", "")
    accounts(play, run_id)
    play.store.resume(run_id)
    assert play.state(run_id) == "waiting_signal"
    play.store.pause(run_id, reason="lunch")
    assert send(play, run_id).word == "OK"
    assert play.claim() == []
    play.store.resume(run_id)
    assert finished(play, run_id) == "completed"


@pytest.mark.spec("WF-5", "RUN-11")
def test_what_was_answered_before_a_failure_is_not_asked_for_again(play: Player) -> None:
    """Two waits and a step that fails: the answered wait keeps its value, the other waits anew, and a signal meanwhile is kept for it."""
    graph = graph_of(
        node(0), node(1, 0, kind=WAIT, signal="go"), node(2, 0, kind=AGENT), node(3), node(4, 1, 2), node(5, kind=NodeKind.ON_FAILURE))
    run_id = play.start(graph)
    held = {one.index: one for one in play.claim(2)}
    play.complete(held[0])
    assert answer(play, run_id, 2) == "OK"
    play.fail(held[3])  # its worker comes before the answer is committed
    assert send(play, run_id).word == "KEPT"
    play.drain()
    assert play.state(run_id) == "failed"
    assert play.reopen(run_id).word == "OK"
    assert play.record(run_id, 1)[0] == play.record(run_id, 2)[0] == "R", "neither waits"
    assert finished(play, run_id) == "completed"
    assert [result(play, run_id, index) for index in (1, 2)] == ["j1:7", "j1:7"]


@pytest.mark.spec("WF-5")
def test_a_wait_that_lapsed_waits_anew_after_a_retry(play: Player) -> None:
    run_id = play.start(approved(timeout_ms=60_000))
    play.drain()
    play.due()
    play.fail(play.one())
    assert play.state(run_id) == "failed"
    play.reopen(run_id)
    assert play.state(run_id) == "waiting_signal"
    assert send(play, run_id).word == "OK"
    assert finished(play, run_id) == "completed"


@pytest.mark.spec("WF-5", "CAN-1")
def test_a_waiting_run_is_cancelled_and_nothing_of_it_is_left(play: Player) -> None:
    run_id = play.start(graph_of(node(0, kind=AGENT)))
    assert play.redis.zcard(play.store.keys.of(0, "orphans")) == 1
    assert play.store.cancel(run_id, reason="x").word == "OK"
    assert answer(play, run_id, 0) == "ENDED"
    assert play.keys_with("orphans") == []
    accounts(play, run_id)
    assert play.codes(run_id) == "siK"


@pytest.mark.spec("WF-5", "RUN-7")
def test_a_deadline_ends_a_waiting_run(play: Player) -> None:
    run_id = play.start(graph_of(node(0, kind=WAIT, signal="go"), node(1, kind=NodeKind.ON_FAILURE)), deadline_ms=60_000)
    assert play.state(run_id) == "waiting_signal"
    play.due()
    assert play.state(run_id) == "running", "its last step stands ready"
    assert send(play, run_id).word == "KEPT", "for its next life"
    play.drain()
    assert play.ended(run_id) == ("failed", "deadline")
    accounts(play, run_id)


@pytest.mark.spec("WF-5")
@pytest.mark.parametrize("policy", [FailurePolicy.CONTINUE, FailurePolicy.FAIL])
def test_waits_behind_a_failure_or_a_skip_are_skipped(play: Player, policy: FailurePolicy) -> None:
    graph = graph_of(node(0, policy=policy), node(1, 0, kind=WAIT, signal="go", policy=policy), node(2, 1, policy=policy))
    run_id = play.start(graph)
    play.fail(play.one()) if policy is FailurePolicy.CONTINUE else play.skip(play.one(), "when")
    play.drain()
    assert play.state(run_id) == ("failed" if policy is FailurePolicy.CONTINUE else "completed")
    assert play.step(run_id, 1) == "Z"
    accounts(play, run_id)


@pytest.mark.spec("RUN-2")
def test_a_worker_lost_with_an_answer_in_its_hands_loses_no_answer(play: Player) -> None:
    run_id = play.start(approved())
    play.drain()
    send(play, run_id)
    held = play.one()
    play.lose(held)
    (again,) = play.claim()
    assert "v" in again.flags and again.fence > held.fence
    assert play.send(play.outcome(again, OutcomeKind.COMPLETED, payload="", how="answered")).answers == ["OK"]
    assert result(play, run_id, 1) == "j1:7"
    assert finished(play, run_id) == "completed"
