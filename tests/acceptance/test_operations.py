"""Operations with real workers: calls, deferred and retried work, effects on real outside systems, consent, messages, tools, budgets."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from conductor.errors import ConsentRequired, KeyConflict, RunFailed, RunFinished, UnknownCapability
from conductor.ids import home_of_key
from conductor.operations.answers import Completed, Failed, QueuedForRetry, Submitted, TimedOut
from conductor.operations.read import OpFilter
from conductor.sessions import webhook
from tests.support.desk import HOUR, Desk, new_tag, opened
from tests.support.outside import Pages, Receiver, pages, receiver
from tests.support.waiting import eventually

SECRET = "a secret of some length"



@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver | None]:
    with receiver(tmp_path_factory.mktemp("hook")) as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, hook: Receiver | None) -> Iterator[Desk]:
    """One worker with two processes for all tests of this file that kill nobody."""
    env = {"CONDUCTOR_NOTIFY": "log:", "CONDUCTOR_NOTIFY_ALLOW_PRIVATE": "true", "CONDUCTOR_NOTIFY_SECRET": SECRET}
    if hook is not None:
        env |= {"CONDUCTOR_NOTIFY": f"log: {hook.url}", "SSL_CERT_FILE": str(hook.authority)}
    with opened(tmp_path_factory.mktemp("desk"), env) as made:
        made.worker(concurrency=2)
        yield made


@pytest.fixture
def desk(shared: Desk) -> Iterator[Desk]:
    yield shared
    shared.sound()


@pytest.fixture
def tag() -> str:
    return new_tag()


@pytest.fixture
def site() -> Iterator[Pages]:
    with pages() as made:
        yield made


# Calling and submitting.


@pytest.mark.spec("OP-4", "OP-2")
def test_a_call_runs_in_the_calling_process_or_on_a_worker(desk: Desk, tag: str) -> None:
    here = desk.conductor.call("ops_echo", {"tag": tag, "value": 5}, session="s-here")
    assert isinstance(here, Completed)
    assert (here.result["value"], here.result["pid"]) == (5, os.getpid())
    there = desk.conductor.call("ops_echo", {"tag": tag, "value": 6}, session="s-there", remote=True, timeout=20)
    assert isinstance(there, Completed)
    assert there.result["value"] == 6
    assert there.result["pid"] != os.getpid()
    assert [line.attempt for line in desk.begun(tag)] == [1, 1]
    found = desk.op(there.operation_id)
    assert (found.state, found.attempt, found.lease_seconds, found.originating_session_id) == ("completed", 1, 2.0, "s-there")
    assert (found.params["value"], found.result, found.retry_history) == (6, there.result, ())


@pytest.mark.spec("SES-5")
@pytest.mark.parametrize("remote", [False, True], ids=["here", "worker"])
def test_inside_a_capability_the_originating_session_is_set(desk: Desk, tag: str, remote: bool) -> None:
    answer = desk.conductor.call("ops_echo", {"tag": tag}, session="s-asks", remote=remote, timeout=20)
    assert answer.result["session"] == "s-asks"


@pytest.mark.spec("OP-6", "OP-4")
def test_a_call_whose_time_is_over_answers_timeout_and_goes_on(desk: Desk, tag: str) -> None:
    began = time.monotonic()
    told = desk.conductor.call("ops_hold", {"tag": tag, "seconds": 20.0}, remote=True, timeout=1)
    assert isinstance(told, TimedOut)
    assert 0.9 < time.monotonic() - began < 10
    assert told.to_json()["status"] == "timeout"
    desk.in_body(tag)
    assert desk.state(told.operation_id) == "running"
    desk.go(tag)
    desk.ended(told.operation_id, "completed")
    assert len(desk.begun(tag)) == 1


@pytest.mark.spec("OP-3")
def test_a_call_that_lasts_longer_than_its_lease_keeps_it(desk: Desk, tag: str) -> None:
    """On a worker and in a calling process: while the body runs, the heartbeat moves the end of the lease past what it was."""
    desk.ask("ops_hold_none", {"tag": f"{tag}-worker", "seconds": 20.0})
    caller = desk.caller("ops_hold_none", {"tag": f"{tag}-caller", "seconds": 20.0})
    ids = [desk.in_body(f"{tag}-{where}").key.split(":")[1] for where in ("worker", "caller")]
    desk.no_grace()
    ends = {operation_id: desk.op(operation_id).lease_until for operation_id in ids}
    eventually(lambda: desk.now() > max(ends.values()) + 700, 20, what="the leases would be over, and a sweep has come")
    for operation_id, end in ends.items():
        assert (desk.state(operation_id), desk.op(operation_id).lease_until > end) == ("running", True)
    for where in ("worker", "caller"):
        desk.go(f"{tag}-{where}")
    for operation_id in ids:
        desk.ended(operation_id, "completed")
        assert "lost" not in desk.kinds(operation_id)
    assert caller.wait(20) == 0
    assert len(desk.begun(f"{tag}-worker")) == len(desk.begun(f"{tag}-caller")) == 1


@pytest.mark.spec("OP-5", "OP-1", "OP-9")
def test_submit_answers_at_once_and_has_one_attempt_and_a_long_lease(desk: Desk, tag: str) -> None:
    session = f"s-{tag}"
    told = desk.conductor.submit("ops_hold_unsaid", {"tag": tag, "seconds": 20.0}, session=session)
    assert isinstance(told, Submitted)
    assert (told.status, told.queue_reason) == ("queued", "deferred_submit")
    assert told.operation_id in told.hint
    desk.in_body(tag)
    found = desk.op(told.operation_id)
    assert (found.state, found.lease_seconds, found.max_retries) == ("running", 600, 0)
    assert 590_000 < found.lease_until - desk.now() <= 600_000
    desk.go(tag)
    desk.ended(told.operation_id, "completed")
    failing = desk.conductor.submit("ops_flaky", {"tag": f"{tag}-f"}, session=session)
    found = desk.ended(failing.operation_id, "exhausted")
    assert (found.attempt, found.reason, len(desk.begun(f"{tag}-f"))) == (1, "retries_exhausted", 1)
    messages = eventually(lambda: len(found := desk.conductor.inbox(session)) == 2 and found, 20, what="the session is told of both")
    kinds = {message.operation_id: message.kind for message in messages}
    assert kinds.keys() == {told.operation_id, failing.operation_id}
    assert kinds[failing.operation_id] == "deferred_exhausted"
    assert "notification" not in "".join(line for line in desk.processes.started[0].text().splitlines() if failing.operation_id in line)


@pytest.mark.spec("OP-5", "BAD-1")
def test_the_same_key_is_the_same_operation(desk: Desk, tag: str) -> None:
    asks: list[Callable[..., Any]] = [
        desk.conductor.submit, desk.conductor.call, lambda *a, **k: desk.conductor.call(*a, **k, remote=True, timeout=20),
    ]
    for number, ask in enumerate(asks):
        params, key = {"tag": f"{tag}-{number}"}, f"{tag}-{number}"
        ids = {ask("ops_echo", params, session="s-key", key=key).operation_id for _ in range(4)}
        assert len(ids) == 1
        desk.ended(ids.pop(), "completed")
        assert len(desk.begun(params["tag"])) == 1
        with pytest.raises(KeyConflict):
            ask("ops_echo", {**params, "value": 9}, session="s-key", key=key)
        with pytest.raises(KeyConflict):
            ask("ops_echo", params, session="s-other", key=key)
        assert len(desk.begun(params["tag"])) == 1


@pytest.mark.spec("OP-4", "OP-7", "ERR-1")
def test_a_permanent_error_burns_no_retry_and_an_unknown_one_is_not_replayed(desk: Desk, tag: str) -> None:
    for kind, reason in (("permanent", "permanent_error"), ("strange", "unknown_error")):
        answer = desk.conductor.call("ops_raising", {"tag": f"{tag}-{kind}", "kind": kind}, remote=True, timeout=20)
        assert isinstance(answer, Failed)
        assert not answer.ok
        found = desk.op(answer.operation_id)
        assert (found.state, found.reason, found.attempt, found.max_retries) == ("failed", reason, 1, 5)
        assert [entry["error_kind"] for entry in found.retry_history] == ["permanent" if kind == "permanent" else "unknown"]
        assert "due" not in desk.kinds(answer.operation_id)
        assert len(desk.begun(f"{tag}-{kind}")) == 1
    told = desk.ended(desk.ask("ops_stubborn", {"tag": f"{tag}-stubborn"}), "completed")
    assert (told.attempt, told.retry_history[0]["error_kind"]) == (2, "unknown")  # unless the capability says so


# Retries.

ADAPTIVE = (10_000, 20_000, 45_000, 90_000, 120_000)


@pytest.mark.spec("OP-7", "OP-2", "OP-4", "OP-9")
def test_five_retries_come_after_10_20_45_90_and_120_seconds(desk: Desk, tag: str) -> None:
    session = f"s-{tag}"
    answer = desk.conductor.call("ops_flaky", {"tag": tag, "fails": 99}, session=session)
    assert isinstance(answer, QueuedForRetry)
    assert not answer.ok
    told = answer.to_json()
    assert (told["queued_for_retry"], told["queue_reason"], told["error_kind"]) == (True, "retry", "transient")
    operation_id = answer.operation_id
    assert operation_id in told["retry_hint"]
    for attempt, pause in enumerate(ADAPTIVE, 1):
        waiting = desk.queued_again(operation_id, attempt)
        failed_at, delay = next((event.at, event.delay_ms) for event in reversed(desk.events(operation_id)) if event.kind == "retry_scheduled")
        assert waiting.retry_at == failed_at + delay
        assert 0.9 * pause <= delay <= pause
        assert (waiting.status, waiting.max_retries, waiting.queued_for_retry) == ("queued_retry", 5, True)
        desk.due_at(operation_id, desk.now()) if attempt % 2 else desk.conductor.retry_operation(operation_id)
    found = desk.ended(operation_id, "exhausted")
    assert (found.attempt, found.reason, len(desk.begun(tag))) == (6, "retries_exhausted", 6)
    assert [entry["error_kind"] for entry in found.retry_history] == ["transient"] * 6
    assert isinstance(desk.conductor.retry_operation(operation_id), (Submitted, TimedOut, QueuedForRetry))  # a person may begin anew
    desk.queued_again(operation_id, 1)
    assert desk.op(operation_id).generation == 2


@pytest.mark.spec("OP-6", "OP-2")
def test_after_a_retry_by_hand_the_record_tells_of_its_own_failure(desk: Desk, tag: str) -> None:
    """Three attempts failed for now; begun anew it fails for good at once. What is told is the last trouble, not an earlier one."""
    operation_id = desk.ask("ops_turning", {"tag": tag})
    assert desk.ended(operation_id, "exhausted").error == "the first trouble"
    desk.conductor.retry_operation(operation_id)
    found = desk.ended(operation_id, "failed")
    assert (found.generation, found.attempt, found.reason) == (2, 1, "permanent_error")
    assert (found.error, found.error_kind) == ("the last trouble", "permanent")


@pytest.mark.spec("OP-7", "OP-9")
def test_an_outage_of_an_hour_exhausts_nothing(desk: Desk, tag: str) -> None:
    operation_id = desk.conductor.call("ops_flaky", {"tag": tag, "fails": 1}, session=f"s-{tag}").operation_id
    desk.grow_old(operation_id, HOUR)
    found = desk.ended(operation_id, "completed")
    assert (found.attempt, len(desk.begun(tag))) == (2, 2)


@pytest.mark.spec("OP-7", "OP-9", "SES-3", "SES-4")
def test_a_retry_that_is_too_old_ends_loudly_and_once(desk: Desk, hook: Receiver | None, tag: str) -> None:
    """The session finds it in its inbox, the log surface and the webhook (signed, over TLS) are told, each once. The webhook is away at
    first: it is told again under the same delivery id, and holds up nobody."""
    session = f"s-{tag}"
    operation_id = desk.conductor.call("ops_flaky", {"tag": tag, "fails": 99, "text": "private"}, session=session).operation_id
    if hook is not None:
        hook.away_for.add(operation_id)
    desk.grow_old(operation_id, 31 * 60_000)
    found = desk.ended(operation_id, "exhausted")
    assert (found.reason, found.attempt, found.max_retries) == ("retry_age_exceeded", 2, 5)
    (message,) = eventually(lambda: desk.conductor.inbox(session), 20, what="the session is told")
    assert (message.kind, message.operation_id, message.id) == ("retry_exhausted", operation_id, f"{operation_id}:1:retry_exhausted")
    assert message.body["reason"] == "retry_age_exceeded"
    log = desk.processes.started[0].text
    eventually(lambda: [line for line in log().splitlines() if "notification" in line and operation_id in line], 20, what="the log tells")
    if hook is not None:

        def told_hook() -> list[Any]:
            return [one for one in hook.received if one.message["operation_id"] == operation_id]

        def telling_again() -> list[Any]:
            waiting = desk.conductor.operations(OpFilter(capability="conductor.notify", state="queued_retry"))
            return [one for one in waiting if desk.op(one.operation_id).params["message"]["operation_id"] == operation_id]

        (telling,) = eventually(telling_again, 20, what="the hook was away and is told again")
        desk.conductor.retry_operation(telling.operation_id)
        desk.ended(telling.operation_id, "completed")
        first, second = told_hook()
        assert first.message["kind"] == "retry_exhausted"
        assert webhook.verify(SECRET, first.headers, first.body) and webhook.verify(SECRET, second.headers, second.body)
        assert first.headers[webhook.DELIVERY] == second.headers[webhook.DELIVERY]
        assert b"private" not in first.body
    told = [line for line in log().splitlines() if "notification {" in line and operation_id in line]
    assert len(told) == 1, told
    assert [one.kind for one in desk.conductor.inbox(session)] == ["retry_exhausted"]


@pytest.mark.spec("OP-9", "SES-3", "OP-6")
def test_success_after_a_retry_is_told_with_the_full_result(desk: Desk, tag: str) -> None:
    session, text = f"s-{tag}", "long " * 20_000
    operation_id = desk.conductor.call("ops_flaky", {"tag": tag, "text": text}, session=session).operation_id
    desk.conductor.retry_operation(operation_id)
    found = desk.ended(operation_id, "completed")
    (message,) = eventually(lambda: desk.conductor.inbox(session), 20, what="the session is told")
    assert (message.kind, message.id) == ("retry_success", f"{operation_id}:1:retry_success")
    assert message.body["result"] == found.result
    assert message.body["result"]["text"] == text
    assert desk.conductor.acknowledge(session, message.id)
    assert desk.conductor.inbox(session) == []
    quiet = desk.conductor.call("ops_echo", {"tag": tag}, session=session, remote=True, timeout=20)
    assert quiet.ok
    assert desk.conductor.inbox(session) == []  # a first success has answered its caller


@pytest.mark.spec("OP-11", "OP-2")
def test_status_counts_by_reason_and_lists_can_be_filtered(desk: Desk, tag: str) -> None:
    session, name = f"s-{tag}", f"ops-{tag}"
    before = desk.conductor.operation_status()["queued"]
    for _ in range(3):
        desk.conductor.submit("ops_unserved", {"tag": tag}, session=session)
    retried = desk.conductor.call("ops_flaky", {"tag": tag, "fails": 99}, session=session)
    desk.conductor.schedule(name, "ops_unserved", {"tag": tag}, when=timedelta(seconds=1), session=session)

    def mine(**wanted: Any) -> list[Any]:
        return list(desk.conductor.operations(OpFilter(session=session, **wanted)))

    eventually(lambda: mine(state="queued_scheduled_job"), 20, what="the schedule ticks")
    desk.engine.store.drop_job(name)
    now = desk.conductor.operation_status()
    grown = {reason: count - before[reason] for reason, count in now["queued"].items()}
    assert grown == {"retry": 1, "deferred_submit": 3, "scheduled_job": 1, "retry_steps": 0}
    assert now["next_retry_at"] <= retried.retry_at
    assert now["oldest_age_seconds"] >= 0
    assert Counter(one.status for one in mine()) == {"queued_retry": 1, "queued_deferred_submit": 3, "queued_scheduled_job": 1}
    (waiting,) = mine(state="queued_retry")
    assert (waiting.retry_at, waiting.max_retries, waiting.error_kind) == (retried.retry_at, 5, "transient")
    assert {one.operation_id for one in mine(error_kind="transient")} == {retried.operation_id}
    assert len(mine(capability="ops_unserved")) == 4
    assert mine(older_than_ms=HOUR) == []
    desk.grow_old(retried.operation_id, 2 * HOUR)
    assert [one.operation_id for one in mine(older_than_ms=HOUR)] == [retried.operation_id]
    desk.ended(retried.operation_id, "exhausted")
    for one in mine(capability="ops_unserved"):
        desk.conductor.cancel_operation(one.operation_id)
    assert desk.conductor.operation_status()["queued"]["deferred_submit"] == before["deferred_submit"]


@pytest.mark.spec("OP-11")
def test_the_oldest_age_is_that_of_the_oldest(desk: Desk, tag: str) -> None:
    """Two wait in one partition; the older one is due later."""
    flow = "op:ops_flaky"
    old_key = f"{tag}-old"
    home = home_of_key(flow, old_key, 16)
    young_key = next(key for key in (f"{tag}-{number}" for number in range(1000)) if home_of_key(flow, key, 16) == home)
    old, young = (
        desk.conductor.call("ops_flaky", {"tag": f"{tag}-{key}", "fails": 1}, key=key).operation_id for key in (old_key, young_key))
    desk.due_at(old, desk.now() + 600_000)
    desk.asked_earlier(old, HOUR)
    try:
        assert desk.conductor.operation_status()["oldest_age_seconds"] >= HOUR / 1000
    finally:
        desk.conductor.cancel_operation(old)
        desk.conductor.cancel_operation(young)


@pytest.mark.spec("OP-8")
def test_one_slow_operation_delays_no_other(desk: Desk, tag: str) -> None:
    """Two slots: one is held for 20 s, the other serves everybody else, whatever partition they are in."""
    slow = desk.ask("ops_hold", {"tag": tag, "seconds": 20.0})
    desk.in_body(tag)
    waits = []
    for number in range(24):
        began = time.monotonic()
        assert desk.conductor.call("ops_echo", {"tag": f"{tag}-{number}"}, remote=True, timeout=20).ok
        waits.append(time.monotonic() - began)
    assert statistics.median(waits) < 2, [round(wait, 2) for wait in waits]
    assert max(waits) < 6, [round(wait, 2) for wait in waits]  # the machine is shared; behind the slow one it would be 20
    assert desk.state(slow) == "running"
    desk.go(tag)
    desk.ended(slow, "completed")


@pytest.mark.spec("OP-8", "REC-5")
def test_what_is_due_on_an_idle_system_runs_within_a_second(desk: Desk, tag: str) -> None:
    late = []
    for number in range(5):
        one = f"{tag}-{number}"
        operation_id = desk.conductor.call("ops_flaky", {"tag": one, "fails": 1}).operation_id
        due = time.monotonic() + 0.3
        desk.due_at(operation_id, desk.now() + 300)
        late.append(desk.in_body(one, 2).at - due)
        desk.ended(operation_id, "completed")
    assert min(late) > -0.1  # and not before its time
    assert statistics.median(late) < 1, late
    assert max(late) < 3, late


# Effects.


@pytest.mark.spec("EFF-2", "EFF-1")
@pytest.mark.parametrize("remote", [False, True], ids=["here", "worker"])
def test_a_file_that_was_written_although_the_call_failed_is_not_written_again(desk: Desk, tag: str, tmp_path: Path, remote: bool) -> None:
    params = {"tag": tag, "path": str(tmp_path / "file"), "text": "all of it", "plan": ["whole+unsure"]}
    answer = desk.conductor.call("ops_file", params, remote=remote, timeout=20)
    assert isinstance(answer, Completed)
    told = answer.to_json()
    assert (told["status"], told["post_write_recovery"], told["effects_verified"]) == ("ok", True, 1)
    assert told["warning"]
    assert len(desk.begun(tag)) == 1
    assert [event.how for event in desk.events(answer.operation_id) if event.kind == "completed"] == ["verified"]
    assert desk.op(answer.operation_id).result["post_write_recovery"] is True


@pytest.mark.spec("EFF-2", "EFF-1")
@pytest.mark.parametrize("first", ["half+unsure", "nothing+unsure"])
def test_a_file_that_is_half_there_or_absent_is_healed_by_exactly_one_more_call(desk: Desk, tag: str, tmp_path: Path, first: str) -> None:
    file = tmp_path / "file"
    operation_id = desk.ask("ops_file", {"tag": tag, "path": str(file), "text": "all of it", "plan": [first, "whole"]})
    found = desk.ended(operation_id, "completed")
    assert file.read_text() == "all of it"
    assert (len(desk.begun(tag)), found.attempt) == (2, 2)
    assert "post_write_recovery" not in found.result


@pytest.mark.spec("EFF-2", "RUN-12")
def test_a_timeout_is_verified_before_it_is_repeated(desk: Desk, tag: str, tmp_path: Path) -> None:
    """It was written within the second, then hung: found in place. Where nothing was written, one more call heals."""
    for first, calls in (("whole+hang", 1), ("half+hang", 2)):
        one, file = f"{tag}-{calls}", tmp_path / f"file{calls}"
        operation_id = desk.ask("ops_file_late", {"tag": one, "path": str(file), "text": "all of it", "plan": [first, "whole"]})
        found = desk.ended(operation_id, "completed")
        assert len(desk.begun(one)) == calls
        assert file.read_text() == "all of it"
        assert found.result.get("post_write_recovery", False) is (calls == 1)


@pytest.mark.spec("EFF-2")
def test_a_last_attempt_that_timed_out_is_verified_too(desk: Desk, tag: str, tmp_path: Path) -> None:
    """No retry is left; the effect landed, so the operation is completed, not failed."""
    params = {"tag": tag, "path": str(tmp_path / "file"), "text": "all of it", "plan": ["whole+hang"]}
    operation_id = desk.ask("ops_file_last", params)
    found = desk.ended(operation_id, "completed")
    assert found.result["post_write_recovery"] is True
    assert len(desk.begun(tag)) == 1


@pytest.mark.spec("EFF-2", "EFF-1")
@pytest.mark.parametrize(
    ("plan", "puts", "recovered"),
    [(["apply+cut"], 1, True), (["apply+silent"], 1, True), (["half+cut", "apply"], 2, False), (["refuse", "apply"], 2, False),
     (["half+cut", "apply+cut"], 2, True)],
    ids=["applied-then-cut", "applied-then-silent", "half", "refused", "half-then-applied-then-cut"],
)
def test_a_page_is_put_again_only_if_it_is_not_there(
    desk: Desk, tag: str, site: Pages, plan: list[str], puts: int, recovered: bool) -> None:
    path = f"/{tag}"
    site.plans[path] = plan
    operation_id = desk.ask("ops_page", {"tag": tag, "url": site.url + path, "text": "the whole page"})
    found = desk.ended(operation_id, "completed")
    assert site.contents[path] == b"the whole page"
    assert site.puts[path] == len(desk.begun(tag)) == puts
    assert bool(found.result.get("post_write_recovery")) is recovered
    assert site.gets[path] >= 1
    assert set(site.keys[path]) == {f"{operation_id}:ops_page"}  # one idempotency key in all attempts


@pytest.mark.spec("EFF-2", "EFF-1")
@pytest.mark.parametrize(
    ("plan", "calls", "recovered"),
    [(["commit+reset"], 1, True), (["commit+unsure"], 1, True), (["open+reset", "commit"], 2, False), (["open+unsure", "commit"], 2, False),
     (["open+passing", "commit"], 2, False)],
)
def test_a_row_is_inserted_again_only_if_it_was_not_committed(
    desk: Desk, tag: str, tmp_path: Path, plan: list[str], calls: int, recovered: bool) -> None:
    url = f"sqlite:///{tmp_path / 'book.db'}"
    database = sqlalchemy.create_engine(url)
    with database.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE payment (reference TEXT, amount INTEGER)"))
    operation_id = desk.ask("ops_row", {"tag": tag, "database": url, "amount": 12, "plan": plan})
    found = desk.ended(operation_id, "completed")
    with database.connect() as connection:
        rows = connection.execute(sqlalchemy.text("SELECT reference, amount FROM payment")).fetchall()
    database.dispose()
    assert [tuple(row) for row in rows] == [(tag, 12)]
    assert len(desk.begun(tag)) == calls
    assert bool(found.result.get("post_write_recovery")) is recovered


@pytest.mark.spec("EFF-2", "OP-6")
@pytest.mark.parametrize("happened", [True, False], ids=["landed", "absent"])
def test_what_cannot_be_judged_fails_and_waits_for_a_persons_word(desk: Desk, tag: str, happened: bool) -> None:
    answer = desk.conductor.call("ops_dim", {"tag": tag, "plan": ["whole+unsure", "whole"]}, remote=True, timeout=20)
    assert isinstance(answer, Failed)
    assert (answer.error_kind, answer.reason) == ("effect_in_doubt", "effect_in_doubt")
    assert "conductor resolve" in (answer.error or "")
    assert desk.state(answer.operation_id) == "failed"
    desk.conductor.resolve(answer.operation_id, happened=happened, value={"by": "hand"} if happened else None, actor="me")
    found = desk.ended(answer.operation_id, "completed")
    if happened:
        assert found.result == {"by": "hand"}
        assert len(desk.begun(tag)) == len(desk.facts("landed", tag)) == 1
    else:
        assert found.result["tag"] == tag
        assert len(desk.begun(tag)) == 2


@pytest.mark.spec("EFF-2")
def test_a_retry_by_hand_does_not_repeat_what_cannot_be_judged(desk: Desk, tag: str) -> None:
    """One path serves first call, manual retry, sweep and steps."""
    operation_id = desk.ask("ops_dim", {"tag": tag, "plan": ["whole+unsure", "whole"]})
    desk.ended(operation_id, "failed")
    desk.conductor.retry_operation(operation_id)
    eventually(lambda: desk.op(operation_id).generation == 2 and desk.state(operation_id) == "failed", 20, what=lambda: desk.told(operation_id))
    assert desk.op(operation_id).reason == "effect_in_doubt"
    assert len(desk.begun(tag)) == 1


@pytest.mark.spec("EFF-3")
def test_a_result_whose_effects_are_not_all_verified_is_queued_again(desk: Desk, tag: str) -> None:
    found = desk.ended(desk.ask("ops_half_sure", {"tag": tag}), "completed")
    assert (found.attempt, found.result["number"]) == (2, 2)
    assert found.retry_history[0]["type"].endswith("PartialEffects")
    assert "second" in found.retry_history[0]["error"]


# Steps are operations too.


@pytest.fixture(scope="module")
def beaten(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """The worker's own timer is as good as off, so that what is due is brought about by beat alone."""
    with opened(tmp_path_factory.mktemp("beaten"), {"CONDUCTOR_DUE_SWEEP_SECONDS": "3600"}) as made:
        made.beat(env={"CONDUCTOR_DUE_SWEEP_SECONDS": "0.5"})
        made.worker(concurrency=1)
        yield made
        made.sound()


