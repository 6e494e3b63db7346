"""Schedules: each tick starts once however many look, late ones are told, and nothing but the store's clock is asked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from conductor import Workflow
from conductor.declare import every, registry
from conductor.errors import StoreUnreachable
from conductor.ids import home_of_name, partition_of
from conductor.operations.schedules import define, fire_due, resume
from conductor.records import Poke
from conductor.store import Store, connect
from conductor.store.jobs import Tick
from conductor.sweeps.schedules import sweep_schedules
from conductor.wiring import Engine
from tests.conftest import MakeStore
from tests.integration.ticking import SPAN, Report, at_once, engine_of, job, make_due, nightly, record, runs, words
from tests.support.server import ValkeyServer


@pytest.fixture(autouse=True)
def own_registries() -> Iterator[None]:
    with registry.isolated(), every.isolated():
        yield


@pytest.fixture
def flow() -> Workflow[Report]:
    return nightly()


@pytest.fixture
def engine(store: Store, flow: Workflow[Report]) -> Engine:
    return engine_of(store)


# Once per tick.


@pytest.mark.spec("WF-16", "OP-5", "ACT-2")
def test_three_sweepers_at_once_start_each_tick_once(engine: Engine) -> None:
    store, nominals = engine.store, []
    define(engine, job())
    for number in range(1, 11):
        nominals.append(make_due(store, late=number))  # ten ticks that differ, all of them in the past
        at_once(lambda: fire_due(engine, 0))
        assert len(runs(store)) == number
    found = record(store)
    assert (found.fired, found.missed, found.skipped) == (10, 0, 0)
    assert [(tick.nominal, tick.word) for tick in found.ticks] == [(nominal, "fired") for nominal in nominals]
    assert sorted(tick.id for tick in found.ticks) == sorted(runs(store))
    assert found.next_at > store.job_clock()


@pytest.mark.spec("WF-16", "STK-2")
def test_three_beats_start_each_tick_once_and_poke_after_the_lock(make_store: MakeStore, flow: Workflow[Report]) -> None:
    store, pokes = make_store(4), list[Poke]()
    define(engine_of(store), job())
    make_due(store)
    reports = at_once(lambda: sweep_schedules(engine_of(make_store(4), pokes)))
    assert {report.name for report in reports} == {"schedules"}
    assert len(runs(store)) == 1
    assert set(pokes) == {Poke(home_of_name("report", 4), "celery")}


@pytest.mark.spec("ACT-2")
def test_what_is_published_waits_until_the_lock_is_released(engine: Engine) -> None:
    define(engine, job())
    make_due(engine.store)

    def poke(pokes: Any) -> None:
        assert list(pokes) == [Poke(0, "celery")]
        with engine.store.lock("sweep:schedules", 5) as free:
            assert free

    report = sweep_schedules(replace(engine, poke=poke))
    assert (report.count, report.pokes) == (1, 1)
    assert report.causes[0].startswith("report ")
    assert report.causes[0].endswith(f"fired {runs(engine.store)[0]}")


@pytest.mark.spec("OP-5")
def test_the_run_has_the_payload_the_options_and_an_id_that_everybody_derives(make_store: MakeStore, flow: Workflow[Report]) -> None:
    engine = engine_of(make_store(4))
    define(engine, job(options={"queue": "slow", "priority": 2, "tags": ["a", "b"], "session": "s1"}))
    make_due(engine.store)
    fire_due(engine, home_of_name("report", 4))
    (run_id,) = runs(engine.store)
    assert run_id == record(engine.store).last_id
    assert partition_of(run_id) == home_of_name("report", 4)
    held = engine.store.client().hmget(engine.store.keys.run(run_id), ["w", "i", "q", "p", "s", "tg", "st"])
    assert held == ["nightly", 'j1:{"region":"north"}', "slow", "2", "s1", "a,b", "running"]


@pytest.mark.spec("OP-5")
def test_a_job_that_is_not_due_is_not_looked_at(engine: Engine) -> None:
    define(engine, job())
    assert engine.store.partitions_with_due_jobs() == []
    assert fire_due(engine, 0) == []
    assert sweep_schedules(engine).count == 0
    assert runs(engine.store) == []


# Gaps and crashes.


@pytest.mark.spec("WF-16", "OP-5", "REC-5")
def test_after_ten_missed_ticks_only_the_latest_fires_and_nine_are_noted(engine: Engine) -> None:
    define(engine, job())
    earliest = make_due(engine.store, ticks=10)
    causes = fire_due(engine, 0)
    assert causes[0] == "report missed 9 ticks"
    found = record(engine.store)
    assert [tick.nominal for tick in found.ticks] == [earliest + number * SPAN for number in range(10)]
    assert words(engine.store) == ["missed"] * 9 + ["fired"]
    assert (found.fired, found.missed, found.last_at) == (1, 9, earliest + 9 * SPAN)
    assert len(runs(engine.store)) == 1
    assert found.next_at == earliest + 10 * SPAN


@pytest.mark.spec("OP-5")
def test_a_gap_of_years_keeps_the_last_hundred_ticks(engine: Engine) -> None:
    define(engine, job())
    latest = make_due(engine.store, ticks=15_000) + 14_999 * SPAN
    fire_due(engine, 0)
    ticks = record(engine.store).ticks
    assert (len(ticks), ticks[-1].nominal, ticks[-1].word) == (100, latest, "fired")
    assert len(runs(engine.store)) == 1


@pytest.mark.spec("OP-5")
def test_killed_between_the_start_and_the_move_starts_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    define(engine, job())
    make_due(engine.store)
    with monkeypatch.context() as broken:
        broken.setattr(Store, "tick_job", lambda *_, **__: (_ for _ in ()).throw(StoreUnreachable(url="x", problem="killed here")))
        with pytest.raises(StoreUnreachable):
            fire_due(engine, 0)
    assert len(runs(engine.store)) == 1
    assert record(engine.store).fired == 0
    assert len(fire_due(engine, 0)) == 1
    assert record(engine.store).fired == 1
    assert [record(engine.store).last_id] == runs(engine.store)


@pytest.mark.spec("OP-5")
@pytest.mark.parametrize("overlap", ["skip", "allow"])
def test_killed_there_and_found_only_after_the_next_tick_it_is_not_called_missed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, overlap: str,
) -> None:
    store = engine.store
    define(engine, job(overlap=overlap))
    earliest = make_due(store, ticks=3)
    with monkeypatch.context() as broken:
        broken.setattr(Store, "job_clock", lambda _: earliest + SPAN + 1)  # it saw two of the three, and began the second
        broken.setattr(Store, "tick_job", lambda *_, **__: (_ for _ in ()).throw(StoreUnreachable(url="x", problem="killed here")))
        with pytest.raises(StoreUnreachable):
            fire_due(engine, 0)
    (begun,) = runs(store)
    fire_due(engine, 0)
    found = record(store)
    assert words(store) == ["missed", "fired", "skipped" if overlap == "skip" else "fired"]
    assert found.ticks[1].id == begun
    assert found.ticks[2].reason == (f"overlap: {begun} is running" if overlap == "skip" else "")
    assert len(runs(store)) == found.fired == (1 if overlap == "skip" else 2)


@pytest.mark.spec("RUN-5")
def test_a_move_whose_reply_was_lost_gives_the_first_answer_and_notes_nothing_twice(store: Store) -> None:
    store.put_job("x", definition="{}", cadence="c", payload="p", following=1000)
    move: dict[str, Any] = {"expected": 1000, "following": 3000, "ticks": [Tick(1000, "missed"), Tick(2000, "fired", "id")]}
    assert [store.tick_job("x", **move) for _ in range(3)] == ["OK"] * 3
    found = record(store, "x")
    assert (found.fired, found.missed, len(found.ticks)) == (1, 1, 2)
    assert store.tick_job("x", expected=1000, following=5000, ticks=[Tick(4000, "missed"), Tick(4500, "skipped")]) == "MOVED"
    assert store.tick_job("y", expected=1, following=2) == "UNKNOWN"
    assert record(store, "x") == found


@pytest.mark.spec("OP-5")
def test_what_a_slow_sweep_started_is_told_although_a_quicker_one_called_it_missed(store: Store) -> None:
    store.put_job("x", definition="{}", cadence="c", payload="p", following=1000)
    assert store.tick_job("x", expected=1000, following=3000, ticks=[Tick(1000, "missed"), Tick(2000, "fired", "new")]) == "OK"
    assert store.tick_job("x", expected=1000, following=2000, ticks=[Tick(1000, "fired", "old")]) == "MOVED"
    found = record(store, "x")
    assert [(tick.nominal, tick.word, tick.id) for tick in found.ticks] == [(1000, "fired", "old"), (2000, "fired", "new")]
    assert (found.fired, found.missed, found.next_at) == (2, 0, 3000)
    assert (found.last_at, found.last_id) == (2000, "new")


@pytest.mark.spec("OP-5")
def test_what_was_started_before_the_job_changed_is_not_called_missed_later(store: Store) -> None:
    store.put_job("x", definition="{}", cadence="c", payload="p", following=2000)
    assert store.tick_job("x", expected=1000, following=1500, ticks=[Tick(1000, "fired", "old")]) == "MOVED"
    assert store.tick_job("x", expected=2000, following=3000, ticks=[Tick(1000, "missed"), Tick(2000, "fired", "new")]) == "OK"
    found = record(store, "x")
    assert (words(store, "x"), found.fired, found.missed) == (["fired", "fired"], 2, 0)


@pytest.mark.spec("OP-5")
def test_a_job_moved_on_between_the_two_reads_does_not_fire_a_future_tick(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    store = engine.store
    define(engine, job())
    due, now = make_due(store), store.job_clock()
    read = Store._records

    def meanwhile(self: Store, *args: Any, **options: Any) -> Any:
        store.tick_job("report", expected=due, following=due + SPAN, ticks=[Tick(due, "fired", "x")])
        return read(self, *args, **options)

    monkeypatch.setattr(Store, "_records", meanwhile)
    assert store.due_jobs(0, now) == []
    assert fire_due(engine, 0) == []
    assert runs(store) == []


# The clock.


@pytest.mark.spec("ACT-5", "OP-5")
@pytest.mark.parametrize("hours", [2, -2, 48])
def test_the_clock_of_the_process_has_no_say(
    valkey: ValkeyServer, namespace: str, clean_keys: None, flow: Workflow[Report], monkeypatch: pytest.MonkeyPatch, hours: int,
) -> None:
    """On the real server only: fakeredis takes its TIME from this process."""
    store = Store(connect(valkey.url()), namespace=namespace, partitions=1)
    engine, real = engine_of(store), time.time
    now = store.job_clock()
    monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
    monkeypatch.setattr(time, "time_ns", lambda: int((real() + hours * 3600) * 1e9))
    define(engine, job())
    assert record(store).next_at == (now // SPAN + 1) * SPAN
    assert sweep_schedules(engine).count == 0
    due = make_due(store)
    assert sweep_schedules(engine).count == 1
    assert (record(store).last_at, record(store).next_at) == (due, due + SPAN)


# Pause, resume, drop.


@pytest.mark.spec("WF-16")
def test_a_paused_job_does_not_fire_and_resumes_at_a_future_tick(engine: Engine) -> None:
    store = engine.store
    define(engine, job())
    make_due(store, ticks=3)
    assert [store.pause_job("report", reason="holidays") for _ in range(2)] == ["OK", "ALREADY"]
    assert sweep_schedules(engine).count == 0
    found = record(store)
    assert (found.paused, found.paused_reason) == (True, "holidays")
    assert not store.client().zscore(store.keys.of(0, "jobs"), "report")
    assert [one.name for one in store.jobs()] == ["report"]
    assert [resume(engine, "report") for _ in range(2)] == ["OK", "ALREADY"]
    assert sweep_schedules(engine).count == 0
    found = record(store)
    assert found.next_at > store.job_clock()
    assert (found.paused, found.fired, found.missed) == (False, 0, 0)
    make_due(store)
    assert sweep_schedules(engine).count == 1


@pytest.mark.spec("WF-16")
def test_paused_between_the_start_and_the_move_it_stays_paused_and_the_tick_is_told(store: Store) -> None:
    store.put_job("x", definition="{}", cadence="c", payload="p", following=1000)
    store.pause_job("x")
    assert store.tick_job("x", expected=1000, following=2000, ticks=[Tick(1000, "fired", "id")]) == "OK"
    assert record(store, "x").fired == 1
    assert store.due_jobs(0, 10_000) == []
    assert not store.client().zscore(store.keys.of(0, "jobs"), "x")


@pytest.mark.spec("WF-16")
def test_a_dropped_job_is_gone_and_nobody_knows_it(engine: Engine) -> None:
    store = engine.store
    for name in ("report", "paused"):
        define(engine, job(name=name))
        make_due(store, name=name)
    store.pause_job("paused")
    for name in ("report", "paused"):
        assert [store.drop_job(name) for _ in range(2)] == ["OK", "UNKNOWN"]
        assert store.pause_job(name) == resume(engine, name) == "UNKNOWN"
    assert (store.job("report"), store.jobs(), store.partitions_with_due_jobs()) == (None, [], [])
    define(engine, job(name="paused"))
    assert not record(store, "paused").paused
