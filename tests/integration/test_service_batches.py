"""Batches over HTTP: dry run, submission, progress, and the bounds of a caller's sessions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conductor.declare import registry
from conductor.operations import batches
from tests.integration.shop import Order, Shop
from tests.support.http import Api
from tests.support.leaks import forget
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually


class Floor(Shop):
    """The shop with failed orders of several sessions."""

    def declare(self) -> None:
        super().declare()
        registry.register_capability(batches.batch, registry.place_of_caller())

    def failing(self, count: int, session: str) -> list[str]:
        flow = registry.declared["cli_orders"]
        ids = [str(flow.apply_async(Order(number=number, bad=True), session=session).id) for number in range(count)]
        eventually(lambda: self.drain() or all(self.state(run_id) == "failed" for run_id in ids), 10, what="they fail")
        return ids

    def lives(self, ids: list[str]) -> list[int]:
        return [sum(entry.startswith("g;") for entry in self.engine.store.log_of(run_id)) for run_id in ids]


@pytest.fixture
def floor(valkey: ValkeyServer, namespace: str) -> Iterator[Floor]:
    with registry.isolated():
        yield Floor(valkey.url(), namespace)
    forget(valkey.client(), namespace)


@pytest.fixture
def api(floor: Floor) -> Api:
    return Api(floor.conductor)


def over(api: Api, floor: Floor, batch_id: str, **how: Any) -> Any:
    def look() -> Any:
        floor.drain()
        told = api.get(f"/v1/batches/{batch_id}", **how)
        return told if told["state"] not in ("queued", "running") else None

    return eventually(look, 15, what="the batch ends")


@pytest.mark.spec("SVC-1", "CLI-4")
def test_a_batch_is_a_dry_run_unless_it_says_otherwise(api: Api, floor: Floor) -> None:
    ids = floor.failing(3, "ann")
    asked = {"action": "retry", "where": {"workflow": "cli_orders", "status": "failed"}, "reason": "mended", "rate": 1000}
    dry = api.post("/v1/batches", asked)
    assert (dry["dry_run"], dry["count"], dry["more"], set(dry["examples"])) == (True, 3, False, set(ids))
    assert floor.conductor.operations() == []
    answer = api.ask("POST", "/v1/batches", {**asked, "dry_run": False})
    batch_id = answer.json()["batch_id"]
    assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/batches/{batch_id}")
    assert api.get(f"/v1/batches/{batch_id}")["state"] == "queued"
    told = over(api, floor, batch_id)
    assert (told["state"], told["done"], told["changed"], told["unchanged"], told["failed"], told["total"]) == ("completed", 3, 3, 0, 0, 3)
    assert (told["action"], told["actor"], told["reason"], told["errors"]) == ("retry", "local", "mended", [])
    assert floor.lives(ids) == [1, 1, 1]
    deeds = [one for one in api.get("/v1/audit")["deeds"] if "batches" in one["action"]]
    assert [(one["reason"], one["status"]) for one in deeds] == [("mended", 202)]  # a dry run is no deed


@pytest.mark.spec("SVC-1")
def test_the_same_key_is_the_same_batch(api: Api, floor: Floor) -> None:
    asked = {"action": "cancel", "where": {"workflow": "cli_orders"}, "dry_run": False}
    first = api.post("/v1/batches", asked, headers={"Idempotency-Key": "k1"})
    assert api.post("/v1/batches", asked, headers={"Idempotency-Key": "k1"}) == first
    assert api.refused("POST", "/v1/batches", {**asked, "reason": "other"}, headers={"Idempotency-Key": "k1"}) == (409, "key_conflict")


@pytest.mark.spec("SVC-4")
def test_a_bound_caller_moves_runs_of_its_own_session_only(api: Api, floor: Floor) -> None:
    mine, others = floor.failing(2, "ann"), floor.failing(2, "bob")
    root = api.new_token("root", "read", "write", "admin")
    ann = api.new_token("ann", "read", "write", sessions=["ann"])
    both = api.new_token("both", "read", "write", sessions=["ann", "eve"])
    asked: dict[str, Any] = {"action": "retry", "where": {"status": "failed"}, "rate": 1000}
    assert api.post("/v1/batches", asked, token=root)["count"] == 4
    assert api.post("/v1/batches", asked, token=ann)["count"] == 2
    for session in ("bob", "nobody"):
        foreign = {**asked, "where": {"status": "failed", "session": session}}
        assert api.refused("POST", "/v1/batches", foreign, token=ann) == (403, "forbidden")
    assert api.refused("POST", "/v1/batches", asked, token=both) == (403, "forbidden")
    assert api.post("/v1/batches", {**asked, "where": {"status": "failed", "session": "ann"}}, token=both)["count"] == 2
    raw = {"capability": batches.BATCH, "params": {"action": "retry", "where": {"status": "failed"}}}
    for path in ("/v1/call", "/v1/submit"):
        assert api.refused("POST", path, raw, token=ann) == (403, "forbidden")
    everybodys = api.post("/v1/batches", {**asked, "where": {"status": "failed", "session": "nobody"}, "dry_run": False}, token=root)["batch_id"]
    assert api.refused("GET", f"/v1/batches/{everybodys}", token=ann) == (404, "unknown_operation")
    batch_id = api.post("/v1/batches", {**asked, "dry_run": False}, token=ann)["batch_id"]
    assert over(api, floor, batch_id, token=ann)["changed"] == 2
    assert (floor.lives(mine), floor.lives(others)) == ([1, 1], [0, 0])


@pytest.mark.spec("SVC-2", "BAD-1")
@pytest.mark.parametrize(("body", "code"), [
    ({"action": "delete", "where": {"status": "failed"}}, "bad_input"), ({"action": "retry"}, "bad_input"),
    ({"action": "retry", "where": {}}, "unknown_filter"), ({"action": "retry", "where": {"statsu": "failed"}}, "unknown_filter"),
    ({"action": "retry", "where": {"status": "odd"}}, "unknown_filter"), ({"action": "retry", "where": {"status": "completed"}}, "unknown_filter"),
    ({"action": "retry", "where": {"archived": True}}, "unknown_filter"), ({"action": "retry", "where": [1]}, "bad_input"),
    ({"action": "retry", "where": {"tag": "x"}, "rate": 0}, "bad_input"), ({"action": "retry", "where": {"tag": "x"}, "rate": "5"}, "bad_input"),
    ({"action": "retry", "where": {"tag": "x"}, "force": True}, "bad_input"), ({"action": "retry", "where": {"since": "2h"}}, "unknown_filter"),
    ({"action": "retry", "where": {"tag": "x"}, "dry_run": "no"}, "bad_input"),
])
@pytest.mark.parametrize("dry_run", [True, False])
def test_what_means_nothing_is_refused(api: Api, floor: Floor, body: dict[str, Any], code: str, dry_run: bool) -> None:
    assert api.refused("POST", "/v1/batches", {"dry_run": dry_run, **body}) == (422, code)
    assert floor.conductor.operations() == []


@pytest.mark.spec("SVC-2")
def test_only_a_batch_is_a_batch(api: Api, floor: Floor) -> None:
    run_id = floor.start()
    for one in (run_id, f"{run_id}:charge", "nonsense", "0" * 36):
        assert api.refused("GET", f"/v1/batches/{one}")[0] == 404