@pytest.mark.spec("OP-10", "OP-8", "STK-2")
def test_a_step_that_waits_for_a_retry_is_an_operation_and_its_success_unblocks(beaten: Desk, tag: str) -> None:
    run = beaten.run("ops_retried", {"tag": tag, "fails": 1})
    operation_id = f"{run.id}:shaky"
    (listed,) = eventually(lambda: _of(beaten, run.id), 20, what=lambda: f"{beaten.kinds(run.id)}\n{beaten.processes.logs()}")
    assert (listed.operation_id, listed.status, listed.run_id, listed.step) == (operation_id, "queued_retry", run.id, "shaky")
    assert (listed.error_kind, listed.attempt, listed.max_retries, listed.queued_for_retry) == ("transient", 1, 1, True)
    assert listed.retry_at - beaten.now() > 5_000
    assert beaten.conductor.operation_status()["queued"]["retry_steps"] == 1
    assert run.status == "running"
    assert beaten.facts("after", tag) == []
    beaten.due_at(run.id, beaten.now() - HOUR)
    assert run.get(timeout=30) == 20
    assert len(beaten.facts("after", tag)) == 1
    assert (beaten.op(operation_id).state, beaten.op(operation_id).attempt) == ("completed", 2)
    assert _of(beaten, run.id) == []


