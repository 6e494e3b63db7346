"""The verbs of the store: lost workers, items of an each, and what a failure does to its run."""

from __future__ import annotations

import pytest

from conductor.records import FailurePolicy, NodeKind, OutcomeKind
from conductor.store import Store
from tests.integration.playing import Player, chain, fan, graph_of, node


@pytest.fixture
def play(store: Store) -> Player:
    return Player(store)


# Lost workers.


@pytest.mark.spec("RUN-2")
def test_after_a_gap_no_lease_is_taken_for_one_lease(play: Player) -> None:
    play.start(chain(1))
    held = play.one()
    head = play.store.keys.head(0)
    play.redis.hset(head, "look", play.now() - 6000)
    play.backdate("leases")
    assert play.store.expire_leases(0).count == 0
    assert play.store.expire_leases(0).count == 0
    assert int(play.redis.hget(head, "calm")) > play.now() + 10_000
    assert play.store.heartbeat(0, [held]) == ["OK"]
    play.backdate("leases")
    play.redis.hset(head, "calm", play.now() - 1)
    assert play.store.expire_leases(0).count == 1


@pytest.mark.spec("REC-4")
def test_a_dry_look_takes_nothing(play: Player) -> None:
    run_id = play.start(chain(1))
    held = play.one()
    play.backdate("leases")
    assert play.store.expire_leases(0, dry=True).causes == [f"{held.ref} lease_expired"]
    assert play.codes(run_id) == "sk"
    assert play.complete(held) == "OK"


@pytest.mark.spec("RUN-8")
def test_three_losses_alone_are_poison(play: Player) -> None:
    run_id = play.start(chain(1))
    for _ in range(3):
        held = play.one()
        assert "!" not in held.flags
        play.lose(held)
    held = play.one()
    assert "!" in held.flags
    assert held.attempt == 1
    assert play.by_flags(held) == "OK"
    assert play.ended(run_id) == ("failed", "step_failed")
    assert play.log(run_id)[-2].endswith(";poison")


@pytest.mark.spec("RUN-8")
def test_a_repeated_claim_that_never_began_is_not_counted(play: Player) -> None:
    run_id = play.start(chain(1))
    play.lose(play.one())
    for _ in range(4):
        play.lose(play.one(), begun=False)
    assert play.record(run_id, 0)[3] == "1"
    assert "!" not in play.one().flags


@pytest.mark.spec("RUN-8")
def test_losses_while_the_server_was_away_are_not_counted(play: Player) -> None:
    run_id = play.start(chain(1))
    for _ in range(4):
        held = play.one()
        play.store.note(held, "begun", "")
        play.backdate("leases", held.ref)
        play.redis.hset(play.store.keys.head(0), mapping={"look": play.now(), "calm": play.now() - 1})
        play.store.expire_leases(0)
    assert play.record(run_id, 0)[3] == "0"


@pytest.mark.spec("RUN-8")
def test_losses_in_company_are_not_counted_and_come_back_alone(play: Player) -> None:
    run_id = play.start(graph_of(node(0), node(1), node(2)))
    play.lose(*play.claim(3))
    assert [play.record(run_id, index)[3] for index in range(3)] == ["0", "0", "0"]
    assert [len(play.claim(3)) for _ in range(3)] == [1, 1, 1]


@pytest.mark.spec("RUN-8")
def test_lost_items_come_back_alone(play: Player) -> None:
    run_id = play.start(fan())
    assert play.complete(play.one(), "j1:[1,2,3]", total=3) == "OK"
    play.lose(*play.claim(3))
    batches = [play.claim(10) for _ in range(3)]
    assert [[held.item for held in batch] for batch in batches] == [[0], [1], [2]]
    play.lose(batches[0][0])
    assert play.record(run_id, 1, 0)[3] == "1"


