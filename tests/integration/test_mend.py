"""The net below everything: a run whose index entries or counters were lost goes on by itself, and a healthy one is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conductor.records import NodeKind
from conductor.runs.fsck import fsck
from conductor.settings import Settings
from conductor.store import Store
from conductor.sweeps import stuck
from conductor.sweeps.overdue import run_sweeper
from conductor.sweeps.stuck import sweep_stuck
from conductor.wiring import Engine
from tests.integration.playing import Player, chain, fan, graph_of, node

Damage = Callable[[Player, str], Any]


@pytest.fixture
def play(store: Store) -> Player:
    return Player(store)


def engine(play: Player) -> Engine:
    return Engine(Settings(namespace=play.store.namespace, partitions=1), play.store, {}, lambda pokes: None, "q")


def sweep(play: Player, *, dry_run: bool = False) -> Any:
    """Nothing has moved for an hour."""
    for run_id in play.redis.zrange(play.store.keys.of(0, "progress"), 0, -1):
        play.redis.zadd(play.store.keys.of(0, "progress"), {run_id: play.now() - 3_600_000})
    return sweep_stuck(engine(play), dry_run=dry_run)


def _ready(play: Player, run_id: str) -> None:
    play.redis.delete(play.store.keys.of(0, "ready:q"))


def _lease(play: Player, run_id: str) -> None:
    play.claim(1)
    play.redis.delete(play.store.keys.of(0, "leases"))


def _retry(play: Player, run_id: str) -> None:
    play.retry_later(play.one())
    play.redis.delete(play.store.keys.of(0, "due"))


def _counters(play: Player, run_id: str) -> None:
    play.redis.hset(play.store.keys.run(run_id), mapping={"r": 7, "a": -1, "d": 3})


@pytest.mark.spec("REC-3")
@pytest.mark.parametrize("damage", [_ready, _lease, _retry, _counters])
def test_what_stands_nowhere_is_put_back_and_the_run_ends(play: Player, damage: Damage) -> None:
    run_id = play.start(chain(2))
    damage(play, run_id)
    would = sweep(play, dry_run=True)
    assert would.count == 1 and play.state(run_id) == "running"
    report = sweep(play)
    assert report.count == 1 and "re-derived" in report.causes[0]
    play.due()
    play.lose()
    play.drain()
    assert play.state(run_id) == "completed"
    assert fsck(engine(play)) == []


@pytest.mark.spec("REC-3")
def test_an_each_that_is_no_longer_listed_goes_on(play: Player) -> None:
    run_id = play.start(fan())
    play.complete(play.one(), "j1:[1,2,3]", total=3)
    play.redis.delete(play.store.keys.of(0, "ready:q"))
    play.redis.hset(play.store.keys.run(run_id, "e1"), "listed", -1)
    assert sweep(play).count == 1
    play.drain()
    assert play.state(run_id) == "completed"


@pytest.mark.spec("REC-3")
def test_a_run_whose_steps_have_all_ended_is_closed(play: Player) -> None:
    run_id = play.start(graph_of(node(0), node(1, kind=NodeKind.ON_FINISH)))
    play.complete(play.one())
    play.redis.delete(play.store.keys.of(0, "ready:q"))  # the last step stood there
    assert sweep(play).count == 1
    play.drain()
    assert play.state(run_id) == "completed"


@pytest.mark.spec("REC-3")
def test_what_is_only_slow_is_left_alone(play: Player) -> None:
    runs = [play.start(chain(2)) for _ in range(4)]
    play.claim(1)
    play.retry_later(play.one())
    play.store.pause(runs[2], reason="lunch")
    play.start(chain(1), delay_ms=60_000)
    before = [play.log(run_id) for run_id in runs]
    assert sweep(play).count == 0
    assert [play.log(run_id) for run_id in runs] == before


@pytest.mark.spec("REC-3", "REC-4")
def test_one_round_after_a_long_gap_takes_no_lease_at_once(play: Player) -> None:
    """Whoever could not renew while nobody looked is not a lost worker."""
    run_id = play.start(chain(1))
    held = play.one()
    play.backdate("leases", held.ref)
    play.redis.hset(play.store.keys.head(0), mapping={"look": play.now() - 60_000, "calm": 0})
    run_sweeper(engine(play), interval=300, once=True)
    assert play.step(run_id, 0) == "X"


@pytest.mark.spec("REC-3")
@pytest.mark.parametrize("seconds", [60, 0])
def test_many_runs_that_nothing_has_to_move_hide_none(play: Player, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Paused ones, or those that wait for a child or a long retry: however short the time of a sweep is, it gets on."""
    monkeypatch.setattr(stuck, "_AT_MOST", seconds)
    monkeypatch.setattr(stuck, "_PAGE", 4)
    for _ in range(10):
        play.store.pause(play.start(chain(1)), reason="x")
    lost = play.start(chain(1))
    play.redis.delete(play.store.keys.of(0, "ready:q"))
    assert sweep(play, dry_run=True).count == 1
    assert sum(sweep(play).count for _ in range(1 if seconds else 3)) == 1
    assert play.ready() == [f"{lost}:0"]
    other = play.start(chain(1))
    play.redis.delete(play.store.keys.of(0, "ready:q"))
    assert sum(sweep(play).count for _ in range(2 if seconds else 4)) == 2, "the next round begins with the first again"
    assert {entry.partition(":")[0] for entry in play.ready()} == {lost, other}
