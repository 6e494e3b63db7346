"""The idle sweep: it cancels orphans whose time is over, and nothing else, at the cost of what is due."""

from __future__ import annotations

from typing import Any

import pytest

from conductor.records import Graph, NodeKind
from conductor.runs.fsck import fsck
from conductor.settings import Settings
from conductor.store import Store
from conductor.sweeps.idle import sweep_idle
from conductor.wiring import Engine
from tests.integration.playing import Player, graph_of, node

WAIT, AGENT, SLEEP = NodeKind.WAIT, NodeKind.AGENT, NodeKind.SLEEP
HOUR = 3_600_000


@pytest.fixture
def play(store: Store) -> Player:
    return Player(store)


@pytest.fixture
def engine(store: Store) -> Engine:
    return Engine(Settings(namespace=store.namespace, partitions=store.partitions), store, {}, lambda pokes: None, "q")


def agents(idle_ms: int | None = None) -> Graph:
    return graph_of(node(0, kind=AGENT, idle_ms=idle_ms))


def aged(play: Player, run_id: str, hours: float) -> None:
    """Let it have progressed last so long ago."""
    back = int(hours * HOUR)
    play.redis.hincrby(play.store.keys.run(run_id), "pg", -back)
    for tail in ("orphans", "orphans:due"):
        key = play.store.keys.of(0, tail)
        if play.redis.zscore(key, run_id) is not None:
            play.redis.zincrby(key, -back, run_id)


def orphan(play: Player, *, hours: float = 25, idle_ms: int | None = None, **options: Any) -> str:
    run_id = play.start(agents(idle_ms), idle_timeout_ms=24 * HOUR, **options)
    aged(play, run_id, hours)
    return run_id


@pytest.mark.spec("IDLE-4", "IDLE-5")
def test_only_an_orphan_past_its_time_is_cancelled(play: Player, engine: Engine) -> None:
    """Not ready, leased, retrying, timed, signal, mixed or paused work, however long workers were away; nor an orphan still in its time."""
    kept = [
        play.start(graph_of(node(0)), idle_timeout_ms=1), play.start(graph_of(node(0, kind=SLEEP, delay_ms=HOUR)), idle_timeout_ms=1),
        play.start(graph_of(node(0, kind=WAIT, signal="go")), idle_timeout_ms=1),
        play.start(graph_of(node(0, kind=AGENT), node(1, kind=WAIT, signal="go")), idle_timeout_ms=1),
        play.start(graph_of(node(0, kind=AGENT), node(1, kind=SLEEP, delay_ms=HOUR)), idle_timeout_ms=1),
        play.start(graph_of(node(0, kind=AGENT), node(1)), idle_timeout_ms=1), orphan(play, hours=23), orphan(play, idle_ms=0),
        orphan(play, idle_ms=26 * HOUR), play.start(agents(), idle_timeout_ms=0),
    ]
    paused = orphan(play)
    play.store.pause(paused, reason="x")
    (held,) = play.claim(1)
    play.retry_later(held, 1)
    for run_id in (*kept[:6], kept[-1]):
        aged(play, run_id, 25)
    gone = [orphan(play), orphan(play, hours=3, idle_ms=2 * HOUR)]
    report = sweep_idle(engine)
    assert sorted(report.causes) == sorted(f"{run_id} idle_timeout" for run_id in gone)
    assert [play.ended(run_id) for run_id in gone] == [("cancelled", "idle_timeout")] * 2
    assert all(play.state(run_id) not in ("cancelled", "failed") for run_id in (*kept, paused))


@pytest.mark.spec("IDLE-4", "IDLE-5", "ACT-2")
def test_a_sweep_over_many_runs_touches_only_those_that_are_due(play: Player, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred active runs of all kinds, ten of them due: one look and ten calls."""
    kinds = (agents(), graph_of(node(0, kind=WAIT, signal="go")), graph_of(node(0)), graph_of(node(0, kind=SLEEP, delay_ms=HOUR)))
    for number in range(200):
        play.start(kinds[number % 4], idle_timeout_ms=24 * HOUR)
    due = {orphan(play) for _ in range(10)}
    calls: list[str] = []
    caller = play.store._caller()
    asked = caller._until_answered
    monkeypatch.setattr(caller, "_until_answered", lambda name, attempt: (calls.append(name), asked(name, attempt))[1])
    assert {cause.split()[0] for cause in sweep_idle(engine).causes} == due
    assert calls.count("expire_idle") == 10
    assert len([name for name in calls if name != "expire_idle"]) <= 4, calls
    calls.clear()
    sweep_idle(engine)
    assert "expire_idle" not in calls


@pytest.mark.spec("IDLE-5")
def test_a_run_that_moves_between_the_look_and_the_cancel_is_saved(play: Player, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent comes at the last moment: the sweep has found the run already, and leaves it alone."""
    saved, just_answered, lost = orphan(play), orphan(play), orphan(play)
    graph = graph_of(node(0, kind=AGENT), node(1, 0, kind=AGENT))
    answered_and_idle_again = play.start(graph, idle_timeout_ms=24 * HOUR)
    aged(play, answered_and_idle_again, 25)
    look = play.store.orphans

    def then_the_agents_come(**options: Any) -> list[list[str]]:
        found = look(**options)
        if saved in found[0]:
            assert play.store.advance(saved, 0, digest="d", payload="j1:1").word == "OK"
            assert play.store.advance(answered_and_idle_again, 0, digest="d", payload="j1:1").word == "OK"
            for one in play.claim(5):
                play.complete(one)
            assert play.store.advance(just_answered, 0, digest="d", payload="j1:1").word == "OK"
        return found

    monkeypatch.setattr(play.store, "orphans", then_the_agents_come)
    assert sweep_idle(engine).causes == (f"{lost} idle_timeout",)
    assert play.state(saved) == "completed"
    assert play.state(just_answered) == "running", "nobody has claimed it yet, and its last progress is as old as before"
    assert play.state(answered_and_idle_again) == "waiting_signal", "its time begins anew with its progress"
    assert fsck(engine) == []


@pytest.mark.spec("IDLE-3")
def test_only_progress_of_steps_makes_an_orphan_younger(play: Player, engine: Engine) -> None:
    """A pause and resume, a kept signal, a look: none of it counts."""
    graph = graph_of(node(0, kind=AGENT), node(1, 0, kind=WAIT, signal="go"))
    run_id = play.start(graph, idle_timeout_ms=24 * HOUR)
    aged(play, run_id, 25)
    play.store.signal(run_id, name="go", signal_id="s", payload="j1:1", waits=[1])
    play.store.pause(run_id, reason="x")
    play.store.resume(run_id)
    assert sweep_idle(engine).count == 1


@pytest.mark.spec("IDLE-5")
def test_a_dry_run_and_a_threshold_of_the_call(play: Player, engine: Engine) -> None:
    young, endless = orphan(play, hours=2), orphan(play, hours=30, idle_ms=0)
    assert sweep_idle(engine, dry_run=True).causes == ()
    told = sweep_idle(engine, dry_run=True, older_than_hours=1)
    assert told.causes == (f"{young} idle_timeout",)
    assert play.state(young) == "waiting_signal"
    assert sweep_idle(engine, older_than_hours=3).count == 0
    assert sweep_idle(engine, older_than_hours=1).count == 1
    assert (play.state(young), play.state(endless)) == ("cancelled", "waiting_signal")


@pytest.mark.spec("IDLE-5")
def test_more_than_a_page_is_swept_at_once(play: Player, engine: Engine) -> None:
    for _ in range(105):
        orphan(play)
    assert sweep_idle(engine).count == 105
