"""Operations. Each test is one thing you can rely on; its docstring is the sentence in the manual. The code is that of docs/operations.md:
its blocks are run as they stand, against a real server and with a worker in a thread. Time passes by moving records into the past."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conductor import KeyConflict, PermanentError
from conductor.cli.calling import QUEUED
from conductor.declare import every, needs, registry
from conductor.declare.capability import capability
from conductor.errors import BadInput
from conductor.operations import answers, built_in
from conductor.operations.call import answer_of
from conductor.operations.read import OpFilter
from conductor.operations.start import start_operation
from conductor.sessions import surfaces
from conductor.sessions.inbox import Message
from conductor.sessions.webhook import DELIVERY, SIGNATURE, TIMESTAMP, sign
from conductor.sweeps.schedules import sweep_schedules
from tests.guide.page import BLOCKS, TEXT, Guide, table, written
from tests.support.leaks import forget
from tests.support.server import ValkeyServer

DECLARE, CALL, REPEATED, EFFECTS = "Declare a capability", "Call it, and read the answer", "When it is repeated", "Effects and verifiers"
DOUBT, CONSENT, INBOX, SURFACES = "In doubt, and how to settle it", "Consent", "The inbox", "Surfaces"
SCHEDULES, STEP = "Schedules", "Inside a step"


@pytest.fixture
def guide(valkey: ValkeyServer, namespace: str) -> Iterator[Guide]:
    with registry.isolated(), needs.isolated(), every.isolated():
        for found in (built_in.notify, built_in.replay):
            registry.register_capability(found, registry.place_of_caller())
        yield Guide(valkey.url(), namespace)
    forget(valkey.client(), namespace)


def test_the_page_has_a_section_for_everything() -> None:
    """Every heading with code is run by a test below."""
    assert [title for title, blocks in BLOCKS.items() if blocks] == [
        DECLARE, CALL, REPEATED, EFFECTS, DOUBT, CONSENT, INBOX, SURFACES, SCHEDULES, STEP]
    assert f"**{QUEUED} queued for a retry, which is not success**" in " ".join(TEXT.split())


# Declaring and calling.


@pytest.mark.spec("CAP-1", "BAD-1")
def test_parameters_are_checked_strictly_before_anything_is_written(guide: Guide) -> None:
    """`"7"` is not 7, and an unknown field is an error; nothing is written."""
    greet = guide.run(DECLARE)["greet"]
    assert greet("Ada", polite=True) == "Dear Ada", "it stays a plain function"
    for wrong in ({"name": 7}, {"name": "Ada", "nmae": 1}, {}):
        with pytest.raises(BadInput, match="parameters of capability greet refused"):
            guide.conductor.call("greet", wrong)
    assert guide.conductor.operations() == []


@pytest.mark.spec("OP-4", "OP-2")
def test_a_call_runs_now_and_can_be_asked_for_again(guide: Guide) -> None:
    """`call` runs a capability now, in this process; its operation can be asked for by its id."""
    guide.run(DECLARE)
    guide.run(CALL, 0, 1)
    assert guide.said == [("Hello Ada",), ("completed", 1, "Hello Ada")]


@pytest.mark.spec("OP-5")
def test_the_same_key_is_the_same_operation(guide: Guide) -> None:
    """With a `key`, the same call is the same operation; another body under it is a conflict."""
    guide.run(DECLARE)
    guide.run(CALL, 2)
    with pytest.raises(KeyConflict):
        guide.conductor.submit("greet", {"name": "Bob"}, key="greet-ada")


# Every answer, as the table shows it.


def completed(guide: Guide) -> Any:
    guide.run(DECLARE)
    return guide.run(CALL, 0)["answer"]


def found_in_place(guide: Guide) -> Any:
    guide.run(DECLARE)
    guide.run(EFFECTS)
    return guide.conductor.call("write_invoice", {"path": str(guide.names["there"]), "cents": 5})


def tool_came_back(guide: Guide) -> Any:
    guide.run(DECLARE)
    names = guide.run(REPEATED, 0, 1)
    guide.engine.needs.examine({"send_mail": ("mail",)})
    names["mail_server"]["up"] = True
    return guide.conductor.call("send_mail", {"to": "ada"})


def queued(guide: Guide) -> Any:
    guide.run(DECLARE)
    return guide.run(REPEATED, 0, 2)["answer"]


def submitted(guide: Guide) -> Any:
    guide.run(DECLARE)
    return guide.run(INBOX, 0)["submitted"]


def timed_out(guide: Guide) -> Any:
    guide.run(DECLARE)
    return guide.conductor.call("greet", {"name": "Ada"}, remote=True, timeout=0.05)


def failed(guide: Guide) -> Any:
    @capability("decline", retry="replay")
    def decline() -> None:
        raise PermanentError("the card is stolen")

    return guide.conductor.call(decline)


def in_doubt(guide: Guide) -> Any:
    guide.run(DECLARE)
    guide.run(EFFECTS)
    return guide.run(DOUBT, 0)["answer"]


def outcome_unknown(guide: Guide) -> Any:
    guide.run(DECLARE)
    guide.run(CONSENT)
    found = registry.capabilities["close_account"]
    op = start_operation(guide.engine, found, found.encode({"number": 7}), reason="retry", tag="a caller that was killed").run_id
    guide.lose_workers()
    return answer_of(guide.engine, op)


def exhausted(guide: Guide) -> Any:
    answer = queued(guide)
    for _ in range(3):
        guide.pass_time()
    return answer_of(guide.engine, answer.operation_id)


def cancelled(guide: Guide) -> Any:
    answer = submitted(guide)
    guide.conductor.cancel_operation(answer.operation_id, reason="a mistake")
    return answer_of(guide.engine, answer.operation_id)


@pytest.mark.spec("OP-4", "OP-6", "EFF-2", "CAP-2")
@pytest.mark.parametrize("make", [
    completed, found_in_place, tool_came_back, queued, submitted, timed_out, failed, in_doubt, outcome_unknown, exhausted, cancelled,
], ids=lambda make: make.__name__)
def test_every_answer_looks_as_the_page_says(guide: Guide, tmp_path: Path, make: Any) -> None:
    """Read the answer: queued is not success, and a timeout is not failure."""
    guide.names["there"] = tmp_path / "invoice.txt"
    answer = make(guide)
    assert written(answer) == answer.to_json()
    assert answer.ok is isinstance(answer, answers.Completed)


def test_the_table_names_every_kind_of_answer() -> None:
    """These are all the answers there are."""
    assert {name for name, _ in table()} == {kind.__name__ for kind in answers.Answer.__args__}
    assert len(table()) == 11


# When it is repeated.


@pytest.mark.spec("OP-7", "OP-9")
def test_a_passing_failure_is_repeated_and_its_end_is_told(guide: Guide) -> None:
    """A call that fails for now is queued, repeated by itself, and the session finds the end in its inbox."""
    answer = queued(guide)
    assert [one.operation_id for one in guide.conductor.operations(OpFilter(state="queued_retry"))] == [answer.operation_id]
    registry.capabilities["fetch_rate"].fn = lambda currency: 0.94
    guide.pass_time()
    assert [(message.kind, message.body["result"]) for message in guide.conductor.inbox("ada")] == [("retry_success", 0.94)]


@pytest.mark.spec("OP-7", "OP-9")
def test_max_retries_are_repeats_after_the_first_attempt(guide: Guide) -> None:
    """`max_retries` 3 means three repeats after the first attempt; then it is `exhausted`, and told."""
    answer = exhausted(guide)
    assert (answer.status, guide.conductor.operation(answer.operation_id).attempt) == ("exhausted", 4)
    assert [message.kind for message in guide.conductor.inbox("ada")] == ["retry_exhausted"]


@pytest.mark.spec("CAP-2")
def test_a_capability_whose_tool_is_away_is_queued_not_unknown(guide: Guide) -> None:
    """A disabled capability is still called: its own error says what is missing, and queues it."""
    guide.run(DECLARE)
    guide.run(REPEATED, 0, 1)
    assert guide.engine.needs.examine({"send_mail": ("mail",)}) == {"send_mail": "mail: its probe returned False"}
    assert guide.conductor.call("send_mail", {"to": "ada"}).error == "the mail server is away"


# Effects.


@pytest.mark.spec("EFF-1", "EFF-2")
def test_an_effect_that_can_be_looked_at_is_neither_done_twice_nor_lost(guide: Guide, tmp_path: Path) -> None:
    """If the file is there, the call has completed, whatever it said; if not, it is queued again."""
    guide.names["there"] = tmp_path / "invoice.txt"
    assert found_in_place(guide).effects_verified == 1
    assert guide.names["there"].read_text() == "5 cents"

    def break_before(path: str, cents: int) -> str:
        raise ConnectionResetError("the share went away")

    registry.capabilities["write_invoice"].fn = break_before
    absent = guide.conductor.call("write_invoice", {"path": str(tmp_path / "other.txt"), "cents": 5})
    assert absent.queued_for_retry


@pytest.mark.spec("EFF-2")
@pytest.mark.parametrize(("happened", "state", "result"), [(True, "completed", "booked by hand"), (False, "failed", None)])
def test_what_is_in_doubt_waits_for_a_person(guide: Guide, happened: bool, state: str, result: str | None) -> None:
    """Nothing is repeated and nothing is taken for done until a person has looked and said what they saw."""
    answer = in_doubt(guide)
    guide.drain()
    assert guide.conductor.operation(answer.operation_id).state == "failed"
    if happened:
        guide.run(DOUBT, 1)
    else:
        guide.conductor.resolve(answer.operation_id, happened=False)
    guide.drain()
    found = guide.conductor.operation(answer.operation_id)
    assert (found.state, found.result) == (state, result)


# Sessions.


@pytest.mark.spec("SES-1")
def test_consent_is_asked_for_just_before_the_code_runs(guide: Guide) -> None:
    """A capability with `consent=True` runs only for a session that has granted it; once means one operation."""
    guide.run(DECLARE)
    names = guide.run(CONSENT)
    again = guide.conductor.call("close_account", {"number": 7}, session="ada")
    assert names["answer"].result == "account 7 is closed"
    assert "conductor grant ada close_account" in again.error


@pytest.mark.spec("SES-3", "OP-9")
def test_a_message_stays_until_it_is_acknowledged(guide: Guide) -> None:
    """Whoever asks under a session finds the end of what it submitted in its inbox, until it acknowledges it."""
    answer = submitted(guide)
    guide.pass_time()
    guide.run(INBOX, 1)
    assert guide.said[0][:2] == ("deferred_success", answer.operation_id)
    assert guide.said[0][2]["result"] == "Hello Ada"
    assert guide.conductor.inbox("ada") == []


@pytest.mark.spec("SES-3")
def test_the_page_names_every_kind_of_message() -> None:
    """The kind of a message tells what ended, and how."""
    listed = set(re.findall(r"`((?:retry|deferred|scheduled)_\w+)`", TEXT.partition("## The inbox")[2].partition("## ")[0]))
    assert listed == {f"{what}_{how}" for what in ("retry", "deferred", "scheduled") for how in ("success", "exhausted", "failed")}


@pytest.mark.spec("SES-4")
def test_a_receiver_can_tell_our_messages_from_others(guide: Guide) -> None:
    """A webhook is signed: what is not ours, was changed on the way, or is older than five minutes is refused."""
    names = guide.run(SURFACES, 0)
    receive, body, now = names["receive"], b'{"id":"m1"}', str(int(time.time()))
    headers = {DELIVERY: "m1", TIMESTAMP: now, SIGNATURE: sign(names["SECRET"], now, "m1", body)}
    assert [receive(headers, body), receive(headers, body)] == [204, 204]
    assert names["seen"] == {"m1"}
    assert receive(headers, body + b" ") == 401
    old = str(int(now) - 301)
    assert receive({DELIVERY: "m1", TIMESTAMP: old, SIGNATURE: sign(names["SECRET"], old, "m1", body)}, body) == 401


@pytest.mark.spec("SES-4")
def test_a_surface_of_your_own_is_told_too(guide: Guide, monkeypatch: pytest.MonkeyPatch) -> None:
    """A surface of your own is registered under a scheme, and named in the setting."""
    monkeypatch.setattr(surfaces, "_FACTORIES", dict(surfaces._FACTORIES))
    names = guide.run(SURFACES, 1)
    built = surfaces.build("log: pager:")
    built["pager"].send(Message("m1", "retry_exhausted", "op", 0, {"capability": "fetch_rate"}))
    assert names["Pager"].pages == ["retry_exhausted: fetch_rate"]


# Schedules, and inside a step.


@pytest.mark.spec("WF-16", "OP-5")
def test_a_tick_is_started_once_however_many_look(guide: Guide) -> None:
    """A schedule starts a run or an operation at every tick, once, however many processes look."""
    guide.run(DECLARE)
    guide.run(REPEATED, 0)
    guide.run(SCHEDULES)
    sweep_schedules(guide.engine)
    assert sorted(job.name for job in guide.conductor.schedules()) == ["nightly", "rates"]
    guide.move("jobs")
    store = guide.engine.store
    for job in guide.conductor.schedules():
        for number in range(store.partitions):
            key = store.keys.of(number, f"job:{job.name}")
            if store.client().exists(key):
                store.client().hset(key, "n", 1)
    for _ in range(3):
        sweep_schedules(guide.engine)
    assert [(job.name, job.fired) for job in guide.conductor.schedules()] == [("nightly", 1), ("rates", 1)]


@pytest.mark.spec("WF-14", "OP-5")
def test_a_repeated_step_finds_what_it_did_before(guide: Guide) -> None:
    """`ctx.once` and `ctx.call` are recorded: a repeated attempt gets the recorded answer."""
    guide.run(DECLARE)
    guide.run(STEP)
    run = guide.conductor.start("agent")
    guide.drain()
    assert run.get(5) == "Hello Dear Ada"
    assert [one.run_id for one in guide.conductor.operations(OpFilter(capability="greet"))] == [run.id]
