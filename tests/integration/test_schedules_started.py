"""What a tick starts: runs and operations, alone or side by side, under keys, and jobs that cannot be started."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conductor import Workflow
from conductor.declare import every, registry
from conductor.declare.capability import capability
from conductor.declare.starting import start_options
from conductor.ids import home_of_key, home_of_name, partition_of
from conductor.operations import schedules
from conductor.operations.schedules import define, fire_due
from conductor.runs.start import start
from conductor.store import Store
from conductor.store.jobs import Tick
from conductor.wiring import Engine
from tests.conftest import MakeStore
from tests.integration.ticking import SPAN, Report, at_once, engine_of, job, make_due, nightly, record, runs, words


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


# Jobs that cannot be started.


@pytest.mark.spec("OP-5")
def test_a_process_that_does_not_know_the_target_leaves_the_job_alone_and_says_so_once(
    engine: Engine, caplog: pytest.LogCaptureFixture,
) -> None:
    store = engine.store
    define(engine, job(name="strange", target="elsewhere"))
    define(engine, job())
    for _ in range(3):
        make_due(store, name="strange")
        make_due(store)
        fire_due(engine, 0)
    assert (record(store).fired, record(store, "strange").ticks) == (1, ())
    assert record(store, "strange").next_at < store.job_clock()
    assert caplog.text.count("this process does not know workflow elsewhere") == 1


@pytest.mark.spec("OP-5")
def test_jobs_left_alone_do_not_crowd_out_the_others(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "_BATCH", 2)
    for number in range(5):
        define(engine, job(name=f"a{number}", target="elsewhere"))
        make_due(engine.store, ticks=5, name=f"a{number}")
    define(engine, job())
    make_due(engine.store)
    assert len(fire_due(engine, 0)) == 1
    assert len(runs(engine.store)) == 1


@pytest.mark.spec("OP-5")
def test_a_payload_that_no_longer_fits_is_skipped_with_the_reason_and_stops_nobody(engine: Engine) -> None:
    store = engine.store
    define(engine, job(name="a-bad", payload='j1:{"regoin":"north"}'))
    define(engine, job())
    make_due(store, ticks=2, name="a-bad")
    make_due(store)
    assert len(fire_due(engine, 0)) == 3
    assert words(store, "a-bad") == ["missed", "skipped"]
    assert record(store, "a-bad").ticks[1].reason == "stored input of workflow nightly refused: region: Field required"
    assert record(store, "a-bad").next_at > store.job_clock()
    assert words(store) == ["fired"]


@pytest.mark.spec("OP-5")
def test_an_unexpected_error_leaves_the_tick_for_the_next_sweep_and_stops_nobody(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:
    store = engine.store
    define(engine, job(name="a-broken", options={"queue": "broken"}))
    define(engine, job())

    def begin(engine: Engine, flow: Any, *, options: Any, **more: Any) -> Any:
        if options.queue == "broken":
            raise RuntimeError("no memory left")
        return start(engine, flow, options=options, **more)

    monkeypatch.setattr(schedules, "start", begin)
    for _ in range(2):
        make_due(store, name="a-broken")
        make_due(store)
        fire_due(engine, 0)
    assert record(store).fired == 1
    assert record(store, "a-broken").ticks == ()
    assert caplog.text.count("RuntimeError: no memory left") == 2  # the sentence and the end of the traceback, once
    monkeypatch.setattr(schedules, "start", start)
    fire_due(engine, 0)
    assert words(store, "a-broken") == ["fired"]


@pytest.mark.spec("OP-5")
def test_a_record_of_a_newer_release_is_left_alone(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    define(engine, job())
    make_due(engine.store)
    engine.store.client().hset(engine.store.keys.of(0, "job:report"), "d", '{"v":2}')
    assert fire_due(engine, 0) == []
    assert "newer release" in caplog.text
    assert record(engine.store).ticks == ()


# Overlap.


@pytest.mark.spec("WF-16")
def test_a_tick_is_skipped_while_the_run_of_an_earlier_one_goes_on(engine: Engine) -> None:
    store = engine.store
    define(engine, job(overlap="skip"))
    for number in range(3):
        make_due(store, late=number)
        fire_due(engine, 0)
    (run_id,) = runs(store)
    assert words(store) == ["fired", "skipped", "skipped"]
    assert record(store).ticks[1].reason == f"overlap: {run_id} is running"
    assert record(store).skipped == 2
    store.cancel(run_id, reason="done")
    make_due(store, late=3)
    fire_due(engine, 0)
    assert words(store)[-1] == "fired"
    assert len(runs(store)) == 2


@pytest.mark.spec("WF-16", "IDLE-6")
@pytest.mark.parametrize(("said", "word"), [("", "skipped"), ("cancelled", "fired")])
def test_a_run_that_is_parked_goes_on(engine: Engine, said: str, word: str) -> None:
    """It has left the store but for its stub, which also knows whether it was cancelled there."""
    store = engine.store
    define(engine, job(overlap="skip"))
    make_due(store)
    fire_due(engine, 0)
    (run_id,) = runs(store)
    graph = store.client().hget(store.keys.run(run_id), "h")
    store.client().delete(store.keys.run(run_id))
    store.client().hset(store.keys.of(int(run_id[-2:], 16), "parked"), run_id, f"9;1;{graph};{said};;;;1;1;1;;;;;;nightly;")
    make_due(store, late=1)
    fire_due(engine, 0)
    assert words(store) == ["fired", word]
    assert record(store).ticks[1].reason == (f"overlap: {run_id} is waiting_signal" if word == "skipped" else "")


@pytest.mark.spec("WF-16")
def test_a_hundred_skipped_ticks_do_not_forget_the_run_that_goes_on(engine: Engine) -> None:
    store = engine.store
    define(engine, job(overlap="skip"))
    first = make_due(store)
    fire_due(engine, 0)
    store.tick_job("report", expected=first + SPAN, following=first, ticks=[Tick(first + number, "skipped") for number in range(1, 150)])
    make_due(store, late=200)
    fire_due(engine, 0)
    assert words(store) == ["skipped"] * 100
    assert len(runs(store)) == 1


def test_with_overlap_allowed_they_run_side_by_side(engine: Engine) -> None:
    define(engine, job(overlap="allow"))
    for number in range(2):
        make_due(engine.store, late=number)
        fire_due(engine, 0)
    assert len(runs(engine.store)) == 2


# Operations.


@pytest.mark.spec("OP-1", "OP-5")
def test_three_sweepers_start_one_operation_under_the_id_of_its_tick(make_store: MakeStore) -> None:
    @capability("mail.report")
    def mail(to: str) -> None: ...

    engine = engine_of(make_store(4))
    store, home = engine.store, home_of_name("mails", 4)
    define(engine, job(name="mails", kind="operation", target="mail.report", payload='j1:{"to":"eve"}', options={"session": "s1"}))
    for number in (1, 2):
        make_due(store, name="mails", late=number)
        at_once(lambda: fire_due(engine_of(make_store(4)), home))
        assert len(runs(store)) == number
    op_id = record(store, "mails").last_id
    assert op_id in runs(store)
    assert partition_of(op_id) == home
    held = store.client().hmget(store.keys.run(op_id), ["w", "qr", "i", "s"])
    assert held == ["op:mail.report", "scheduled_job", 'j1:{"to":"eve"}', "s1"]


@pytest.mark.spec("OP-5")
def test_an_operation_that_goes_on_skips_the_next_tick(engine: Engine) -> None:
    @capability("mail.report")
    def mail(to: str) -> None: ...

    define(engine, job(kind="operation", target="mail.report", payload='j1:{"to":"eve"}', overlap="skip"))
    for number in range(2):
        make_due(engine.store, late=number)
        fire_due(engine, 0)
    assert words(engine.store) == ["fired", "skipped"]
    assert len(runs(engine.store)) == 1


@pytest.mark.spec("OP-5", "CAP-1")
def test_parameters_that_no_longer_fit_and_a_capability_nobody_knows_here(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    @capability("mail.report")
    def mail(to: str) -> None: ...

    define(engine, job(name="unfit", kind="operation", target="mail.report", payload='j1:{"too":"eve"}'))
    define(engine, job(name="strange", kind="operation", target="fax.report", payload='j1:{"to":"eve"}'))
    make_due(engine.store, name="unfit")
    make_due(engine.store, name="strange")
    fire_due(engine, 0)
    assert words(engine.store, "unfit") == ["skipped"]
    assert "stored parameters of capability mail.report refused: to" in record(engine.store, "unfit").ticks[0].reason
    assert words(engine.store, "strange") == []
    assert "this process does not know capability fax.report" in caplog.text


# Keys.


@pytest.mark.spec("WF-16", "RUN-1")
def test_a_key_with_the_tick_is_the_run_that_somebody_else_started(make_store: MakeStore, flow: Workflow[Report]) -> None:
    engine = engine_of(make_store(8))
    store = engine.store
    define(engine, job(options={"key": "report-{tick}"}))
    make_due(store)
    fire_due(engine, home_of_name("report", 8))
    (run_id,) = runs(store)
    assert record(store).last_id == run_id
    key = str(store.client().hget(store.keys.run(run_id), "k"))
    assert key.startswith("report-20")
    assert key.endswith("Z")
    assert partition_of(run_id) == home_of_key("nightly", key, 8)


@pytest.mark.spec("WF-16")
def test_a_key_that_has_another_body_skips_the_tick(engine: Engine, flow: Workflow[Report]) -> None:
    define(engine, job(options={"key": "k-{tick}"}))
    tick = schedules._text(make_due(engine.store))
    start(engine, flow, payload='j1:{"region":"other"}', options=start_options("nightly", key=f"k-{tick}"))
    fire_due(engine, 0)
    assert words(engine.store) == ["skipped"]
    assert "already belongs to run" in record(engine.store).ticks[0].reason
