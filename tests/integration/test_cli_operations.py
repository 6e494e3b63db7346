"""Operations on the command line, against a real server: what it prints, what it answers in JSON, and its exit codes."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Iterator

import pytest

from conductor.cli import exits, group
from conductor.cli.calling import QUEUED
from conductor.declare import every, needs, registry
from conductor.declare.effects import Verdict
from conductor.operations import offering
from conductor.sweeps.retries import sweep_retries
from tests.integration.office import Office, opened
from tests.support.listening import DOORS, by_door
from tests.support.server import ValkeyServer, free_port

COMMANDS = ["call", "submit", "capabilities", "resolve", "inbox", "grant", "revoke"]
VERBS = {"ops": ["list", "show", "why", "retry", "cancel", "status"], "schedules": ["list", "pause", "resume", "drop"]}


@pytest.fixture(params=DOORS)
def office(request: pytest.FixtureRequest, valkey: ValkeyServer, namespace: str) -> Iterator[Office]:
    with opened(valkey, namespace) as one, by_door(request.param, one):
        yield one


@pytest.mark.spec("CLI-3")
def test_every_command_and_every_verb_has_json_and_help(office: Office) -> None:
    listed = group.list_commands(group.make_context("conductor", ["runs"], resilient_parsing=True))
    assert {*COMMANDS, *VERBS} <= set(listed)
    lines = [[name] for name in (*COMMANDS, *VERBS)] + [[noun, verb] for noun, verbs in VERBS.items() for verb in verbs]
    for line in lines:
        text = office.ok(*line, "--help")
        assert "--json" in text, line
        assert "--traceback" in text, line
    assert "7 queued for a retry" in " ".join(office.ok("call", "--help").split())


# call and submit.


@pytest.mark.spec("CLI-3", "OP-4")
def test_call_runs_on_a_worker_and_prints_the_result(office: Office) -> None:
    with office.working():
        assert json.loads(office.ok("call", "invoice", '{"number": 7}')) == "invoice 7"
        told = office.json("call", "invoice", '{"number": 7}', "--key", "k1", "--session", "ada")
        assert (told["status"], told["result"]) == ("ok", "invoice 7")
        assert office.json("call", "invoice", '{"number": 7}', "--key", "k1", "--session", "ada")["operation_id"] == told["operation_id"]
    assert office.json("ops", "show", told["operation_id"], "--values")["params"] == {"number": 7, "note": ""}
    assert office.json("ops", "show", told["operation_id"])["originating_session_id"] == "ada"


@pytest.mark.spec("CLI-3", "OP-4", "OP-6")
def test_each_answer_of_call_has_its_exit_code(office: Office) -> None:
    assert "unknown, not failed" in office.fails(exits.TIMED_OUT, "call", "erase", "--timeout", "0.05")
    office.away = True
    with office.working():
        assert "is not success" in office.fails(QUEUED, "call", "invoice", '{"number": 1}')
        told = office.call("call", "invoice", '{"number": 1}', "--json")
        assert told.exit_code == QUEUED
        assert json.loads(told.stdout)["queued_for_retry"] is True
        said = office.fails(exits.FAILED, "call", "erase", "--session", "ada")
    assert "session ada has not granted it" in said
    assert said.splitlines()[-1].startswith("→ conductor grant ada erase && conductor ops retry ")


@pytest.mark.spec("CLI-3")
def test_a_long_call_says_where_it_stands(office: Office) -> None:
    threading.Timer(2.5, office.go.set).start()
    with office.working():
        result = office.call("call", "slow", "--timeout", "20s")
    assert (result.exit_code, json.loads(result.stdout)) == (exits.OK, "done")
    assert "is accepted; waiting for its end" in result.stderr
    assert "it is running on w1: 3 of 9 pages" in result.stderr


@pytest.mark.spec("CLI-3", "ERR-2", "BAD-1")
def test_what_cannot_be_is_told_in_one_line(office: Office) -> None:
    run_id = office.start()
    cases: dict[tuple[str, ...], tuple[int, str]] = {
        ("call", "invioce"): (exits.NOT_FOUND, "did you mean 'invoice'"),
        ("call", "invoice", '{"number": "7"}'): (exits.FAILED, "number"),
        ("submit", "invoice", "{number"): (exits.USAGE, "not JSON"),
        ("ops", "show", "ffffffff-ffff"): (exits.NOT_FOUND, "unknown operation"),
        ("ops", "why", "zz"): (exits.USAGE, "at least 4"),
        ("ops", "show", run_id): (exits.USAGE, f"name a step of it: {run_id[:18]}:STEP"),
        ("ops", "show", f"{run_id}:nothing"): (exits.NOT_FOUND, "unknown operation"),
        ("ops", "cancel", f"{run_id}:price"): (exits.FAILED, "cancel the run"),
        ("ops", "retry", "last"): (exits.NOT_FOUND, "unknown operation"),
        ("ops", "list", "--state", "odd"): (exits.USAGE, "odd"),
        ("ops", "nonsense"): (exits.USAGE, "nonsense"),
        ("resolve", run_id, "charge"): (exits.USAGE, "--landed"),
        ("resolve", run_id, "charge", "--absent"): (exits.FAILED, "not in doubt"),
        ("resolve", run_id, "nothing", "--absent"): (exits.NOT_FOUND, "unknown operation"),
        ("grant", "ada"): (exits.OK, "has granted nothing"),
        ("grant", "ada", "erasse"): (exits.NOT_FOUND, "did you mean 'erase'"),
        ("grant", "ada", "erase", "--once", "--always"): (exits.USAGE, "one of"),
        ("grant", "--run", run_id, "--always"): (exits.USAGE, "stands alone"),
        ("revoke",): (exits.USAGE, "SESSION"),
        ("inbox", "ada", "--ack", "nothing"): (exits.NOT_FOUND, "never had a message"),
        ("schedules", "pause", "nothing"): (exits.NOT_FOUND, "unknown schedule"),
    }
    for arguments, (code, words) in cases.items():
        assert words in office.fails(code, *arguments), arguments


@pytest.mark.spec("CLI-3")
def test_a_store_that_is_away_is_exit_code_four(namespace: str) -> None:
    with registry.isolated(), needs.isolated(), every.isolated():
        office = Office(f"redis://:secret@127.0.0.1:{free_port()}/0", namespace)
        for line in ("call erase", "submit erase", "ops", "ops status", "ops show last", "inbox ada", "grant ada", "schedules", "revoke ada"):
            said = office.fails(exits.UNREACHABLE, *line.split())
            assert "secret" not in said


# ops.


@pytest.mark.spec("OP-11", "CLI-3")
def test_operations_are_listed_filtered_and_counted(office: Office) -> None:
    office.away = True
    office.go.set()
    first = office.ok("submit", "slow").strip()
    with office.working():
        second = json.loads(office.call("call", "invoice", '{"number": 1}', "--session", "ada", "--json").stdout)["operation_id"]
    third = office.ok("submit", "erase", "--session", "bob").strip()

    def listed(*options: str) -> list[str]:
        return [one["operation_id"] for one in office.json("ops", "list", *options)["operations"]]

    assert listed() == [third, second, first]
    assert office.json("ops") == office.json("ops", "list")
    assert listed("--limit", "1") == [third]
    assert listed("--state", "queued_retry") == listed("--error-kind", "transient") == listed("--session", "ada") == [second]
    assert listed("--state", "queued_deferred_submit") == listed("--capability", "erase") == [third]
    assert listed("--older-than", "1h") == []
    told = office.json("ops", "list", "--state", "queued_retry")["operations"][0]
    assert told["retry_at"] > 0
    assert told["max_retries"] == 1
    text = office.ok("ops")
    assert second[:18] in text
    assert "the bridge is down" in text
    assert office.json("ops", "status")["queued"] == {"retry": 1, "deferred_submit": 1, "scheduled_job": 0, "retry_steps": 0}
    assert "queued_deferred_submit" in office.ok("ops", "status")


@pytest.mark.spec("OP-10", "OP-11")
def test_a_step_is_its_own_operation(office: Office) -> None:
    run_id = office.start()
    office.drain()
    told = office.json("ops", "show", f"{run_id[:18]}:price", "--values")
    assert (told["operation_id"], told["state"], told["result"]) == (f"{run_id}:price", "completed", 6)
    assert office.json("ops", "show", "last:charge")["step"] == "charge"


@pytest.mark.spec("OP-10", "OP-11")
def test_a_step_that_waits_for_a_retry_is_listed_explained_and_hastened(office: Office) -> None:
    office.away = True
    run_id = office.json("start", "cli_books", '{"number": 4}')["run_id"]
    office.drain()
    told = office.json("ops", "list", "--state", "queued_retry")["operations"]
    assert [(one["operation_id"], one["run_id"], one["attempt"]) for one in told] == [(f"{run_id}:close", run_id, 1)]
    assert office.json("ops", "status")["queued"]["retry_steps"] == 1
    assert "waits for retry 1/5 in" in office.ok("ops", "why", f"{run_id}:close")
    office.away = False
    office.ok("ops", "retry", f"{run_id[:18]}:close")
    sweep_retries(office.engine)
    office.drain()
    assert office.state(run_id) == "completed"


@pytest.mark.spec("CLI-3")
def test_short_prefixes_name_operations_and_ambiguous_ones_are_refused(office: Office) -> None:
    first = office.ok("submit", "erase").strip()
    assert office.json("ops", "show", first[:13])["operation_id"] == office.json("ops", "show", "last")["operation_id"] == first
    second = office.ok("submit", "erase").strip()
    common = next(first[:size] for size in range(13, 3, -1) if first[:size] == second[:size])
    assert "several operation ids" in office.fails(exits.USAGE, "ops", "show", common)


@pytest.mark.spec("CLI-5", "OP-6", "OP-9", "SES-3")
def test_a_failing_operation_is_explained_retried_and_told(office: Office) -> None:
    office.away = True
    with office.working():
        op = json.loads(office.call("call", "invoice", '{"number": 1}', "--session", "ada", "--json").stdout)["operation_id"]
    assert "waits for retry 1/1 in" in office.ok("ops", "why", op)
    office.due()
    said = office.ok("ops", "why", op).splitlines()
    assert "gave up after 2 attempts, the last one failed with TransientError: the bridge is down" in said[0]
    assert "the bridge is down" in office.ok("ops", "show", op)
    assert "bridge" in office.fails(exits.FAILED, "ops", "retry", op, "--health-check")
    office.away = False
    assert office.json("ops", "retry", op, "--health-check")["status"] == "queued"
    office.drain()
    assert office.json("ops", "why", op)["state"] == "completed"
    assert "completed" in office.ok("watch", op)
    assert "only one that failed or waits" in office.fails(exits.FAILED, "ops", "retry", op)
    office.tell()
    assert [message["kind"] for message in office.json("inbox", "ada")["messages"]] == ["retry_success"]


@pytest.mark.spec("CLI-5")
def test_the_command_that_why_names_moves_it(office: Office) -> None:
    with office.working():
        office.call("call", "erase", "--session", "ada lovelace")
        told = office.json("ops", "why", "last")
        assert "has not granted it" in told["sentence"]
        for line in told["command"].split(" && "):
            office.ok(*shlex.split(line)[1:])
    office.drain()
    assert office.json("ops", "why", "last")["command"] is None


@pytest.mark.spec("CLI-3")
def test_cancel_says_what_it_found(office: Office) -> None:
    op = office.ok("submit", "erase").strip()
    assert office.json("ops", "cancel", op, "--reason", "a mistake")["word"] == "OK"
    assert "was cancelled (a mistake)" in office.ok("ops", "cancel", op)
    done = office.ok("submit", "invoice", '{"number": 1}').strip()
    office.drain()
    assert "already ended: completed" in office.fails(exits.FAILED, "ops", "cancel", done)


# resolve.


@pytest.mark.spec("EFF-2", "CLI-3")
@pytest.mark.parametrize(("word", "state"), [("--landed=5", "completed"), ("--absent", "queued")])
def test_resolve_settles_an_operation_in_doubt(office: Office, word: str, state: str) -> None:
    with office.working():
        op = json.loads(office.call("call", "pay", '{"amount": 5}', "--json").stdout)["operation_id"]
    assert "nobody can tell whether its effect happened" in office.ok("ops", "why", op)
    office.verdict = Verdict.ABSENT
    assert "noted: the effect of" in office.ok("resolve", op, word)
    office.drain()
    found = office.json("ops", "show", op, "--values")
    assert found["state"] == state
    assert found.get("result") == (5 if state == "completed" else None)
    assert "not in doubt" in office.fails(exits.FAILED, "resolve", op, word)


@pytest.mark.spec("EFF-2", "WF-4", "CLI-3")
def test_resolve_settles_a_step_in_doubt(office: Office) -> None:
    run_id = office.json("start", "cli_books", '{"number": 4, "bad": true}')["run_id"]
    office.drain()
    assert office.state(run_id) == "paused"
    assert f"→ conductor resolve {run_id} book --landed VALUE, or --absent" in office.ok("ops", "why", f"{run_id}:book")
    assert "int was expected" in office.fails(exits.FAILED, "resolve", run_id, "book", "--landed", '"text"')
    assert office.json("resolve", run_id[:18], "book", "--landed", "40")["operation_id"] == f"{run_id}:book"
    office.drain()
    assert office.json("show", run_id, "--values")["result"] == 41


# capabilities.


@pytest.mark.spec("CAP-1", "CAP-2", "CLI-3")
def test_capabilities_are_listed_searched_and_described(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offering, "_FRESH_SECONDS", 0.0)  # for so long a service keeps what it has probed
    names = [one["name"] for one in office.json("capabilities")["capabilities"]]
    assert {"invoice", "pay", "erase"} <= set(names)
    assert [one["name"] for one in office.json("capabilities", "book", "payment")["capabilities"]] == ["pay"]
    described = office.json("capabilities", "invoice")
    assert described["params"]["required"] == ["number"]
    assert described["disabled"] is None
    text = office.ok("capabilities", "invoice")
    assert "Write an invoice." in text
    assert "required" in text
    office.away = True
    assert "disabled: bridge: its probe returned False" in office.ok("capabilities")
    assert office.json("capabilities", "invoice")["disabled"] == "bridge: its probe returned False"
    assert "no capabilities with unheard" in office.call("capabilities", "unheard").stderr
