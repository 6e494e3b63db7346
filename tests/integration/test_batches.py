"""Short steps are claimed in batches, and a batch may keep nobody waiting: neither for its outcomes, nor for its members, nor for its worker."""

from __future__ import annotations

import time

import pytest

from conductor.store import Store
from tests.integration.playing import Player
from tests.integration.shift import Shift, fan_out, step

pytestmark = pytest.mark.spec("RUN-4")


def test_a_slow_member_holds_up_neither_outcomes_nor_members(store: Store) -> None:
    """What is finished is committed within 50 ms although its companion runs; what was not begun within 250 ms goes back to others."""
    seen: dict[str, list[str]] = {}

    def work(number: int) -> None:
        if number == 1:
            time.sleep(0.2)
            seen["soon"] = [entry for entry in store.log_of(run_id) if entry.startswith("c;") and entry.endswith("0-0")]
            time.sleep(0.4)
            seen["later"] = [entry.rsplit(";", 1)[1] for entry in store.log_of(run_id) if entry.startswith("b;")]
            seen["others"] = [str(held.item) for held in Player(store, tag="w2").claim(8)]

    flow = fan_out("batch", 10, work, max_parallel=10)
    shift = Shift(store, flow)
    drainer, run_id = shift.worker(), shift.start(flow)
    drainer._average = 0.001  # it has found its steps to be short
    store.register_code("c0de", drainer.signatures)
    drainer.drain(0, "q")
    claimed = [entry for entry in store.log_of(run_id) if entry.startswith("k;")]
    assert claimed[1].split(";")[4] == "0-9", "ten at once, and no more"
    assert len(seen["soon"]) == 1
    assert seen["later"] == ["not_begun"] * 8
    assert seen["others"] == [str(number) for number in range(2, 10)]


def test_a_drain_yields_after_a_bounded_number_of_steps(store: Store) -> None:
    ran: list[int] = []
    flow = step("many", lambda: ran.append(1))
    shift = Shift(store, flow, drain_steps=5)
    poked: list[str] = []
    shift.engine.poke = lambda pokes: poked.extend(poke.queue for poke in pokes)
    runs = [shift.start(flow) for _ in range(60)]
    drainer = shift.worker()
    drainer.drain(0, "q")
    assert 5 <= len(ran) <= 15
    assert poked, "what remains was poked, so that this worker or another one comes back"
    while len(ran) < len(runs):
        drainer.drain(0, "q")
    assert {shift.state(run_id) for run_id in runs} == {"completed"}


def test_a_drain_yields_after_a_bounded_time(store: Store) -> None:
    ran: list[float] = []
    flow = step("slow", lambda: time.sleep(0.05) or ran.append(1))  # type: ignore[func-returns-value]
    shift = Shift(store, flow)
    object.__setattr__(shift.engine, "settings", shift.engine.settings.model_copy(update={"drain_seconds": 0.25}))
    for _ in range(20):
        shift.start(flow)
    shift.worker().drain(0, "q")
    assert 3 <= len(ran) <= 10
