"""Sessions and schedules on the command line, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from conductor import Workflow
from conductor.cli import exits
from conductor.declare import every
from conductor.ids import home_of_name
from conductor.sweeps.schedules import sweep_schedules
from tests.integration.office import Office, opened
from tests.integration.ticking import SPAN, make_due
from tests.support.listening import DOORS, by_door
from tests.support.server import ValkeyServer


@pytest.fixture(params=DOORS)
def office(request: pytest.FixtureRequest, valkey: ValkeyServer, namespace: str) -> Iterator[Office]:
    with opened(valkey, namespace) as one, by_door(request.param, one):
        yield one


# Sessions.


@pytest.mark.spec("SES-1", "CLI-3")
def test_grants_are_given_listed_and_taken_back(office: Office) -> None:
    office.ok("grant", "ada", "erase")
    office.ok("grant", "bob", "erase", "--for", "2h")
    assert office.json("grant", "eve", "erase", "--always")["needed"] is True
    assert "asks for no consent" in office.call("grant", "ada", "slow").stderr
    assert [(one["capability"], one["mode"]) for one in office.json("grant", "ada")["grants"]] == [("erase", "once"), ("slow", "once")]
    assert office.json("grant", "bob")["grants"][0]["until"] > 0
    assert "always" in office.ok("grant", "eve")
    with office.working():
        assert json.loads(office.ok("call", "erase", "--session", "ada")) == "erased"
        office.fails(exits.FAILED, "call", "erase", "--session", "ada")
        office.ok("revoke", "bob", "erase")
        office.fails(exits.FAILED, "call", "erase", "--session", "bob")
        office.ok("call", "erase", "--session", "eve")
        assert office.json("revoke", "eve")["revoked"] is True
        office.fails(exits.FAILED, "call", "erase", "--session", "eve")


@pytest.mark.spec("SES-1", "CLI-3")
def test_a_run_may_hold_a_blanket(office: Office) -> None:
    run_id = office.start("cli_naps")
    assert office.json("grant", "--run", run_id[:18]) == {"run_id": run_id, "consent": True}
    assert office.json("revoke", "--run", run_id)["consent"] is False
    office.ok("cancel", run_id)
    assert "already ended" in office.fails(exits.FAILED, "grant", "--run", run_id)


@pytest.mark.spec("SES-3", "CLI-3")
def test_the_inbox_is_read_followed_and_acknowledged(office: Office) -> None:
    assert "no messages" in office.call("inbox", "ada").stderr
    assert office.call("inbox", "ada", "--follow", "--timeout", "0.05").exit_code == exits.TIMED_OUT
    ids = [office.ok("submit", "invoice", json.dumps({"number": number}), "--session", "ada").strip() for number in (1, 2)]
    office.drain()
    office.tell()
    told = office.json("inbox", "ada")["messages"]
    assert sorted(message["operation_id"] for message in told) == sorted(ids)
    assert "invoice 2" in office.ok("inbox", "ada")
    assert "there may be more" in office.call("inbox", "ada", "--limit", "1").stderr
    first, second = told[0]["id"], told[1]["id"]
    assert office.json("inbox", "ada", "--ack", first[:36])["acknowledged"] == [first]
    assert office.json("inbox", "ada", "--ack", first)["acknowledged"] == [first], "a second time is harmless"
    lines = office.ok("inbox", "ada", "--follow", "--ack-all", "--timeout", "0.2", "--json").splitlines()
    assert [json.loads(line)["id"] for line in lines] == [second]
    assert office.json("inbox", "ada")["messages"] == []


# Schedules.


@pytest.mark.spec("WF-16", "OP-5", "CLI-3")
def test_schedules_are_listed_with_their_ticks(office: Office) -> None:
    assert "no schedules" in office.call("schedules").stderr
    office.conductor.schedule("report", "invoice", {"number": 1}, when=SPAN / 1000, overlap="allow")
    make_due(office.engine.store, ticks=3)
    sweep_schedules(office.engine)
    told = office.json("schedules")["schedules"][0]
    assert (told["name"], told["kind"], told["target"]) == ("report", "operation", "invoice")
    assert [tick["word"] for tick in told["ticks"]] == ["fired", "missed", "missed"]
    assert told["next_at"] > told["last_at"]
    op = told["last_id"]
    assert office.json("ops", "show", op[:23])["queue_reason"] == "scheduled_job"
    assert "every" in office.ok("schedules")
    assert "missed" in office.ok("schedules", "list", "report")


@pytest.mark.spec("WF-16", "CLI-3")
def test_schedules_are_paused_resumed_and_dropped(office: Office) -> None:
    office.conductor.schedule("report", "invoice", {"number": 1}, when=SPAN / 1000)
    assert office.json("schedules", "pause", "report", "--reason", "holidays")["word"] == "OK"
    assert "was paused before" in office.ok("schedules", "pause", "report")
    assert "(holidays)" in office.ok("schedules")
    assert office.json("schedules", "list", "report")["paused_reason"] == "holidays"
    make_due(office.engine.store)
    office.engine.store.client().zrem(office.engine.store.keys.of(0, "jobs"), "report")
    assert "ticks again" in office.ok("schedules", "resume", "report")
    assert "was not paused" in office.ok("schedules", "resume", "report")
    assert "is dropped" in office.ok("schedules", "drop", "report")
    assert office.json("schedules")["schedules"] == []


@pytest.mark.spec("WF-16")
def test_a_schedule_that_code_declares_is_not_dropped(office: Office) -> None:
    nightly = Workflow("cli_nightly")

    @nightly.step
    def tidy() -> None: ...

    nightly.every(SPAN / 1000)
    sweep_schedules(office.engine)
    assert "a worker would write it again" in office.fails(exits.FAILED, "schedules", "drop", "cli_nightly")
    office.ok("schedules", "pause", "cli_nightly")


@pytest.mark.spec("WF-16", "CLI-3")
def test_a_schedule_that_no_worker_declares_is_shown_as_orphaned_and_dropped(office: Office) -> None:
    with every.isolated():
        nightly = Workflow("cli_nightly")

        @nightly.step
        def tidy() -> None: ...

        nightly.every(SPAN / 1000)
        sweep_schedules(office.engine)
    store = office.engine.store
    assert office.json("schedules", "list", "cli_nightly")["orphaned"] is False
    home = home_of_name("cli_nightly", store.partitions)
    store.client().hset(store.keys.of(home, "job:cli_nightly"), mapping={"sn": 1, "c": 1})
    sweep_schedules(office.engine)
    assert "orphaned" in office.ok("schedules")
    assert "orphaned" in office.ok("schedules", "list", "cli_nightly")
    assert office.json("schedules")["schedules"][0]["orphaned"] is True
    assert "is dropped" in office.ok("schedules", "drop", "cli_nightly")
