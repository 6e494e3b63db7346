"""Schedules as they are declared, changed and listed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from celery.schedules import crontab

from conductor import BadInput, DeclarationError, Workflow, codec
from conductor.declare import every, registry
from conductor.declare.cadence import Cadence
from conductor.operations import schedules
from conductor.operations.schedules import declare_all, define, fire_due, job_of, orphans
from conductor.store import Store
from conductor.sweeps.schedules import sweep_schedules
from conductor.wiring import Engine
from tests.conftest import MakeStore
from tests.integration.ticking import SPAN, Report, engine_of, job, make_due, nightly, record, runs, words


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


# Declaring.


@pytest.mark.spec("WF-16")
def test_a_declared_schedule_is_written_once_and_a_changed_one_updates_the_cadence(engine: Engine, flow: Workflow[Report]) -> None:
    store = engine.store
    flow.every(timedelta(milliseconds=SPAN), input=Report(region="north"), tags=["x"])
    assert [declare_all(engine) for _ in range(2)] == [["nightly"], []]
    first = record(store, "nightly")
    assert job_of(first) == every.declared["nightly"]
    assert first.next_at == (store.job_clock() // SPAN + 1) * SPAN
    with every.isolated():
        flow.every(crontab(minute=0, hour=3, day_of_month=29, month_of_year=2), tz="Europe/Zurich", input={"region": "south"})
        assert declare_all(engine) == ["nightly"]
    second = record(store, "nightly")
    assert job_of(second).cadence.next_after(store.job_clock()) == second.next_at > first.next_at
    assert second.payload == 'j1:{"region":"south"}'
    assert (second.created_at, second.ticks) == (first.created_at, first.ticks)
    assert store.client().zscore(store.keys.of(0, "jobs"), "nightly") == second.next_at


@pytest.mark.spec("WF-16")
def test_a_change_keeps_the_pause_the_ticks_and_a_tick_that_is_owed(engine: Engine) -> None:
    store = engine.store
    define(engine, job())
    due = make_due(store)
    assert define(engine, job(payload='j1:{"region":"south"}')) == "CHANGED"  # the cadence is the same, and so is its next tick
    assert record(store).next_at == due
    assert define(engine, job(cadence=Cadence(every_ms=7 * SPAN))) == "CHANGED"
    assert record(store).next_at == due
    fire_due(engine, 0)
    assert [(tick.nominal, tick.word) for tick in record(store).ticks] == [(due, "fired")]
    assert record(store).next_at % (7 * SPAN) == 0
    store.pause_job("report")
    assert define(engine, job()) == "CHANGED"
    assert record(store).paused
    assert record(store).fired == 1
    assert not store.client().zscore(store.keys.of(0, "jobs"), "report")
    assert define(engine, job()) == "SAME"


@pytest.mark.spec("WF-16")
def test_a_new_cadence_has_missed_nothing_before_it_was_declared(engine: Engine) -> None:
    define(engine, job(cadence=Cadence(every_ms=24 * SPAN)))
    earliest = make_due(engine.store, ticks=30)
    define(engine, job())
    fire_due(engine, 0)
    assert [tick.nominal for tick in record(engine.store).ticks] == [earliest]


@pytest.mark.spec("OP-5")
def test_a_change_of_anything_else_hides_no_missed_tick(engine: Engine) -> None:
    define(engine, job())
    make_due(engine.store, ticks=5)
    define(engine, job(payload='j1:{"region":"south"}'))
    fire_due(engine, 0)
    assert words(engine.store) == ["missed"] * 4 + ["fired"]


@pytest.mark.spec("WF-16", "STK-9")
def test_in_a_rolling_update_an_old_process_does_not_write_its_schedule_back(engine: Engine, flow: Workflow[Report]) -> None:
    flow.every(3600, input={"region": "old"})
    declare_all(engine)
    new = replace(every.declared["nightly"], payload='j1:{"region":"new"}')
    define(engine, new)
    assert declare_all(engine) == []
    assert job_of(record(engine.store, "nightly")) == new
    engine.store.drop_job("nightly")  # a wiped server
    assert declare_all(engine) == ["nightly"]


@pytest.mark.spec("WF-16", "STK-9")
def test_a_schedule_that_left_the_code_stops_is_shown_as_orphaned_and_comes_back(
    engine: Engine, flow: Workflow[Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    flow.every(timedelta(milliseconds=SPAN), input={"region": "north"})
    sweep_schedules(engine)
    store, key = engine.store, engine.store.keys.of(0, "job:nightly")
    assert (orphans(engine, store.jobs()), record(store, "nightly").seen_at > 0) == (set(), True)
    make_due(store, 3, name="nightly")
    with every.isolated():  # a worker of the next release, whose code no longer has it
        sweep_schedules(engine)
        assert (runs(store), words(store, "nightly")) == ([], [])
        assert orphans(engine, store.jobs()) == set()  # an old worker may still be there
        store.client().hset(key, mapping={"sn": store.job_clock() - 121_000, "c": 1})
        assert orphans(engine, store.jobs()) == {"nightly"}
        store.client().hset(store.keys.of(0, "sweeps"), "schedules", 1)  # no worker at all: nobody can say so
        assert orphans(engine, store.jobs()) == set()
    monkeypatch.setattr(schedules, "_SAY_EVERY", 0.0)
    sweep_schedules(engine)  # the line is back
    assert words(store, "nightly") == ["missed", "missed", "fired"]
    assert orphans(engine, store.jobs()) == set()
    store.drop_job("nightly")
    assert store.seen_job("nightly") == "UNKNOWN"
    assert not store.client().exists(key)


@pytest.mark.spec("WF-16")
def test_a_sweep_writes_what_is_declared_and_a_dry_run_writes_nothing(engine: Engine, flow: Workflow[Report]) -> None:
    flow.every(3600, input={"region": "north"})
    assert sweep_schedules(engine, dry_run=True).count == 0
    assert engine.store.jobs() == []
    sweep_schedules(engine)
    assert [one.name for one in engine.store.jobs()] == ["nightly"]
    make_due(engine.store, name="nightly")
    report = sweep_schedules(engine, dry_run=True)
    assert (report.count, report.dry_run) == (1, True)
    assert report.causes[0].startswith("nightly 20")
    assert report.causes[0].endswith("Z due")
    assert runs(engine.store) == []


@pytest.mark.spec("WF-16")
def test_a_name_belongs_to_code_or_to_callers(engine: Engine, flow: Workflow[Report], caplog: pytest.LogCaptureFixture) -> None:
    define(engine, job(name="nightly"))
    flow.every(3600, input={"region": "north"})
    flow.every(7200, input={"region": "south"}, name="second")
    assert declare_all(engine) == ["second"]
    assert "the name belongs to a schedule that was made" in caplog.text
    with pytest.raises(DeclarationError, match="the name belongs to a schedule that was declared"):
        define(engine, job(name="second"))


@pytest.mark.spec("BAD-1")
def test_a_made_job_is_checked_before_it_is_written(engine: Engine) -> None:
    with pytest.raises(BadInput, match="priority"):
        define(engine, job(options={"priority": 11}))
    with pytest.raises(DeclarationError, match="option 'lane' is not known"):
        define(engine, job(options={"lane": "x"}))
    with pytest.raises(DeclarationError, match="option 'tags' is not known; the start of operation takes key, priority, queue, session"):
        define(engine, job(kind="operation", options={"tags": ["x"]}))
    with pytest.raises(DeclarationError, match="kind is 'task'; known are run, operation"):
        define(engine, job(kind="task"))
    assert engine.store.jobs() == []


@pytest.mark.spec("WF-16")
def test_every_checks_everything_when_it_is_declared(flow: Workflow[Report]) -> None:
    fine = {"region": "north"}
    with pytest.raises(BadInput, match="region"):
        flow.every(crontab(), input={"regoin": "north"})
    with pytest.raises(BadInput, match="input of workflow nightly"):
        flow.every(crontab())
    with pytest.raises(DeclarationError, match="catch_up is 'all'; known are last"):
        flow.every(crontab(), input=fine, catch_up="all")
    with pytest.raises(DeclarationError, match="overlap is 'cancel'; known are skip, allow"):
        flow.every(crontab(), input=fine, overlap="cancel")
    with pytest.raises(DeclarationError, match="schedule nightly of workflow nightly: str is no cadence"):
        flow.every("* * * * *", input=fine)
    with pytest.raises(DeclarationError, match="is the same at every tick"):
        flow.every(crontab(), input=fine, key="report")
    with pytest.raises(BadInput, match="priority"):
        flow.every(crontab(), input=fine, priority=11)
    with pytest.raises(DeclarationError, match="name"):
        flow.every(crontab(), input=fine, name="no spaces")
    assert every.declared == {}


@pytest.mark.spec("WF-16")
def test_a_second_schedule_needs_a_name_even_in_a_loop(flow: Workflow[Report]) -> None:
    first = flow.every(3600, input={"region": "north"})
    with pytest.raises(DeclarationError, match=r"schedule nightly: declared twice, at .* give one of them another name"):
        flow.every(7200, input={"region": "south"})
    with pytest.raises(DeclarationError, match="declared twice"):
        for region in ("east", "west"):
            flow.every(7200, input={"region": region}, name="loop")
    assert every.declared["nightly"] == first
    for _ in range(2):  # a module that declares both again, as a reload does
        with registry.isolated():
            again = Workflow("again")
            again.every(3600)
    assert sorted(every.declared) == ["again", "loop", "nightly"]


def test_all_jobs_are_listed_over_partitions_without_payloads(make_store: MakeStore, flow: Workflow[Report]) -> None:
    engine = engine_of(make_store(4))
    names = [f"job{number}" for number in range(12)]
    for name in names:
        define(engine, job(name=name))
    engine.store.pause_job("job3", reason="why not")
    listed = engine.store.jobs()
    assert [one.name for one in listed] == sorted(names)
    assert {one.payload for one in listed} == {""}
    assert [one.name for one in listed if one.paused] == ["job3"]
    assert engine.store.known_jobs(["job1", "nobody"]) == [True, False]


def test_a_payload_is_written_in_todays_format_and_an_equal_one_stays_as_it_is(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Salted:
        """Spells the same text differently each time, as encryption does."""

        def __init__(self) -> None:
            self.salt = 0

        def encode(self, text: str) -> str:
            self.salt += 1
            return f"{self.salt}~{text[::-1]}"

        def decode(self, body: str) -> str:
            return body.partition("~")[2][::-1]

    define(engine, job(name="plain"))
    monkeypatch.setattr(codec, "_codecs", {})
    monkeypatch.setattr(codec, "_writer", "j1")
    codec.register_codec("salted", Salted())
    assert define(engine, job()) == "CREATED"
    assert record(engine.store).payload.startswith("salted:1~")
    assert define(engine, job()) == "SAME"
    assert define(engine, job(name="plain")) == "CHANGED"  # it stood there unencrypted
    assert record(engine.store, "plain").payload.startswith("salted:")
    assert define(engine, job(payload='j1:{"region":"south"}')) == "CHANGED"
    make_due(engine.store)
    fire_due(engine, 0)
    assert words(engine.store) == ["fired"]


def test_a_sweep_that_did_nothing_is_not_news(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    define(engine, job())
    with caplog.at_level(logging.DEBUG, logger="conductor.sweeps"):
        sweep_schedules(engine)
    assert [entry.levelname for entry in caplog.records if entry.name.startswith("conductor.sweeps")] == ["DEBUG"]
