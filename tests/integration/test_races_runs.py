"""Races over whole runs: retry, fork, pause, keys and last steps met by something else at a bad moment. A recount closes every test."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from conductor import codec
from conductor.records import FailurePolicy, NodeKind, OutcomeKind
from conductor.runs.fork import fork_run, plan_fork
from conductor.runs.fsck import fsck
from conductor.runs.retry import retry_run
from conductor.store import Store
from conductor.store.reads import read_steps
from tests.integration.playing import Player, chain, fan, graph_of, node
from tests.support.crew import engine_of

EACH, SLEEP, ON_FINISH, ON_FAILURE = NodeKind.EACH, NodeKind.SLEEP, NodeKind.ON_FINISH, NodeKind.ON_FAILURE


def recount(store: Store) -> list[str]:
    return [str(found) for found in fsck(engine_of(store))]


@pytest.fixture
def play(store: Store) -> Iterator[Player]:
    """A player whose records must still agree with their logs when the test is over."""
    player = Player(store)
    yield player
    assert recount(store) == []


# Retry of a run that left something behind.


@pytest.mark.spec("RUN-11", "WF-6")
def test_a_retry_forgets_what_was_held_while_the_failed_run_was_paused(play: Player) -> None:
    run_id = play.start(graph_of(node(0), node(1, 0, kind=EACH, source=0, max_parallel=1), node(2)))
    lister, failing = play.claim(2)
    play.complete(lister, "j1:[1,2,3]", total=3)
    play.store.pause(run_id, reason="ops")
    assert play.claim(5) == []
    play.fail(failing)
    assert play.state(run_id) == "failed"
    assert play.reopen(run_id).word == "OK"
    held = play.claim(5)
    assert [(one.index, one.item) for one in held] == [(1, 0), (2, None)]
    assert play.store.resume(run_id).word == "NOT_PAUSED"
    assert play.claim(5) == [], "an each stands once, whatever the paused run had kept"
    assert [play.complete(one) for one in held] == ["OK", "OK"]
    assert play.drain() == [(1, 1), (1, 2)]
    assert play.state(run_id) == "completed"


@pytest.mark.spec("RUN-11", "WF-10")
def test_an_each_that_was_set_aside_before_a_retry_stands_once(play: Player) -> None:
    play.store.register_code("old", ["sig0", "sig2"])
    run_id = play.start(graph_of(node(0), node(1, 0, kind=EACH, source=0, max_parallel=1), node(2)))
    lister, failing = play.claim(2)
    play.complete(lister, "j1:[1,2,3]", total=3)
    assert play.claim(5, code="old") == []
    play.fail(failing)
    assert play.reopen(run_id).word == "OK"
    held = play.claim(5)
    assert [(one.index, one.item) for one in held] == [(1, 0), (2, None)]
    play.store.take_back(0, ["sig1"])
    assert play.claim(5) == []
    assert [play.complete(one) for one in held] == ["OK", "OK"]
    assert play.drain() == [(1, 1), (1, 2)]
    assert play.state(run_id) == "completed"


@pytest.mark.spec("RUN-11")
def test_a_delayed_start_does_not_fire_into_a_retry(play: Player) -> None:
    run_id = play.start(graph_of(node(0), node(1, kind=ON_FINISH)), delay_ms=60_000, deadline_ms=30_000)
    play.backdate("due", f"deadline:{run_id}")
    play.store.fire_due(0)
    assert play.drain() == [(1, None)]
    assert play.ended(run_id) == ("failed", "deadline")
    assert play.reopen(run_id).word == "OK"
    assert play.due().causes == []
    assert play.field(run_id, "d") == "0"
    assert play.drain() == [(0, None), (1, None)]
    assert play.state(run_id) == "completed"


@pytest.mark.spec("RUN-11", "WF-3")
def test_a_step_that_was_to_be_skipped_is_still_skipped_after_a_retry(play: Player) -> None:
    run_id = play.start(graph_of(node(0), node(1, 0), node(2)))
    skipping, failing = play.claim(2)
    play.skip(skipping, "when")
    play.fail(failing)
    assert play.reopen(run_id).word == "OK"
    assert [(held.index, held.flags) for held in (play.one(), play.one())] == [(1, "s"), (2, "o")]


@pytest.mark.spec("RUN-11", "WF-3")
def test_a_sleep_behind_a_skipped_step_is_not_slept_after_a_retry(play: Player) -> None:
    run_id = play.start(graph_of(node(0), node(1, 0, kind=SLEEP, delay_ms=3_600_000), node(2)))
    skipping, failing = play.claim(2)
    play.skip(skipping, "when")
    play.fail(failing)
    assert play.reopen(run_id).word == "OK"
    assert (play.step(run_id, 1), play.record(run_id, 1)[7]) == ("R", "s")
    assert sorted(play.drain()) == [(1, None), (2, None)]
    assert play.state(run_id) == "completed"


@pytest.mark.spec("RUN-11", "WF-17")
def test_a_run_whose_last_step_failed_runs_it_again_after_a_retry(play: Player) -> None:
    run_id = play.start(graph_of(node(0), node(1, kind=ON_FINISH)))
    play.complete(play.one())
    play.fail(play.one())
    assert play.ended(run_id) == ("failed", "last_step_failed")
    assert play.reopen(run_id).word == "OK"
    assert play.drain() == [(1, None)]
    assert play.ended(run_id) == ("completed", "")


# Fork.


@pytest.mark.spec("RUN-11", "WF-6")
@pytest.mark.parametrize(("kept", "length"), [("j1:[]", 0), ("j1:[1,2,3]", 3), ("@7;300;64", 300)])
def test_a_fork_from_an_each_has_the_list_that_was_kept(play: Player, kept: str, length: int) -> None:
    """A long list was staged, and only its length stands in the record; an empty one is nobody's item."""
    graph = fan()
    run_id = play.start(graph)
    play.complete(play.one(), kept, total=length)
    play.store.cancel(run_id, reason="enough")
    flow = SimpleNamespace(graph=graph, encode_input=codec.encode, limits=())
    fork = fork_run(engine_of(play.store, {"flow": flow}), run_id, from_="s1").run_id
    play.graphs[fork] = graph
    held = play.claim(3)
    assert [(one.item, one.total) for one in held] == ([(item, length) for item in range(3)] if length else [(None, 0)])
    assert [play.complete(one) for one in held] == ["OK"] * len(held)
    assert play.drain(400)[-1] == (2, None)
    assert play.state(fork) == "completed"


