"""Sweeps: what they touch, when they are overdue, and how they share work."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from conductor.broker.quiet import hush_sweeps
from conductor.errors import StoreUnreachable
from conductor.records import Poke
from conductor.settings import Settings
from conductor.store import Glance, Swept
from conductor.sweeps import overdue as overdue_module
from conductor.sweeps.overdue import SLOW, SWEEPS, overdue, run_overdue, run_sweeper
from conductor.sweeps.retries import sweep_retries
from conductor.sweeps.stalled import sweep_stalled
from conductor.wiring import Engine
from tests.conftest import MakeStore


class Recorder:
    """A store that notes the order of what is asked of it. Only the order is tested with it; the scripts have tests on real servers."""

    partitions = 4

    def __init__(self, *, due: list[int] | None = None, expired: list[int] | None = None, free: bool = True, broken: int = -1) -> None:
        self.asked: list[str] = []
        self.seen = Glance(1000, expired or [], due or [], [], [], [], [], [], None, {})
        self.free, self.broken = free, broken

    def glance(self) -> Glance:
        return self.seen

    @contextmanager
    def lock(self, name: str, seconds: float) -> Iterator[bool]:
        self.asked.append("lock")
        yield self.free
        self.asked.append("unlock")

    def swept(self, name: str) -> None:
        self.asked.append(f"swept {name}")

    def fire_due(self, partition: int, limit: int) -> Swept:
        return self._one("fire", partition)

    def expire_leases(self, partition: int, limit: int, *, dry: bool, poison: int, interval_ms: int) -> Swept:
        return self._one("dry" if dry else "expire", partition)

    def _one(self, what: str, partition: int) -> Swept:
        if partition == self.broken:
            raise ValueError("a record nobody can read")
        self.asked.append(f"{what} {partition}")
        return Swept(1, [Poke(partition, "celery")], [f"r{partition}:0 {what}"])


def _engine(store: Any, poked: list[Poke] | None = None) -> Engine:
    def poke(pokes: Any) -> None:
        found = list(pokes)
        if found and hasattr(store, "asked"):
            store.asked.append("poke")
        if poked is not None:
            poked.extend(found)

    return Engine(Settings(), store, {}, poke)


@pytest.mark.spec("ACT-2")
def test_a_sweep_touches_only_partitions_with_something_due_and_publishes_after_the_lock() -> None:
    store = Recorder(due=[1, 3])
    report = sweep_retries(_engine(store))
    assert store.asked == ["lock", "fire 1", "fire 3", "swept retries", "unlock", "poke"]
    assert (report.count, report.pokes, report.causes) == (2, 2, ("r1:0 fire", "r3:0 fire"))


@pytest.mark.spec("ACT-2")
def test_a_sweep_that_another_process_is_at_does_nothing() -> None:
    store = Recorder(due=[1], free=False)
    assert not sweep_retries(_engine(store)).ran
    assert store.asked == ["lock", "unlock"]


@pytest.mark.spec("REC-5")
def test_a_sweep_that_did_nothing_is_not_news(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="conductor.sweeps"):
        sweep_retries(_engine(Recorder()))
        assert {record.levelname for record in caplog.records} == {"DEBUG"}
        sweep_retries(_engine(Recorder(due=[2])))
    assert "sweep retries: moved 1, pokes 1: r2:0 fire" in caplog.text


@pytest.mark.spec("REC-5", "WF-11")
def test_celerys_lines_about_our_sweeps_are_for_debug(caplog: pytest.LogCaptureFixture) -> None:
    strategy, trace = logging.getLogger("celery.worker.strategy"), logging.getLogger("celery.app.trace")
    before = [list(logger.filters) for logger in (strategy, trace)]
    try:
        hush_sweeps()
        hush_sweeps()
        for level in (logging.INFO, logging.DEBUG):
            with caplog.at_level(level, logger="celery"):
                strategy.info("%(name)s received at level " + str(level), {"name": "conductor.sweep_stalled"})
                trace.info("%(name)s succeeded", {"name": "shop.tasks.sweep"})
                trace.error("%(name)s failed", {"name": "conductor.sweep_stalled"})
                trace.info("a line of %s", "another form")
    finally:
        strategy.filters, trace.filters = before
    told = caplog.messages
    assert told.count("conductor.sweep_stalled received at level 20") == 0
    assert told.count("conductor.sweep_stalled received at level 10") == 1
    assert told.count("conductor.sweep_stalled failed") == told.count("shop.tasks.sweep succeeded") == told.count("a line of another form") == 2


@pytest.mark.spec("REC-3")
def test_one_unreadable_partition_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    store = Recorder(due=[0, 1, 2], broken=1)
    assert sweep_retries(_engine(store)).count == 2
    assert "partition 1 could not be swept" in caplog.text


def test_a_store_that_is_away_ends_the_sweep() -> None:
    store = Recorder(due=[0])
    store.fire_due = lambda *_: (_ for _ in ()).throw(StoreUnreachable(url="x", problem="y"))  # type: ignore[method-assign]
    with pytest.raises(StoreUnreachable):
        sweep_retries(_engine(store))
    assert "swept retries" not in store.asked


@pytest.mark.spec("REC-4")
def test_a_dry_run_moves_nothing_and_is_not_noted() -> None:
    store = Recorder(due=[1], expired=[2])
    assert sweep_retries(_engine(store), dry_run=True).count == 1
    assert sweep_stalled(_engine(store), dry_run=True).causes == ("r2:0 dry",)
    assert store.asked == ["lock", "unlock", "lock", "dry 2", "unlock"]


@pytest.mark.spec("REC-5")
def test_what_is_overdue_is_judged_by_the_notes_on_the_stores_clock() -> None:
    every = {"retries": 0.5, "stalled": 2.0}
    assert overdue({}, 10_000, every) == ["retries", "stalled"]
    assert overdue({"retries": 9_600, "stalled": 9_000}, 10_000, every) == []
    assert overdue({"retries": 9_500, "stalled": 8_001}, 10_000, every) == ["retries"]
    assert overdue({"retries": 99_000, "stalled": 99_000}, 10_000, every) == ["retries", "stalled"]


@pytest.mark.spec("REC-5", "ACT-2")
def test_the_second_worker_finds_the_sweeps_done(make_store: MakeStore) -> None:
    first, second = _engine(make_store(2)), _engine(make_store(2))
    assert {report.name for report in run_overdue(first)} == set(SWEEPS) - SLOW
    assert run_overdue(second) == []


@pytest.mark.spec("REC-4")
def test_the_sweeper_runs_each_sweep_once(make_store: MakeStore) -> None:
    told: list[str] = []
    reports = run_sweeper(_engine(make_store(2)), once=True, tell=lambda report: told.append(report.name))
    assert told == [report.name for report in reports] == [name for name in overdue_module.SWEEPS if name not in SLOW]
    assert all(report.ran for report in reports)
    assert reports[0].to_json()["causes"] == []