@pytest.mark.spec("RUN-8")
def test_losses_of_another_day_and_before_a_commit_are_not_counted(play: Player) -> None:
    run_id = play.start(chain(1))
    for _ in range(2):
        play.lose(play.one())
    assert play.retry_later(play.one()) == "OK"
    play.due()
    play.lose(play.one())
    assert "!" not in play.record(run_id, 0)[7]
    play.lose(play.one())
    key, old = play.store.keys.run(run_id), play.now() - 86_400_001
    play.redis.hset(key, "0", f"R;0;0;2;{play.now()};0;0;w{old}")
    play.lose(play.one())
    assert play.record(run_id, 0)[3] == "1"


# An each.


@pytest.mark.spec("WF-6")
def test_an_each_goes_by_cursor_and_keeps_to_its_limit(play: Player) -> None:
    run_id = play.start(fan(parallel=3))
    play.complete(play.one(), "j1:[]", total=7)
    first = play.claim(10)
    assert [held.item for held in first] == [0, 1, 2]
    assert play.claim(10) == []
    batch = play.send(*(play.outcome(held, OutcomeKind.COMPLETED, payload="j1:1") for held in first[:2]), limit=10)
    assert [held.item for held in batch.attempts] == [3, 4]
    assert all(held.total == 7 for held in batch.attempts)
    play.complete(first[2])
    for held in batch.attempts:
        play.complete(held)
    assert play.drain() == [(1, 5), (1, 6), (2, None)]
    assert play.state(run_id) == "completed"
    assert play.redis.hget(play.store.keys.items(run_id, 1, 0), "0r") == "j1:1"


@pytest.mark.spec("WF-6")
def test_an_empty_each_ends_as_a_step(play: Player) -> None:
    run_id = play.start(fan())
    play.complete(play.one(), "j1:[]", total=0)
    held = play.one()
    assert (held.index, held.item) == (1, None)
    assert play.give_back(held) == "OK"
    assert play.drain() == [(1, None), (2, None)]
    assert play.state(run_id) == "completed"


@pytest.mark.spec("WF-6")
def test_items_to_be_repeated_go_first_by_number(play: Player) -> None:
    run_id = play.start(fan(parallel=2))
    play.complete(play.one(), "j1:[]", total=5)
    zero, one = play.claim(10)
    play.retry_later(one)
    play.give_back(zero)
    assert [held.item for held in play.claim(1)] == [0]
    play.due()
    (again,) = play.claim(1)
    assert (again.item, again.attempt) == (1, 2)
    play.lose(again)
    assert play.one().item == 1
    assert play.redis.hget(play.store.keys.run(run_id, "e1"), "cursor") == "2"


@pytest.mark.spec("WF-6", "RUN-3")
def test_a_large_each_ends_exactly_once(play: Player) -> None:
    run_id = play.start(fan(parallel=50))
    play.complete(play.one(), "j1:[]", total=200)
    seen: list[int] = []
    batch = play.claim(10)
    while batch and batch[0].item is not None:
        seen += [held.item for held in batch if held.item is not None]
        batch = play.send(*(play.outcome(held, OutcomeKind.COMPLETED, payload="j1:1") for held in batch), limit=10).attempts
    assert seen == list(range(200))
    assert [held.index for held in batch] == [2]
    play.complete(batch[0])
    assert play.state(run_id) == "completed"


# Failure policies.


@pytest.mark.spec("RUN-7")
def test_fail_claims_nothing_new_and_lets_running_attempts_commit(play: Player) -> None:
    run_id = play.start(graph_of(node(0), node(1), node(2), node(3, 1)))
    failing, running = play.claim(2)
    assert play.fail(failing) == "OK"
    assert play.claim(10) == []
    assert play.state(run_id) == "running"
    assert play.complete(running) == "OK"
    assert play.ended(run_id) == ("failed", "step_failed")
    assert play.step(run_id, 1) == "C"
    assert play.claim(10) == []


