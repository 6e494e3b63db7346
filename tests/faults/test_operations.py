"""Operations whose workers and callers are killed, stopped and told to go: taken again or ended as their policy says, never done twice."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from conductor.errors import BadInput, NotInDoubt
from conductor.ids import home_of_key
from conductor.sweeps.overdue import run_sweeper
from tests.support.desk import Desk, new_tag, opened
from tests.support.outside import pages
from tests.support.waiting import eventually

TEN = 10



@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """One worker with two processes; a killed process is replaced by its parent, a killed worker by the test that kills it."""
    with opened(tmp_path_factory.mktemp("desk")) as made:
        made.worker(concurrency=2)
        yield made


@pytest.fixture
def desk(shared: Desk) -> Iterator[Desk]:
    yield shared
    nothing_runs(shared)
    shared.sound()


def nothing_runs(desk: Desk) -> None:
    eventually(lambda: desk.conductor.operation_status()["running"] == 0, 20, what="nothing stays running for ever")


@pytest.fixture
def tag() -> str:
    return new_tag()


def both_processes_serve(desk: Desk, pid: int) -> None:
    """Two operations at once occupy both processes of the worker, this one among them: it is done with what it did before."""
    tags = [new_tag(), new_tag()]
    ids = [desk.ask("ops_hold", {"tag": one, "seconds": 20.0}) for one in tags]
    assert pid in [desk.in_body(one).pid for one in tags]
    for one, operation_id in zip(tags, ids, strict=True):
        desk.go(one)
        desk.ended(operation_id, "completed")


# A lost worker.


@pytest.mark.spec("OP-3", "RUN-2")
def test_after_a_lost_worker_the_policy_decides(desk: Desk, tag: str) -> None:
    """Both processes of the worker are killed, each in the middle of an operation: one may be replayed, the other not."""
    replayed = desk.ask("ops_hold", {"tag": f"{tag}-r", "seconds": 20.0}, session=f"s-{tag}")
    never = desk.ask("ops_hold_none", {"tag": f"{tag}-n", "seconds": 20.0}, session=f"s-{tag}")
    lines = [desk.in_body(f"{tag}-r"), desk.in_body(f"{tag}-n")]
    first = desk.op(replayed)
    assert (first.state, first.attempt, desk.state(never)) == ("running", 1, "running")
    assert first.holder and first.lease_until > desk.now()
    desk.no_grace()
    for line in lines:
        desk.strike(line)
    desk.go(f"{tag}-r")
    found = desk.ended(replayed, "completed")
    assert found.fence > first.fence
    assert (found.attempt, found.result["attempt"], found.result["number"], found.retry_history) == (1, 1, 2, ())
    assert desk.kinds(replayed) == ["started", "claimed", "lost", "claimed", "completed", "ended"]
    assert {line.key for line in desk.begun(f"{tag}-r")} == {f"{tag}-r:{replayed}:ops_hold"}
    lost = desk.ended(never, "failed")
    assert (lost.reason, len(desk.begun(f"{tag}-n"))) == ("outcome_unknown", 1)
    assert desk.conductor.call("ops_hold_none", {"tag": f"{tag}-x", "seconds": 0.0}).ok


@pytest.mark.spec("OP-3", "OP-2", "OP-11")
def test_the_record_of_an_unknown_outcome_says_so(desk: Desk, tag: str) -> None:
    operation_id = desk.ask("ops_hold_none", {"tag": tag, "seconds": 20.0})
    line = desk.in_body(tag)
    desk.no_grace()
    desk.strike(line)
    assert desk.ended(operation_id, "failed").error_kind == "outcome_unknown"


@pytest.mark.spec("OP-3", "REC-3")
def test_the_operation_of_a_killed_host_is_taken_by_another(desk: Desk, tag: str) -> None:
    operation_id = desk.ask("ops_hold", {"tag": tag, "seconds": 20.0})
    line = desk.in_body(tag)
    desk.no_grace()
    victim = next(process for process in desk.processes.started if process.alive and line.pid in process.children)
    victim.kill_whole()
    desk.go(tag)
    desk.worker(concurrency=2)
    found = desk.ended(operation_id, "completed", 40)
    assert (found.attempt, found.result["number"]) == (1, 2)
    assert found.result["pid"] != line.pid


@pytest.mark.spec("OP-3", "RUN-2")
@pytest.mark.parametrize("capability", ["ops_hold", "ops_hold_none"], ids=["replay", "none"])
def test_the_result_of_a_worker_that_stood_still_past_its_lease_is_refused(desk: Desk, tag: str, capability: str) -> None:
    operation_id = desk.ask(capability, {"tag": tag, "seconds": 20.0})
    line = desk.in_body(tag)
    desk.no_grace()
    os.kill(line.pid, signal.SIGSTOP)
    try:
        desk.go(tag)
        found = desk.ended(operation_id, "completed" if capability == "ops_hold" else "failed")
        told = desk.kinds(operation_id)
    finally:
        os.kill(line.pid, signal.SIGCONT)
    eventually(lambda: [one for one in desk.facts("end", tag) if one.pid == line.pid], 20, what="the late process finishes its body")
    both_processes_serve(desk, line.pid)  # so it has said what it had to say
    assert desk.kinds(operation_id) == told
    after = desk.op(operation_id)
    assert (after.state, after.reason, after.result, after.fence) == (found.state, found.reason, found.result, found.fence)
    if capability == "ops_hold":
        assert after.result["pid"] != line.pid


@pytest.mark.spec("OP-3", "OP-4")
def test_a_caller_killed_in_the_middle_of_its_own_call_is_followed_by_a_worker(desk: Desk, tag: str) -> None:
    """The calling process runs the capability in itself. Its death is a lost worker like any other."""
    session = f"s-{tag}"
    callers = [
        desk.caller(name, {"tag": f"{tag}-{name}", "seconds": 20.0}, session) for name in ("ops_hold", "ops_hold_none")]
    lines = [desk.in_body(f"{tag}-{name}") for name in ("ops_hold", "ops_hold_none")]
    assert [line.pid for line in lines] == [caller.pid for caller in callers]
    desk.no_grace()
    for caller in callers:
        caller.kill()
    desk.go(f"{tag}-ops_hold")
    replayed, never = (line.key.split(":")[1] for line in lines)
    found = desk.ended(replayed, "completed")
    assert (found.attempt, found.result["number"], found.result["session"]) == (1, 2, session)
    assert found.result["pid"] not in [caller.pid for caller in callers]
    assert (desk.ended(never, "failed").reason, len(desk.begun(f"{tag}-ops_hold_none"))) == ("outcome_unknown", 1)


@pytest.mark.spec("OP-3", "OP-4", "RUN-1")
@pytest.mark.parametrize("point", [
    "start_run.sent", "commit.sent", *(pytest.param(point, marks=pytest.mark.faults) for point in ("body.before", "body.after", "commit.before")),
])
def test_a_caller_killed_anywhere_around_its_own_call_loses_nothing(desk: Desk, tag: str, point: str) -> None:
    for home in range(desk.engine.store.partitions):  # the graph is known everywhere, so the first call of the start is the start
        key = next(key for key in (f"{tag}-{number}" for number in range(1000)) if home_of_key("op:ops_prompt", key, 16) == home)
        assert desk.conductor.call("ops_prompt", {"tag": f"{tag}-warm", "fails": 0}, key=key).ok
    strikes = desk.directory / f"strikes-{tag}"
    armed = {"CONDUCTOR_FAILPOINTS": f"{point}=kill@1", "CONDUCTOR_FAILPOINTS_LEDGER": str(strikes)}
    caller = desk.caller("ops_prompt", {"tag": tag, "fails": 0}, f"s-{tag}", armed)
    assert caller.wait(30) == -signal.SIGKILL, caller.text()
    assert point in strikes.read_text()
    if point != "commit.sent":
        desk.no_grace()
    (operation_id,) = [one.operation_id for one in desk.conductor.operations(limit=500) if one.originating_session_id == f"s-{tag}"]
    found = desk.ended(operation_id, "completed")
    assert found.attempt == 1
    bodies = {"start_run.sent": 1, "body.before": 1, "body.after": 2, "commit.before": 2, "commit.sent": 1}
    assert len(desk.begun(tag)) == bodies[point]


@pytest.mark.faults
@pytest.mark.spec("OP-3", "RUN-8")
def test_an_operation_that_kills_every_worker_is_called_poison(desk: Desk, tag: str) -> None:
    operation_id = desk.ask("ops_deadly", {"tag": tag}, session=f"s-{tag}")
    desk.in_body(tag)
    eventually(lambda: (desk.no_grace(), len(desk.begun(tag)) == 3)[1], 30, every=0.2, what="it is tried three times")
    found = desk.ended(operation_id, "failed")
    assert (found.reason, len(desk.begun(tag))) == ("poison", 3)
    assert desk.kinds(operation_id).count("lost") == 3


@pytest.mark.spec("OP-3", "RUN-13")
def test_an_operation_of_a_worker_that_is_told_to_go_is_given_back(tmp_path: Path, tag: str) -> None:
    with opened(tmp_path) as made:
        leaving = made.worker(concurrency=1, env={"TEST_SOFT_SECONDS": "1"})
        operation_id = made.ask("ops_hold", {"tag": tag, "seconds": 20.0})
        made.in_body(tag)
        staying = made.worker(concurrency=1)
        leaving.signal(signal.SIGTERM)
        again = made.in_body(tag, 2)
        assert again.pid in staying.children
        made.go(tag)
        found = made.ended(operation_id, "completed")
        assert (found.attempt, found.result["number"]) == (1, 2)
        kinds = made.kinds(operation_id)
        assert "given_back" in kinds and "lost" not in kinds
        leaving.kill_whole()
        made.sound()


@pytest.mark.spec("RUN-12", "OP-6", "EFF-2")
def test_a_capability_that_does_not_listen_to_its_timeout_loses_its_process_and_is_repeated(desk: Desk, tag: str) -> None:
    operation_id = desk.ask("ops_deaf", {"tag": tag})
    line = desk.in_body(tag)
    waiting = desk.queued_again(operation_id, 1)
    assert waiting.retry_history[0]["type"].endswith("StepTimeout")
    eventually(lambda: not Path(f"/proc/{line.pid}").exists(), 20, what="the process is stopped")
    assert "lost" not in desk.kinds(operation_id)
    desk.conductor.retry_operation(operation_id)
    assert desk.ended(operation_id, "completed").result["number"] == 2


# Effects of a lost worker.


@pytest.mark.spec("EFF-2", "OP-3")
def test_effects_of_a_killed_worker_are_verified_before_anything_is_repeated(desk: Desk, tag: str, tmp_path: Path) -> None:
    """A file, a row and a page, each whole, half or not at all there when its worker died. All at once, because each costs a lease."""
    url = f"sqlite:///{tmp_path / 'book.db'}"
    database = sqlalchemy.create_engine(url)
    with database.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE payment (reference TEXT, amount INTEGER)"))
    with pages() as site:
        asked: dict[str, tuple[str, int]] = {}
        for what, calls in (("whole", 1), ("half", 2), ("nothing", 2)):
            name = f"{tag}-file-{what}"
            params = {"tag": name, "path": str(tmp_path / what), "text": "all of it", "plan": [f"{what}+kill", "whole"]}
            asked[name] = desk.ask("ops_file", params), calls
        for what, calls in (("commit", 1), ("open", 2)):
            name = f"{tag}-row-{what}"
            params = {"tag": name, "database": url, "amount": 3, "plan": [f"{what}+kill", "commit"]}
            asked[name] = desk.ask("ops_row", params), calls
        dim = desk.ask("ops_dim", {"tag": f"{tag}-dim", "plan": ["whole+kill", "whole"]})
        for name in (*asked, f"{tag}-dim"):
            desk.in_body(name)
        site.plans[f"/{tag}"] = ["apply+silent", "apply"]
        page = desk.ask("ops_page", {"tag": f"{tag}-page", "url": f"{site.url}/{tag}", "text": "the whole page"})
        line = desk.in_body(f"{tag}-page")
        eventually(lambda: f"/{tag}" in site.contents, 20, what="the page was put")
        desk.strike(line)
        asked[f"{tag}-page"] = page, 1
        desk.no_grace()
        for name, (operation_id, calls) in asked.items():
            found = desk.ended(operation_id, "completed", 40)
            assert len(desk.begun(name)) == calls, desk.told(operation_id)
            assert bool(found.result.get("post_write_recovery")) is (calls == 1)
            assert found.attempt == 1
        assert site.puts[f"/{tag}"] == 1
    assert [(tmp_path / what).read_text() for what in ("whole", "half", "nothing")] == ["all of it"] * 3
    with database.connect() as connection:
        rows = sorted(row[0] for row in connection.execute(sqlalchemy.text("SELECT reference FROM payment")))
    database.dispose()
    assert rows == sorted(name for name in asked if "-row-" in name)
    unjudged = desk.ended(dim, "failed")
    assert (unjudged.reason, len(desk.begun(f"{tag}-dim"))) == ("effect_in_doubt", 1)


@pytest.mark.spec("EFF-2", "WF-4", "RUN-7")
def test_an_effect_in_doubt_pauses_its_run_until_a_person_says_what_happened(desk: Desk, tag: str) -> None:
    """Two runs whose worker died in the middle of paying. Nothing but a word brings them on: no sweep, no resume."""
    landed, absent = (desk.run("ops_pay", {"tag": f"{tag}-{name}", "plan": ["whole+kill", "whole"]}) for name in ("landed", "absent"))
    for name in ("landed", "absent"):
        desk.in_body(f"{tag}-{name}")
    desk.no_grace()
    for run in (landed, absent):
        desk.run_is(run, "paused")
        assert desk.reason(run.id) == "effect_in_doubt"
    run_sweeper(desk.engine, once=True)
    for run in (landed, absent):
        events = len(desk.kinds(run.id))
        run.resume()
        eventually(lambda run=run, events=events: desk.kinds(run.id)[events:][-1:] == ["paused"], 20, what=lambda run=run: f"{desk.kinds(run.id)}")
    assert [len(desk.begun(f"{tag}-{name}")) for name in ("landed", "absent")] == [1, 1]
    with pytest.raises(BadInput):
        desk.conductor.resolve(f"{landed.id}:pay", happened=True, value=5)
    assert landed.status == "paused"
    desk.conductor.resolve(f"{landed.id}:pay", happened=True, value="by hand", actor="me")
    assert landed.get(timeout=30) == "receipt: by hand"
    assert len(desk.begun(f"{tag}-landed")) == 1
    assert "resolved" in [event.how for event in desk.events(landed.id)]
    desk.conductor.resolve(f"{absent.id}:pay", happened=False, actor="me")
    assert absent.get(timeout=30) == "receipt: paid"
    assert len(desk.begun(f"{tag}-absent")) == 2
    assert {line.key for line in desk.begun(f"{tag}-absent")} == {f"{tag}-absent:{absent.id}:pay"}
    with pytest.raises(NotInDoubt):
        desk.conductor.resolve(f"{landed.id}:pay", happened=False)


@pytest.mark.spec("EFF-2", "WF-4")
def test_a_word_that_it_is_absent_serves_one_repeat_only(desk: Desk, tag: str) -> None:
    """The repeat that a person has allowed dies as well: it is in doubt again, and not repeated on the strength of the old word."""
    run = desk.run("ops_pay", {"tag": tag, "plan": ["whole+kill", "whole+kill", "whole"]})
    desk.in_body(tag)
    desk.no_grace()
    desk.run_is(run, "paused")
    desk.conductor.resolve(f"{run.id}:pay", happened=False)
    desk.in_body(tag, 2)
    desk.no_grace()
    desk.run_is(run, "paused")
    assert len(desk.begun(tag)) == 2
    desk.conductor.resolve(f"{run.id}:pay", happened=True, value="twice checked")
    assert run.get(timeout=30) == "receipt: twice checked"
    assert len(desk.begun(tag)) == 2


@pytest.mark.spec("EFF-2", "WF-4")
def test_a_verified_effect_gives_its_result_and_an_idempotent_one_is_repeated_under_its_key(desk: Desk, tag: str) -> None:
    plans = {"landed": ["whole+kill", "whole"], "absent": ["nothing+kill", "whole"]}
    verified = {name: desk.run("ops_pay_verified", {"tag": f"{tag}-{name}", "plan": plan}) for name, plan in plans.items()}
    repeated = desk.run("ops_pay_idempotent", {"tag": f"{tag}-again", "plan": ["whole+kill", "whole"]})
    for name in ("landed", "absent", "again"):
        desk.in_body(f"{tag}-{name}")
    desk.no_grace()
    assert verified["landed"].get(timeout=40) == "receipt: found paid"
    assert verified["absent"].get(timeout=40) == "receipt: paid"
    assert repeated.get(timeout=40) == "paid"
    assert [len(desk.begun(f"{tag}-{name}")) for name in ("landed", "absent", "again")] == [1, 2, 2]
    assert {(line.key, line.attempt) for line in desk.begun(f"{tag}-again")} == {(f"{tag}-again:{repeated.id}:pay_idempotent", 1)}


# Inside a step.


@pytest.mark.spec("WF-14")
def test_a_step_killed_after_each_of_its_ten_recorded_calls_makes_each_once(desk: Desk, tag: str) -> None:
    runs = {at: desk.run("ops_once", {"tag": f"{tag}-{at}", "at": at}) for at in range(1, TEN + 1)}
    for at in runs:
        desk.in_body(f"{tag}-{at}")
    desk.no_grace()
    for at, run in runs.items():
        assert run.get(timeout=40) == [turn * turn for turn in range(1, TEN + 1)]
        assert len(desk.begun(f"{tag}-{at}")) == 2
        turns = [int(line.key.rpartition(":")[2]) for line in desk.facts("turn", f"{tag}-{at}")]
        assert turns == list(range(1, TEN + 1))
        assert {line.attempt for line in desk.begun(f"{tag}-{at}")} == {1}


@pytest.mark.faults
@pytest.mark.spec("WF-14")
def test_one_step_killed_ten_times_goes_on_where_it_was(tmp_path: Path, tag: str) -> None:
    """The same run dies after its first call, then after its second, … Ten losses would be poison, so this desk allows more."""
    with opened(tmp_path, {"CONDUCTOR_POISON_LOSSES": "100"}) as made:
        made.worker(concurrency=1)
        run = made.run("ops_once", {"tag": tag, "plan": ["each"]})
        made.in_body(tag)
        made.no_grace()
        assert run.get(timeout=100) == [turn * turn for turn in range(1, TEN + 1)]
        assert len(made.begun(tag)) == TEN + 1
        assert [int(line.key.rpartition(":")[2]) for line in made.facts("turn", tag)] == list(range(1, TEN + 1))
        made.sound()


@pytest.mark.faults
@pytest.mark.spec("WF-14", "SES-1")
@pytest.mark.parametrize(("point", "calls"), [("note.before", 2), ("note.sent", 1), ("use_grant.before", 1), ("use_grant.sent", 1)])
def test_a_worker_killed_around_a_record_or_a_grant_is_followed_by_another(tmp_path: Path, tag: str, point: str, calls: int) -> None:
    """What was recorded is not done again, what was not is; a grant that was used up serves the operation that used it."""
    strikes, session = tmp_path / "strikes", f"s-{tag}"
    armed = {"CONDUCTOR_FAILPOINTS": f"{point}=kill@1", "CONDUCTOR_FAILPOINTS_LEDGER": str(strikes)}
    with opened(tmp_path) as made:
        struck = made.worker(concurrency=1, env=armed)
        made.conductor.grant(session, "ops_consented", "once")
        granting = point.startswith("use_grant")
        asked = made.ask("ops_consented", {"tag": tag}, session=session) if granting else made.run("ops_once", {"tag": tag}).id
        eventually(strikes.exists, 30, what=lambda: f"{point} is passed\n{made.processes.logs()}")
        struck.kill_whole()  # the pool would replace its child, and the new one would be armed again
        made.worker(concurrency=1)
        made.no_grace()
        eventually(lambda: made.kinds(asked)[-1] == "ended", 40, every=0.1, what=lambda: f"{made.kinds(asked)}\n{made.processes.logs()}")
        if granting:
            assert made.ended(asked, "completed").result["session"] == session
            assert len(made.begun(tag)) == calls
            assert made.conductor.grants(session) == []
        else:
            turns = [int(line.key.rpartition(":")[2]) for line in made.facts("turn", tag)]
            assert turns == [1] * (calls - 1) + list(range(1, TEN + 1))
        made.sound()


@pytest.mark.spec("WF-14", "OP-5")
def test_a_step_killed_right_after_a_call_gets_the_recorded_answer(desk: Desk, tag: str) -> None:
    run = desk.run("ops_calling", {"tag": tag, "plan": ["kill"]}, session=f"s-{tag}")
    first = desk.in_body(tag)
    desk.no_grace()
    answer = run.get(timeout=40)
    assert len(desk.begun(tag)) == 1
    assert len(desk.facts("caller", tag)) == 2
    assert (answer["value"], answer["pid"]) == (7, first.pid)
    (called,) = [one for one in desk.conductor.operations(limit=500) if one.run_id == run.id]
    assert (called.state, called.attempt, called.capability) == ("completed", 1, "ops_echo")


@pytest.mark.spec("WF-14", "OP-3", "CAN-4")
def test_a_step_killed_inside_a_call_finds_that_operation_again(desk: Desk, tag: str) -> None:
    """Step and operation die in one process; the operation is taken again by its own lease, the step waits for it and burns nothing."""
    run = desk.run("ops_pending", {"tag": tag, "plan": ["hold"]})
    line = desk.in_body(tag)
    desk.no_grace()
    desk.strike(line)
    desk.go(tag)
    answer = run.get(timeout=40)
    assert len(desk.begun(tag)) == 2
    assert answer["attempt"] == 1
    assert len({one.key for one in desk.begun(tag)}) == 1
    assert desk.op(f"{run.id}:patient").attempt == 1


@pytest.mark.spec("WF-14", "OP-10")
def test_a_step_waits_for_an_operation_that_is_queued_for_a_retry(desk: Desk, tag: str) -> None:
    run = desk.run("ops_pending", {"tag": tag, "fails": 2})
    called = desk.in_body(tag).key.split(":")[1]
    for attempt in (1, 2):
        desk.queued_again(called, attempt)
        desk.due_at(called, desk.now())
    desk.ended(called, "completed")
    eventually(lambda: desk.op(f"{run.id}:patient").retry_at, 20, what="the step looks again later")
    desk.conductor.retry_operation(f"{run.id}:patient")
    assert run.get(timeout=30)["number"] == 3
    assert len(desk.begun(tag)) == 3
    assert desk.op(f"{run.id}:patient").attempt == 1


@pytest.mark.spec("CAN-4", "WF-14")
def test_with_its_run_a_called_operation_that_waits_for_a_retry_is_cancelled(desk: Desk, tag: str) -> None:
    run = desk.run("ops_pending", {"tag": tag, "fails": 9})
    called = desk.in_body(tag).key.split(":")[1]
    desk.queued_again(called, 1)
    assert run.cancel("not wanted").word == "OK"
    try:
        eventually(lambda: desk.state(called) == "cancelled", 2, what=lambda: desk.told(called))
    finally:
        desk.due_at(called, desk.now())
        eventually(lambda: desk.state(called) == "cancelled", 20, what=lambda: desk.told(called))
    assert len(desk.begun(tag)) == 1


# Telling.


@pytest.mark.spec("OP-9", "SES-3")
@pytest.mark.parametrize(("point", "fails"), [
    ("deliver.sent", 1), ("start_run.sent", 99), pytest.param("deliver.before", 1, marks=pytest.mark.faults),
])
def test_a_relay_killed_in_the_middle_tells_once(tmp_path: Path, tag: str, point: str, fails: int) -> None:
    """After the message was delivered and before that is noted; before it; and after a surface's operation was started."""
    strikes, session = tmp_path / "strikes", f"s-{tag}"
    armed = {"CONDUCTOR_FAILPOINTS": f"{point}=kill@1", "CONDUCTOR_FAILPOINTS_LEDGER": str(strikes)}
    with opened(tmp_path) as made:
        operation_id = made.conductor.call("ops_flaky", {"tag": tag, "fails": fails, "text": "x" * 5000}, session=session).operation_id
        if fails > 5:
            made.grow_old(operation_id, 31 * 60_000)
        else:
            made.due_at(operation_id, made.now())
        struck = made.worker(concurrency=1, env=armed)
        eventually(strikes.exists, 30, what=lambda: f"{point} is passed\n{made.processes.logs()}")
        eventually(lambda: not struck.alive, 20, what="the relay's process is gone")
        struck.kill_whole()
        outbox = made.keys.of(int(operation_id[-2:], 16), "outbox")
        assert made.server.client().zcard(outbox) == 1
        made.server.client().delete(made.keys.of(0, "lock:sweep:outbox"))  # the dead relay's lock; its 10 s are over
        made.worker(concurrency=1)
        eventually(lambda: made.server.client().zcard(outbox) == 0, 30, what=lambda: f"it is told\n{made.processes.logs()}")
        (message,) = made.conductor.inbox(session)
        found = made.op(operation_id)
        kind = "retry_exhausted" if fails > 5 else "retry_success"
        assert (message.kind, message.id) == (kind, f"{operation_id}:1:{kind}")
        if fails == 1:
            assert message.body["result"] == found.result
        told = [one for one in made.conductor.operations(limit=100) if one.capability == "conductor.notify"]
        assert len(told) == (1 if fails > 5 else 0)
        for one in told:
            made.ended(one.operation_id, "completed")
        made.sound()


