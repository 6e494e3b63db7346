"""The command line on runs that are undone and on families of runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conductor import Ctx, Workflow
from conductor.cli import exits
from conductor.declare import registry
from tests.integration.shop import Shop
from tests.support.listening import DOORS, by_door
from tests.support.server import ValkeyServer


class Agency(Shop):
    """A trip: seats are reserved, then a workflow of its own waits for the visa."""

    def declare(self) -> None:
        visa = Workflow("visa")
        queue = visa.sleep(3600, name="queue")
        visa.add(lambda: "stamp", name="stamp", after=[queue])
        trip = Workflow("trip")

        @trip.step
        def reserve() -> int:
            return 12

        @reserve.undo
        def release(reserve: int | None, ctx: Ctx) -> None: ...

        trip.call(visa, name="get_visa", after=[reserve])


@pytest.fixture(params=DOORS)
def agency(request: pytest.FixtureRequest, valkey: ValkeyServer, namespace: str, clean_keys: None) -> Iterator[Agency]:
    with registry.isolated(), by_door(request.param, Agency(valkey.url(), namespace)) as one:
        yield one


@pytest.mark.spec("CAN-5", "CLI-5", "WF-7")
def test_a_trip_is_shown_called_off_and_undone(agency: Agency) -> None:
    run_id = str(agency.json("start", "trip")["run_id"])
    agency.drain()
    step = agency.json("show", run_id)["steps"][1]
    child = step["child"]
    assert (step["state"], step["calls"]) == ("waiting", "visa")
    assert f"waits for run {child} of visa, which get_visa has called" in agency.ok("why", run_id)
    assert agency.json("why", run_id)["command"] == f"conductor why {child}"
    assert f"called by {run_id}" in agency.ok("show", child)
    told = agency.json("show", child)
    assert (told["parent_id"], told["root_id"]) == (run_id, run_id)

    assert "is being undone; it is cancelled when that is over" in agency.ok("cancel", run_id, "--compensate", "--reason", "rain")
    again = agency.json("cancel", run_id)
    assert (again["word"], again["state"], again["reason"]) == ("COMPENSATING", "compensating", "rain")
    assert "nothing was changed" in agency.ok("cancel", run_id, "--compensate")
    assert "is being undone (rain) and ends cancelled after that: the plan is made" in agency.ok("why", run_id)
    assert agency.state(run_id) == "compensating"
    assert [run["run_id"] for run in agency.json("runs", "--state", "compensating")["runs"]] == [run_id]
    paused = agency.call("pause", run_id)
    assert paused.exit_code == exits.FAILED
    assert "cannot be paused" in paused.stderr

    agency.drain()
    assert agency.state(run_id) == "cancelled"
    shown = agency.ok("show", run_id)
    assert "reserve:undo" in shown
    assert "was cancelled (rain)" in agency.ok("why", run_id)
    assert "what it had done was undone" in agency.ok("why", run_id)
    told_last = agency.ok("events", run_id).splitlines()[-4:]
    assert any("undoing" in line for line in told_last), told_last
    agency.engine.store.fire_due(int(run_id[-2:], 16))
    assert agency.state(child) == "cancelled"
    assert "the run it belonged to ended before it" in agency.ok("why", child)
    assert agency.call("fsck").exit_code == 0


@pytest.mark.spec("CLI-5", "RUN-11")
def test_a_graph_shows_undos_and_calls(agency: Agency) -> None:
    drawn = agency.ok("graph", "trip", "--mermaid")
    assert 'n1[["get_visa"]]' in drawn
    assert "n3 -.-o n0" in drawn
    assert "undo:plan" not in drawn
