"""Every error that the service can answer says what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from conductor import errors
from conductor.errors import ConductorError
from conductor.service import asgi  # every route and its refusals are imported with it
from conductor.service import errors as answered
from conductor.service.hints import _BY_STATUS, _HINTS, _OPERATOR

pytestmark = pytest.mark.spec("SVC-2")

# What code inside a step, a waiting process or the command line meets, and no request.
ELSEWHERE = {
    "bad_result", "call_too_deep", "child_ended", "child_gone", "conductor_error", "effect_uncertain", "get_inside_step", "get_timeout", "lane_busy",
    "no_conductor", "not_available_yet", "outcome_unknown", "partial_effects", "permanent_error", "run_cancelled", "run_failed",
    "server_not_installed", "settings_error", "soft_failure", "stale_attempt", "step_timeout", "transient_error", "wait_timeout", "when_failed",
    "blob_refused",
}


def known() -> Iterator[type[ConductorError]]:
    assert asgi
    waiting: list[type[ConductorError]] = [ConductorError]
    while waiting:
        found = waiting.pop()
        waiting += found.__subclasses__()
        if found.__module__ == errors.__name__ or found.__module__.startswith("conductor.service"):
            yield found


@pytest.mark.parametrize("kind", sorted(set(known()), key=lambda kind: kind.code), ids=lambda kind: kind.code)
def test_no_error_leaves_without_a_hint(kind: type[ConductorError]) -> None:
    told = json.loads(bytes(answered.error_response(kind()).body))["error"]
    assert told["code"] == kind.code
    assert told["message"]
    assert told["hint"].endswith(".")
    own = kind.code in _HINTS or issubclass(kind, answered.Refusal) or answered.status_of(kind()) == 404
    assert own or kind.code in ELSEWHERE, f"{kind.code} can be answered and has no hint of its own"


def test_the_table_names_no_code_that_is_not_there() -> None:
    assert set(_HINTS) <= {kind.code for kind in known()}
    assert all(_HINTS.values())
    assert all((*_BY_STATUS.values(), _OPERATOR))


def test_the_hint_for_what_has_not_failed_serves_operations_too() -> None:
    assert "/v1/operations/{id}" in _HINTS["not_failed"]
