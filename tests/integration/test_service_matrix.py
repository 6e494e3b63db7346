"""Every route of the application, as its own document lists them, times every way of not being allowed: refused, and nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.integration.front import Front
from tests.integration.front import opened as open_front
from tests.support.http import Api
from tests.support.server import ValkeyServer

pytestmark = pytest.mark.spec("SVC-4", "SVC-2")

PUBLIC = {("get", "/v1/health"), ("get", "/v1/ready"), ("post", "/v1/login")}
ADMIN = {
    ("get", "/v1/audit"), ("put", "/v1/limits/{name}"), ("delete", "/v1/limits/{name}"), ("put", "/v1/holds/{scope}"),
    ("delete", "/v1/holds/{scope}"), ("delete", "/v1/schedules/{name}"), ("put", "/v1/schedules/{name}"), ("post", "/v1/purge"),
}
EVERYBODYS = {"/v1/me", "/v1/logout"}  # for whoever is somebody, of any scope
BODIES: dict[str, Any] = {
    "/v1/runs": {"workflow": "cli_orders", "input": {"number": 2}, "key": "k"}, "/signal": {"name": "x", "value": 1}, "/advance": {"step": "x"},
    "/fork": {"from": "charge"}, "/{operation_id}/resolve": {"absent": True}, "/resolve": {"step": "charge", "absent": True},
    "/v1/call": {"capability": "lend", "params": {"title": "y"}, "key": "k"}, "/v1/submit": {"capability": "lend", "params": {"title": "y"}, "key": "k"}, "/grants": {"capability": "erase"}, "/limits/{name}": {"rate": "1/m"},
    "/schedules/{name}": {"capability": "lend", "params": {"title": "z"}, "when": 60}, "/v1/purge": {"session": "bob", "dry_run": False},
}
KEEPERS = {("post", "/v1/runs"), ("post", "/v1/call"), ("post", "/v1/submit")}  # what takes an idempotency key
KEYED = {"/v1/workflows/{workflow}/signal": {"key": "k", "name": "x"}, "/v1/workflows/{workflow}/advance": {"key": "k", "step": "x"}}


class Stage:
    """A front with a run, an operation, a message, a grant and a schedule of bob's, behind real tokens."""

    def __init__(self, front: Front) -> None:
        self.front, self.api = front, Api(front.conductor)
        self.run_id = front.conductor.start("cli_orders", {"number": 1, "bad": True}, session="bob", key="k").id
        front.drain()
        self.op_id = str(front.conductor.submit("lend", {"title": "x"}, session="bob", key="k").operation_id)
        front.conductor.grant("bob", "erase", "always")
        front.engine.store.deliver("bob", "m1", kind="done", operation_id=self.op_id, body="{}")
        front.conductor.schedule("nightly", "lend", {"title": "x"}, when=3600, session="bob")
        self.tokens = {scope: self.api.new_token(scope, scope) for scope in ("read", "write", "admin")}
        front.engine.store.identity()  # made by whoever asks first
        self.ann = self.api.new_token("ann", "read", "write", sessions=["ann"])
        self.routes = sorted(
            (method, path) for path, verbs in self.api.app.openapi()["paths"].items() for method in verbs if (method, path) not in PUBLIC)

    def path(self, path: str) -> str:
        names = {
            "run_id": self.run_id, "operation_id": self.op_id, "session": "bob", "message_id": "m1", "scope": "all", "workflow": "cli_orders",
            "capability": "erase", "batch_id": self.op_id,
        }
        if "{name}" in path:
            kind = path.split("/")[2]
            names["name"] = {
                "lanes": "desk", "limits": "ai", "schedules": "nightly", "workflows": "cli_orders", "capabilities": "lend",
            }[kind]
        for name, value in names.items():
            path = path.replace(f"{{{name}}}", value)
        assert "{" not in path, f"the matrix knows nothing to put into {path}"
        return path

    def ask(self, method: str, path: str, token: str) -> Any:
        body = None
        if method in ("post", "put"):
            body = KEYED.get(path) or next((given for tail, given in BODIES.items() if path.endswith(tail)), {})
        if path == "/v1/batches":
            body = {"action": "cancel", "where": {"session": "bob"}, "reason": "x", "dry_run": False}
        headers = {"Accept": "text/event-stream"} if path.endswith("/events") and path != "/v1/runs/{run_id}/events" else {}
        return self.api.ask(method.upper(), self.path(path), body, token=token, headers=headers)

    def state(self) -> dict[str, Any]:
        """Everything the store has of this namespace."""
        client = self.front.engine.store.client()
        raw = {key: client.dump(key) for key in client.scan_iter(f"conductor:{{{self.front.engine.store.namespace}:*")}
        return {key: value for key, value in raw.items() if ":caller:" not in key}


