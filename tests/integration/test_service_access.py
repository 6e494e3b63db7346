"""Who may call the service, and what for: tokens, scopes, sessions, browsers, this machine, and the record of who did what."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.testclient import TestClient

from conductor.declare import registry
from conductor.errors import BadInput
from conductor.service import access, keyring, lockout
from conductor.service.access import COOKIE, CSRF_HEADER, Caller
from tests.support.bureau import Bureau
from tests.support.http import Api
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.spec("SVC-4")

START = {"workflow": "cli_orders", "input": {"number": 1}}


@pytest.fixture
def bureau(valkey: ValkeyServer, namespace: str, clean_keys: None) -> Iterator[Bureau]:
    with registry.isolated():
        yield Bureau(valkey.url(), namespace)


@pytest.fixture
def api(bureau: Bureau) -> Api:
    return bureau.api


# Tokens.


def test_the_first_token_closes_the_service_to_everybody_without_one(bureau: Bureau, api: Api) -> None:
    assert api.ask("GET", "/v1/runs").status_code == 200
    secret = api.new_token("ci")
    assert api.refused("GET", "/v1/runs") == (401, "unauthenticated")
    assert api.ask("GET", "/v1/runs").headers["www-authenticate"] == "Bearer"
    assert api.ask("GET", "/v1/runs", token=secret).status_code == 200
    bureau.engine.store.revoke_token("ci")
    api.forget()
    assert api.refused("GET", "/v1/runs", token=secret) == (401, "unauthenticated")
    assert api.refused("GET", "/v1/runs") == (401, "unauthenticated")


def test_a_service_that_has_seen_a_token_stays_closed_when_the_store_forgets_it(bureau: Bureau, api: Api) -> None:
    """A wiped store must not open what was closed; a service that starts anew on it answers this machine alone."""
    api.with_token("ci")
    assert api.ask("GET", "/v1/runs").status_code == 200
    assert bureau.engine.store.forget_token("ci")
    api.forget()
    assert api.refused("GET", "/v1/runs", token="") == (401, "unauthenticated")
    assert Api(bureau.conductor).ask("GET", "/v1/runs").status_code == 200


def test_a_stack_may_bring_the_text_of_a_token_along_and_start_twice(bureau: Bureau, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "0123456789abcdef0123456789abcdef"
    monkeypatch.setenv("STACK_TOKEN", text)
    for _ in range(2):
        assert bureau.json("tokens", "add", "stack", "--secret-env", "STACK_TOKEN")["name"] == "stack"
    api.forget()
    assert api.ask("GET", "/v1/runs", token=text).status_code == 200
    assert text not in str(bureau.engine.store.client().hgetall(bureau.engine.store.keys.of(0, "tokens")))
    with pytest.raises(BadInput, match="there is one named stack already"):
        bureau.engine.store.add_token("stack", ["read"], secret=text[::-1])
    with pytest.raises(BadInput, match="it has 31 characters, and 32 are needed"):
        bureau.engine.store.add_token("short", ["read"], secret=text[1:])
    assert bureau.call("tokens", "add", "other", "--secret-env", "NOWHERE").exit_code == 2


def test_only_a_hash_of_a_token_is_stored_and_its_name_is_used_once(bureau: Bureau, api: Api) -> None:
    store = bureau.engine.store
    secret, token = store.add_token("ci", ["read"])
    stored = store.client().hgetall(store.keys.of(0, "tokens"))
    assert secret.startswith("cdr_")
    assert len(secret) >= 47
    assert secret not in str(stored)
    assert secret not in repr(token)
    assert store.add_token("other", ["read"])[0] != secret
    for name, scopes, sessions in (
        ("ci", ["read"], None), ("a b", ["read"], None), ("", ["read"], None), ("x" * 65, ["read"], None), ("new", [], None),
        ("new", ["root"], None), ("new", ["read"], []), ("new", ["read"], ["a\nb"]), ("new", ["read"], [f"s{n}" for n in range(101)]), ("new", ["admin"], ["ann"]),
    ):
        with pytest.raises(BadInput):
            store.add_token(name, scopes, sessions=sessions)


def test_an_expired_token_is_told_that_it_has_expired(api: Api) -> None:
    secret = api.new_token("short", expires_ms=1)
    eventually(lambda: api.ask("GET", "/v1/runs", token=secret).status_code == 401, 5, what="it expires")
    assert "expired" in api.ask("GET", "/v1/runs", token=secret).json()["error"]["message"]


def test_a_revoked_token_counts_for_a_second_at_most_in_every_replica(bureau: Bureau, api: Api) -> None:
    secret, other = api.new_token("ci"), Api(bureau.conductor)
    assert other.ask("GET", "/v1/runs", token=secret).status_code == 200
    bureau.engine.store.revoke_token("ci")
    began = time.monotonic()
    eventually(lambda: other.ask("GET", "/v1/runs", token=secret).status_code == 401, 5, what="it is refused")
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(("scopes", "allowed"), [
    (("read",), {"GET"}), (("write",), {"POST"}), (("admin",), {"AUDIT"}), (("read", "write", "admin"), {"GET", "POST", "AUDIT"}),
])
def test_a_scope_opens_what_it_names_and_nothing_else(api: Api, scopes: tuple[str, ...], allowed: set[str]) -> None:
    api.with_token("ci", *scopes)
    for kind, answer in (
        ("GET", api.ask("GET", "/v1/runs")), ("POST", api.ask("POST", "/v1/runs", START)), ("AUDIT", api.ask("GET", "/v1/audit")),
    ):
        assert (answer.status_code < 400) == (kind in allowed), (kind, answer.text)
        assert answer.status_code < 400 or answer.json()["error"]["code"] == "forbidden"


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer wrong", "bearer cdr_x", "Bearer \u00e9", "Bearer " + "x" * 5000])
def test_what_is_no_token_is_refused(api: Api, header: str) -> None:
    api.new_token("ci")
    answer = api.http.get("/v1/runs", headers=[(b"authorization", header.encode("latin-1"))])  # type: ignore[arg-type]
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated")


def test_a_token_is_compared_in_constant_time(bureau: Bureau, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Any] = []
    real = keyring.hmac.compare_digest
    monkeypatch.setattr(keyring.hmac, "compare_digest", lambda one, other: compared.append((one, other)) or real(one, other))
    secret = api.with_token("ci")
    assert api.ask("GET", "/v1/runs").status_code == 200
    assert compared
    assert secret not in str(compared)


# Guessing.


def test_ten_wrong_tokens_lock_the_address_out_but_nobody_who_was_in(bureau: Bureau, api: Api) -> None:
    known, fresh = api.new_token("known"), api.new_token("fresh")
    assert api.ask("GET", "/v1/runs", token=known).status_code == 200
    assert [api.refused("GET", "/v1/runs", token=f"cdr_{n}")[0] for n in range(11)] == [401] * 10 + [429]
    answer = api.ask("GET", "/v1/runs", token=fresh)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_failures")
    assert 0 < int(answer.headers["retry-after"]) <= 60
    assert api.ask("GET", "/v1/runs", token=known).status_code == 200
    elsewhere = TestClient(api.app, base_url="http://localhost", client=("10.0.0.9", 1))
    assert elsewhere.get("/v1/runs", headers={"Authorization": f"Bearer {fresh}"}).status_code == 200


def test_guessing_by_the_login_page_counts_as_well(api: Api) -> None:
    api.new_token("ci")
    codes = [api.refused("POST", "/v1/login", {"token": f"cdr_{n}"}, token="") for n in range(11)]
    assert codes == [(401, "unauthenticated")] * 10 + [(429, "too_many_failures")]


def test_lockouts_grow_lapse_and_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(lockout, "time", SimpleNamespace(monotonic=lambda: now))
    guard = lockout.Lockout()

    def fail(times: int = 10) -> float:
        for _ in range(times):
            guard.failed("a")
        return guard.left("a", "x")

    assert fail(9) == 0
    assert fail(1) == 60
    now += 60
    assert guard.left("a", "x") == 0
    assert fail() == 120
    for length in (240, 480, 900, 900):
        now += 901
        assert fail() <= length
    for number in range(20_000):
        guard.failed(f"10.{number}")
        guard.passed(f"{number}")
    assert len(guard._records) <= 10_000
    assert len(guard._known) <= 10_000


# This machine, as long as there is no token.


@pytest.mark.parametrize(("address", "headers", "status"), [
    ("127.0.0.1", {}, 200), ("::1", {}, 200), ("127.9.9.9", {"Host": "127.0.0.1:8440"}, 200), ("::1", {"Host": "[::1]:8440"}, 200),
    ("10.0.0.7", {}, 401), ("203.0.113.9", {}, 401), ("testclient", {}, 401), ("", {}, 401),
    ("127.0.0.1", {"Host": "evil.example"}, 401), ("127.0.0.1", {"Host": "localhost.evil.example"}, 401), ("127.0.0.1", {"Host": "127.0.0.1.nip.io"}, 401),
    ("127.0.0.1", {"Host": "["}, 401), ("127.0.0.1", {"Host": "0x7f.1"}, 401),
    ("127.0.0.1", {"X-Forwarded-For": "127.0.0.1"}, 401), ("127.0.0.1", {"Forwarded": "for=127.0.0.1"}, 401), ("127.0.0.1", {"X-Real-IP": "1.2.3.4"}, 401),
    ("10.0.0.7", {"X-Forwarded-For": "127.0.0.1"}, 401), ("10.0.0.7", {"Host": "localhost"}, 401),
])
def test_without_a_token_only_this_machine_is_answered_whatever_a_request_claims(
    bureau: Bureau, address: str, headers: dict[str, str], status: int,
) -> None:
    one = Api(bureau.conductor, address=address)
    assert one.ask("GET", "/v1/runs", headers=headers).status_code == status


@pytest.mark.parametrize(("headers", "status"), [
    ({}, 201), ({"Origin": "http://localhost"}, 201), ({"Sec-Fetch-Site": "same-origin"}, 201), ({"Sec-Fetch-Site": "none"}, 201),
    ({"Origin": "https://evil.example"}, 403), ({"Origin": "null"}, 403), ({"Sec-Fetch-Site": "cross-site"}, 403), ({"Sec-Fetch-Site": "same-site"}, 403),
    ({"Origin": "http://localhost:9999"}, 403), ({"Origin": "http://localhost", "Sec-Fetch-Site": "cross-site"}, 403),
])
def test_a_page_of_another_site_changes_nothing_by_this_machine(bureau: Bureau, api: Api, headers: dict[str, str], status: int) -> None:
    assert api.ask("POST", "/v1/runs", START, headers=headers).status_code == status
    assert len(api.get("/v1/runs")["runs"]) == (status == 201)


# Browsers.


def test_a_browser_logs_in_by_a_token_and_changes_things_with_the_csrf_word(bureau: Bureau, api: Api) -> None:
    secret = api.new_token("ann", "read", "write")
    answer = api.ask("POST", "/v1/login", {"token": secret}, token="")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie
    assert secret not in cookie + answer.text
    csrf = answer.json()["csrf"]
    assert answer.json() == {"actor": "ann", "scopes": ["read", "write"], "sessions": None, "csrf": csrf}
    assert api.ask("GET", "/v1/runs").status_code == 200
    assert api.get("/v1/me")["csrf"] == csrf
    assert api.refused("POST", "/v1/runs", START) == (403, "forbidden")
    assert api.refused("POST", "/v1/runs", START, headers={CSRF_HEADER: csrf[:-1] + "x"}) == (403, "forbidden")
    assert api.refused("POST", "/v1/runs", START, headers={CSRF_HEADER: csrf, "Origin": "https://evil.example"}) == (403, "forbidden")
    assert api.get("/v1/runs")["runs"] == []
    assert api.ask("POST", "/v1/runs", START, headers={CSRF_HEADER: csrf}).status_code == 201
    kept = api.http.cookies[COOKIE]
    assert api.ask("POST", "/v1/logout", {}, headers={CSRF_HEADER: csrf}).status_code == 200
    api.http.cookies.set(COOKIE, kept)
    api.forget()
    assert api.refused("GET", "/v1/runs") == (401, "unauthenticated")
    assert kept not in str(bureau.engine.store.client().hgetall(bureau.engine.store.keys.of(0, "logins")))


def test_a_login_ends_with_its_token_and_with_its_time(bureau: Bureau, api: Api) -> None:
    secret = api.new_token("ann")
    api.ask("POST", "/v1/login", {"token": secret}, token="")
    assert api.ask("GET", "/v1/runs").status_code == 200
    store = bureau.engine.store
    (place, line), = store.client().hgetall(store.keys.of(0, "logins")).items()
    store.client().hset(store.keys.of(0, "logins"), place, f"{line.rpartition(';')[0]};1")
    api.forget()
    assert api.refused("GET", "/v1/runs") == (401, "unauthenticated")
    api.ask("POST", "/v1/login", {"token": secret}, token="")
    assert store.client().hlen(store.keys.of(0, "logins")) == 1  # the one that was over is forgotten
    store.revoke_token("ann")
    api.forget()
    assert api.refused("GET", "/v1/runs") == (401, "unauthenticated")


def test_a_cookie_over_https_is_for_https_alone(bureau: Bureau, api: Api) -> None:
    secret = api.new_token("ann")
    safe = TestClient(api.app, base_url="https://localhost")
    assert "Secure" in safe.post("/v1/login", json={"token": secret}).headers["set-cookie"]


@pytest.mark.parametrize("headers", [{}, {"Origin": "https://evil.example"}, {"Origin": "null"}])
def test_no_answer_allows_another_origin(api: Api, headers: dict[str, str]) -> None:
    for method in ("GET", "OPTIONS", "POST"):
        answer = api.ask(method, "/v1/runs", headers={**headers, "Access-Control-Request-Method": "POST"})
        assert not [name for name in answer.headers if name.startswith("access-control-")]
    answer = api.ask("GET", "/v1/runs")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in answer.headers["content-security-policy"]


# Sessions.


def test_a_bound_token_sees_and_moves_its_sessions_runs_alone(bureau: Bureau, api: Api) -> None:
    theirs, nobodys = bureau.run(session="bob", key="k"), bureau.run()
    api.with_token("ann", "read", "write", sessions=["ann"])
    mine = api.post("/v1/runs", START)["run_id"]
    assert api.get(f"/v1/runs/{mine}")["session"] == "ann"
    assert [row["run_id"] for row in api.get("/v1/runs")["runs"]] == [mine]
    assert api.get("/v1/runs?session=bob")["runs"] == []
    for run_id in (theirs, nobodys):
        foreign, missing = api.ask("GET", f"/v1/runs/{run_id}"), api.ask("GET", f"/v1/runs/{run_id[:-4]}ff01")
        assert foreign.status_code == missing.status_code == 404
        assert foreign.text.replace(run_id, "X") == missing.text.replace(f"{run_id[:-4]}ff01", "X")
        assert api.refused("POST", f"/v1/runs/{run_id}/cancel", {}) == (404, "unknown_run")
    assert api.refused("POST", "/v1/runs", {**START, "session": "bob"}) == (403, "forbidden")
    assert api.refused("POST", "/v1/workflows/cli_orders/signal", {"key": "k", "name": "x"}) == (404, "unknown_key")
    assert bureau.state(theirs) == "running"


def test_a_key_of_another_session_conflicts_without_saying_whose_run_has_it(bureau: Bureau, api: Api) -> None:
    theirs = bureau.run(session="bob", key="k")
    api.with_token("ann", "write", sessions=["ann"])
    answer = api.ask("POST", "/v1/runs", {**START, "key": "k"})
    assert answer.status_code == 409
    assert theirs not in answer.text


def test_a_token_of_several_sessions_names_the_one_it_starts_for(api: Api) -> None:
    api.with_token("both", "read", "write", sessions=["ann", "bob"])
    assert api.refused("POST", "/v1/runs", START) == (403, "forbidden")
    mine = {api.post("/v1/runs", {**START, "session": who})["run_id"] for who in ("ann", "bob")}
    assert {row["run_id"] for row in api.get("/v1/runs")["runs"]} == mine


# Mounted.


def test_an_application_that_mounts_it_says_who_calls(bureau: Bureau) -> None:
    def who(request: Request) -> Caller | None:
        name = request.headers.get("x-user")
        return Caller(name, frozenset({"read", "write"}), frozenset({name})) if name else None

    async def later(request: Request) -> Caller | None:
        await asyncio.sleep(0)
        return who(request)

    class Asked:
        async def __call__(self, request: Request) -> Caller | None:
            return await later(request)

    async def named(header: str, request: Request) -> Caller | None:
        return who(request) if header == "x-user" else None

    for auth in (who, later, Asked(), functools.partial(named, "x-user"), lambda request: later(request)):
        outer = Starlette(routes=[Mount("/jobs", bureau.conductor.asgi(auth=auth))])
        with TestClient(outer, base_url="http://shop.example") as client:
            assert client.get("/jobs/v1/runs").status_code == 401
            made = client.post("/jobs/v1/runs", json=START, headers={"x-user": "ann"})
            run_id = made.json()["run_id"]
            assert made.headers["location"] == f"/jobs/v1/runs/{run_id}"
            assert client.get(f"/jobs/v1/runs/{run_id}", headers={"x-user": "ann"}).json()["session"] == "ann"
            assert client.get(f"/jobs/v1/runs/{run_id}", headers={"x-user": "bob"}).status_code == 404
            assert client.get("/jobs/v1/health").json() == {"status": "ok"}
            refused = client.post("/jobs/v1/runs", json=START, headers={"x-user": "ann", "Origin": "https://evil.example"})
            assert refused.status_code == 403


def test_a_caller_of_another_type_is_a_bug_and_lets_nobody_in(bureau: Bureau) -> None:
    one = Api(bureau.conductor, auth=lambda _request: "ann")
    assert one.refused("GET", "/v1/runs") == (500, "internal_error")


@pytest.mark.parametrize("hooked", [True, False])
def test_an_application_that_hands_its_lifespan_on_loses_no_record(bureau: Bureau, monkeypatch: pytest.MonkeyPatch, hooked: bool) -> None:
    """A start is recorded a moment later, which the end of the process would cut off."""
    monkeypatch.setattr("conductor.service.recording._PAUSE", 0.4)
    service = bureau.conductor.asgi(auth=lambda _request: Caller("ann", frozenset({"write"})))
    outer = FastAPI(lifespan=service.lifespan if hooked else None)
    outer.mount("/jobs", service)
    with TestClient(outer, base_url="http://shop.example") as client:
        assert client.post("/jobs/v1/runs", json=START).status_code == 201
    assert [deed.actor for deed in bureau.engine.store.deeds()] == (["ann"] if hooked else [])
    service.close()


def test_loopback_is_an_address_not_a_name_that_looks_like_one() -> None:
    assert [host for host in ("localhost", "127.0.0.1", "127.1.2.3", "::1") if not access.is_loopback(host)] == []
    assert [host for host in ("", "0.0.0.0", "::", "10.0.0.1", "localhost.", "127.0.0.1.x", "2130706433") if access.is_loopback(host)] == []


# The record.


def test_every_change_is_recorded_with_who_what_and_why(bureau: Bureau, api: Api) -> None:
    reader = api.new_token("root", "read", "admin")
    api.with_token("ann", "read", "write")
    run_id = api.post("/v1/runs", START)["run_id"]
    api.post(f"/v1/runs/{run_id}/cancel", {"reason": "wrong order, password=hunter2"})
    api.refused("POST", f"/v1/runs/{run_id}/retry", {})
    api.refused("POST", f"/v1/runs/{run_id}/pause", {"strange": 1})

    def deeds() -> list[dict[str, Any]]:
        return list(api.get("/v1/audit", token=reader)["deeds"])

    eventually(lambda: len(deeds()) == 2, 5, what="both are recorded")
    told = {deed["action"]: deed for deed in deeds()}
    start, cancel = told["POST /v1/runs"], told["POST /v1/runs/{run_id}/cancel"]
    assert (start["actor"], start["target"], start["status"]) == ("ann", f"/v1/runs/{run_id}", 201)
    assert (cancel["actor"], cancel["target"], cancel["status"]) == ("ann", f"/v1/runs/{run_id}/cancel", 200)
    assert cancel["reason"] == "wrong order, password=***"
    assert abs(cancel["at"] - time.time() * 1000) < 60_000
    assert bureau.json("show", run_id)["state"] == "cancelled"
    page = api.get("/v1/audit?limit=1", token=reader)
    assert api.get(f"/v1/audit?limit=1&cursor={page['cursor']}", token=reader)["deeds"] != page["deeds"]
    assert api.refused("GET", "/v1/audit?cursor=x", token=reader)[0] == 422
    assert api.refused("GET", "/v1/audit") == (403, "forbidden")


def test_a_record_that_cannot_be_written_stops_nothing(api: Api, bureau: Bureau, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_deeds: Any) -> None:
        raise OSError("no room")

    run_id = bureau.run()
    monkeypatch.setattr(api.app.state.recorder._store, "record", broken)
    assert api.post(f"/v1/runs/{run_id}/cancel", {"reason": "too late"})["word"] == "ok"
    assert "local did POST /v1/runs/{run_id}/cancel" in caplog.text
