"""The service against its own document: what fits it and what does not, no error of ours, no change by what was refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from conductor.service import shown_runs, shown_upkeep
from conductor.service.access import ALL_SCOPES, Caller
from tests.integration.front import Front
from tests.integration.front import opened as open_front
from tests.support.schema import Campaign, operations
from tests.support.server import ValkeyServer

pytestmark = pytest.mark.spec("SVC-1", "SVC-2", "BAD-1")


@pytest.fixture(scope="module")
def front(valkey: ValkeyServer) -> Iterator[Front]:
    with open_front(valkey, f"t{uuid.uuid4().hex[:12]}") as one:
        yield one


@pytest.fixture(scope="module")
def campaign(front: Front) -> Campaign:
    return campaign_on(front)


@pytest.fixture(autouse=True)
def declared_by_this_test() -> None:
    """The front's declarations last as long as the front."""


def campaign_on(front: Front) -> Campaign:
    app = front.conductor.asgi(auth=lambda _request: Caller("root", ALL_SCOPES))
    runs = [front.conductor.start("cli_orders", {"number": 1, "bad": number % 2 == 1}, session="ada").id for number in range(4)]
    front.drain()
    ops = [str(front.conductor.submit("lend", {"title": "x"}, session="ada").operation_id)]
    front.conductor.schedule("nightly", "lend", {"title": "x"}, when=3600)
    store = front.engine.store
    store.identity()

    def state() -> dict[str, Any]:
        client = store.client()
        names = [key for key in client.scan_iter(f"conductor:{{{store.namespace}:*", count=1000) if ":caller:" not in key and ":audit" not in key]
        pipe = client.pipeline(transaction=False)
        for name in names:
            pipe.dump(name)
        return dict(zip(names, pipe.execute(), strict=True))

    known = {
        "run_id": runs, "operation_id": ops, "session": ["ada"], "workflow": ["cli_orders"], "step": ["charge", "price"], "from": ["charge"],
        "capability": ["lend"], "name": ["nightly", "lend", "desk", "ai", "cli_orders"],
    }
    return Campaign(app, state, known)


def test_the_document_says_what_each_route_is_for(front: Front) -> None:
    document = front.conductor.asgi(auth=lambda _request: None).openapi()
    for path, verbs in document["paths"].items():
        for verb, told in verbs.items():
            assert told["summary"], (verb, path)
            answers = told["responses"]
            assert {"401", "403", "422", "503"} <= set(answers), (verb, path)
            assert answers["422"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Error"}, (verb, path)
    assert document["components"]["schemas"]["Error"]["properties"]["error"]["required"] == ["code", "message", "hint"]
    assert document["security"]
    starts = document["paths"]["/v1/runs"]["post"]
    assert starts["responses"]["201"]["content"]["application/json"]["example"]["run_id"]


@pytest.mark.spec("SVC-1")
def test_every_answer_has_a_form_and_every_example_is_of_it(front: Front) -> None:
    """Nothing that is null is left out of an example: a program made from it would not expect it."""
    document = front.conductor.asgi(auth=lambda _request: None).openapi()
    shown = 0
    for path, verbs in document["paths"].items():
        for verb, told in verbs.items():
            for status, answer in told["responses"].items():
                for kind, content in answer.get("content", {}).items():
                    assert content["schema"], (verb, path, status)
                    if kind == "application/json" and "example" in content:
                        schema = {"components": document["components"], **content["schema"]}
                        assert [str(error) for error in Draft202012Validator(schema).iter_errors(content["example"])] == [], (verb, path, status)
                        shown += status.startswith("2")
    assert shown > 25
    runs = document["paths"]["/v1/runs/{run_id}/consent"]
    assert [runs[verb]["responses"]["200"]["content"]["application/json"]["example"]["consent"] for verb in ("put", "delete")] == [True, False]


@pytest.mark.spec("SVC-1")
def test_what_the_document_says_of_runs_is_what_they_answer_with(front: Front) -> None:
    """Field by field: the schema allows more, so it would not notice one that it does not know."""
    run_id = str(front.conductor.start("cli_orders", {"number": 1, "bad": True}, session="eve").id)
    front.drain()
    assert set(front.told("GET", "/runs?session=eve")["runs"][0]) == set(shown_runs.RunRow.model_fields)
    told = front.told("GET", f"/runs/{run_id}")
    assert set(told) == set(shown_runs.RunShown.model_fields)
    assert set(told["why"]) == set(shown_runs.Said.model_fields)
    assert set(front.told("GET", f"/runs/{run_id}/why")) == set(shown_runs.RunWhy.model_fields)
    assert set(front.told("GET", f"/runs/{run_id}/outcome")) == set(shown_runs.OutcomeShown.model_fields) - {"result", "result_error"}
    assert set(front.told("GET", f"/runs/{run_id}/events")) == set(shown_runs.EventsPage.model_fields)
    assert set(front.told("GET", "/ready")) == set(shown_upkeep.Ready.model_fields)
    assert set(front.told("POST", f"/runs/{run_id}/cancel")) == set(shown_runs.CancelledRun.model_fields)


def test_every_operation_by_its_document(campaign: Campaign) -> None:
    for operation in operations(campaign.app):
        campaign.ask(operation, 12)
    assert sum(campaign.statuses.values()) > 300
    assert {200, 404, 422} <= set(campaign.statuses), campaign.statuses