@pytest.mark.spec("OP-10", "OP-7")
def test_a_step_whose_retries_are_exhausted_fails_its_run(beaten: Desk, tag: str) -> None:
    run = beaten.run("ops_retried", {"tag": tag, "fails": 9})
    eventually(lambda: _of(beaten, run.id), 20, what="the first attempt has failed")
    beaten.conductor.retry_operation(f"{run.id}:shaky")
    with pytest.raises(RunFailed, match="shaky"):
        run.get(timeout=30)
    assert len(beaten.begun(tag)) == 2
    assert beaten.facts("after", tag) == []
    assert beaten.op(f"{run.id}:shaky").state == "failed"


def _of(desk: Desk, run_id: str) -> list[Any]:
    return [one for one in desk.conductor.operations(OpFilter(state="queued_retry")) if one.run_id == run_id]


# Consent.


@pytest.mark.spec("SES-1", "ERR-2")
@pytest.mark.parametrize("remote", [False, True], ids=["here", "worker"])
def test_without_a_grant_the_answer_names_what_to_grant(desk: Desk, tag: str, remote: bool) -> None:
    session = f"s-{tag}"
    answer = desk.conductor.call("ops_consented", {"tag": tag}, session=session, remote=remote, timeout=20)
    assert isinstance(answer, Failed)
    assert f"conductor grant {session} ops_consented" in (answer.error or "")
    (entry,) = desk.op(answer.operation_id).retry_history
    assert entry["type"].endswith(ConsentRequired.__name__)
    assert desk.begun(tag) == []


