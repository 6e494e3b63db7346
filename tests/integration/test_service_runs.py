"""Runs over HTTP: starting, looking, moving, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from conductor.declare import registry
from conductor.ids import new_run_id
from tests.support.bureau import Bureau
from tests.support.http import Api
from tests.support.server import ValkeyServer


@pytest.fixture
def bureau(valkey: ValkeyServer, namespace: str, clean_keys: None) -> Iterator[Bureau]:
    with registry.isolated():
        yield Bureau(valkey.url(), namespace)


@pytest.fixture
def api(bureau: Bureau) -> Api:
    return bureau.api


# Starting.


@pytest.mark.spec("SVC-1")
def test_a_start_answers_201_with_the_run_and_where_it_is(bureau: Bureau, api: Api) -> None:
    answer = api.ask("POST", "/v1/runs", {"workflow": "cli_orders", "input": {"number": 3}, "tags": ["eu"], "session": "ann", "priority": 1})
    told = answer.json()
    assert answer.status_code == 201
    assert told == {"run_id": told["run_id"], "workflow": "cli_orders", "new": True, "state": "running"}
    assert answer.headers["location"] == f"/v1/runs/{told['run_id']}"
    shown = api.get(answer.headers["location"])
    assert (shown["state"], shown["session"], shown["tags"], shown["priority"]) == ("running", "ann", ["eu"], 1)
    assert shown["why"]["sentence"]
    bureau.drain()
    assert api.get(f"/v1/runs/{told['run_id']}?values=true")["result"] == 7


@pytest.mark.spec("SVC-1", "RUN-1")
@pytest.mark.parametrize("by_header", [True, False])
def test_the_same_key_is_the_same_run_and_another_body_under_it_a_conflict(api: Api, by_header: bool) -> None:
    def post(number: int) -> Any:
        body: dict[str, Any] = {"workflow": "cli_orders", "input": {"number": number}}
        return api.ask("POST", "/v1/runs", body if by_header else {**body, "key": "k"}, headers={"Idempotency-Key": "k"} if by_header else {})

    first, again, other = post(3), post(3), post(4)
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert again.json() == {**first.json(), "new": False}
    error = other.json()["error"]
    assert error["code"] == "key_conflict"
    assert error["details"]["run_id"] == first.json()["run_id"]
    assert api.get(f"/v1/runs/{first.json()['run_id']}?values=true")["input"] == {"number": 3, "bad": False, "note": ""}


@pytest.mark.spec("SVC-1")
def test_a_key_said_twice_and_differently_is_refused(api: Api) -> None:
    body = {"workflow": "cli_orders", "input": {"number": 1}, "key": "a"}
    assert api.refused("POST", "/v1/runs", body, headers={"Idempotency-Key": "b"}) == (422, "bad_input")
    assert api.get("/v1/runs")["runs"] == []


@pytest.mark.spec("SVC-1")
def test_fifty_starts_under_one_key_at_once_are_one_run(bureau: Bureau, api: Api) -> None:
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda _: api.post("/v1/runs", {"workflow": "cli_orders", "input": {"number": 1}, "key": "k"}), range(50)))
    assert len({one["run_id"] for one in told}) == 1
    assert [one["new"] for one in told].count(True) == 1


@pytest.mark.spec("SVC-1")
def test_a_start_takes_delays_and_deadlines_as_seconds_or_as_moments(api: Api) -> None:
    tomorrow = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    moment = int(tomorrow.timestamp() * 1000)
    body = {"workflow": "cli_orders", "input": {"number": 1}, "countdown": 60, "deadline": tomorrow.isoformat()}
    shown = api.get(f"/v1/runs/{api.post('/v1/runs', body)['run_id']}")
    assert shown["starts_at"]
    assert abs(shown["deadline"] - moment) < 5000
    later = api.post("/v1/runs", {"workflow": "cli_orders", "input": {"number": 1}, "eta": moment, "expires": 3600.5})
    assert api.get(f"/v1/runs/{later['run_id']}")["starts_at"] == moment
    for wrong in ({"eta": "soon"}, {"eta": "2100-01-01T00:00:00"}, {"deadline": -1}, {"countdown": 1, "eta": moment}):
        assert api.refused("POST", "/v1/runs", {"workflow": "cli_orders", "input": {"number": 1}, **wrong})[0] == 422


@pytest.mark.spec("SVC-1", "LANE-1")
def test_a_full_lane_answers_429_and_a_queued_run_says_so(bureau: Bureau, api: Api) -> None:
    assert api.post("/v1/runs", {"workflow": "queued", "input": {"number": 1}})["state"] == "running"
    second = api.post("/v1/runs", {"workflow": "queued", "input": {"number": 1}})
    assert second["state"] == "queued"
    answer = api.ask("POST", "/v1/runs", {"workflow": "queued", "input": {"number": 1}})
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "lane_full")
    assert answer.headers["retry-after"]
    assert api.refused("POST", f"/v1/runs/{second['run_id']}/pause", {}) == (409, "run_queued")


@pytest.mark.spec("SVC-2", "BAD-1")
@pytest.mark.parametrize(("body", "status", "code"), [
    ({"workflow": "nobody"}, 404, "unknown_workflow"),
    ({"workflow": "cli_orders", "input": {"number": "12"}}, 422, "bad_input"),
    ({"workflow": "cli_orders", "input": {"number": 1, "colour": "red"}}, 422, "bad_input"),
    ({"workflow": "cli_orders", "input": {"number": 1}, "priority": "1"}, 422, "bad_input"),
    ({"workflow": "cli_orders", "input": {"number": 1}, "priority": 10}, 422, "bad_input"),
    ({"workflow": "cli_orders", "input": {"number": 1}, "priority": True}, 422, "bad_input"),
    ({"workflow": "cli_orders", "input": {"number": 1}, "strange": 1}, 422, "bad_input"),
    ({"workflow": "cli_orders", "input": {"number": 1}, "tags": "eu"}, 422, "bad_input"),
    ({"workflow": "cli_orders", "input": {"number": 1}, "key": "a\x00b"}, 422, "bad_input"),
    ({"workflow": "cli_orders", "input": {"number": 1}, "queue": "a b\n"}, 422, "bad_input"),
    ([], 422, "bad_input"), ("text", 422, "bad_input"), ({}, 422, "bad_input"),
])
def test_what_is_wrong_with_a_start_is_named_and_nothing_is_written(api: Api, body: Any, status: int, code: str) -> None:
    assert api.refused("POST", "/v1/runs", body) == (status, code)
    assert api.get("/v1/runs")["runs"] == []


# Looking.


@pytest.mark.spec("SVC-1")
def test_runs_are_listed_newest_first_by_pages_and_under_the_older_name_too(bureau: Bureau, api: Api) -> None:
    started = [bureau.run() for _ in range(5)]
    first = api.get("/v1/runs?limit=2")
    second = api.get(f"/v1/handlers?limit=2&cursor={first['cursor']}")
    third = api.get(f"/v1/runs?limit=2&cursor={second['cursor']}")
    seen = [row["run_id"] for page in (first, second, third) for row in page["runs"]]
    assert sorted(seen) == sorted(started)
    assert third["cursor"] is None
    assert all(row["workflow"] == "cli_orders" for row in first["runs"])


@pytest.mark.spec("SVC-1", "SVC-2")
def test_filters_choose_and_unknown_ones_are_refused(bureau: Bureau, api: Api) -> None:
    mine, failed = bureau.run(session="ann", tags=["eu"], key="k"), bureau.done({"number": 1, "bad": True})
    waiting = bureau.run("asking")
    bureau.drain()

    def ids(query: str) -> list[str]:
        return [row["run_id"] for row in api.get(f"/v1/runs?{query}")["runs"]]

    assert ids("session=ann") == ids("tag=eu") == ids("key=k&workflow=cli_orders") == [mine]
    assert ids("status=failed") == ids("step=charge&status=failed") == ids("error_kind=ValueError") == [failed]
    assert ids("idle=true") == ids("waiting_for=word") == ids("status=waiting_signal") == [waiting]
    assert ids("since=2100-01-01T00:00:00Z") == []
    wrong = ["statu=failed", "status=broken", "status=", "idle=maybe", "since=yesterday", "limit=0", "limit=1001", "limit=x", "limit=-1",
             "status=failed&status=running", "%00=1", "cursor[]=1"]
    for query in wrong:
        assert api.refused("GET", f"/v1/runs?{query}") == (422, "unknown_filter"), query


@pytest.mark.spec("SVC-2")
def test_a_forged_cursor_is_refused(bureau: Bureau, api: Api) -> None:
    for _ in range(3):
        bureau.run()
    cursor = api.get("/v1/runs?limit=1")["cursor"]
    for forged in (cursor[:-1], f"{cursor}0", "0", "1-x", "0" * 199, "%2A", cursor[::-1]):
        assert api.refused("GET", f"/v1/runs?cursor={forged}")[0] == 422, forged


@pytest.mark.spec("SVC-2")
@pytest.mark.parametrize("run_id", ["x", "*", "a:b", "{x}", "..%2Fx", "%00", "x" * 4000, "01908f2e-7c1a-7b3e-9d55-3f1c5e0a7b05\n", "1" * 36])
def test_a_wrong_id_is_an_unknown_run_on_every_route(api: Api, run_id: str) -> None:
    quoted = run_id.replace("\n", "%0A")
    for method, tail, body in (
        ("GET", "", None), ("GET", "/outcome", None), ("POST", "/cancel", {}), ("POST", "/retry", {}), ("POST", "/pause", {}), ("POST", "/resume", {}),
        ("POST", "/signal", {"name": "x"}), ("POST", "/advance", {"step": "x"}), ("POST", "/fork", {"from": "x"}),
        ("POST", "/resolve", {"step": "x", "absent": True}),
    ):
        assert api.refused(method, f"/v1/runs/{quoted}{tail}", body)[0] == 404, (method, tail)


# Moving.


@pytest.mark.spec("SVC-1", "SVC-2", "CAN-1")
def test_cancelling_a_finished_run_says_that_it_has_finished(bureau: Bureau, api: Api) -> None:
    run_id = bureau.done()
    told = api.post(f"/v1/runs/{run_id}/cancel", {"reason": "late"})
    assert (told["word"], told["state"]) == ("ended", "completed")
    other = bureau.run()
    assert api.post(f"/v1/runs/{other}/cancel", {"reason": "wrong"})["word"] == "ok"
    again = api.post(f"/v1/runs/{other}/cancel", {"reason": "other"})
    assert (again["word"], again["state"], again["reason"]) == ("already", "cancelled", "wrong")
    assert api.get(f"/v1/runs/{other}")["actor"] == "local"
    assert api.refused("POST", f"/v1/runs/{new_run_id(2)}/cancel", {}) == (404, "unknown_run")


@pytest.mark.spec("SVC-1")
def test_an_empty_body_is_an_empty_object_where_nothing_need_be_said(bureau: Bureau, api: Api) -> None:
    run_id = bureau.run()
    assert api.ask("POST", f"/v1/runs/{run_id}/pause").json()["state"] == "paused"
    assert api.ask("POST", f"/v1/runs/{run_id}/resume").json()["state"] == "running"
    assert api.ask("POST", f"/v1/runs/{run_id}/cancel").json()["word"] == "ok"
    assert api.refused("POST", f"/v1/runs/{run_id}/pause") == (409, "run_finished")
    assert api.refused("POST", f"/v1/runs/{run_id}/resume", {"strange": "x"}) == (422, "bad_input")


@pytest.mark.spec("SVC-1", "RUN-9")
def test_a_failed_run_is_retried_and_one_that_has_not_failed_is_not(bureau: Bureau, api: Api) -> None:
    failed, fine = bureau.done({"number": 1, "bad": True}), bureau.done()
    assert api.refused("POST", f"/v1/runs/{fine}/retry") == (409, "not_failed")
    bureau.mended = True
    assert api.post(f"/v1/runs/{failed}/retry")["state"] == "running"
    bureau.drain()
    shown = api.get(f"/v1/runs/{failed}")
    assert (shown["state"], shown["generation"]) == ("completed", 2)


@pytest.mark.spec("SVC-1", "WF-5")
def test_signals_and_answers_by_id_and_by_key(bureau: Bureau, api: Api) -> None:
    run_id = bureau.run("asking", key="q")
    bureau.drain()
    path = f"/v1/runs/{run_id}"
    assert api.refused("POST", f"{path}/signal", {"name": "word", "value": {"text": 1}}) == (422, "bad_input")
    assert api.refused("POST", f"{path}/signal", {"name": "wrd", "value": {}}) == (422, "unknown_signal")
    assert api.post("/v1/workflows/asking/signal", {"key": "q", "name": "word", "value": {"text": "go"}, "id": "s1"})["word"] == "taken"
    assert api.post(f"{path}/signal", {"name": "word", "value": {"text": "go"}, "id": "s1"})["word"] == "repeated"
    bureau.drain()
    assert api.refused("POST", "/v1/workflows/asking/advance", {"key": "other", "step": "draft"}) == (404, "unknown_key")
    assert api.refused("POST", f"{path}/advance", {"step": "nobody"}) == (404, "unknown_step")
    answer = {"step": "draft", "result": {"text": "hello"}}
    assert api.post("/v1/workflows/asking/advance", {"key": "q", **answer})["word"] == "taken"
    assert api.refused("POST", f"{path}/advance", {"step": "draft", "result": {"text": "other"}}) == (409, "already_advanced")
    bureau.drain()
    assert api.get(f"{path}/outcome")["result"] == "hello"
    assert api.refused("POST", f"{path}/signal", {"name": "word", "value": {"text": "x"}})[0] == 409


@pytest.mark.spec("SVC-1")
def test_a_fork_is_a_new_run(bureau: Bureau, api: Api) -> None:
    run_id = bureau.done()
    answer = api.ask("POST", f"/v1/runs/{run_id}/fork", {"from": "charge", "changes": {"number": 3}})
    assert answer.status_code == 201
    told = answer.json()
    assert told["forked_from"] == run_id
    assert answer.headers["location"] == f"/v1/runs/{told['run_id']}"
    bureau.drain()
    assert api.get(f"/v1/runs/{told['run_id']}/outcome")["result"] == 7
    assert api.refused("POST", f"/v1/runs/{run_id}/fork", {"from": "nobody"}) == (404, "unknown_step")


@pytest.mark.spec("SVC-4")
def test_whoever_moves_a_run_may_say_why_and_it_is_recorded(bureau: Bureau, api: Api) -> None:
    failed, done = bureau.done({"number": 3, "bad": True}), bureau.done()
    paused = bureau.run("asking")
    api.post(f"/v1/runs/{paused}/pause", {"reason": "pause it"})
    api.post(f"/v1/runs/{paused}/resume", {"reason": "resume it, token=secret"})
    api.post(f"/v1/runs/{failed}/retry", {"reason": "retry it"})
    api.post(f"/v1/runs/{done}/fork", {"from": "charge", "reason": "fork it"})
    deeds = {deed["action"].rpartition("/")[2]: deed["reason"] for deed in api.get("/v1/audit")["deeds"]}
    assert {name: deeds[name] for name in ("pause", "resume", "retry", "fork")} == {
        "pause": "pause it", "resume": "resume it, token=***", "retry": "retry it", "fork": "fork it"}
    assert api.refused("POST", f"/v1/runs/{done}/resolve", {"step": "charge", "absent": True, "reason": "x"}) == (409, "not_in_doubt")
    for verb, body in (("retry", {}), ("resume", {}), ("fork", {"from": "charge"}), ("resolve", {"step": "charge", "absent": True})):
        assert api.refused("POST", f"/v1/runs/{done}/{verb}", body | {"reason": 7}) == (422, "bad_input")


@pytest.mark.spec("SVC-1")
def test_a_fork_whose_answer_was_lost_is_asked_for_again_under_its_key(bureau: Bureau, api: Api) -> None:
    run_id, other, key = bureau.done(), bureau.done(), {"Idempotency-Key": "again"}
    first = api.ask("POST", f"/v1/runs/{run_id}/fork", {"from": "charge", "changes": {"number": 5}}, headers=key)
    bureau.drain()
    second = api.ask("POST", f"/v1/runs/{run_id}/fork", {"from": "charge", "changes": {"number": 5}}, headers=key)
    assert (first.status_code, second.status_code) == (201, 200)
    assert (first.json()["new"], second.json()) == (True, first.json() | {"new": False})
    assert first.headers["location"] == second.headers["location"]
    for wrong in ({"from": "price", "changes": {"number": 5}}, {"from": "charge", "changes": {"number": 6}}, {"from": "charge"}):
        error = api.ask("POST", f"/v1/runs/{run_id}/fork", wrong, headers=key)
        assert (error.status_code, error.json()["error"]["code"]) == (409, "key_conflict"), wrong
    elsewhere = api.post(f"/v1/runs/{other}/fork", {"from": "charge"}, headers=key)  # the same key of another run is another fork
    plain = [api.post(f"/v1/runs/{run_id}/fork", {"from": "charge"}) for _ in range(2)]
    assert len({told["run_id"] for told in (first.json(), elsewhere, *plain)}) == 4
    assert api.refused("POST", f"/v1/runs/{run_id}/fork", {"from": "charge"}, headers={"Idempotency-Key": "k" * 513}) == (422, "bad_input")


@pytest.mark.spec("SVC-1")
def test_only_an_effect_in_doubt_is_resolved(bureau: Bureau, api: Api) -> None:
    run_id = bureau.done()
    assert api.refused("POST", f"/v1/runs/{run_id}/resolve", {"step": "charge", "absent": True}) == (409, "not_in_doubt")
    for wrong in ({"step": "charge"}, {"step": "charge", "landed": 1, "absent": True}, {"step": "charge", "absent": False}):
        assert api.refused("POST", f"/v1/runs/{run_id}/resolve", wrong) == (422, "bad_input")
    told = api.ask("POST", f"/v1/runs/{run_id}/resolve", {"step": "charge", "landed": "seven"})  # of a wrong type
    assert (told.status_code, told.json()["error"]["code"]) == (422, "bad_input")
    assert "int was expected" in told.json()["error"]["message"]


# Errors of the road.


@pytest.mark.spec("SVC-2")
def test_no_such_route_and_wrong_method_have_the_same_form(api: Api) -> None:
    assert api.refused("GET", "/v1/nothing") == (404, "unknown_route")
    assert api.refused("DELETE", "/v1/runs") == (405, "method_not_allowed")
    assert api.refused("GET", "/docs") == (404, "unknown_route")


@pytest.mark.spec("SVC-2")
def test_a_bug_of_ours_is_told_by_an_id_alone(bureau: Bureau, api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_given: Any, **_more: Any) -> Any:
        raise RuntimeError("password=hunter2 is in the way")

    monkeypatch.setattr("conductor.service.routes.runs.start", broken)
    monkeypatch.setattr("conductor.service.routes.runs.show_run", broken)
    run_id = new_run_id(2)
    for method, path, body in (("POST", "/v1/runs", {"workflow": "cli_orders", "input": {"number": 1}}), ("GET", f"/v1/runs/{run_id}", None)):
        answer = api.ask(method, path, body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (500, "internal_error")
        assert error["message"].rpartition(" ")[2] in caplog.text
        assert "hunter2" not in answer.text + caplog.text
        assert answer.headers["conductor-epoch"]


@pytest.mark.spec("SVC-2")
def test_a_store_that_is_away_is_503_and_health_says_that_the_service_lives(namespace: str) -> None:
    with registry.isolated():
        bureau = Bureau("redis://127.0.0.1:1/0", namespace)
        bureau.engine.store.give_up_after(0.01)
        answer = bureau.api.ask("GET", "/v1/runs")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unreachable")
        assert answer.headers["retry-after"]
        assert bureau.api.get("/v1/health") == {"status": "ok"}
        assert bureau.api.ask("GET", "/v1/ready").json() == {"status": "unavailable", "health": "red"}
        assert bureau.api.ask("GET", "/v1/ready").status_code == 503
