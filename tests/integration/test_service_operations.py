"""Operations over HTTP: what each answer is, what is refused and how, and that nobody reaches what belongs to another session."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conductor.declare.effects import Verdict
from tests.integration.front import Front, opened
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.spec("SVC-1")


@pytest.fixture
def front(valkey: ValkeyServer, namespace: str) -> Iterator[Front]:
    with opened(valkey, namespace) as one:
        yield one


# call and submit.


@pytest.mark.spec("OP-4")
def test_call_runs_on_a_worker_and_waits_for_the_answer(front: Front) -> None:
    with front.working():
        asked = {"capability": "lend", "params": {"title": "Emma"}, "session": "ada", "key": "k1"}
        first = front.told("POST", "/call", asked)
        assert (first["status"], first["result"]) == ("ok", {"title": "Emma", "days": 14})
        assert front.told("POST", "/call", asked)["operation_id"] == first["operation_id"]
        assert front.told("POST", "/call", {"capability": "invoice", "params": {"number": 1}})["operation_id"] != first["operation_id"]
        failed = front.told("POST", "/call", {"capability": "erase", "session": "ada"})
        assert (failed["status"], failed["error_kind"]) == ("failed", "permanent")
        error = front.refused("POST", "/call", asked | {"params": {"title": "Other"}}, status=409, code="key_conflict")
        assert first["operation_id"] in error["message"]


@pytest.mark.spec("OP-4", "OP-6")
def test_queued_is_not_success_and_a_timeout_is_not_failure(front: Front) -> None:
    late = front.told("POST", "/call", {"capability": "lend", "params": {"title": "Emma"}, "timeout": 0.05}, status=202)
    assert late["status"] == "timeout"
    assert "unknown, not failed" in late["hint"]
    assert front.told("GET", f"/operations/{late['operation_id']}")["state"] == "queued"
    front.away = True
    with front.working():
        queued = front.told("POST", "/call", {"capability": "invoice", "params": {"number": 1}}, status=202)
    assert (queued["queued_for_retry"], queued["status"], queued["error_kind"]) == (True, "queued", "transient")
    assert "not success" in queued["retry_hint"]
    assert "result" not in queued


@pytest.mark.spec("OP-4")
def test_callers_that_wait_hold_no_thread_so_others_are_answered(front: Front) -> None:
    """More callers wait than the pool has threads; a look at the queue is answered meanwhile, and each of them gets its own answer."""
    waiting = 60
    with ThreadPoolExecutor(waiting + 1) as pool:
        asked = [
            pool.submit(front.say, "POST", "/call", {"capability": "lend", "params": {"title": f"book {number}"}, "timeout": 40})
            for number in range(waiting)
        ]
        eventually(lambda: front.told("GET", "/operations/status")["queued"]["retry"] == waiting, 20)
        began = time.monotonic()
        front.told("GET", "/operations/status")
        assert time.monotonic() - began < 2
        assert not any(one.done() for one in asked)
        with front.working():
            answers = [one.result(30) for one in asked]
    assert [answer.status_code for answer in answers] == [200] * waiting
    assert [answer.json()["result"]["title"] for answer in answers] == [f"book {number}" for number in range(waiting)]


@pytest.mark.spec("OP-5")
def test_submit_queues_and_answers_at_once(front: Front) -> None:
    asked = {"capability": "lend", "params": {"title": "Emma"}, "session": "ada", "priority": 2, "queue": "slow", "key": "s1"}
    told = front.told("POST", "/submit", asked, status=202)
    assert (told["status"], told["queue_reason"]) == ("queued", "deferred_submit")
    assert front.told("POST", "/submit", asked, status=202)["operation_id"] == told["operation_id"]
    found = front.told("GET", f"/operations/{told['operation_id']}?values=true")
    assert (found["status"], found["originating_session_id"], found["params"]) == (
        "queued_deferred_submit", "ada", {"title": "Emma", "days": 14})
    assert front.engine.store.client().hget(front.engine.store.keys.run(told["operation_id"]), "q") == "slow"


@pytest.mark.spec("SVC-2", "BAD-1")
def test_what_cannot_be_is_refused_in_one_form(front: Front) -> None:
    lend, some = {"capability": "lend", "params": {"title": "Emma"}}, "01997f3a-52a1-7c33-9d1e-6a1f2f0c4d00"
    cases: list[tuple[str, str, Any, int, str]] = [
        ("POST", "/call", {"capability": "lnd"}, 404, "unknown_capability"),
        ("POST", "/call", {"capability": "lend"}, 422, "bad_input"),
        ("POST", "/call", {"capability": "lend", "params": {"title": 7}}, 422, "bad_input"),
        ("POST", "/call", {"capability": "lend", "params": {"title": "x", "pages": 1}}, 422, "bad_input"),
        ("POST", "/call", lend | {"timeout": 61}, 422, "bad_input"),
        ("POST", "/call", lend | {"timeout": "5"}, 422, "bad_input"),
        ("POST", "/call", lend | {"timeot": 5}, 422, "bad_input"),
        ("POST", "/call", lend | {"key": "a\x00b"}, 422, "bad_input"),
        ("POST", "/call", lend | {"session": "s" * 300}, 422, "bad_input"),
        ("POST", "/submit", lend | {"priority": 10}, 422, "bad_input"),
        ("POST", "/submit", lend | {"priority": True}, 422, "bad_input"),
        ("POST", "/submit", lend | {"queue": "a b"}, 422, "bad_input"),
        ("GET", "/operations?state=odd", None, 422, "unknown_filter"),
        ("GET", "/operations?error_kind=odd", None, 422, "unknown_filter"),
        ("GET", "/operations?limit=0", None, 422, "unknown_filter"),
        ("GET", "/operations?limit=1001", None, 422, "unknown_filter"),
        ("GET", "/operations?older_than=-1", None, 422, "unknown_filter"),
        ("GET", "/operations?older_than=nan", None, 422, "unknown_filter"),
        ("GET", "/operations?state=", None, 422, "unknown_filter"),
        ("GET", "/operations?staet=queued", None, 422, "unknown_filter"),
        ("GET", f"/operations/{some}", None, 404, "unknown_operation"),
        ("GET", f"/operations/{some[:-2]}ff", None, 404, "unknown_operation"),
        ("GET", "/operations/nonsense", None, 404, "unknown_operation"),
        ("GET", f"/operations/{some}:step", None, 404, "unknown_operation"),
        ("POST", f"/operations/{some}/retry", {}, 404, "unknown_operation"),
        ("POST", f"/operations/{some}/cancel", {"reason": 7}, 422, "bad_input"),
        ("POST", f"/operations/{some}/resolve", {}, 422, "bad_input"),
        ("POST", f"/operations/{some}/resolve", {"landed": 1, "absent": True}, 422, "bad_input"),
        ("POST", f"/operations/{some}/resolve", {"absent": False}, 422, "bad_input"),
    ]
    for method, path, body, status, code in cases:
        front.refused(method, path, body, status=status, code=code)
    written = [key for key in front.engine.store.client().scan_iter(f"conductor:{{{front.engine.store.namespace}:*") if ":run:" in key]
    assert written == []  # not even half of one
    assert "did you mean 'lend'" in front.refused("POST", "/call", {"capability": "lende"}, status=404, code="unknown_capability")["message"]


def test_an_item_that_is_no_number_is_unknown(front: Front) -> None:
    run_id = front.start()
    for item in ("²", "-1", "9" * 40, "x"):
        front.refused("GET", f"/operations/{run_id}:price:{item}", status=404, code="unknown_operation")


# Looking.


@pytest.mark.spec("OP-11")
def test_lists_and_status_tell_what_is_queued_and_why(front: Front) -> None:
    front.away = True
    with front.working():
        retried = front.told("POST", "/call", {"capability": "invoice", "params": {"number": 1}, "session": "ada"}, status=202)
    submitted = front.told("POST", "/submit", {"capability": "lend", "params": {"title": "Emma"}, "session": "bob"}, status=202)
    status = front.told("GET", "/operations/status")
    assert status["queued"] == {"retry": 1, "deferred_submit": 1, "scheduled_job": 0, "retry_steps": 0}
    assert status["next_retry_at"] is not None
    assert status["oldest_age_seconds"] >= 0

    def ids(query: str) -> list[str]:
        return [one["operation_id"] for one in front.told("GET", f"/operations{query}")["operations"]]

    both = [submitted["operation_id"], retried["operation_id"]]
    assert ids("") == both
    assert ids("?state=queued_retry") == ids("?capability=invoice") == ids("?error_kind=transient") == ids("?session=ada") == [both[1]]
    assert ids("?state=queued_deferred_submit") == ids("?limit=1") == [both[0]]
    assert ids("?older_than=3600") == ids("?session=nobody") == []
    (shown,) = front.told("GET", "/operations?state=queued_retry")["operations"]
    assert (shown["queue_reason"], shown["max_retries"], shown["queued_for_retry"]) == ("retry", 1, True)
    assert shown["retry_at"] > 0
    assert "params" not in shown
    one = front.told("GET", f"/operations/{both[1]}")
    assert one["retry_history"][0]["error"] == "the bridge is down"
    assert one["why"]["sentence"].startswith("operation ")
    assert "conductor ops retry" in one["why"]["command"]
    assert "params" not in one


# Moving.


@pytest.mark.spec("OP-6")
def test_retry_replays_from_the_record_and_a_health_check_asks_first(front: Front) -> None:
    front.away = True
    with front.working():
        queued = front.told("POST", "/call", {"capability": "invoice", "params": {"number": 9}}, status=202)
    path = f"/operations/{queued['operation_id']}"
    error = front.refused("POST", f"{path}/retry", {"health_check": True}, status=409, code="not_healthy")
    assert "no attempt was used" in error["message"]
    assert front.told("GET", path)["attempt"] == 1
    front.away = False
    assert front.told("POST", f"{path}/retry")["status"] == "queued"  # it is due now; a worker takes it
    front.due()
    assert front.told("GET", f"{path}?values=true")["result"] == "invoice 9"
    front.refused("POST", f"{path}/retry", {}, status=409, code="not_failed")


def test_cancelling_one_that_has_ended_is_no_error_and_says_so(front: Front) -> None:
    told = front.told("POST", "/submit", {"capability": "lend", "params": {"title": "Emma"}}, status=202)
    path = f"/operations/{told['operation_id']}/cancel"
    assert front.told("POST", path, {"reason": "not wanted"}) == {
        "operation_id": told["operation_id"], "word": "ok", "state": "cancelled", "reason": "not wanted"}
    assert front.told("POST", path)["word"] == "already"
    with front.working():
        done = front.told("POST", "/call", {"capability": "lend", "params": {"title": "Emma"}})
    said = front.told("POST", f"/operations/{done['operation_id']}/cancel")
    assert (said["word"], said["state"]) == ("ended", "completed")
    run_id = front.start()
    assert "cancel the run" in front.refused("POST", f"/operations/{run_id}:price/cancel", status=422, code="bad_input")["message"]


@pytest.mark.spec("EFF-2")
@pytest.mark.parametrize(("word", "state"), [({"landed": 5}, "completed"), ({"absent": True}, "failed")])
def test_an_effect_in_doubt_is_resolved(front: Front, word: dict[str, Any], state: str) -> None:
    front.verdict = Verdict.INDETERMINATE
    with front.working():
        doubted = front.told("POST", "/call", {"capability": "pay", "params": {"amount": 5}})
        assert (doubted["status"], doubted["reason"]) == ("failed", "effect_in_doubt")
        path = f"/operations/{doubted['operation_id']}"
        assert "conductor resolve" in front.told("GET", path)["why"]["command"]
        for value in ({"booked": 5}, None, "5"):  # what it gave must fit its type
            assert "int was expected" in front.refused("POST", f"{path}/resolve", {"landed": value}, status=422, code="bad_input")["message"]
        front.told("POST", f"{path}/resolve", word)
        eventually(lambda: front.told("GET", path)["state"] == state, 15)
    shown = front.told("GET", f"{path}?values=true")
    assert shown.get("result") == word.get("landed")
    assert shown["attempt"] == (1 if "landed" in word else 2) or shown["reason"] == "effect_in_doubt"
    assert shown["retry_history"]


def test_what_is_not_in_doubt_cannot_be_resolved(front: Front) -> None:
    told = front.told("POST", "/submit", {"capability": "lend", "params": {"title": "Emma"}}, status=202)
    front.refused("POST", f"/operations/{told['operation_id']}/resolve", {"absent": True}, status=409, code="not_in_doubt")


# Whose it is.


@pytest.mark.spec("SVC-4", "BAD-1")
def test_what_belongs_to_another_session_is_answered_like_what_is_not_there(front: Front) -> None:
    told = front.told("POST", "/submit", {"capability": "lend", "params": {"title": "Emma"}}, status=202, who="ada")
    mine, nowhere = told["operation_id"], "01997f3a-52a1-7c33-9d1e-6a1f2f0c4d00"
    assert front.told("GET", f"/operations/{mine}", who="ada")["originating_session_id"] == "ada"
    asked: list[tuple[str, str, Any]] = [
        ("GET", "", None), ("POST", "/retry", {}), ("POST", "/cancel", {}), ("POST", "/resolve", {"absent": True}),
    ]
    for method, tail, body in asked:
        foreign = front.refused(method, f"/operations/{mine}{tail}", body, status=404, code="unknown_operation", who="bob")
        missing = front.refused(method, f"/operations/{nowhere}{tail}", body, status=404, code="unknown_operation", who="bob")
        assert str(foreign).replace(mine, "X") == str(missing).replace(nowhere, "X")
    assert front.told("GET", f"/operations/{mine}", who="ada")["state"] == "queued"
    assert front.told("GET", "/operations", who="bob")["operations"] == []
    assert front.told("GET", "/operations?session=ada", who="bob")["operations"] == []
    assert [one["operation_id"] for one in front.told("GET", "/operations", who="both")["operations"]] == [mine]
    assert front.told("GET", "/operations/status", who="bob")["queued"]["deferred_submit"] == 0
    seen = front.told("GET", "/operations/status", who="ada")
    assert seen == front.told("GET", "/operations/status", who="root") | {name: seen[name] for name in ("oldest_age_seconds", "now")}


@pytest.mark.spec("SVC-4")
def test_a_caller_bound_to_sessions_asks_for_them_alone(front: Front) -> None:
    lend = {"capability": "lend", "params": {"title": "Emma"}}
    front.refused("POST", "/submit", lend | {"session": "bob"}, status=403, code="forbidden", who="ada")
    front.refused("POST", "/call", lend, status=403, code="forbidden", who="both")  # of which of the two?
    assert front.told("POST", "/submit", lend | {"session": "bob"}, status=202, who="both")
    # What comes along acts on any run it is told of, so it would be a way around.
    run_id = front.start()
    for name, params in {
        "workflow_cancel": {"run_id": run_id}, "workflow_sweep_idle": {}, "conductor.retry": {"operation_id": run_id},
        "conductor.notify": {"surface": "log", "message": {}},
    }.items():
        for path in ("/call", "/submit"):
            front.refused("POST", path, {"capability": name, "params": params}, status=403, code="forbidden", who="ada")
    assert front.state(run_id) == "running"


@pytest.mark.spec("SVC-4")
def test_a_reader_changes_nothing(front: Front) -> None:
    told = front.told("POST", "/submit", {"capability": "lend", "params": {"title": "Emma"}}, status=202)["operation_id"]
    for path in ("/call", "/submit", f"/operations/{told}/retry", f"/operations/{told}/cancel", f"/operations/{told}/resolve"):
        front.refused("POST", path, {}, status=403, code="forbidden", who="reader")
        front.refused("POST", path, {}, status=401, code="unauthenticated", who="nobody")
    front.refused("GET", "/operations", status=401, code="unauthenticated", who="nobody")
    assert front.told("GET", f"/operations/{told}", who="reader")["state"] == "queued"


def test_who_asked_for_a_retry_stands_in_the_log(front: Front) -> None:
    front.verdict = Verdict.INDETERMINATE
    with front.working():
        doubted = front.told("POST", "/call", {"capability": "pay", "params": {"amount": 5}, "session": "ada"}, who="ada")
        front.told("POST", f"/operations/{doubted['operation_id']}/resolve", {"absent": True}, who="ada")
    assert any("token:ada" in entry for entry in front.engine.store.log_of(doubted["operation_id"]))


def test_a_caller_that_leaves_ends_only_its_waiting(front: Front) -> None:
    """The service stops looking; the operation goes on and is found under its key."""
    ended = threading.Event()
    asked = {"capability": "slow", "key": "left", "timeout": 0.3}
    with front.working():
        late = front.told("POST", "/call", asked, status=202)
        threading.Timer(0.1, lambda: (front.go.set(), ended.set())).start()
        eventually(lambda: front.told("GET", f"/operations/{late['operation_id']}")["state"] == "completed", 15)
        assert front.told("POST", "/call", asked)["result"] == "done"
    assert ended.is_set()