@pytest.mark.spec("RUN-11", "WF-3")
def test_a_fork_from_behind_a_skipped_step_skips_like_the_first_run(play: Player) -> None:
    graph = graph_of(node(0), node(1, 0), node(2, 1))
    run_id = play.start(graph)
    play.skip(play.one(), "when")
    play.drain()
    plan = plan_fork(run_id, "s1", graph, graph, read_steps(play.store, run_id, graph))
    new = play.new(graph, forked_from=run_id)
    assert play.store.start(new, graph, roots=plan.roots, records=plan.records, skipped=plan.skipped).word == "OK"
    held = play.one()
    assert (held.index, held.flags) == (1, "s")
    play.by_flags(held)
    play.drain()
    assert play.state(new.run_id) == "completed"


@pytest.mark.spec("RUN-11")
def test_a_fork_of_a_run_that_was_purged_meanwhile_is_refused_and_leaves_nothing(play: Player) -> None:
    graph = graph_of(node(0), node(1, 0, needs=(0,)))
    run_id = play.start(graph)
    play.drain()
    plan = plan_fork(run_id, "s1", graph, graph, read_steps(play.store, run_id, graph))
    play.start(graph, queue="other")
    assert play.store.purge(run_id).word == "OK"
    new = play.new(graph, forked_from=run_id)
    assert play.store.start(new, graph, roots=plan.roots, records=plan.records).word == "UNKNOWN"
    assert play.claim(5) == []
    assert play.keys_with(new.run_id) == []


# Pauses among failures and last steps.


@pytest.mark.spec("RUN-7", "RUN-14")
def test_a_pause_among_the_last_steps_does_not_change_why_the_run_failed(play: Player) -> None:
    run_id = play.start(graph_of(node(0), node(1, kind=ON_FAILURE)))
    play.fail(play.one())
    play.store.pause(run_id, reason="ops")
    play.store.resume(run_id)
    assert play.drain() == [(1, None)]
    assert play.ended(run_id) == ("failed", "step_failed")


@pytest.mark.spec("RUN-7", "RUN-14")
def test_a_last_step_that_commits_in_a_paused_run_ends_it_for_its_own_reason(play: Player) -> None:
    run_id = play.start(graph_of(node(0), node(1, kind=ON_FAILURE)))
    play.fail(play.one())
    last = play.one()
    play.store.pause(run_id, reason="lunch")
    assert play.complete(last) == "OK"
    assert play.ended(run_id) == ("failed", "step_failed")


@pytest.mark.spec("RUN-14")
def test_a_run_whose_steps_end_while_it_is_paused_stays_paused_before_its_last_steps(play: Player) -> None:
    run_id = play.start(graph_of(node(0), node(1, kind=ON_FINISH)))
    held = play.one()
    play.store.pause(run_id, reason="lunch")
    play.complete(held)
    assert play.ended(run_id) == ("paused", "lunch")
    assert play.claim() == []
    play.store.resume(run_id)
    assert play.drain() == [(1, None)]
    assert play.ended(run_id) == ("completed", "")


@pytest.mark.spec("RUN-2", "RUN-7", "RUN-14")
def test_nothing_is_claimed_twice_when_a_failure_and_a_person_pause_a_run_that_still_works(play: Player) -> None:
    run_id = play.start(graph_of(node(0, policy=FailurePolicy.PAUSE), node(1)))
    failing, working = play.claim(2)
    play.store.pause(run_id, reason="ops")
    play.fail(failing)
    assert play.reopen(run_id, generation=False).word == "REFUSED"
    assert play.store.resume(run_id).word == "OK"
    assert play.claim(5) == [], "step 1 is still in the hands of its worker"
    assert play.complete(working) == "OK"
    assert play.ended(run_id) == ("paused", "step_failed")
    assert play.store.resume(run_id).word == "STEP_FAILED"
    assert play.reopen(run_id, generation=False).word == "OK"
    assert play.drain() == [(0, None)]
    assert play.state(run_id) == "completed"


