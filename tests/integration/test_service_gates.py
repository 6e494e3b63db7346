"""Lanes, limits, queues, holds and schedules over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from conductor.store.limits import read_limits
from tests.integration.front import Front, opened
from tests.support.server import ValkeyServer

pytestmark = pytest.mark.spec("SVC-1")


@pytest.fixture
def front(valkey: ValkeyServer, namespace: str) -> Iterator[Front]:
    with opened(valkey, namespace) as one:
        yield one


def started(front: Front, workflow: str, session: str = "") -> str:
    return str(front.conductor.start(workflow, session=session or None).id)


# Lanes.


@pytest.mark.spec("LANE-1", "LANE-2")
def test_a_lane_shows_who_has_a_place_and_who_is_queued_in_order(front: Front) -> None:
    assert front.told("GET", "/lanes")["lanes"] == [{
        "lane": "desk", "max_active": 1, "max_queued": 2, "queue_timeout_ms": 600_000, "fair": False, "active": [], "queue": [],
        "active_count": 0, "queued_count": 0}]
    first, second, third = started(front, "front_desk", "ada"), started(front, "front_desk", "bob"), started(front, "front_desk", "ada")
    lane = front.told("GET", "/lanes/desk")
    assert (lane["active"], lane["queue"], lane["active_count"], lane["queued_count"]) == ([first], [second, third], 1, 2)
    seen = front.told("GET", "/lanes/desk", who="bob")
    assert (seen["active"], seen["queue"], seen["active_count"], seen["queued_count"]) == ([], [second], 1, 2)
    assert front.told("GET", "/lanes", who="ada")["lanes"][0]["queue"] == [third]
    assert [run["run_id"] for run in front.told("GET", "/runs?status=queued")["runs"]] == [third, second]
    assert [run["run_id"] for run in front.told("GET", "/runs?status=queued", who="bob")["runs"]] == [second]


@pytest.mark.spec("SVC-2")
@pytest.mark.parametrize("name", ["nobody", "desk:active", "desk:queue", "{x}", "d" * 200, "a%0Ab", "%00", "*"])
def test_a_lane_or_limit_that_is_not_there_is_unknown_whatever_its_name(front: Front, name: str) -> None:
    """Also one that would be part of another key's name."""
    for _ in range(3):
        started(front, "front_desk")
    front.refused("GET", f"/lanes/{name}", status=404, code="unknown_lane")
    front.refused("GET", f"/limits/{name}", status=404, code="unknown_limit")
    front.refused("PUT", f"/limits/{name}", {"rate": "5/m"}, status=404, code="unknown_limit")
    front.refused("DELETE", f"/limits/{name}", status=404, code="unknown_limit")


# Limits.


@pytest.mark.spec("LANE-3")
def test_a_limit_is_set_for_all_workers_and_taken_back(front: Front) -> None:
    (limit,) = front.told("GET", "/limits")["limits"]
    assert (limit["limit"], limit["rate"], limit["per_ms"], limit["concurrency"], limit["set_by_hand"]) == ("ai", 1, 3_600_000, None, False)
    limit = front.told("PUT", "/limits/ai", {"rate": "30/m", "concurrency": 4})
    assert (limit["rate"], limit["per_ms"], limit["concurrency"], limit["set_by_hand"]) == (30, 60_000, 4, True)
    limit = front.told("PUT", "/limits/ai", {"concurrency": 2})
    assert (limit["rate"], limit["concurrency"]) == (30, 2)  # what is left out stays
    limit = front.told("PUT", "/limits/ai", {"rate": None})
    assert (limit["rate"], limit["concurrency"]) == (None, 2)  # null takes it away
    assert front.told("GET", "/limits/ai") == limit
    (view,) = read_limits(front.engine.store)
    assert view.terms == ";;2"
    limit = front.told("DELETE", "/limits/ai")
    assert (limit["rate"], limit["concurrency"], limit["set_by_hand"]) == (1, None, False)


@pytest.mark.spec("SVC-2", "BAD-1")
@pytest.mark.parametrize("body", [
    {}, {"rate": "soon"}, {"rate": "0/m"}, {"rate": None}, {"rate": None, "concurrency": None}, {"concurrency": 0}, {"concurrency": -1},
    {"concurrency": "4"}, {"concurrency": 4.5}, {"concurrency": True}, {"concurrency": 10**9}, {"rate": 5}, {"rate": "5/m", "burst": 3},
    [], None,
])
def test_what_would_be_no_limit_is_refused(front: Front, body: Any) -> None:
    front.refused("PUT", "/limits/ai", body, status=422, code="bad_input")
    assert read_limits(front.engine.store) == []