@pytest.mark.spec("SES-1")
def test_a_once_grant_serves_all_replays_of_one_operation_and_no_other(desk: Desk, tag: str) -> None:
    """The asker is a process of its own, and gone when a worker replays what it asked for."""
    session = f"s-{tag}"
    desk.conductor.grant(session, "ops_consented", "once", by="owner")
    asker = desk.caller("ops_consented", {"tag": tag, "fails": 2}, session)
    assert asker.wait(30) == 0, asker.text()
    told = json.loads(asker.text().splitlines()[-1])
    assert told.get("queued_for_retry") is True, told
    operation_id = told["operation_id"]
    assert desk.conductor.grants(session) == []
    for attempt in (1, 2):
        desk.queued_again(operation_id, attempt)
        desk.conductor.retry_operation(operation_id)
    found = desk.ended(operation_id, "completed")
    assert found.result["session"] == session
    assert {line.pid for line in desk.begun(tag)[:1]} == {asker.pid}
    assert asker.pid not in {line.pid for line in desk.begun(tag)[1:]}
    second = desk.conductor.call("ops_consented", {"tag": f"{tag}-2"}, session=session, remote=True, timeout=20)
    assert isinstance(second, Failed)
    assert "conductor grant" in (second.error or "")
    assert desk.begun(f"{tag}-2") == []


