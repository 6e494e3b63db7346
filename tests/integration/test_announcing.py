"""Signals of runs: each move of a run as a whole is told once, by the call that brought it about, and only if somebody listens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conductor.log import Event
from conductor.records import FailurePolicy, NodeKind
from conductor.runs.announcing import AnnouncingStore
from conductor.store import Store
from conductor.telemetry import signals
from tests.integration.playing import Player, chain, fan, graph_of, node

pytestmark = pytest.mark.spec("WF-17")
_NAMES = ("run_started", "run_completed", "run_failed", "run_cancelled", "run_paused")


@pytest.fixture
def store(store: Store) -> Store:
    return AnnouncingStore(store.client(), namespace=store.namespace, partitions=store.partitions)


@pytest.fixture
def play(store: Store) -> Player:
    return Player(store)


@pytest.fixture
def heard() -> Iterator[list[str]]:
    told: list[str] = []

    def hear(signal: signals.Signal, sender: str, run_id: str, reason: str, **_facts: object) -> None:
        told.append(f"{sender} {signal.name} {reason}".strip())

    for name in _NAMES:
        getattr(signals, name).connect(hear, weak=False)
    yield told
    for name in _NAMES:
        getattr(signals, name).disconnect(hear)


def test_a_completed_run_is_told_by_its_last_commit_only(play: Player, heard: list[str]) -> None:
    run_id = play.start(chain(2))
    assert play.store.start(play.new(chain(2), run_id), chain(2)).word == "EXISTS"
    play.complete(play.one())
    assert heard == ["flow run_started"]
    play.complete(play.one())
    assert (play.state(run_id), heard) == ("completed", ["flow run_started", "flow run_completed"])


def test_of_two_last_items_in_two_workers_one_tells(play: Player, heard: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of them reads the log only after the second has ended the run: it must not take that end for its own."""
    run_id = play.start(fan())
    play.complete(play.one(), "j1:[1,2]", total=2)
    first, second = play.claim(2)
    real, others = AnnouncingStore._tail, [second]

    def others_first(mine: AnnouncingStore, asked: str) -> list[Event]:
        while others:
            play.complete(others.pop())
            play.drain()
        return real(mine, asked)

    monkeypatch.setattr(AnnouncingStore, "_tail", others_first)
    play.complete(first)
    assert (play.state(run_id), heard) == ("completed", ["flow run_started", "flow run_completed"])


def test_a_failed_run_is_told_after_its_last_steps(play: Player, heard: list[str]) -> None:
    run_id = play.start(graph_of(node(0), node(1, kind=NodeKind.ON_FAILURE)))
    play.fail(play.one())
    assert heard == ["flow run_started"]
    play.complete(play.one())
    assert (play.state(run_id), heard) == ("failed", ["flow run_started", "flow run_failed step_failed"])


def test_a_failing_run_whose_last_attempt_is_lost_is_told_by_the_sweep(play: Player, heard: list[str]) -> None:
    run_id = play.start(graph_of(node(0), node(1)))
    first, second = play.claim(2)
    play.fail(first)
    assert heard == ["flow run_started"]
    play.lose(second)
    assert (play.state(run_id), heard) == ("failed", ["flow run_started", "flow run_failed step_failed"])


def test_cancel_and_pause_are_told_once_by_whoever_calls(play: Player, heard: list[str]) -> None:
    run_id = play.start(chain(1))
    for _ in range(2):
        play.store.pause(run_id, reason="lunch")
        play.store.cancel(run_id, reason="enough")
    assert heard == ["flow run_started", "flow run_paused lunch", "flow run_cancelled enough"]


def test_a_failed_step_that_pauses_its_run_is_told(play: Player, heard: list[str]) -> None:
    run_id = play.start(chain(1))
    play.fail(play.one(), FailurePolicy.PAUSE)
    assert (play.state(run_id), heard) == ("paused", ["flow run_started", "flow run_paused step_failed"])


@pytest.mark.parametrize(("options", "told"), [
    ({"deadline_ms": 60_000}, "flow run_failed deadline"), ({"expires_ms": 60_000}, "flow run_cancelled expired"),
])
def test_what_the_clock_ends_is_told_by_the_sweep(play: Player, heard: list[str], options: dict[str, int], told: str) -> None:
    play.start(chain(1), **options)
    play.due()
    assert heard == ["flow run_started", told]


def test_missing_code_is_told(play: Player, heard: list[str]) -> None:
    play.store.register_code("old", ["sig9"])
    play.start(chain(1))
    while play.ready():
        assert play.claim(code="old") == []
    play.backdate("aside")
    play.store.take_back(0, ["none"])
    assert heard == ["flow run_started", "flow run_paused code_missing"]


def test_nothing_is_read_for_nobody(play: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AnnouncingStore, "_tail", lambda *_: pytest.fail("the log was read"))
    run_id = play.start(chain(1))
    play.complete(play.one())
    assert play.state(run_id) == "completed"


def test_a_log_that_cannot_be_read_breaks_no_commit(
    play: Player, heard: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("conductor.runs.announcing.parse_all", lambda entries: [1 / 0])
    run_id = play.start(chain(1))
    assert play.complete(play.one()) == "OK"
    assert (play.state(run_id), heard) == ("completed", ["flow run_started"])
    assert f"nobody is told what became of run {run_id}" in caplog.text


@pytest.mark.spec("CAN-5")
def test_a_run_that_is_undone_is_told_of_when_that_is_over(play: Player, heard: list[str]) -> None:
    undo = NodeKind.UNDO
    run_id = play.start(graph_of(node(0), node(1, 0), node(2, kind=undo), node(3, kind=undo, undoes=0)))
    play.complete(play.one())
    play.store.cancel(run_id, reason="rain", compensate=True)
    assert heard == ["flow run_started"]
    play.drain()
    assert heard == ["flow run_started", "flow run_cancelled rain"]