@pytest.mark.spec("SVC-4")
def test_of_a_limit_a_caller_bound_to_sessions_sees_no_keys(front: Front) -> None:
    started(front, "front_asks")
    started(front, "front_asks")
    with front.working():
        pass
    assert set(front.told("GET", "/limits/ai", who="ada")) == set(front.told("GET", "/limits/ai"))
    assert front.told("GET", "/limits/ai", who="ada")["waiting"] == {}


# Queues and holds.


@pytest.mark.spec("RUN-14")
def test_what_is_paused_is_not_claimed_until_it_is_lifted(front: Front) -> None:
    run_id = front.start()
    (queue,) = front.told("GET", "/queues")["queues"]
    assert (queue["queue"], queue["ready"], queue["running"]) == ("celery", 1, 0)
    assert front.told("PUT", "/holds/workflow:cli_orders", {"reason": "price change"}) == {
        "scope": "workflow:cli_orders", "word": "ok", "reason": "price change", "warning": None}
    again = front.told("PUT", "/holds/workflow:cli_orders", {"reason": "another"})
    assert (again["word"], again["reason"]) == ("already", "price change")
    held = front.told("GET", "/holds")["holds"]
    assert held == front.told("GET", "/queues")["holds"]
    assert held["workflow:cli_orders"]["reason"] == "price change"
    front.drain()
    assert front.state(run_id) == "running"
    assert front.told("DELETE", "/holds/workflow:cli_orders")["word"] == "ok"
    assert front.told("DELETE", "/holds/workflow:cli_orders")["word"] == "not_held"
    front.drain()
    assert front.state(run_id) == "completed"


@pytest.mark.spec("RUN-14", "SVC-2")
def test_scopes_are_checked_and_a_name_that_nobody_knows_is_warned_of(front: Front) -> None:
    for scope in ("queue:a/b:c", "capability:lend", "all"):
        assert front.told("PUT", f"/holds/{scope}")["warning"] is None
        assert scope in front.told("GET", "/holds")["holds"]
        front.told("DELETE", f"/holds/{scope}")
    assert "no workflow 'cli_ordres'" in front.told("PUT", "/holds/workflow:cli_ordres")["warning"]
    assert "no capability 'lned'" in front.told("PUT", "/holds/capability:lned")["warning"]
    for scope in ("everything", "workflow:", "workflow:a b", "queue:", "run:x", "workflow:a:b", "all:x"):
        front.refused("PUT", f"/holds/{scope}", {}, status=422, code="bad_input")
        front.refused("DELETE", f"/holds/{scope}", status=422, code="bad_input")
    front.refused("PUT", "/holds/all", {"reason": "a\nb"}, status=422, code="bad_input")
    assert set(front.told("GET", "/holds")["holds"]) == {"workflow:cli_ordres", "capability:lned"}


@pytest.mark.spec("SVC-4")
def test_gates_are_moved_by_an_admin_only(front: Front) -> None:
    for method, path in (("PUT", "/limits/ai"), ("DELETE", "/limits/ai"), ("PUT", "/holds/all"), ("DELETE", "/holds/all"), ("DELETE", "/schedules/x")):
        body = {"rate": "1/m"} if "limits" in path and method == "PUT" else None
        front.refused(method, path, body, status=403, code="forbidden", who="writer")
        front.refused(method, path, body, status=403, code="forbidden", who="ada")
    assert front.told("GET", "/holds", who="reader")["holds"] == {}


# Schedules.


def scheduled(front: Front, name: str, session: str = "") -> None:
    front.conductor.schedule(name, "lend", {"title": "Emma"}, when=timedelta(hours=1), session=session)


@pytest.mark.spec("WF-16", "OP-5")
def test_schedules_are_listed_paused_resumed_and_dropped(front: Front) -> None:
    scheduled(front, "hourly")
    (shown,) = front.told("GET", "/schedules")["schedules"]
    assert shown == front.told("GET", "/schedules/hourly")
    assert (shown["name"], shown["kind"], shown["target"], shown["paused_at"], shown["ticks"]) == ("hourly", "operation", "lend", None, [])
    assert front.told("POST", "/schedules/hourly/pause", {"reason": "holidays"}) == {"schedule": "hourly", "word": "ok"}
    assert front.told("POST", "/schedules/hourly/pause")["word"] == "already"
    paused = front.told("GET", "/schedules/hourly")
    assert (paused["paused_reason"], paused["next_at"]) == ("holidays", None)
    assert front.told("POST", "/schedules/hourly/resume")["word"] == "ok"
    assert front.told("POST", "/schedules/hourly/resume")["word"] == "already"
    assert front.told("GET", "/schedules/hourly")["next_at"] > 0
    assert front.told("DELETE", "/schedules/hourly")["word"] == "ok"
    assert "the store has none" in front.refused("DELETE", "/schedules/hourly", status=404, code="unknown_schedule")["message"]