@pytest.mark.spec("SES-1")
def test_a_once_grant_is_used_by_one_worker_replay_after_another(desk: Desk, tag: str) -> None:
    """The same asked on a worker from the beginning; grants are read just before the code runs."""
    session = f"s-{tag}"
    desk.conductor.grant(session, "ops_consented", "once")
    operation_id = desk.ask("ops_consented", {"tag": tag, "fails": 1}, session=session)
    desk.queued_again(operation_id, 1)
    assert desk.conductor.grants(session) == []
    desk.conductor.retry_operation(operation_id)
    assert desk.ended(operation_id, "completed").result["session"] == session
    second = desk.conductor.call("ops_consented", {"tag": f"{tag}-2"}, session=session, remote=True, timeout=20)
    assert isinstance(second, Failed)
    desk.conductor.grant(session, "ops_consented", "always")
    assert desk.conductor.call("ops_consented", {"tag": f"{tag}-3"}, session=session, remote=True, timeout=20).ok


@pytest.mark.spec("SES-1", "SES-2", "WF-14")
@pytest.mark.parametrize("workflow", ["ops_consent", "ops_consent_call"], ids=["step", "called"])
def test_a_runs_blanket_consents_for_what_is_in_it_while_it_lives(desk: Desk, tag: str, workflow: str) -> None:
    session = f"s-{tag}"
    run = desk.run(workflow, {"tag": tag}, session=session)
    desk.conductor.grant_run(run.id)
    desk.go(tag)
    assert run.get(timeout=30)["session"] == session
    with pytest.raises(RunFinished):
        desk.conductor.grant_run(run.id)
    other = desk.run(workflow, {"tag": tag}, session=session)
    with pytest.raises(RunFailed, match="needs the consent"):
        other.get(timeout=30)
    assert len(desk.begun(tag)) == 1