@pytest.mark.spec("RUN-7")
def test_continue_skips_all_that_is_downstream_and_goes_on_with_the_rest(play: Player) -> None:
    flow = {"policy": FailurePolicy.CONTINUE}
    graph = graph_of(node(0, **flow), node(1, 0, **flow), node(2, **flow), node(3, 1, 2, **flow), node(4, 2, **flow))
    run_id = play.start(graph)
    for held in play.claim(2):
        assert (play.fail(held) if held.index == 0 else play.complete(held)) == "OK"
    play.drain()
    assert [play.step(run_id, index) for index in range(5)] == ["F", "Z", "C", "Z", "C"]
    assert play.ended(run_id) == ("failed", "step_failed")
    reasons = {entry.split(";")[2]: entry.split(";")[-1] for entry in play.log(run_id) if entry.startswith("z")}
    assert reasons == {"1": "upstream_failed", "3": "upstream_failed"}


@pytest.mark.spec("RUN-7")
def test_an_each_behind_a_failure_is_skipped_although_it_has_its_list(play: Player) -> None:
    flow = {"policy": FailurePolicy.CONTINUE}
    graph = graph_of(node(0), node(1, **flow), node(2, 0, 1, kind=NodeKind.EACH, source=0, max_parallel=5, **flow))
    run_id = play.start(graph)
    lister, failing = play.claim(2)
    play.complete(lister, "j1:[1,2,3]", total=3)
    play.fail(failing)
    assert play.drain() == [(2, None)]
    assert (play.step(run_id, 2), play.ended(run_id)) == ("Z", ("failed", "step_failed"))


@pytest.mark.spec("RUN-7", "RUN-11")
def test_pause_stops_in_paused_and_goes_on_with_a_fresh_budget(play: Player) -> None:
    run_id = play.start(graph_of(node(0, policy=FailurePolicy.PAUSE), node(1), node(2, 0, 1)))
    failing, running = play.claim(2)
    assert play.fail(failing) == "OK"
    assert play.state(run_id) == "running"
    assert play.complete(running) == "OK"
    assert play.ended(run_id) == ("paused", "step_failed")
    assert play.store.resume(run_id).word == "STEP_FAILED"
    assert play.reopen(run_id, generation=False).word == "OK"
    held = play.one()
    assert (held.index, held.attempt, held.generation) == (0, 1, 1)
    play.complete(held)
    assert play.drain() == [(2, None)]
    assert play.state(run_id) == "completed"


@pytest.mark.spec("RUN-7")
def test_a_failed_item_fails_its_each_once(play: Player) -> None:
    run_id = play.start(fan(parallel=3))
    play.complete(play.one(), "j1:[]", total=5)
    first, second, third = play.claim(3)
    play.fail(second)
    assert [play.complete(first), play.fail(third)] == ["OK", "OK"]
    assert play.ended(run_id) == ("failed", "step_failed")
    assert play.field(run_id, "f") == "1"


@pytest.mark.spec("RUN-7", "WF-17")
def test_last_steps_run_before_the_end_whatever_was_due(play: Player) -> None:
    graph = graph_of(node(0), node(1), node(2, kind=NodeKind.ON_FAILURE), node(3, kind=NodeKind.ON_FINISH))
    run_id = play.start(graph)
    later, failing = play.claim(2)
    play.retry_later(later)
    play.fail(failing)
    assert play.state(run_id) == "running"
    play.due()
    assert play.drain() == [(2, None), (3, None)]
    assert play.ended(run_id) == ("failed", "step_failed")


@pytest.mark.spec("WF-17")
def test_only_the_wanted_last_steps_run_after_success(play: Player) -> None:
    run_id = play.start(graph_of(node(0), node(1, kind=NodeKind.ON_FAILURE), node(2, kind=NodeKind.ON_FINISH)))
    assert play.drain() == [(0, None), (2, None)]
    assert play.state(run_id) == "completed"
