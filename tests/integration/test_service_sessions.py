"""Sessions over HTTP: registering with what their runs hold, grants, the inbox; and the catalogue of what can be started and called."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from conductor.errors import BadInput
from conductor.runs.consenting import reconcile_consent
from conductor.sessions import inbox
from tests.integration.front import Front, opened
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually


@pytest.fixture
def front(valkey: ValkeyServer, namespace: str) -> Iterator[Front]:
    with opened(valkey, namespace) as one:
        yield one


# Registering.


@pytest.mark.spec("SES-2", "SVC-1")
def test_a_session_that_comes_back_keeps_the_consent_of_live_runs_and_loses_what_ended_ones_left_over(front: Front) -> None:
    store = front.engine.store
    live, ended, plain = (str(front.conductor.start("cli_naps", session="ada").id) for _ in range(3))
    other = str(front.conductor.start("cli_naps", session="ada;bob").id)
    for run_id in (live, ended, other):
        front.conductor.grant_run(run_id)
    front.conductor.cancel(ended)
    store.client().hset(store.keys.run(ended), "bl", "1")  # left over by a process that died, or by a backup
    assert front.told("PUT", "/sessions/ada") == {"session": "ada", "grants": [], "kept": [live], "revoked": [ended]}
    assert front.told("PUT", "/sessions/ada")["revoked"] == []
    assert store.values(store.keys.run(live), ["bl"]) == ["1"]
    assert store.values(store.keys.run(ended), ["bl"]) == [None]
    assert store.values(store.keys.run(plain), ["bl"]) == [None]
    assert front.told("PUT", "/sessions/ada;bob")["kept"] == [other]


# Grants.


@pytest.mark.spec("SES-1", "SVC-1")
def test_what_a_session_grants_lets_a_capability_run(front: Front) -> None:
    erase = {"capability": "erase", "session": "ada"}
    with front.working():
        assert front.told("POST", "/call", erase)["status"] == "failed"
        made = front.told("POST", "/sessions/ada/grants", {"capability": "erase"}, status=201)
        assert (made["mode"], made["needed"]) == ("once", True)
        assert front.told("POST", "/call", erase)["result"] == "erased"
        assert front.told("POST", "/call", erase)["status"] == "failed"  # it was for one
    front.told("POST", "/sessions/ada/grants", {"capability": "erase", "mode": "until", "lasting": 60}, status=201)
    (kept,) = front.told("GET", "/sessions/ada/grants")["grants"]
    assert (kept["capability"], kept["mode"], kept["by"]) == ("erase", "until", "root")
    assert kept["until"] > kept["granted_at"]
    assert front.told("DELETE", "/sessions/ada/grants/erase") == {"session": "ada", "capability": "erase", "revoked": True}
    front.told("POST", "/sessions/ada/grants", {"capability": "erase", "mode": "always"}, status=201)
    assert front.told("DELETE", "/sessions/ada/grants")["capability"] is None
    assert front.told("GET", "/sessions/ada/grants")["grants"] == []


def test_the_same_idempotency_key_grants_nothing_more(front: Front) -> None:
    for _ in range(3):
        told = front.told("POST", "/sessions/ada/grants", {"capability": "erase"}, status=201, headers={"Idempotency-Key": "g1"})
        assert told["grant_id"] == "g1"
    assert len(front.told("GET", "/sessions/ada/grants")["grants"]) == 1


@pytest.mark.spec("SVC-2", "BAD-1")
@pytest.mark.parametrize(("body", "status", "code"), [
    ({"capability": "erasse"}, 404, "unknown_capability"), ({}, 422, "bad_input"), ({"capability": "erase", "mode": "twice"}, 422, "bad_input"),
    ({"capability": "erase", "mode": "until"}, 422, "bad_input"), ({"capability": "erase", "lasting": 60}, 422, "bad_input"),
    ({"capability": "erase", "mode": "until", "lasting": 0}, 422, "bad_input"), ({"capability": "erase", "mode": "until", "lasting": "60"}, 422, "bad_input"),
    ({"capability": "erase", "by": "me"}, 422, "bad_input"), ({"capability": 7}, 422, "bad_input"),
])
def test_a_grant_that_cannot_be_is_refused(front: Front, body: Any, status: int, code: str) -> None:
    front.refused("POST", "/sessions/ada/grants", body, status=status, code=code)
    assert front.told("GET", "/sessions/ada/grants")["grants"] == []


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize("name", ["a%00b", "a%0Ab", "x" * 300])
def test_a_session_has_a_name_that_can_be_one(front: Front, name: str) -> None:
    for method, tail, body in (("PUT", "", None), ("GET", "/grants", None), ("GET", "/inbox", None), ("POST", "/grants", {"capability": "erase"})):
        front.refused(method, f"/sessions/{name}{tail}", body, status=422, code="bad_input")


@pytest.mark.spec("SVC-1", "SES-3")
@pytest.mark.parametrize("session", ["team/ada", "/", "a//b", "https://id.example/users/7?x=1#y", "50%", "x/grants", "x/inbox/1/ack"])
def test_a_session_may_have_any_name_that_its_users_give_it(front: Front, session: str) -> None:
    """What of a name means something in a URL is encoded there; a slash in it is no end of a segment."""
    path = f"/sessions/{quote(session, safe='')}"
    assert front.told("PUT", path)["session"] == session
    assert front.told("POST", f"{path}/grants", {"capability": "erase", "mode": "always"}, status=201)["session"] == session
    assert [one["capability"] for one in front.told("GET", f"{path}/grants")["grants"]] == ["erase"]
    assert front.told("DELETE", f"{path}/grants/erase") == {"session": session, "capability": "erase", "revoked": True}
    assert front.told("DELETE", f"{path}/grants") == {"session": session, "capability": None, "revoked": True}
    front.engine.store.deliver(session, "m/1", kind="done", operation_id="op", body="j1:{}")
    assert front.told("GET", f"{path}/inbox")["messages"][0]["id"] == "m/1"
    assert front.told("POST", f"{path}/inbox/{quote('m/1', safe='')}/ack")["acknowledged"]
    assert front.told("GET", f"/runs?session={quote(session, safe='')}")["runs"] == []


@pytest.mark.spec("SVC-4")
def test_a_slash_in_a_name_leads_nobody_to_another_session(front: Front) -> None:
    for path in ("ada%2F..%2Fbob", "ada%2Fgrants", "bob%2F", "%2Fbob", "bob"):
        front.refused("GET", f"/sessions/{path}/grants", status=404, code="unknown_session", who="ada")
    front.refused("PUT", "/sessions/ada/grants", status=405, code="method_not_allowed", who="ada")
    front.refused("GET", "/sessions%2Fada/grants", status=404, code="unknown_route", who="ada")


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize("session", [".", ".."])
def test_no_session_is_called_what_a_url_takes_for_a_direction(front: Front, session: str) -> None:
    """Nobody could reach it over HTTP: refused wherever a session is named first."""
    lend = {"capability": "lend", "params": {"title": "x"}, "session": session}
    for path, body in (("/runs", {"workflow": "cli_orders", "input": {"number": 1}, "session": session}), ("/call", lend), ("/submit", lend)):
        assert "is no name" in front.refused("POST", path, body, status=422, code="bad_input")["message"]
    for refused in (
        lambda: front.conductor.start("cli_orders", {"number": 1}, session=session), lambda: front.conductor.grant(session, "erase"),
        lambda: front.conductor.schedule("odd", "lend", {"title": "x"}, when=60, session=session),
        lambda: front.engine.store.add_token("odd", ["read"], sessions=[session]), lambda: reconcile_consent(front.engine, session),
    ):
        with pytest.raises(BadInput, match="is no name"):
            refused()
    assert front.conductor.inbox(session) == []  # what an earlier release has accepted can still be read


# The inbox.


@pytest.mark.spec("SES-3", "SVC-1")
def test_the_inbox_is_read_in_order_by_pages_and_acknowledged(front: Front) -> None:
    for number in range(5):
        inbox.deliver(
            front.engine.store, "ada", id=f"op{number}:1:retry_success", kind="retry_success", operation_id=f"op{number}", body={"result": number})
    page = front.told("GET", "/sessions/ada/inbox?limit=3")
    assert [one["body"]["result"] for one in page["messages"]] == [0, 1, 2]
    rest = front.told("GET", f"/sessions/ada/inbox?after={page['last']}")
    assert [one["body"]["result"] for one in rest["messages"]] == [3, 4]
    nothing = front.told("GET", f"/sessions/ada/inbox?after={rest['last']}")
    assert nothing == {"session": "ada", "messages": [], "last": rest["last"], "now": nothing["now"]}
    ack = "/sessions/ada/inbox/op1:1:retry_success/ack"
    assert front.told("POST", ack) == {"session": "ada", "message_id": "op1:1:retry_success", "acknowledged": True}
    assert front.told("POST", ack)["acknowledged"]  # twice is once
    assert [one["operation_id"] for one in front.told("GET", "/sessions/ada/inbox")["messages"]] == ["op0", "op2", "op3", "op4"]
    front.refused("POST", "/sessions/ada/inbox/op9:1:retry_success/ack", status=404, code="unknown_message")
    for query in ("limit=0", "limit=1001", "limit=x", "since=1"):
        front.refused("GET", f"/sessions/ada/inbox?{query}", status=422, code="unknown_filter")
    front.refused("GET", "/sessions/ada/inbox?after=x", status=422, code="bad_input")


@pytest.mark.spec("SES-3", "OP-9")
def test_the_end_of_what_was_submitted_is_found_in_the_inbox(front: Front) -> None:
    told = front.told("POST", "/submit", {"capability": "lend", "params": {"title": "Emma"}, "session": "ada"}, status=202)
    with front.working():
        eventually(lambda: front.told("GET", f"/operations/{told['operation_id']}")["state"] == "completed", 15)
    front.tell()
    (message,) = front.told("GET", "/sessions/ada/inbox", who="ada")["messages"]
    assert (message["kind"], message["operation_id"]) == ("deferred_success", told["operation_id"])
    assert message["body"]["result"] == {"title": "Emma", "days": 14}


@pytest.mark.spec("SVC-4")
def test_a_caller_bound_to_sessions_knows_no_others_whether_they_exist_or_not(front: Front) -> None:
    front.told("POST", "/sessions/ada/grants", {"capability": "erase"}, status=201)
    inbox.deliver(front.engine.store, "ada", id="m1", kind="note", operation_id="", body={"secret": 1})
    for method, tail, body in (
        ("PUT", "", None), ("GET", "/grants", None), ("POST", "/grants", {"capability": "erase", "mode": "always"}), ("DELETE", "/grants", None),
        ("DELETE", "/grants/erase", None), ("GET", "/inbox", None), ("POST", "/inbox/m1/ack", None),
    ):
        foreign = front.refused(method, f"/sessions/ada{tail}", body, status=404, code="unknown_session", who="bob")
        missing = front.refused(method, f"/sessions/zoe{tail}", body, status=404, code="unknown_session", who="bob")
        assert json.dumps(foreign).replace("ada", "X") == json.dumps(missing).replace("zoe", "X")
    assert [one["id"] for one in front.told("GET", "/sessions/ada/inbox", who="ada")["messages"]] == ["m1"]
    assert [one["mode"] for one in front.told("GET", "/sessions/ada/grants", who="both")["grants"]] == ["once"]
    for method, tail in (("PUT", ""), ("POST", "/grants"), ("DELETE", "/grants"), ("POST", "/inbox/m1/ack")):
        front.refused(method, f"/sessions/ada{tail}", status=403, code="forbidden", who="reader")


# The catalogue.


@pytest.mark.spec("SVC-1")
def test_a_workflow_tells_its_input_as_schema_and_its_graph_twice(front: Front) -> None:
    listed = front.told("GET", "/workflows", who="reader")["workflows"]
    assert [one["workflow"] for one in listed] == ["cli_books", "cli_naps", "cli_orders", "front_asks", "front_desk"]
    assert listed[-1]["lane"] == "desk"
    shown = front.told("GET", "/workflows/cli_orders")
    assert shown["input"]["required"] == ["number"]
    assert shown["input"]["properties"]["bad"]["default"] is False
    assert [node["name"] for node in shown["graph"]["nodes"]] == ["price", "charge"]
    assert shown["graph"]["nodes"][1]["after"] == ["price"]
    assert shown["graph"] == front.json("graph", "cli_orders")
    assert front.told("GET", "/workflows/cli_naps")["input"] is None
    drawn = front.say("GET", "/workflows/cli_orders/mermaid")
    assert drawn.headers["content-type"].startswith("text/plain")
    assert drawn.text == front.ok("graph", "cli_orders", "--mermaid")
    for tail in ("", "/mermaid"):
        front.refused("GET", f"/workflows/nothing{tail}", status=404, code="unknown_workflow")


@pytest.mark.spec("CAP-1", "SVC-1")
def test_capabilities_are_listed_searched_and_tell_their_schema(front: Front) -> None:
    def names(text: str) -> list[str]:
        return [one["name"] for one in front.told("GET", f"/capabilities{text}", who="reader")["capabilities"]]

    assert {"invoice", "pay", "erase", "slow", "lend"} <= set(names(""))
    assert names("?text=write+invoice") == ["invoice"]
    assert names("?text=BOOK") == ["lend", "pay"]
    assert names("?text=write+nothing") == []
    front.refused("GET", "/capabilities?texts=x", status=422, code="unknown_filter")
    shown = front.told("GET", "/capabilities/lend")
    assert shown["params"]["properties"]["days"] == {"default": 14, "title": "Days", "type": "integer"}
    assert (shown["doc"], shown["retry"], shown["consent"], shown["disabled"]) == ("Lend a book.", "none", False, None)
    assert front.told("GET", "/capabilities/erase")["consent"] is True
    assert front.told("GET", "/capabilities/pay")["effects"] == ["booking"]
    front.refused("GET", "/capabilities/nothing", status=404, code="unknown_capability")


@pytest.mark.spec("CAP-2")
def test_a_capability_whose_tool_is_away_is_listed_with_the_reason_and_probed_once_for_many(
    front: Front, monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    examine = front.engine.needs.examine
    monkeypatch.setattr(front.engine.needs, "examine", lambda wanted: (asked.append(1), examine(wanted))[1])
    front.away = True
    for _ in range(5):
        assert front.told("GET", "/capabilities/invoice")["disabled"] == "bridge: its probe returned False"
    assert front.told("GET", "/capabilities?text=invoice")["capabilities"][0]["disabled"]
    assert asked == [1]


# The document.

ROUTES = {
    "/v1/operations": "get", "/v1/operations/status": "get", "/v1/operations/{operation_id}": "get", "/v1/operations/{operation_id}/retry": "post",
    "/v1/operations/{operation_id}/cancel": "post", "/v1/operations/{operation_id}/resolve": "post", "/v1/call": "post", "/v1/submit": "post",
    "/v1/lanes": "get", "/v1/lanes/{name}": "get", "/v1/limits": "get", "/v1/limits/{name}": "get put delete", "/v1/queues": "get",
    "/v1/holds": "get", "/v1/holds/{scope}": "put delete", "/v1/schedules": "get", "/v1/schedules/{name}": "get delete",
    "/v1/schedules/{name}/pause": "post", "/v1/schedules/{name}/resume": "post", "/v1/sessions/{session}": "put",
    "/v1/sessions/{session}/grants": "get post delete", "/v1/sessions/{session}/grants/{capability}": "delete",
    "/v1/sessions/{session}/inbox": "get", "/v1/sessions/{session}/inbox/{message_id}/ack": "post", "/v1/workflows": "get",
    "/v1/workflows/{name}": "get", "/v1/workflows/{name}/mermaid": "get", "/v1/capabilities": "get", "/v1/capabilities/{name}": "get",
}


@pytest.mark.spec("SVC-1")
def test_the_openapi_document_tells_each_route_what_it_takes_and_what_it_answers(front: Front) -> None:
    served: Any = front.client.app
    document = served.openapi()
    for path, methods in ROUTES.items():
        for method in methods.split():
            told = document["paths"][path][method]
            assert told["description"], (method, path)
            assert told["tags"], (method, path)
            answers = [answer for status, answer in told["responses"].items() if status.startswith("2")]
            assert any("$ref" in str(answer) or "text/plain" in str(answer) for answer in answers), (method, path)
            assert {"401", "404"} <= set(told["responses"]), (method, path)
    (state,) = [one for one in document["paths"]["/v1/operations"]["get"]["parameters"] if one["name"] == "state"]
    assert "queued_scheduled_job" in str(state)
