"""Both clients against a server that is told what to do: every word of the network, and what the caller is told of it."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conductor.client import (
    AsyncClient,
    AsyncHandle,
    Backoff,
    Budget,
    Client,
    Code,
    ConductorRestarted,
    ConductorUnreachable,
    DownstreamLost,
    Forbidden,
    Handle,
    NoAnswer,
    NotFound,
    ReplyLost,
    ServiceRefused,
    StillRunning,
    Terminal,
    Unauthenticated,
    Unrecoverable,
)
from conductor.client.asking import Request
from conductor.errors import (
    BadInput,
    GetTimeout,
    KeyConflict,
    LaneBusy,
    LaneFull,
    NotFailed,
    RunCancelled,
    RunFailed,
    StoreUnreachable,
    UnknownRun,
)
from tests.support.scripted_http import Answer, Cut, Hang, ScriptedHttp, Stream, awaited, end, error, event, outcome, page
from tests.support.waiting import eventually

RUN = "0190c0de-0000-7000-8000-000000000003"
EVENTS, OUTCOME = f"/v1/runs/{RUN}/events", f"/v1/runs/{RUN}/outcome"
QUICK = Budget(interval=0.05, attempts=8, total=0.5, grace=0.2, lost_after=0.4, quiet=0.1, stall=1, answer=1, settle=0.2)
SOON = Backoff(first=0.02, most=0.1, total=0.6, call_total=0.6)

Make = Callable[..., Any]


@pytest.fixture
def server() -> Iterator[ScriptedHttp]:
    with ScriptedHttp() as one:
        yield one


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, server: ScriptedHttp) -> Iterator[Any]:
    with awaited(request.param, server.url, token="s3cret", budget=QUICK, backoff=SOON) as one:
        yield one


def follow(client: Any, **options: Any) -> tuple[Any, list[int]]:
    seen: list[int] = []
    result = client.run(RUN).follow(lambda event: seen.append(event.number), **options)
    return result, seen


# Following.


@pytest.mark.spec("CLI-1")
def test_events_to_the_end_and_the_result(server: ScriptedHttp, client: Any) -> None:
    server.on("GET", EVENTS, Stream((b"retry: 2000\n\nid: 0\n\n", event(1), event(2), b": \n\n", 0.05, event(3) + end())))
    server.on("GET", OUTCOME, outcome("completed", result={"total": 3}, last_event=3))
    result, seen = follow(client)
    assert (result.code, result.ok, result.value, seen) == (Code.COMPLETED, True, {"total": 3}, [1, 2, 3])
    assert server.asked("GET", EVENTS)[0].headers["authorization"] == "Bearer s3cret"
    assert "s3cret" not in repr(client)
    assert client.pending() == []


@pytest.mark.spec("CLI-1")
@pytest.mark.parametrize("how", ["cut", "close"])
def test_a_broken_stream_is_taken_up_after_the_last_event(server: ScriptedHttp, client: Any, how: str) -> None:
    server.on("GET", EVENTS, Stream((event(1), event(2), event(3)[:20]), how), Stream((event(3), event(4), end())))
    server.on("GET", OUTCOME, outcome("running", last_event=4), outcome("running", last_event=4), outcome("completed", last_event=4))
    result, seen = follow(client)
    assert (result.code, seen) == (Code.COMPLETED, [1, 2, 3, 4])
    assert [one.query for one in server.asked("GET", EVENTS)] == ["after=0", "after=2"]


@pytest.mark.spec("CLI-1")
def test_a_half_open_stream_is_noticed(server: ScriptedHttp, client: Any) -> None:
    server.on("GET", EVENTS, Stream((event(1),), "hang"), Stream((event(2), end())))
    server.on("GET", OUTCOME, Hang(), outcome("running"), outcome("completed", last_event=2))
    result, seen = follow(client)
    assert (result.code, seen) == (Code.COMPLETED, [1, 2])


@pytest.mark.spec("CLI-1")
def test_where_streams_do_not_get_through_outcome_and_events_are_polled(server: ScriptedHttp, client: Any) -> None:
    server.on("GET", EVENTS, Answer("<html>Bad Gateway</html>", 502, epoch=""))
    server.on("PAGE", EVENTS, page(1, 2), page(2, 3), Answer("<html>Bad Gateway</html>", 502, epoch=""), page(4))
    server.on("GET", OUTCOME, *[outcome("running", last_event=2)] * 10, *[outcome("running", last_event=3)] * 5, outcome("completed", result=7, last_event=4))
    result, seen = follow(client)
    assert (result.code, result.value, seen) == (Code.COMPLETED, 7, [1, 2, 3, 4])


@pytest.mark.spec("CLI-1")
def test_a_run_that_ended_while_we_were_away_is_told_with_all_its_events(server: ScriptedHttp, client: Any) -> None:
    server.on("GET", EVENTS, Stream((event(1),), "cut"))
    server.on("PAGE", EVENTS, page(2, 3), page(4))
    server.on("GET", OUTCOME, outcome("failed", reason="step_failed", last_event=4))
    result, seen = follow(client)
    assert (result.code, seen) == (Code.FAILED, [1, 2, 3, 4])
    assert len(server.asked("GET", OUTCOME)) <= 2, "once beside the stream, once when it was cut"


def test_a_page_of_a_proxy_says_nothing_of_the_run(server: ScriptedHttp, client: Any) -> None:
    server.on("GET", EVENTS, Answer("<html>Not Found</html>", 404, epoch=""), Stream((event(1), end())))
    server.on("GET", OUTCOME, Answer("<html>Not Found</html>", 404, epoch=""), outcome("running"), outcome("completed", last_event=1))
    assert follow(client)[0].code is Code.COMPLETED


@pytest.mark.parametrize("junk", [b"data: {\n\n", b"data: [1]\n\n", b"event: claimed\ndata: {}\n\n", b"event: error\ndata: {}\n\n", b"\xff\xfe: \n\n"])
def test_junk_in_a_stream_breaks_it_and_nothing_else(server: ScriptedHttp, client: Any, junk: bytes) -> None:
    server.on("GET", EVENTS, Stream((event(1), junk)), Stream((event(2), end())))
    server.on("GET", OUTCOME, outcome("running"), outcome("running"), outcome("completed", last_event=2))
    result, seen = follow(client)
    assert (result.code, seen) == (Code.COMPLETED, [1, 2])


def test_get_gives_the_result_or_what_the_end_means(server: ScriptedHttp, client: Any) -> None:
    failed = {"code": "run_failed", "message": "run r failed: boom", "failed": [{"step": "pay", "reason": "permanent", "error": "Boom: no"}]}
    for told, kind, said in (
        (outcome("failed", reason="step_failed", error=failed), RunFailed, "run r failed: boom"),
        (outcome("cancelled", reason="requested"), RunCancelled, "was cancelled: requested"),
        (outcome("completed", result=None, result_error={"code": "result_expired", "message": "it is gone"}), Exception, "it is gone"),
    ):
        server.on("GET", OUTCOME, told)
        with pytest.raises(kind, match=said) as caught:
            client.run(RUN).get()
        if kind is RunFailed:
            assert caught.value.failures == [("pay", "Boom: no")]


def test_get_keeps_its_timeout_whatever_the_service_does(server: ScriptedHttp, client: Any) -> None:
    server.on("GET", OUTCOME, Hang())
    began = time.monotonic()
    with pytest.raises(GetTimeout):
        client.run(RUN).get(timeout=0.2)
    assert time.monotonic() - began < 0.8


def test_events_are_iterated_and_may_be_left(server: ScriptedHttp, client: Any) -> None:
    server.on("GET", EVENTS, Stream((event(1), event(2)), "hang"))
    server.on("GET", OUTCOME, outcome("running", last_event=2))
    for one in client.run(RUN).events():
        if one.number == 2:
            break
    eventually(lambda: server.open <= 1, 5, what="the stream that was left is closed")


# The codes, each provoked by itself.


@pytest.mark.spec("CLI-1")
def test_conductor_restarted(server: ScriptedHttp, client: Any) -> None:
    server.on("GET", EVENTS, Stream((event(1),), "cut", epoch="e1"))
    server.on("GET", OUTCOME, error(404, "unknown_run", epoch="e2"))
    result, _ = follow(client)
    assert (result.code, result.state) == (Code.CONDUCTOR_RESTARTED, "not_found")
    with pytest.raises(ConductorRestarted):
        result.get()


@pytest.mark.spec("CLI-1")
def test_run_not_found(server: ScriptedHttp, client: Any) -> None:
    server.on("GET", EVENTS, Stream((event(1),), "cut", epoch="e1"))
    server.on("GET", OUTCOME, error(404, "unknown_run", epoch="e1"))
    result, _ = follow(client)
    assert (result.code, result.state) == (Code.RUN_NOT_FOUND, "not_found")
    with pytest.raises(UnknownRun):
        result.get()
    server.on("GET", EVENTS, error(404, "unknown_run", epoch="e1"))
    assert follow(client)[0].code is Code.RUN_NOT_FOUND


@pytest.mark.spec("CLI-1")
def test_conductor_unreachable(server: ScriptedHttp, client: Any) -> None:
    server.deaf()
    began = time.monotonic()
    result, _ = follow(client)
    assert (result.code, result.state) == (Code.CONDUCTOR_UNREACHABLE, "gave_up")
    assert SOON.total <= time.monotonic() - began < SOON.total + 2
    with pytest.raises(ConductorUnreachable, match="ConnectError"):
        result.get()
    assert [one["run_id"] for one in client.pending()] == [RUN], "its end is not known"


@pytest.mark.spec("CLI-1", "CLI-2")
def test_unrecoverable(server: ScriptedHttp, client: Any) -> None:
    server.on("GET", EVENTS, error(503, "store_unreachable"))
    server.on("GET", OUTCOME, error(503, "store_unreachable"))
    result, _ = follow(client)
    assert (result.code, result.state) == (Code.UNRECOVERABLE, "gave_up")
    assert len(server.asked("GET", OUTCOME)) <= QUICK.attempts
    with pytest.raises(Unrecoverable):
        result.get()


@pytest.mark.spec("CLI-1")
def test_downstream_lost(server: ScriptedHttp, client: Any) -> None:
    server.on("GET", EVENTS, Stream((event(1), *[b": \n\n", 0.05] * 400), "hang"))
    server.on("GET", OUTCOME, outcome("running", live_leases=0, last_event=1))
    result, _ = follow(client)
    assert (result.code, result.state) == (Code.DOWNSTREAM_LOST, "gave_up")
    with pytest.raises(DownstreamLost):
        result.get()


@pytest.mark.spec("CLI-1")
def test_lane_busy(server: ScriptedHttp, client: Any) -> None:
    server.on("GET", OUTCOME, outcome("failed", reason="lane_busy"))
    result = client.run(RUN).follow()
    assert (result.code, result.state) == (Code.LANE_BUSY, "failed")
    with pytest.raises(LaneBusy):
        result.get()


@pytest.mark.spec("CLI-1")
def test_lane_full(server: ScriptedHttp, client: Any) -> None:
    server.on("POST", "/v1/runs", error(429, "lane_full", "lane dock is full", lane="dock", active=2, queued=5))
    result = client.perform("order", {"id": 1})
    assert (result.code, result.state) == (Code.LANE_FULL, "failed")
    with pytest.raises(LaneFull, match="lane dock is full"):
        result.get()
    with pytest.raises(LaneFull) as caught:
        client.start("order", {"id": 1})
    assert (caught.value.lane, caught.value.queued) == ("dock", 5)
    assert len(server.asked("POST", "/v1/runs")) == 2, "a full lane is an answer, not a fault"


@pytest.mark.spec("CLI-1")
@pytest.mark.parametrize(("told", "kind"), [
    (error(401, "unauthenticated"), Unauthenticated), (error(403, "forbidden"), Forbidden), (Answer("go away", 401, epoch=""), Unauthenticated),
])
def test_auth_errors_are_never_retried(server: ScriptedHttp, client: Any, told: Answer, kind: type[Exception]) -> None:
    for method, path in (("GET", EVENTS), ("GET", OUTCOME), ("POST", "/v1/runs")):
        server.on(method, path, told)
    for act in (lambda: follow(client), lambda: client.run(RUN).get(), lambda: client.start("order"), lambda: client.resume([{"run_id": RUN}])):
        server.seen.clear()
        with pytest.raises(kind):
            act()
        assert len(server.seen) == 1


@pytest.mark.spec("CLI-1")
def test_a_token_that_is_revoked_on_the_way_ends_it(server: ScriptedHttp, client: Any) -> None:
    server.on("GET", EVENTS, Stream((event(1),), "cut"))
    server.on("GET", OUTCOME, error(401, "unauthenticated"))
    with pytest.raises(Unauthenticated):
        follow(client)
    assert len(server.seen) <= 3


# Starting and calling.


@pytest.mark.spec("SVC-1", "CLI-1")
def test_a_start_whose_reply_is_lost_is_sent_again_under_the_same_key(server: ScriptedHttp, client: Any) -> None:
    server.on("POST", "/v1/runs", Cut(), Answer("<html>", 502, epoch=""), Answer({"run_id": RUN, "new": False, "state": "running"}))
    handle = client.start("order", {"id": 1}, tags=["eu"], deadline=60)
    asked = server.asked("POST", "/v1/runs")
    assert len(asked) == 3
    assert len({one.body["key"] for one in asked}) == 1
    assert asked[0].body.pop("key").startswith("auto-")
    assert asked[0].body == {"workflow": "order", "input": {"id": 1}, "tags": ["eu"], "deadline": 60}
    assert (handle.id, handle.epoch) == (RUN, "e1")
    assert client.pending() == [{"run_id": RUN, "epoch": "e1", "last_event": 0}]


def test_two_starts_have_two_keys_and_a_given_key_is_kept(server: ScriptedHttp, client: Any) -> None:
    server.on("POST", "/v1/runs", Answer({"run_id": RUN}))
    client.start("order"), client.start("order"), client.start("order", key="mine")
    keys = [one.body["key"] for one in server.seen]
    assert (len(set(keys)), keys[2]) == (3, "mine")


@pytest.mark.parametrize("key", ["größe-1", "日本", " lead", "trail ", "a\tb"])
def test_a_key_of_any_text_is_sent_as_it_is(server: ScriptedHttp, client: Any, key: str) -> None:
    server.on("POST", "/v1/runs", Answer({"run_id": RUN}))
    client.start("order", key=key)
    (asked,) = server.seen
    assert (asked.body["key"], "idempotency-key" in asked.headers) == (key, False)


LOST = [Cut(), error(503, "store_unreachable"), error(503, "archive_unreachable"), Answer("<html>", 502, epoch="")]


@pytest.mark.parametrize("lost", LOST)
def test_a_retry_whose_reply_is_lost_is_not_sent_again(server: ScriptedHttp, client: Any, lost: Any) -> None:
    """Also where the service is the one who lost its store in the middle: it cannot say that nothing has happened."""
    for verb, act in (("retry", lambda: client.run(RUN).retry()), ("fork", lambda: client.run(RUN).fork("pay"))):
        server.on("POST", f"/v1/runs/{RUN}/{verb}", lost)
        with pytest.raises(ReplyLost, match="may or may not have happened"):
            act()
        assert len(server.asked("POST", f"/v1/runs/{RUN}/{verb}")) == 1


@pytest.mark.parametrize("lost", LOST)
def test_a_fork_is_sent_again_to_a_service_that_knows_its_key(server: ScriptedHttp, client: Any, lost: Any) -> None:
    parameters = [{"name": "run_id", "in": "path"}, {"name": "Idempotency-Key", "in": "header"}]
    server.on("GET", "/v1/openapi.json", Answer({"paths": {"/v1/runs/{run_id}/fork": {"post": {"parameters": parameters}}}}))
    server.on("POST", f"/v1/runs/{RUN}/fork", lost, lost, Answer({"run_id": "x"}, 201))
    assert client.run(RUN).fork("pay", note=None).id == "x"
    asked = server.asked("POST", f"/v1/runs/{RUN}/fork")
    assert (len(asked), len({one.headers["idempotency-key"] for one in asked})) == (3, 1)
    assert asked[0].body == {"from": "pay", "changes": {"note": None}}, "null is a value"
    client.run(RUN).fork("pay")
    assert server.seen[-1].headers["idempotency-key"] != asked[0].headers["idempotency-key"]


def test_a_batch_whose_reply_is_lost_is_sent_again_under_the_same_key(server: ScriptedHttp, client: Any) -> None:
    server.on("POST", "/v1/batches", Cut(), error(503, "store_unreachable"), Answer({"batch_id": "b"}, 202))
    assert client.batch("cancel", {"status": ["failed"]}, dry_run=False) == {"batch_id": "b"}
    assert len({one.headers["idempotency-key"] for one in server.asked("POST", "/v1/batches")}) == 1


def test_what_never_left_may_be_sent_again(server: ScriptedHttp, client: Any) -> None:
    server.deaf()
    server.on("POST", f"/v1/runs/{RUN}/retry", Answer({"run_id": RUN, "word": "ok"}))
    back = threading.Timer(0.15, server.listen)
    back.start()
    assert client.run(RUN).retry()["word"] == "ok"
    back.join()


@pytest.mark.parametrize(("told", "kind"), [
    (error(409, "key_conflict", "key k belongs to run x", run_id="x"), KeyConflict), (error(409, "not_failed"), NotFailed),
    (error(422, "bad_input"), BadInput), (error(404, "unknown_run"), UnknownRun), (error(418, "of_tomorrow", "what?"), ServiceRefused),
    (error(500, "internal_error"), ServiceRefused), (error(503, "store_unreachable"), StoreUnreachable),
    (Answer("teapot", 418, epoch=""), ServiceRefused), (Answer("not JSON"), ServiceRefused),
])
def test_a_refusal_is_the_same_exception_as_in_the_service(server: ScriptedHttp, client: Any, told: Answer, kind: type[Exception]) -> None:
    server.on("POST", f"/v1/runs/{RUN}/cancel", told)
    with pytest.raises(kind) as caught:
        client.run(RUN).cancel()
    if isinstance(told.body, dict):
        assert caught.value.hint == "do something else"


def test_a_call_that_nobody_answers_ends(server: ScriptedHttp, client: Any) -> None:
    server.deaf()
    began = time.monotonic()
    with pytest.raises(ConductorUnreachable):
        client.run(RUN).status()
    assert time.monotonic() - began < 3


def test_every_call_asks_its_route(server: ScriptedHttp, client: Any) -> None:
    run, at = client.run(RUN), f"/v1/runs/{RUN}"
    given: list[tuple[Callable[[], Any], str, str, Any, Any]] = [
        (lambda: run.status(), "GET", OUTCOME, outcome("paused").body, "paused"),
        (lambda: run.show(values=True), "GET", at, {"run_id": RUN}, {"run_id": RUN}),
        (lambda: run.why(), "GET", at, {"why": {"sentence": "s", "command": "c"}}, {"sentence": "s", "command": "c"}),
        (lambda: run.signal("go", {"n": 1}), "POST", f"{at}/signal", {"word": "taken"}, {"word": "taken"}),
        (lambda: run.advance("ask", "yes"), "POST", f"{at}/advance", {"word": "taken"}, {"word": "taken"}),
        (lambda: run.cancel("why not", compensate=True), "POST", f"{at}/cancel", {"word": "ok"}, {"word": "ok"}),
        (lambda: run.pause(), "POST", f"{at}/pause", {"word": "ok"}, {"word": "ok"}),
        (lambda: run.resume(), "POST", f"{at}/resume", {"word": "ok"}, {"word": "ok"}),
        (lambda: run.fork("pay", total=3).id, "POST", f"{at}/fork", {"run_id": "x"}, "x"),
        (lambda: client.call("greet", {"name": "Ada"}, session="s"), "POST", "/v1/call", {"status": "ok"}, {"status": "ok"}),
        (lambda: client.submit("greet", priority=3), "POST", "/v1/submit", {"status": "queued"}, {"status": "queued"}),
        (lambda: client.operation("o"), "GET", "/v1/operations/o", {"state": "failed"}, {"state": "failed"}),
        (lambda: client.operations(state="failed"), "GET", "/v1/operations", {"operations": [{"a": 1}]}, [{"a": 1}]),
        (lambda: client.inbox("s", after="7"), "GET", "/v1/sessions/s/inbox", {"messages": [{"id": "m"}]}, [{"id": "m"}]),
        (lambda: client.acknowledge("s", "m/1"), "POST", "/v1/sessions/s/inbox/m%2F1/ack", {}, None),
        (lambda: client.batch("cancel", {"status": "failed"}), "POST", "/v1/batches", {"count": 3}, {"count": 3}),
        (lambda: client.batch_state("b"), "GET", "/v1/batches/b", {"done": 1}, {"done": 1}),
        (lambda: client.ask("GET", "/v1/lanes", all=True), "GET", "/v1/lanes", {"lanes": []}, {"lanes": []}),
        (lambda: client.send(Request("PUT", "/v1/holds/all", body={})), "PUT", "/v1/holds/all", {"word": "ok"}, {"word": "ok"}),
        (lambda: client.operation(".."), "GET", "/v1/operations/%2E%2E", {}, {}),
    ]
    for call, method, path, told, expected in given:
        server.seen.clear()
        server.on(method, path, Answer(told))
        assert call() == expected
        assert [(one.method, one.path) for one in server.seen] == [(method, path)]
    server.on("POST", f"{at}/signal", Cut(), Answer({"word": "taken"}))
    server.seen.clear()
    run.signal("go")
    assert len({one.body["id"] for one in server.seen}) == 1 and server.seen[0].body["id"], "a repeated signal is no news"


@pytest.mark.parametrize("value", [float("nan"), object(), {1, 2}])
def test_what_is_no_json_is_refused_before_it_is_sent(server: ScriptedHttp, client: Any, value: Any) -> None:
    with pytest.raises(BadInput, match="it is no JSON"):
        client.start("order", {"total": value})
    assert server.seen == []


def test_lists_follow_their_cursors(server: ScriptedHttp, client: Any) -> None:
    pages = [Answer({"runs": [{"run_id": str(n)}], "cursor": str(n + 1) if n < 3 else None}) for n in range(4)]
    server.on("GET", "/v1/runs", *pages)
    assert [run["run_id"] for run in client.runs(status="failed", idle=True)] == ["0", "1", "2", "3"]
    assert [one.query for one in server.seen][:2] == ["status=failed&idle=true", "status=failed&idle=true&cursor=1"]
    server.on("GET", "/v1/runs", pages[3])
    for several in (["failed", "running"], ("failed", "running")):
        list(client.runs(status=several))
        assert server.seen[-1].query == "status=failed%2Crunning"


# A restarted caller.


@pytest.mark.spec("CLI-2")
def test_a_restarted_caller_resolves_every_run_it_had(server: ScriptedHttp, client: Any) -> None:
    for name, told in {
        "ended": outcome("failed", reason="step_failed"), "going": outcome("running", last_event=9), "gone": error(404, "unknown_run"),
        "wiped": error(404, "unknown_run", epoch="e2"), "mute": error(503, "store_unreachable"),
    }.items():
        server.on("GET", f"/v1/runs/{name}/outcome", told)
    saved = [{"run_id": name, "epoch": "e1", "last_event": 4} for name in ("ended", "going", "gone", "wiped", "mute")]
    found = {one.run_id: one for one in client.resume(saved)}
    assert list(found) == ["ended", "going", "gone", "wiped", "mute"]
    assert isinstance(found["ended"], Terminal) and found["ended"].result.code is Code.FAILED
    assert isinstance(found["going"], StillRunning) and found["going"].handle.last_event == 4
    assert isinstance(found["gone"], NotFound) and found["gone"].result.code is Code.RUN_NOT_FOUND
    assert isinstance(found["wiped"], NotFound) and found["wiped"].result.code is Code.CONDUCTOR_RESTARTED
    assert isinstance(found["mute"], NoAnswer)
    assert {one["run_id"] for one in client.pending()} == {"going", "mute"}
    assert len(server.asked("GET", "/v1/runs/ended/outcome")) == 1
    assert len(server.asked("GET", "/v1/runs/mute/outcome")) > 1


@pytest.mark.spec("CLI-2")
def test_while_nobody_answers_each_run_has_no_answer_and_the_time_is_that_of_one(server: ScriptedHttp, client: Any) -> None:
    server.deaf()
    began = time.monotonic()
    found = client.resume({"run_id": f"r{number}"} for number in range(500))
    assert all(isinstance(one, NoAnswer) for one in found)
    assert [one.run_id for one in found] == [f"r{number}" for number in range(500)]
    assert time.monotonic() - began < 3
    assert len(client.pending()) == 500


def test_what_is_no_pending_run_is_refused(client: Any) -> None:
    with pytest.raises(BadInput):
        client.resume([{"run": RUN}])


def test_a_followed_run_is_pending_with_its_last_event(server: ScriptedHttp, client: Any) -> None:
    server.on("GET", EVENTS, Stream((event(1), event(2)), "hang"))
    server.on("GET", OUTCOME, outcome("running", last_event=2))
    handle = client.run(RUN)
    for one in handle.events():
        if one.number == 2:
            break
    assert client.pending() == [{"run_id": RUN, "epoch": "e1", "last_event": 2}]
    server.on("GET", EVENTS, Stream((event(3), end())))
    server.on("GET", OUTCOME, outcome("completed", last_event=3))
    assert [one.number for one in handle.events()] == [3]
    assert client.pending() == []


# Stopping.


@pytest.mark.spec("CLI-2")
@pytest.mark.parametrize("told", [Stream((event(1),), "hang"), Hang()])
def test_stop_is_immediate_here_and_best_effort_there(server: ScriptedHttp, client: Any, told: Any) -> None:
    server.on("GET", EVENTS, told)
    server.on("GET", OUTCOME, Hang())
    server.on("POST", f"/v1/runs/{RUN}/cancel", Answer({"word": "ok"}))
    handle, found = client.run(RUN), []
    follower = threading.Thread(target=lambda: found.append(handle.follow(lambda event: None)))
    follower.start()
    eventually(lambda: server.asked("GET", EVENTS), 5, what="it follows")
    began = time.monotonic()
    word = handle.stop()
    follower.join(5)
    assert time.monotonic() - began < 0.5
    assert found[0].code is Code.STOPPED
    assert word.result(5) == "ok"
    assert server.asked("POST", f"/v1/runs/{RUN}/cancel")[0].body["reason"] == "stopped by its caller"


@pytest.mark.spec("CLI-2")
@pytest.mark.parametrize("away", [True, False])
def test_a_stop_that_reaches_nobody_ends_within_its_bound(server: ScriptedHttp, client: Any, away: bool) -> None:
    server.on("POST", f"/v1/runs/{RUN}/cancel", Hang())
    if away:
        server.deaf()
    began = time.monotonic()
    word = client.run(RUN).stop(within=0.4)
    assert time.monotonic() - began < 0.3
    assert "not cancelled" in word.result(5)
    assert time.monotonic() - began < 3


# Both clients.


def _surface(kind: type) -> dict[str, Any]:
    renamed = {"aclose": "close"}
    return {
        renamed.get(name, name): (
            [(one.name, one.kind, one.default) for one in inspect.signature(member).parameters.values()],
            (inspect.getdoc(member) or "").replace("the task tells", "the future tells"),
        )
        for name, member in vars(kind).items() if callable(member) and not name.startswith("_")
    }


def test_both_clients_have_the_same_surface() -> None:
    assert _surface(Client) == _surface(AsyncClient)
    assert _surface(Handle) == _surface(AsyncHandle)


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput, match="http"):
        Client("localhost:8440")