@pytest.mark.spec("SVC-4")
@pytest.mark.spec("SVC-1", "OP-5")
def test_a_schedule_is_made_changed_and_ticks(front: Front) -> None:
    asked = {"capability": "lend", "params": {"title": "Emma"}, "when": 60, "session": "ada"}
    assert front.told("PUT", "/schedules/nightly", asked, status=201) == {"schedule": "nightly", "word": "created"}
    assert front.told("PUT", "/schedules/nightly", asked)["word"] == "same"
    assert front.told("PUT", "/schedules/nightly", asked | {"when": "30 6 * * 1-5", "tz": "Europe/Berlin"})["word"] == "changed"
    shown = front.told("GET", "/schedules/nightly", who="ada")
    assert (shown["target"], shown["kind"], shown["source"]) == ("lend", "operation", "made")
    assert "Europe/Berlin" in shown["when"]
    assert front.told("DELETE", "/schedules/nightly")["word"] == "ok"


@pytest.mark.spec("SVC-2", "BAD-1")
@pytest.mark.parametrize(("change", "status", "code"), [
    ({"capability": "nobody"}, 404, "unknown_capability"), ({"params": {"title": 7}}, 422, "bad_input"), ({"when": "often"}, 422, "bad_input"),
    ({"when": 0}, 422, "bad_input"), ({"when": True}, 422, "bad_input"), ({"when": "1 2 3 4 99"}, 422, "bad_input"), ({"tz": "Mars/X", "when": "* * * * *"}, 422, "declaration_error"),
    ({"overlap": "pile"}, 422, "bad_input"), ({"session": ".."}, 422, "bad_input"), ({"strange": 1}, 422, "bad_input"),
])
def test_what_would_be_no_schedule_is_refused(front: Front, change: dict[str, Any], status: int, code: str) -> None:
    front.refused("PUT", "/schedules/odd", {"capability": "lend", "params": {"title": "x"}, "when": 60} | change, status=status, code=code)
    assert front.told("GET", "/schedules")["schedules"] == []


@pytest.mark.spec("SVC-1", "SVC-4")
def test_what_has_ended_is_erased_for_good_after_a_dry_run(front: Front) -> None:
    ended = [str(front.conductor.start("cli_orders", {"number": 1}, session="ada", tags=["eu"]).id) for _ in range(2)]
    front.drain()
    live = str(front.conductor.start("cli_naps", session="ada").id)
    front.conductor.grant("ada", "erase", "always")
    assert front.told("POST", "/purge", {"session": "ada"}) == {
        "found": 3, "purged": 0, "kept": [], "examples": [live, *ended[::-1]], "more": False, "dry_run": True}
    told = front.told("POST", "/purge", {"run_id": ended[0], "dry_run": False, "reason": "asked by mail, token=x"})
    assert (told["purged"], told["kept"]) == (1, [])
    front.refused("GET", f"/runs/{ended[0]}", status=404, code="unknown_run")
    assert front.told("POST", "/purge", {"run_id": ended[0], "dry_run": False})["kept"] == [ended[0]]
    told = front.told("POST", "/purge", {"session": "ada", "dry_run": False})
    assert (told["found"], told["purged"], told["kept"]) == (2, 1, [live])
    assert front.told("GET", "/sessions/ada/grants")["grants"] == []
    for wrong in ({}, {"tag": "eu", "session": "ada"}, {"run_id": "x"}, {"tag": ""}):
        assert front.say("POST", "/purge", wrong).status_code in (404, 422), wrong
    deeds = [deed for deed in front.told("GET", "/audit")["deeds"] if deed["action"] == "POST /v1/purge"]
    assert [deed["reason"] for deed in deeds] == ["", "", "asked by mail, token=***"]
    front.refused("POST", "/purge", {"session": "ada"}, status=403, code="forbidden", who="writer")


def test_a_caller_bound_to_sessions_knows_the_schedules_of_them_alone(front: Front) -> None:
    scheduled(front, "of_ada", "ada")
    scheduled(front, "of_nobody")
    assert [one["name"] for one in front.told("GET", "/schedules", who="ada")["schedules"]] == ["of_ada"]
    assert front.told("GET", "/schedules", who="bob")["schedules"] == []
    for name in ("of_ada", "of_nobody", "of_none"):
        for method, tail in (("GET", ""), ("POST", "/pause"), ("POST", "/resume")):
            error = front.refused(method, f"/schedules/{name}{tail}", status=404, code="unknown_schedule", who="bob")
            assert error["message"] == f"unknown schedule '{name}': the store has none"
    assert front.told("POST", "/schedules/of_ada/pause", who="ada")["word"] == "ok"
    assert front.told("GET", "/schedules/of_nobody")["paused_at"] is None