@pytest.fixture(scope="module")
def stage(valkey: ValkeyServer) -> Iterator[Stage]:
    with _opened(valkey) as front:
        yield Stage(front)


@contextmanager
def _opened(valkey: ValkeyServer) -> Iterator[Front]:
    import uuid

    with open_front(valkey, f"t{uuid.uuid4().hex[:12]}") as front:
        yield front


@pytest.fixture(autouse=True)
def declared_by_this_test() -> None:
    """The stage's own declarations last as long as the stage."""


def test_the_document_knows_all_routes(stage: Stage) -> None:
    assert len(stage.routes) > 50
    assert {path.split("/")[2] for _, path in stage.routes if path.startswith("/v1/")} >= {
        "runs", "handlers", "operations", "call", "submit", "lanes", "limits", "queues", "holds", "schedules", "sessions", "workflows",
        "capabilities", "audit",
    }


@pytest.mark.parametrize(("token", "status", "code"), [
    ("", 401, "unauthenticated"), ("cdr_wrong", 401, "unauthenticated"), ("expired", 401, "unauthenticated"), ("revoked", 401, "unauthenticated"),
])
def test_nobody_comes_in_without_a_token_that_counts(stage: Stage, token: str, status: int, code: str) -> None:
    if token in ("expired", "revoked"):
        name, token = token, stage.api.new_token(token, expires_ms=1 if token == "expired" else 0)
        if name == "revoked":
            stage.front.engine.store.revoke_token(name)
        stage.api.forget()
    stage.api.app.state.access._lockout = type(stage.api.app.state.access._lockout)()
    before = stage.state()
    for number, (method, path) in enumerate(stage.routes):
        if number % 8 == 7:  # guessing is slowed down, which is another test
            stage.api.app.state.access._lockout = type(stage.api.app.state.access._lockout)()
        answer = stage.ask(method, path, token)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), (method, path, answer.text)
        assert "conductor-epoch" in answer.headers
    assert stage.state() == before


def test_a_scope_that_is_missing_is_refused_on_every_route(stage: Stage) -> None:
    before = stage.state()
    for method, path in stage.routes:
        if path in EVERYBODYS:
            continue
        needed = "admin" if (method, path) in ADMIN else "read" if method == "get" else "write"
        for scope in {"read", "write", "admin"} - {needed}:
            answer = stage.ask(method, path, stage.tokens[scope])
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), (method, path, scope, answer.text)
    assert stage.state() == before


def test_what_is_another_sessions_is_not_there_on_any_route(stage: Stage) -> None:
    before = stage.state()
    seen: list[tuple[str, str, int]] = []
    for method, path in stage.routes:
        if path in EVERYBODYS:
            continue
        if path == "/v1/events":
            continue  # a stream without an end; what it tells whom is tested with streams
        answer = stage.ask(method, path, stage.ann)
        text = answer.text.replace(stage.path(path), "").replace(f'"run_id": "{stage.run_id}"', "")
        owned = any(f"{{{name}}}" in path for name in ("run_id", "operation_id", "session", "batch_id")) or path in KEYED
        if (method, path) in KEEPERS:  # a key of bob's: that it is taken is told, not by what
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "key_conflict"), (method, path, answer.text)
            assert stage.run_id not in answer.text, (method, path)
            assert stage.op_id not in answer.text, (method, path)
        elif owned or (method != "get" and path != "/v1/batches"):
            assert answer.status_code in (403, 404), (method, path, answer.status_code, answer.text)
        else:
            assert answer.status_code in (200, 202, 403, 404, 409, 422), (method, path, answer.text)
            assert stage.run_id not in text, (method, path)
            assert stage.op_id not in text, (method, path)
            assert '"bob"' not in text, (method, path)
        seen.append((method, path, answer.status_code))
    assert len(seen) > 45
    after = stage.state()
    if any(path == "/v1/batches" and status == 202 for _, path, status in seen):  # a batch of its own, which matches nothing of bob's
        assert stage.front.state(stage.run_id) == "failed"
    else:
        assert after == before


def test_a_run_of_another_session_is_answered_word_for_word_like_one_that_never_was(stage: Stage) -> None:
    missing = f"{stage.run_id[:-6]}0fff01"
    for method, path in stage.routes:
        if "{run_id}" not in path:
            continue
        foreign = stage.ask(method, path, stage.ann)
        other, stage.run_id = stage.run_id, missing
        never = stage.ask(method, path, stage.ann)
        stage.run_id = other
        assert foreign.status_code == never.status_code == 404, (method, path)
        assert foreign.text.replace(other, "X") == never.text.replace(missing, "X"), (method, path)
        assert set(foreign.headers) == set(never.headers)