# Keys and words.


@pytest.mark.spec("RUN-1", "RUN-11")
def test_a_key_that_lapsed_is_taken_again_by_a_retry(play: Player) -> None:
    graph = chain(1)
    run_id = play.start(graph, key="k", digest="aa", key_retention_ms=60_000)
    play.fail(play.one())
    play.redis.delete(play.store.keys.of(0, "key:flow:k"))
    assert play.reopen(run_id).word == "OK"
    told = [play.store.start(play.new(graph, key="k", digest=digest), graph) for digest in ("aa", "bb")]
    assert [(one.word, one.run_id) for one in told] == [("EXISTS", run_id), ("CONFLICT", run_id)]
    assert play.redis.pttl(play.store.keys.of(0, "key:flow:k")) == -1


@pytest.mark.spec("RUN-1", "RUN-11")
def test_a_key_that_belongs_to_another_run_by_now_is_left_alone(play: Player) -> None:
    graph, key = chain(1), play.store.keys.of(0, "key:flow:k")
    run_id = play.start(graph, key="k", digest="aa", key_retention_ms=60_000)
    play.fail(play.one())
    play.redis.delete(key)
    other = play.start(graph, key="k", digest="aa", key_retention_ms=60_000)
    assert play.reopen(run_id).word == "OK"
    play.fail(next(held for held in play.claim(5) if held.run_id == run_id))
    assert play.state(run_id) == "failed"
    assert play.redis.pttl(key) == -1, "the other run has not ended, and neither has its key"
    assert play.store.start(play.new(graph, key="k", digest="aa"), graph).run_id == other


@pytest.mark.spec("RUN-9")
def test_a_persons_words_do_not_break_the_log(play: Player) -> None:
    run_id = play.start(chain(1))
    play.store.pause(run_id, reason="stock; and more", actor="eve;ops")
    assert play.ended(run_id) == ("paused", "stock, and more")
    play.store.cancel(run_id, reason="late; customer gone", actor="eve;ops")
    assert play.ended(run_id) == ("cancelled", "late, customer gone")
    assert play.log(run_id)[-1].split(";")[2:] == ["late, customer gone", "eve,ops"]


@pytest.mark.spec("RUN-9")
@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_a_persons_name_does_not_break_the_log(store: Store, verb: str) -> None:
    play = Player(store)
    run_id = play.start(chain(1))
    if verb == "resume":
        play.store.pause(run_id, reason="ops")
        play.store.resume(run_id, actor="eve;ops")
    else:
        play.fail(play.one())
        retry_run(engine_of(store), run_id, actor="eve;ops")
    assert recount(store) == []


@pytest.mark.spec("RUN-9", "RUN-14")
def test_a_second_resume_while_a_failure_stops_the_run_says_nothing(store: Store) -> None:
    play = Player(store)
    run_id = play.start(graph_of(node(0, policy=FailurePolicy.PAUSE), node(1), node(2)))
    failing, _ = play.claim(2)
    play.store.pause(run_id, reason="ops")
    assert play.claim(5) == []
    play.fail(failing)
    assert play.store.resume(run_id).word == "OK"
    play.store.resume(run_id)
    assert play.codes(run_id).count("r") == 1
    assert recount(store) == []


@pytest.mark.spec("CLI-5", "EFF-2", "WF-10")
@pytest.mark.parametrize(
    ("reasons", "told"),
    [(["unknown_error"], "step_failed"), (["effect_in_doubt"], "effect_in_doubt"), (["payload_mismatch"], "payload_mismatch"),
     (["payload_mismatch", "unknown_error"], "payload_mismatch"), (["unknown_error", "payload_mismatch"], "step_failed"),
     (["unknown_error", "effect_in_doubt"], "effect_in_doubt"), (["effect_in_doubt", "payload_mismatch"], "effect_in_doubt")])
@pytest.mark.parametrize("siblings", [0, 1])
def test_a_run_pauses_for_the_reason_that_stopped_it_whoever_ends_last(play: Player, reasons: list[str], told: str, siblings: int) -> None:
    run_id = play.start(graph_of(*(node(index) for index in range(3))))
    held = play.claim(len(reasons) + siblings)
    for one, reason in zip(held, reasons, strict=False):
        play.send(play.outcome(one, OutcomeKind.FAILED, reason=reason, error="{}", policy=FailurePolicy.PAUSE, doubt=reason == "effect_in_doubt"))
    if siblings:
        assert play.state(run_id) == "running"
        play.complete(held[-1])
    assert play.ended(run_id) == ("paused", told)
    assert play.field(run_id, "ow") == ""
