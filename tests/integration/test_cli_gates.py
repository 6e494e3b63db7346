"""The command line on lanes and limits: who has a place, who waits for what, and setting a limit while it is in use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conductor import Lane, Limit, Workflow
from conductor.cli import exits
from conductor.declare import registry
from conductor.store.limits import read_limits
from tests.integration.shop import Shop
from tests.support.listening import DOORS, by_door
from tests.support.server import ValkeyServer

pytestmark = pytest.mark.spec("CLI-3")


class Gated(Shop):
    def declare(self) -> None:
        desk: Workflow[Any] = Workflow("cli_desk", lane=Lane("desk", 1, 2))

        @desk.step
        def serve() -> int:
            return 1

        asks: Workflow[Any] = Workflow("cli_asks")

        @asks.step(limit=Limit("ai", "1/h"))
        def ask() -> int:
            return 1


@pytest.fixture(params=DOORS)
def gated(request: pytest.FixtureRequest, valkey: ValkeyServer, namespace: str, clean_keys: None) -> Iterator[Gated]:
    with registry.isolated(), by_door(request.param, Gated(valkey.url(), namespace)) as one:
        yield one


@pytest.mark.spec("LANE-1", "CLI-5")
def test_lanes_and_positions_are_shown(gated: Gated) -> None:
    assert gated.json("lanes")["lanes"] == [{
        "lane": "desk", "max_active": 1, "max_queued": 2, "queue_timeout_ms": 600_000, "fair": False, "active": [], "queue": [],
        "active_count": 0, "queued_count": 0}]
    first, *queued = [str(gated.json("start", "cli_desk")["run_id"]) for _ in range(3)]
    (lane,) = gated.json("lanes", "desk")["lanes"]
    assert (lane["active"], lane["queue"]) == ([first], queued)
    assert "1 of 1" in gated.ok("lanes")
    assert "position 2 of 2" in gated.ok("show", queued[1])
    assert gated.json("show", queued[1])["lane_position"] == 2
    assert "1 run before it" in gated.ok("why", queued[1])
    assert {run["run_id"] for run in gated.json("runs", "--lane", "desk")["runs"]} == {first, *queued}
    assert gated.json("runs", "--lane", "other")["runs"] == []
    refused = gated.call("start", "cli_desk")
    assert refused.exit_code == exits.FAILED
    assert "lane desk is full" in refused.stderr
    assert gated.call("pause", queued[0]).exit_code == exits.FAILED
    gated.ok("cancel", first)
    assert gated.state(queued[0]) == "running"
    assert gated.call("lanes", "nobody").exit_code == exits.NOT_FOUND


@pytest.mark.spec("LANE-3", "CLI-5")
def test_limits_are_shown_and_set(gated: Gated) -> None:
    (limit,) = gated.json("limits")["limits"]
    assert (limit["limit"], limit["rate"], limit["per_ms"], limit["concurrency"]) == ("ai", 1, 3_600_000, None)
    assert gated.call("limits", "ai", "--rate", "soon").exit_code == exits.USAGE
    assert gated.call("limits", "ai", "--rate", "none").exit_code == exits.USAGE
    assert gated.call("limits", "nobody", "--rate", "1/m").exit_code == exits.NOT_FOUND
    gated.ok("limits", "ai", "--rate", "30/m", "--concurrency", "4")
    (limit,) = gated.json("limits", "ai")["limits"]
    assert (limit["rate"], limit["per_ms"], limit["concurrency"], limit["set_by_hand"]) == (30, 60_000, 4, True)
    gated.ok("limits", "ai", "--as-declared")
    (view,) = read_limits(gated.engine.store)
    assert (view.terms, view.by_hand) == ("1;3600000;", False)
