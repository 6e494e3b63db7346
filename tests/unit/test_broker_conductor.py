"""`Conductor(app)`: what it adds to a user's app, and what it leaves alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from conductor import Conductor, SettingsError, UnknownRun, UnknownWorkflow
from conductor.broker.schedule import beat_entries
from conductor.broker.worker import consume_sweeps, refuse_green
from conductor.declare import registry
from conductor.settings import Settings

NAMES = {
    "conductor.execute", "conductor.start_run", "conductor.cancel_run", "conductor.pause_run", "conductor.resume_run",
    "conductor.retry_run", "conductor.sweep_retries", "conductor.sweep_stalled", "conductor.sweep_retention",
}
NOBODY = "redis://127.0.0.1:1/0"  # nothing listens there: whoever connects at import time fails


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with registry.isolated():
        yield


def _app(**conf: Any) -> Celery:
    app = Celery("shop", broker=NOBODY, set_as_current=False)
    app.conf.update(**conf)
    return app


def _settings(app: Celery) -> dict[str, Any]:
    app.finalize()
    return copy.deepcopy({name: app.conf[name] for name in sorted(set(app.conf))})


@pytest.mark.spec("WF-11")
def test_no_setting_of_the_app_changes_but_our_own_beat_entries() -> None:
    before = _settings(_app())
    app = _app()
    Conductor(app)
    after = _settings(app)
    ours = after.pop("beat_schedule")
    before.pop("beat_schedule", None)
    assert after == before
    assert set(ours) == {f"conductor.sweep_{name}" for name in ("retries", "stalled", "retention", "schedules", "outbox", "stuck", "idle")}


@pytest.mark.spec("WF-11", "STK-1")
def test_tasks_have_stable_names_and_stay_in_their_app() -> None:
    app, other = _app(), _app()
    Conductor(app)
    assert set(app.tasks) >= NAMES
    assert not [name for name in other.tasks if name.startswith("conductor")]


@pytest.mark.spec("WF-11", "RUN-12")
def test_the_projects_global_settings_do_not_reach_our_tasks() -> None:
    app = _app(
        task_time_limit=3, task_soft_time_limit=2, task_acks_late=True, task_reject_on_worker_lost=True, task_default_rate_limit="1/m",
        task_serializer="pickle", task_track_started=True, task_annotations={"*": {"time_limit": 5, "rate_limit": "2/m"}},
    )
    Conductor(app)
    execute: Any = app.tasks["conductor.execute"]
    assert execute.time_limit == execute.soft_time_limit == 315_360_000
    assert execute.rate_limit == 0
    assert not execute.acks_late
    assert not execute.reject_on_worker_lost
    assert execute.ignore_result
    assert execute.serializer == "json"
    assert not execute.send_events
    assert app.conductor.settings.default_step_timeout == 2  # type: ignore[attr-defined]


@pytest.mark.spec("WF-11")
def test_a_users_beat_entries_win_and_stay() -> None:
    app = _app(beat_schedule={"mine": {"task": "x", "schedule": 1}, "conductor.sweep_stalled": {"task": "y", "schedule": 9}})
    Conductor(app)
    app.finalize()
    assert app.conf.beat_schedule["mine"] == {"task": "x", "schedule": 1}
    assert app.conf.beat_schedule["conductor.sweep_stalled"] == {"task": "y", "schedule": 9}
    assert "conductor.sweep_retries" in app.conf.beat_schedule


def test_an_app_that_is_already_final_is_taken_too() -> None:
    app = _app()
    app.finalize()
    Conductor(app)
    assert set(app.tasks) >= NAMES
    assert "conductor.sweep_retries" in app.conf.beat_schedule


def test_nothing_connects_before_it_is_used_and_one_app_has_one_conductor() -> None:
    app = _app()
    conductor = Conductor(app)
    assert conductor.engine.store.namespace == "shop"
    with pytest.raises(SettingsError, match="already has one"):
        Conductor(app)


@pytest.mark.spec("SET-2")
def test_a_broker_that_is_not_redis_needs_a_state_url_which_the_error_names() -> None:
    app = Celery("shop", broker="amqp://guest@localhost//", set_as_current=False)
    conductor = Conductor(app)
    with pytest.raises(SettingsError, match="conductor_redis_url"):
        _ = conductor.engine


def test_wrong_settings_do_not_break_the_import_but_the_first_use() -> None:
    app = _app(conductor_partitions=0)
    conductor = Conductor(app)
    app.finalize()
    with pytest.raises(SettingsError, match="partitions"):
        _ = conductor.settings


def test_unknown_names_and_ids_are_clear_errors() -> None:
    conductor = Conductor(_app())
    with pytest.raises(UnknownWorkflow, match="no-such"):
        conductor.start("no-such", {})
    for wrong in ("", "x", "01a1ee5e-5cc8-77dc-b334-7be07eeb5aff", 7):
        with pytest.raises(UnknownRun):
            conductor.cancel(wrong)  # type: ignore[arg-type]


@pytest.mark.spec("STK-2")
def test_the_schedule_has_names_and_intervals_from_settings() -> None:
    entries = beat_entries(Settings(stall_sweep_seconds=7, sweeps_queue="sw"))
    assert entries["conductor.sweep_stalled"]["schedule"] == 7
    assert {entries[f"conductor.sweep_{name}"]["schedule"] for name in ("retries", "schedules", "outbox")} == {5}
    assert {entry["options"]["queue"] for entry in entries.values()} == {"sw"}
    from beat_schedule import beat_schedule

    assert set(beat_schedule) == set(entries)


@pytest.mark.spec("STK-1")
def test_a_worker_of_named_queues_also_consumes_the_sweeps() -> None:
    app = _app()
    Conductor(app)
    app.amqp.queues.select(["gpu"])
    consume_sweeps(app, "conductor.sweeps")
    assert set(app.amqp.queues.consume_from) == {"gpu", "conductor.sweeps"}


def test_a_project_that_makes_no_missing_queues_can_still_send_sweeps() -> None:
    app = _app(task_create_missing_queues=False)
    Conductor(app)
    app.finalize()
    assert "conductor.sweeps" in app.amqp.queues
    assert "conductor.sweeps" not in app.amqp.queues.consume_from


@pytest.mark.spec("WF-13")
@pytest.mark.parametrize("pool", ["gevent", "celery.concurrency.eventlet:TaskPool"])
def test_green_pools_are_refused_with_the_reason(pool: str) -> None:
    with pytest.raises(SettingsError, match="use prefork, threads or solo"):
        refuse_green(pool)


@pytest.mark.spec("WF-13")
def test_other_pools_are_taken() -> None:
    from celery.concurrency.prefork import TaskPool

    refuse_green(TaskPool)
    refuse_green("solo")