@pytest.mark.spec("SES-2", "RUN-11")
def test_a_blanket_is_worthless_after_the_run_has_ended(desk: Desk, tag: str) -> None:
    """The run fails with a blanket and is retried: consent is asked for again."""
    run = desk.run("ops_consent", {"tag": tag, "plan": ["mend"]}, session=f"s-{tag}")
    desk.conductor.grant_run(run.id)
    desk.go(tag)
    with pytest.raises(RunFailed, match="not mended"):
        run.get(timeout=30)
    desk.ledger.effect(f"{tag}:mended")
    run.retry()
    with pytest.raises(RunFailed, match="needs the consent"):
        run.get(timeout=30)
    assert desk.begun(tag) == []


# Tools.


@pytest.mark.spec("CAP-2", "OP-6")
def test_a_disabled_capability_is_queued_never_unknown_and_recovers_at_dispatch(desk: Desk, tag: str) -> None:
    """The worker's processes began without the tool; the call goes ahead, its transient error queues it, the replay finds the tool."""
    operation_id = desk.ask("ops_tooled", {"tag": tag})
    desk.queued_again(operation_id, 1)
    desk.conductor.engine.needs.examine({"ops_tooled": ("ops_tool",)})
    assert "ops_tooled" in desk.engine.needs.disabled
    here = desk.conductor.call("ops_tooled", {"tag": f"{tag}-here"})
    assert isinstance(here, QueuedForRetry)
    assert "registry_auto_recovered" not in here.to_json()
    with pytest.raises(Exception, match="what it needs is not there"):
        desk.conductor.retry_operation(operation_id, health_check=True)
    assert desk.op(operation_id).attempt == 1
    desk.ledger.effect("ops_tool")
    recovered = desk.conductor.call("ops_tooled", {"tag": f"{tag}-again"})
    assert recovered.to_json()["registry_auto_recovered"] is True
    assert "ops_tooled" not in desk.engine.needs.disabled
    steady = desk.conductor.call("ops_tooled", {"tag": f"{tag}-steady"})
    assert "registry_auto_recovered" not in steady.to_json()
    desk.conductor.retry_operation(operation_id, health_check=True)
    desk.ended(operation_id, "completed")
    with pytest.raises(UnknownCapability):
        desk.conductor.call("ops_toiled", {})


