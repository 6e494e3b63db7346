"""Steps and runs as task events."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from conductor.runs.execute import StepEvent
from conductor.telemetry import signals
from conductor.telemetry.flower import RunLook, attempt_uuid, run_events, step_events
from conductor.telemetry.lines import log_step

RUN = "01a1ee5e-5cc8-77dc-b334-7be07eeb5a04"


def _event(kind: str, attempt: int = 1, error: str = "", item: int | None = None) -> StepEvent:
    return StepEvent(kind, RUN, "order", "charge", item, attempt, 7, 1500, error)


@pytest.mark.spec("STK-3")
def test_a_started_step_is_a_row_under_its_own_name_below_its_run() -> None:
    received, started = step_events(_event("started", attempt=2, item=4))
    assert received[0] == "task-received"
    assert received[1]["name"] == "order.charge"
    assert received[1]["root_id"] == received[1]["parent_id"] == RUN
    assert received[1]["retries"] == 1
    assert received[1]["kwargs"] == "order · charge[4] · attempt 2"
    assert started == ("task-started", {"uuid": received[1]["uuid"]})


@pytest.mark.spec("STK-3")
@pytest.mark.parametrize(("kind", "event"), [("succeeded", "task-succeeded"), ("failed", "task-failed"), ("retried", "task-retried")])
def test_every_end_of_an_attempt_has_its_event(kind: str, event: str) -> None:
    ((name, fields),) = step_events(_event(kind, error="redis://u:secret@host failed\nmore"))
    assert name == event
    assert fields["uuid"] == attempt_uuid(RUN, "charge")
    assert "secret" not in json.dumps(fields)
    assert "more" not in json.dumps(fields)


@pytest.mark.spec("STK-3")
def test_an_operation_is_a_row_under_its_capabilitys_name() -> None:
    received, _ = step_events(replace(_event("started"), workflow="op:charge"))
    assert (received[1]["name"], received[1]["kwargs"]) == ("charge", "charge · attempt 1")


@pytest.mark.spec("STK-3")
def test_the_row_of_a_run_that_waited_long_is_not_taken_for_a_wrong_clock() -> None:
    """Celery, and with it Flower, warns of drift when an event is older than 16 seconds."""
    for began, told in ((995.0, 995.0), (100.0, 990.0), (0.0, None)):
        events = list(run_events(RUN, "order", RunLook("running", began=began), now=1000.0))
        assert [fields.get("timestamp") for _, fields in events] == [told, told]


@pytest.mark.spec("ERR-2")
def test_a_failed_step_is_a_line_in_the_workers_log(caplog: pytest.LogCaptureFixture) -> None:
    for kind in ("started", "succeeded", "retried", "failed"):
        log_step(_event(kind, attempt=2, item=4, error="ValueError: redis://u:secret@host is away\nmore"))
    first, last = ((record.levelname, record.getMessage()) for record in caplog.records)
    assert first[0] == "WARNING"
    assert first[1].startswith(f"order.charge[4] of run {RUN} will be tried again after attempt 2: ValueError: redis://")
    assert (last[0], "failed after attempt 2" in last[1], "secret" in last[1], "more" in last[1]) == ("ERROR", True, False, False)


def test_attempts_and_items_have_rows_of_their_own() -> None:
    rows = {attempt_uuid(RUN, step, item, attempt) for step in ("a", "b") for item in (None, 0, 1) for attempt in (1, 2)}
    assert len(rows) == 12


@pytest.mark.spec("STK-3")
@pytest.mark.parametrize(
    ("state", "event"),
    [
        ("completed", "task-succeeded"), ("failed", "task-failed"), ("cancelled", "task-revoked"), ("waiting_signal", "task-waiting"),
        ("paused", "task-paused"),
    ],
)
def test_a_run_is_a_row_of_its_own(state: str, event: str) -> None:
    (told,) = run_events(RUN, "order", RunLook(state, "no_money", 2.5))
    assert told[0] == event
    assert told[1]["uuid"] == RUN


@pytest.mark.spec("WF-17")
def test_signals_reach_their_receivers_by_workflow() -> None:
    heard: list[str] = []

    def hear(sender: str, run_id: str, **facts: object) -> None:
        heard.append(f"{sender}:{run_id}:{facts['reason']}")

    signals.run_failed.connect(hear, sender="order")
    try:
        signals.announce("run_failed", "order", run_id=RUN, reason="x")
        signals.announce("run_failed", "other", run_id=RUN, reason="x")
        signals.announce("no_such_signal", "order")
    finally:
        signals.run_failed.disconnect(hear, sender="order")
    assert heard == [f"order:{RUN}:x"]
