"""What a worker keeps of what it has read: bounded in number and in size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from conductor.ids import new_run_id
from conductor.records import Attempt
from conductor.runs import inputs
from conductor.runs.inputs import Inputs, Recent

LARGE = inputs._SMALL + 1


def attempt(text: str) -> Attempt:
    return Attempt(run_id=new_run_id(1, 0), index=0, item=None, fence=1, generation=1, attempt=1, flags="", workflow="w", graph="g",
                   lease_ms=1, waited_ms=0, total=0, at=0, input=text)


@pytest.mark.spec("RUN-10")
@pytest.mark.parametrize(("text", "kept"), [("j1:1", inputs._KEPT), ("x" * LARGE, 10)])
def test_inputs_that_came_with_a_claim_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch, text: str, kept: int) -> None:
    monkeypatch.setattr(inputs, "_LARGE", 10 * LARGE)
    store: Any = SimpleNamespace()
    read = Inputs(store)
    for _ in range(inputs._KEPT + 50):
        assert read.start(attempt(text)) == text
    assert len(read._starts) == kept


def test_the_latest_value_is_kept_however_large_and_what_is_used_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "_LARGE", 2 * LARGE)
    recent: Recent[str] = Recent(len)
    recent.keep("small", "x")
    recent.keep("first", "x" * LARGE)
    recent.keep("second", "x" * LARGE)
    recent.fetch("first", lambda: pytest.fail("it is there"))
    recent.keep("third", "x" * LARGE)
    assert set(recent) == {"small", "first", "third"}
    recent.keep("huge", "x" * (5 * LARGE))
    assert set(recent) == {"small", "huge"}
    recent.keep("huge", "x")
    for name in ("a", "b"):
        recent.keep(name, "x" * LARGE)
    assert set(recent) == {"small", "huge", "a", "b"}, "what was replaced no longer weighs"