@pytest.mark.spec("CAP-2")
def test_a_capability_that_recovered_on_a_worker_says_so(tmp_path: Path, tag: str) -> None:
    with opened(tmp_path) as made:
        made.worker(concurrency=1)
        operation_id = made.ask("ops_tooled", {"tag": tag})
        made.queued_again(operation_id, 1)
        made.ledger.effect("ops_tool")
        answer = made.conductor.call("ops_tooled", {"tag": f"{tag}-2"}, remote=True, timeout=20)
        assert answer.ok
        assert answer.to_json().get("registry_auto_recovered") is True
        made.sound()


# Budgets.


@pytest.mark.spec("OP-12", "OP-7")
def test_past_its_retry_budget_a_capability_waits_and_says_so(tmp_path: Path, tag: str) -> None:
    """30 operations fail at once; five a minute are repeated. Minutes pass by moving the budget's minute into the past."""
    with opened(tmp_path, {"CONDUCTOR_PARTITIONS": "1"}, partitions=1) as made:
        made.worker(concurrency=2)
        ids = [made.ask("ops_budgeted", {"tag": f"{tag}-{number}", "fails": 1}) for number in range(30)]
        for operation_id in ids:
            made.queued_again(operation_id, 1)
        client, budget, began = made.server.client(), made.keys.of(0, "budget:ops_budgeted"), made.now() // 60_000

        def unsettled() -> list[str]:
            found = {operation_id: made.op(operation_id) for operation_id in ids}
            return [
                operation_id for operation_id, one in found.items()
                if one.state != "completed" and not (one.reason == "retry_budget" and one.retry_at and one.retry_at > made.now())
            ]

        rounds, left = 0, ids
        while left:
            rounds += 1
            client.hset(budget, "minute", 1)  # the minute in which the last ones were repeated is over
            for operation_id in left:
                made.due_at(operation_id, made.now(), must=False)
            eventually(lambda: not unsettled(), 30, every=0.1, what=lambda: f"{len(unsettled())}\n{made.processes.logs()}")
            left = [operation_id for operation_id in ids if made.state(operation_id) != "completed"]
            passed = made.now() // 60_000 - began  # minutes that really passed allow five each as well
            assert min(30, 5 * rounds) <= 30 - len(left) <= 5 * (rounds + passed)
            for one in map(made.op, left[:1]):
                assert (one.status, one.attempt, one.reason) == ("queued_retry", 1, "retry_budget")
                assert one.retry_at - made.now() <= 60_000
        assert rounds + passed >= 6
        assert {made.op(one).attempt for one in ids} == {2}
        assert Counter(event.kind for one in ids for event in made.events(one))["due"] == 30
        made.sound()
