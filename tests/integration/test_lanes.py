"""Lanes: who gets a place, in which order the others are admitted, and that no end of a run leaves a place taken."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from conductor import DeclarationError, Lane, LaneBusy, LaneFull, RunQueued, Workflow
from conductor.declare.starting import start_options
from conductor.errors import BadInput
from conductor.ids import new_run_id, partition_of
from conductor.records import LaneTerms
from conductor.runs.fsck import fsck
from conductor.runs.handle import Handle
from conductor.runs.read import view_run
from conductor.runs.retry import retry_run
from conductor.runs.start import start
from conductor.runs.why import why
from conductor.store import Store
from conductor.store.lanes import lane_counts, read_lane, read_lanes
from tests.integration.playing import Player, chain
from tests.integration.shift import Shift

pytestmark = pytest.mark.spec("LANE-2")


class Lanes:
    """A player whose runs go into one lane."""

    def __init__(self, store: Store) -> None:
        self.play, self.store = Player(store), store
        self.terms = LaneTerms("l", 2, 3, 60_000)

    def word(self, length: int = 1, *, turn: str = "", **options: Any) -> tuple[str, str]:
        graph = chain(length)
        terms = options.pop("terms", self.terms)
        run = self.play.new(graph, lane=terms, lane_key=turn, **options)
        return self.store.start(run, graph).word, run.run_id

    def start(self, **options: Any) -> str:
        word, run_id = self.word(**options)
        assert word == "OK"
        return run_id

    def active(self) -> set[str]:
        view = read_lane(self.store, 0, "l")
        return set(view.active) if view else set()

    def queue(self) -> list[str]:
        view = read_lane(self.store, 0, "l")
        return list(view.queue) if view else []

    def end_one(self) -> str:
        held = self.play.one()
        assert self.play.complete(held) == "OK"
        return held.run_id

    def expire(self, kind: str, run_id: str) -> None:
        self.play.backdate("due", f"{kind}:{run_id}")
        self.store.fire_due(0)


@pytest.fixture
def lanes(store: Store) -> Lanes:
    return Lanes(store)


@pytest.mark.spec("LANE-1")
def test_past_the_places_runs_are_queued_and_past_the_queue_refused(lanes: Lanes) -> None:
    first, second = lanes.start(), lanes.start()
    queued = [lanes.start() for _ in range(3)]
    assert lanes.active() == {first, second}
    assert lanes.queue() == queued
    assert [lanes.play.state(run_id) for run_id in (first, queued[0])] == ["running", "queued"]
    before = lanes.play.keys_with("")
    word, run_id = lanes.word()
    assert word == "LANE_FULL"
    assert lanes.play.state(run_id) == ""
    assert [key for key in lanes.play.keys_with("") if "caller" not in key] == [key for key in before if "caller" not in key]


def test_a_queued_run_is_not_active_and_nothing_of_it_can_be_claimed(lanes: Lanes) -> None:
    started = [lanes.start() for _ in range(3)]
    active = lanes.play.redis.hkeys(lanes.store.keys.of(0, "active"))
    assert set(active) == set(started[:2])
    assert {held.run_id for held in lanes.play.claim(5)} == set(started[:2])


def test_the_closing_script_admits_the_next_in_order(lanes: Lanes) -> None:
    started = [lanes.start() for _ in range(5)]
    ended = [lanes.end_one() for _ in range(5)]
    assert ended == started
    assert lanes.play.keys_with("lane") == []


@pytest.mark.parametrize("how", ["fail", "cancel", "deadline"])
def test_every_end_frees_the_place(lanes: Lanes, how: str) -> None:
    started = [lanes.start(deadline_ms=90_000) for _ in range(3)]
    if how == "fail":
        lanes.play.fail(lanes.play.one())
    elif how == "cancel":
        told = lanes.store.cancel(started[0], reason="x")
        assert [poke.queue for poke in told.pokes] == ["q"] or lanes.play.ready()
    else:
        lanes.expire("deadline", started[0])
    assert lanes.active() == {started[1], started[2]}
    assert lanes.play.state(started[2]) == "running"


@pytest.mark.spec("CAN-3")
def test_a_queued_run_is_cancelled_through_its_record_and_leaves_the_queue(lanes: Lanes) -> None:
    started = [lanes.start() for _ in range(4)]
    assert lanes.store.cancel(started[2], reason="x").word == "OK"
    assert lanes.queue() == [started[3]]
    assert lanes.store.cancel(started[2], reason="x").word == "ALREADY"
    lanes.end_one()
    assert started[3] in lanes.active()


@pytest.mark.spec("LANE-1")
def test_a_run_whose_time_in_the_queue_is_over_fails_as_lane_busy(lanes: Lanes) -> None:
    started = [lanes.start() for _ in range(4)]
    lanes.expire("lane", started[2])
    assert lanes.play.ended(started[2]) == ("failed", "lane_busy")
    assert lanes.queue() == [started[3]]
    lanes.expire("lane", started[3])
    assert lanes.active() == set(started[:2])


def test_the_timer_of_an_admitted_run_is_gone(lanes: Lanes) -> None:
    started = [lanes.start() for _ in range(3)]
    lanes.end_one()
    assert lanes.play.redis.zscore(lanes.store.keys.of(0, "due"), f"lane:{started[2]}") is None


def test_a_paused_run_keeps_its_place(lanes: Lanes) -> None:
    started = [lanes.start() for _ in range(3)]
    lanes.store.pause(started[0], reason="x")
    assert lanes.play.state(started[2]) == "queued"
    assert lanes.store.pause(started[2], reason="x").word == "QUEUED"


@pytest.mark.spec("RUN-11")
def test_a_retry_asks_for_a_place_again_like_a_start(lanes: Lanes) -> None:
    failed = lanes.start(length=2)
    lanes.play.complete(lanes.play.one())
    lanes.play.fail(lanes.play.one())
    others = [lanes.start() for _ in range(3)]
    assert lanes.play.reopen(failed).word == "OK"
    assert lanes.play.state(failed) == "queued"
    assert lanes.queue() == [others[2], failed]
    assert lanes.play.reopen(failed).word == "REFUSED"
    ended = []
    for admitted in (others[2], failed):  # of two that stand since the same millisecond either may be claimed first: ask who is admitted
        assert admitted not in lanes.active()
        ended.append(lanes.end_one())
        assert admitted in lanes.active()
    assert {*ended, lanes.end_one(), lanes.end_one()} == {*others, failed}
    assert lanes.play.state(failed) == "completed"
    assert lanes.play.field(failed, "g") == "2"


@pytest.mark.spec("LANE-1")
def test_a_retry_is_refused_by_a_full_lane_and_changes_nothing(lanes: Lanes) -> None:
    failed = lanes.start()
    lanes.play.fail(lanes.play.one())
    for _ in range(5):
        lanes.start()
    assert lanes.play.reopen(failed).word == "LANE_FULL"
    assert lanes.play.ended(failed) == ("failed", "step_failed")


def test_a_delayed_start_asks_for_its_place_when_its_time_comes(lanes: Lanes) -> None:
    later = lanes.start(delay_ms=60_000)
    others = [lanes.start() for _ in range(2)]
    assert lanes.active() == set(others)
    lanes.expire("start", later)
    assert lanes.play.state(later) == "queued"
    assert lanes.end_one() == others[0]
    assert lanes.active() == {others[1], later}
    assert {lanes.end_one(), lanes.end_one()} == {others[1], later}


def test_the_keys_of_a_fair_lane_take_turns(lanes: Lanes) -> None:
    lanes.terms = LaneTerms("l", 1, 9, 0, fair=True)
    first = lanes.start(turn="a")
    of_a = [lanes.start(turn="a") for _ in range(3)]
    of_b = [lanes.start(turn="b") for _ in range(2)]
    assert lanes.queue() == [of_a[0], of_b[0], of_a[1], of_b[1], of_a[2]]
    assert [lanes.end_one() for _ in range(3)] == [first, of_a[0], of_b[0]]
    late = lanes.start(turn="c")
    assert lanes.queue().index(late) <= 1


def test_a_wider_lane_admits_in_order_before_the_newcomer(lanes: Lanes) -> None:
    started = [lanes.start() for _ in range(4)]
    newcomer = lanes.start(terms=LaneTerms("l", 4, 3, 60_000))
    assert lanes.active() == set(started)
    assert lanes.queue() == [newcomer]


def test_a_start_that_only_names_a_lane_takes_it_as_it_is(lanes: Lanes) -> None:
    lanes.start(), lanes.start()
    named = lanes.start(terms=LaneTerms("l", known=False))
    assert lanes.play.state(named) == "queued"


def test_one_script_admits_so_many_and_the_due_sweep_the_rest(lanes: Lanes) -> None:
    lanes.terms = LaneTerms("l", 1, None, 0)
    started = [lanes.start() for _ in range(31)]
    lanes.store.client().hset(lanes.store.keys.of(0, "lane:l"), "active", 40)
    lanes.end_one()
    assert lanes.active() == set(started[1:21])
    lanes.store.fire_due(0)
    assert lanes.active() == set(started[1:])


@pytest.mark.spec("RUN-1")
def test_a_key_belongs_to_workflow_and_lane(lanes: Lanes) -> None:
    graph = chain(1)
    runs = [lanes.play.new(graph, key="k", digest="d", lane=terms) for terms in (lanes.terms, lanes.terms, LaneTerms("m"), None)]
    assert [lanes.store.start(run, graph).word for run in runs] == ["OK", "EXISTS", "OK", "OK"]
    for _ in range(3):
        lanes.end_one()
    assert all(lanes.play.redis.pttl(key) > 0 for key in lanes.play.keys_with(":key:"))


def test_asked_again_every_script_gives_the_first_answer(lanes: Lanes) -> None:
    graph = chain(1)
    for _ in range(2):
        lanes.start()
    run = lanes.play.new(graph, lane=lanes.terms)
    assert [lanes.store.start(run, graph).word for _ in range(2)] == ["OK", "EXISTS"]
    assert lanes.queue() == [run.run_id]


# Through the use cases.


class Ticket(BaseModel):
    customer: str = "c"
    bad: bool = False


def tickets(lane: Any = None) -> Workflow[Ticket]:
    flow = Workflow("tickets", input=Ticket, lane=lane)

    @flow.step
    def serve(ticket: Ticket) -> str:
        if ticket.bad:
            raise ValueError("bad")
        return ticket.customer

    return flow


def shift(store: Store, lane: Any) -> tuple[Shift, Any]:
    flow = tickets(lane)
    made = Shift(store, flow)

    def begin(**options: Any) -> str:
        value = options.pop("value", {})
        return start(made.engine, flow, payload=flow.encode_input(value), options=start_options("tickets", **options)).run_id

    return made, begin


@pytest.mark.spec("LANE-1", "WF-9")
def test_why_tells_the_true_position_and_fsck_agrees(store: Store) -> None:
    made, begin = shift(store, Lane("desk", 1, 5))
    ids = [begin() for _ in range(3)]
    assert len({partition_of(run_id) for run_id in ids}) == 1
    assert view_run(store, ids[2]).place.position == 2
    assert "all 1 are taken, 1 run before it" in why(view_run(store, ids[2])).sentence
    assert fsck(made.engine) == []
    made.worker().drain(partition_of(ids[0]), "q")
    assert [made.state(run_id) for run_id in ids] == ["completed"] * 3
    assert fsck(made.engine) == []


@pytest.mark.spec("LANE-1")
def test_both_refusals_are_typed(store: Store) -> None:
    made, begin = shift(store, Lane("desk", 1, 1, queue_timeout_minutes=1))
    first, second = begin(), begin()
    with pytest.raises(LaneFull, match="lane desk is full: 1 runs are under way and 1 are queued") as full:
        begin()
    assert full.value.code == "lane_full"
    with pytest.raises(RunQueued):
        Handle(made.engine, second).pause()
    store.client().zadd(store.keys.of(partition_of(second), "due"), {f"lane:{second}": 1})
    store.fire_due(partition_of(second))
    with pytest.raises(LaneBusy, match="not admitted by lane desk in time") as busy:
        Handle(made.engine, second).get(5)
    assert (busy.value.code, busy.value.reason) == ("lane_busy", "lane_busy")
    assert "lane desk did not admit it in time; nothing of it ran while it waited" in why(view_run(store, second)).sentence
    begin()
    with pytest.raises(LaneFull):
        retry_run(made.engine, second)
    Handle(made.engine, first).cancel()
    assert retry_run(made.engine, second).word == "OK"
    assert fsck(made.engine) == []


def test_a_retried_run_is_queued_and_ends_well(store: Store) -> None:
    made, begin = shift(store, Lane("desk", 1, 5))
    bad = begin(value={"bad": True})
    home = partition_of(bad)
    made.worker().drain(home, "q")
    other = begin()
    retry_run(made.engine, bad)
    assert view_run(store, bad).place.position == 1
    assert fsck(made.engine) == []
    made.worker().drain(home, "q")
    assert (made.state(bad), made.state(other)) == ("failed", "completed")
    assert fsck(made.engine) == []
    assert list(read_lanes(store)) == []


def test_a_lane_at_the_start_beats_the_workflows(store: Store) -> None:
    _, begin = shift(store, Lane("desk", 1, 5))
    begin(lane="other"), begin(lane=Lane("desk2", 1))
    assert [view.name for view in read_lanes(store)] == ["desk2", "other"]


def test_fsck_tells_a_place_that_nobody_has(store: Store) -> None:
    made, begin = shift(store, Lane("desk", 2, 5))
    run_id = begin()
    home = partition_of(run_id)
    ghost = new_run_id(store.partitions, home)
    store.client().sadd(store.keys.of(home, "lane:desk:active"), ghost)
    assert any(f"{ghost} is gone and has a place" in str(one) for one in fsck(made.engine))
    store.client().srem(store.keys.of(home, "lane:desk:active"), ghost, run_id)
    assert any("place in lane desk" in str(one) for one in fsck(made.engine))
    assert lane_counts(store, home, "desk") == (0, 0)


@pytest.mark.spec("BAD-1")
def test_bad_lanes_are_refused_before_anything_is_written(store: Store) -> None:
    for wrong in ({"max_active": 0}, {"max_queued": -1}, {"queue_timeout_minutes": "x"}, {"key": 3}):
        with pytest.raises(DeclarationError, match=next(iter(wrong))):
            Lane("desk", **wrong)
    with pytest.raises(DeclarationError, match="lane name"):
        Lane("a:b")
    with pytest.raises(BadInput, match="lane"):
        start_options("tickets", lane=3)
    _, begin = shift(store, Lane("desk", key=lambda ticket: ticket.nobody))
    with pytest.raises(BadInput, match="key of lane"):
        begin()
    assert list(store.client().scan_iter(f"conductor:{{{store.namespace}:*run:*")) == []
