"""Every refusal the service can utter reaches its caller as an exception that can be read, whatever details stand beside it."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Iterator
from string import Formatter
from typing import Any

import pytest

import conductor
from conductor import errors
from conductor.client.errors import AUTH, ServiceRefused
from conductor.client.reading import Reply, refusal
from conductor.errors import ConductorError
from conductor.service import errors as service
from conductor.service import hints
from conductor.service.errors import error_response

# What a caller must not be able to break by standing among the details.
AWKWARD = ("problem", "message", "code", "status", "url", "hint", "self", "args", "error_kind", "details", "refusal", "kind", "field")


def every_error() -> list[type[ConductorError]]:
    """Each class of the tree, wherever it is defined: the service answers with any of them."""
    for module in pkgutil.walk_packages(conductor.__path__, "conductor."):
        if not module.name.startswith(("conductor.client", "conductor.embedded", "conductor.pytest", "conductor.archive.migrations")):
            importlib.import_module(module.name)

    def below(kind: type[ConductorError]) -> Iterator[type[ConductorError]]:
        for one in kind.__subclasses__():
            yield one
            yield from below(one)

    return sorted({one for one in below(ConductorError) if not one.__module__.startswith("conductor.client")}, key=lambda one: one.__name__)


def said(kind: type[ConductorError]) -> tuple[int, dict[str, Any], bytes]:
    """What the service sends for it, with every detail its sentence speaks of, and then some."""
    names = {name for _, name, _, _ in Formatter().parse(inspect.getdoc(kind) or "") if name and name.isidentifier()}
    details = {name: f"a {name}" for name in sorted(names)}
    answer = error_response(kind(**details))
    told = json.loads(answer.body)["error"]
    told["details"] = {**{name: f"an awkward {name}" for name in AWKWARD}, **told.get("details", {})}
    return answer.status_code, told, json.dumps({"error": told}).encode()


@pytest.mark.spec("SVC-2", "CLI-1")
@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.code)
def test_every_error_is_told_again(kind: type[ConductorError]) -> None:
    status, told, body = said(kind)
    error = refusal(Reply(status, {}, body, "http://here"))
    assert isinstance(error, ConductorError)
    assert told["message"] in str(error)
    assert (error.hint, error.status, error.url) == (told["hint"], status, "http://here")
    same = vars(errors).get(kind.__name__) is kind
    assert type(error) is (kind if same else next((one for one in AUTH if one.code == kind.code), ServiceRefused))
    assert type(error) is not ServiceRefused or error.refusal == kind.code
    assert error.details["problem"] == told["details"]["problem"]


def test_the_codes_that_are_only_words_are_told_too() -> None:
    """The framework's own refusals, and whatever a later release may say."""
    words = set(re.findall(r'"([a-z]+(?:_[a-z]+)+)"', inspect.getsource(service._http) + inspect.getsource(service.unexpected)))
    assert {"unknown_route", "internal_error"} <= words
    for code in {*words, *service._STATUS, *hints._HINTS, "refused", "of_tomorrow"}:
        told = {"code": code, "message": "no", "hint": "do otherwise", "details": dict.fromkeys(AWKWARD, "x")}
        error = refusal(Reply(500, {}, json.dumps({"error": told}).encode()))
        assert error is not None
        assert "no" in str(error)
