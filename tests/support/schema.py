"""Requests made from the service's own OpenAPI document, fitting and not fitting, and what every answer must be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

__all__ = ["Campaign", "operations"]

# Streams have no end, and have tests of their own.
_APART = ("/v1/events", "/v1/sessions/{session}/inbox/events")
_LONGEST = 60  # seconds that a call may wait
_CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
_FRAMEWORKS = {404: "unknown_route", 405: "method_not_allowed"}


def operations(app: Any) -> list[str]:
    """Method and path of everything that is asked, last what takes away what the others would find."""
    found = sorted(f"{verb.upper()} {path}" for path, verbs in app.openapi()["paths"].items() for verb in verbs if path not in _APART)
    return sorted(found, key=lambda operation: operation == "POST /v1/purge")


class Campaign:
    """Asks an app what its document allows, and what it does not. `known` are ids and names that exist, which half of the requests have in
    place of made-up ones, in paths and in bodies: what is not there is refused before anything else is looked at."""

    def __init__(self, app: Any, state: Callable[[], Any], known: dict[str, list[str]]) -> None:
        self.app = app
        self.schema = schemathesis.openapi.from_asgi("/v1/openapi.json", app)
        self.state, self.known = state, known
        self.statuses: dict[int, int] = {}

    def ask(self, operation: str, examples: int, number: int = 0) -> None:
        """Some requests of either kind for one operation."""
        method, path = operation.split(" ")
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            for strategy in self._strategies(path, method, mode):

                @seed(number)
                @settings(max_examples=examples, deadline=None, database=None, phases=(Phase.explicit, Phase.generate),
                          suppress_health_check=list(HealthCheck))
                @given(case=strategy)
                def check(case: Any) -> None:
                    self.one(case)

                check()

    def _strategies(self, path: str, method: str, mode: GenerationMode) -> Iterator[Any]:
        found = self.schema[path][method]
        if mode is GenerationMode.NEGATIVE and not (found.body or found.query or found.headers):
            return  # nothing of it could be wrong but its path
        yield found.as_strategy(generation_mode=mode)

    def _put_known(self, case: Any) -> None:
        drawn = crc32(repr((case.path_parameters, case.query, case.body)).encode(errors="replace"))
        if drawn % 2:
            return
        for place in (case.path_parameters, case.body):
            for name in self.known.keys() & place.keys() if isinstance(place, dict) else ():
                place[name] = self.known[name][drawn // 2 % len(self.known[name])]

    def _wait_for_nobody(self, case: Any) -> None:
        """No worker is there; a time that is refused is sent as it is."""
        if isinstance(case.query, dict) and "wait" in case.query:
            case.query.pop("wait")
        if case.path == "/v1/call" and isinstance(case.body, dict):
            wanted = case.body.get("timeout", 30)
            if isinstance(wanted, int | float) and not isinstance(wanted, bool) and 0 <= wanted <= _LONGEST:
                case.body["timeout"] = 0

    def one(self, case: Any) -> None:
        """One request: no error of the server's; a refusal has the form of errors and changes nothing."""
        self._put_known(case)
        self._wait_for_nobody(case)
        before = self.state()
        response = case.call(base_url="http://localhost")
        self.statuses[response.status_code] = self.statuses.get(response.status_code, 0) + 1
        told = f"{case.method} {case.formatted_path} {case.query} {case.body!r}: {response.status_code} {response.text[:500]}"
        assert response.status_code < 500, told
        if response.status_code >= 400:
            error = response.json()["error"]
            assert error["code"], told
            assert error["message"], told
            assert error["hint"], told
            assert self.state() == before, f"refused, and yet something changed: {told}"
            if error["code"] == _FRAMEWORKS.get(response.status_code):
                return  # its path was another one's
        case.validate_response(response, checks=_CHECKS)