# Blind.


@pytest.mark.faults
@pytest.mark.spec("OP-3", "EFF-2", "OP-7", "OP-9", "SES-3")
def test_operations_under_random_kills_end_once_and_as_their_policy_says(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    with opened(tmp_path) as made:
        fleet = [made.worker(concurrency=2) for _ in range(2)]
        asked: dict[str, tuple[str, str]] = {}
        for number in range(80):
            name, capability = f"{new_tag()}-{number}", choose.choice(["ops_hold", "ops_hold_none", "ops_file"])
            params: dict[str, Any] = {"tag": name, "seconds": choose.uniform(0.05, 0.6)}
            if capability == "ops_file":
                first = choose.choice(["whole", "half+kill", "whole+kill", "nothing+kill", "half+unsure"])
                params = {"tag": name, "path": str(tmp_path / name), "text": "all of it", "plan": [first, "whole"]}
            asked[name] = made.ask(capability, params, session="fleet"), capability
        kills = 0
        while kills < 12:
            inside = {line.pid for line in made.ledger.open()}
            victims = [(process, pid) for process in fleet for pid in process.children if pid in inside]
            if not victims:
                if all(made.state(operation_id) not in ("queued", "running") for operation_id, _ in asked.values()):
                    break
                continue
            process, pid = choose.choice(victims)
            if choose.random() < 0.2:
                process.kill_whole()
                fleet[fleet.index(process)] = made.worker(concurrency=2)
            else:
                os.kill(pid, signal.SIGKILL)
            kills += 1
            eventually(lambda pid=pid: not Path(f"/proc/{pid}").exists(), 10, what="the struck process is gone")
        assert kills >= 5
        for name, (operation_id, capability) in asked.items():
            eventually(lambda one=operation_id: made.state(one) not in ("queued", "running"), 100, every=0.1, what=lambda one=operation_id: made.told(one))
            found = made.op(operation_id)
            if capability == "ops_hold_none":
                assert found.state == "completed" or found.reason == "outcome_unknown", made.told(operation_id)
                assert len(made.begun(name)) <= 1
            elif found.reason != "poison":
                assert found.state == "completed", made.told(operation_id)
            if capability == "ops_file":
                assert (tmp_path / name).read_text() == "all of it"
                assert len(made.begun(name)) <= 3
        told_once(made, [operation_id for operation_id, _ in asked.values()])
        nothing_runs(made)
        made.sound()


def told_once(made: Desk, operation_ids: list[str]) -> None:
    """Nobody has waited for the answers, so every end is in the inbox, once."""
    owed = [made.keys.of(partition, "outbox") for partition in range(made.engine.store.partitions)]
    eventually(lambda: not any(made.server.client().zcard(key) for key in owed), 30, what="all ends are told")
    messages = made.conductor.inbox("fleet", limit=1000)
    assert len({message.id for message in messages}) == len(messages)
    assert sorted(message.operation_id for message in messages) == sorted(operation_ids)
