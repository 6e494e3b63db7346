"""Races around one attempt: a lease that is given back half way, a listener that is slower than a timeout."""

from __future__ import annotations

import time

import pytest

from conductor.runs.execute import StepEvent
from conductor.store import Store
from tests.integration.shift import Shift, step
from tests.support.waiting import eventually


@pytest.mark.spec("WF-3", "RUN-13")
def test_a_condition_is_not_asked_again_for_a_step_that_was_given_back_half_way(store: Store) -> None:
    answers, ran = [False, True], list[str]()

    def wait_for_the_end() -> None:
        ran.append("body")
        eventually(lambda: shift.moves(run_id, "b"))

    flow = step("given_back", wait_for_the_end, when=lambda: answers.pop())
    shift = Shift(store, flow)
    run_id = shift.start(flow)
    shift.worker(stopping=lambda: bool(ran), overdue=lambda: bool(ran)).drain(0, "q")
    shift.worker().drain(0, "q")
    assert (answers, ran) == ([False], ["body", "body"])


@pytest.mark.spec("RUN-12")
def test_a_slow_listener_does_not_turn_a_timeout_against_the_drain(store: Store) -> None:
    def listen(event: StepEvent) -> None:
        for _ in range(30 if event.kind == "started" else 0):
            time.sleep(0.01)

    flow = step("listened_to", lambda: None, timeout=0.05)
    shift = Shift(store, flow)
    run_id = shift.start(flow)
    shift.worker(on_step=listen, may_stop_process=False).drain(0, "q")
    assert shift.moves(run_id, "ct") == ["0"]
