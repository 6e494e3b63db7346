"""Declaring waits, agents and their times: what they become in the graph, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from conductor import DeclarationError, Workflow
from conductor.declare import registry
from conductor.records import FailurePolicy, Graph, Node, NodeKind


class Approval(BaseModel):
    ok: bool
    by: str = "nobody"


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    with registry.isolated():
        yield


@pytest.mark.spec("WF-5")
def test_a_wait_becomes_a_node_with_its_signal_time_and_default() -> None:
    flow = Workflow("w")
    first = flow.add(lambda: 1, name="first")
    flow.wait("approval", Approval, timeout=timedelta(days=3), default={"ok": False}, after=first, on_failure="continue")
    flow.wait("approval", Approval, name="second_approval")
    flow.agent("draft", Approval, instructions="write")
    flow.add(_uses, name="uses")
    _, wait, second, agent, uses = flow.graph.nodes
    assert (wait.kind, wait.name, wait.signal, wait.delay_ms, wait.parents) == (NodeKind.WAIT, "approval", "approval", 259_200_000, (0,))
    assert (wait.default, wait.policy) == ('j1:{"ok":false,"by":"nobody"}', FailurePolicy.CONTINUE)
    assert (second.name, second.signal, second.delay_ms, second.default) == ("second_approval", "approval", 0, None)
    assert (agent.kind, agent.name, agent.signal, agent.instructions, agent.idle_ms) == (NodeKind.AGENT, "draft", "", "write", None)
    assert uses.needs == (1, 3)
    assert flow.graph.waits_for("approval") == (1, 2)
    assert Graph.from_doc(flow.graph.doc) == flow.graph


def _uses(approval: Approval, draft: Approval) -> bool:
    return approval.ok and draft.ok


@pytest.mark.spec("IDLE-4")
@pytest.mark.parametrize(("workflow", "step", "expected"), [
    ({}, {}, None), ({"idle_timeout": None}, {}, 0), ({"idle_timeout": 2}, {}, 2000), ({"idle_timeout": 2}, {"idle_timeout": None}, 0),
    ({"idle_timeout": None}, {"idle_timeout": timedelta(hours=1)}, 3_600_000),
])
def test_how_long_an_agent_may_be_waited_for(workflow: dict[str, Any], step: dict[str, Any], expected: int | None) -> None:
    """The step's own word, else the workflow's, else (None) the setting at the start; 0 stands for without end."""
    flow = Workflow("w", **workflow)
    flow.agent("draft", str, **step)
    assert flow.graph.nodes[0].idle_ms == expected
    assert flow.graph.nodes[0].descriptor().count(";") == (13 if expected is None else 14)


@pytest.mark.spec("WF-2", "WF-5")
def test_what_cannot_be_waited_for_is_refused_when_it_is_declared() -> None:
    flow = Workflow("w", input=Approval)
    flow.wait("go", int)
    flow.add(lambda: 1, name="taken")
    refused: list[tuple[Any, str]] = [
        (lambda: flow.wait("go", int), "already has a step named 'go'"), (lambda: flow.wait("go", str, name="b"), "one signal has one type"),
        (lambda: flow.wait("a b"), "signal name 'a b'"), (lambda: flow.wait("x", int, default=1), "say with timeout= when that is"),
        (lambda: flow.wait("x", int, timeout=1, default="1"), "default: value: .*text was given"),
        (lambda: flow.wait("x", int, timeout=0), "timeout: 0 s is not between"), (lambda: flow.wait("x", int, timeout="1"), "timeout: a timedelta"),
        (lambda: flow.wait("x", int, retry=1), "retry"), (lambda: flow.agent("taken", int), "already has a step"),
        (lambda: flow.agent("x", int, idle_timeout=-1), "idle_timeout"), (lambda: flow.agent("x", int, instructions="x" * 10_001), "at most 10000"),
        (lambda: flow.wait("x", int, after="nowhere") and flow.graph, "no step has that name"), (lambda: flow.wait("y", object()), "JSON"),
        (lambda: flow.add(lambda go: 1, name="z") and flow.add(_text, name="t"), "declared str, step 'go' gives int"),
        (lambda: Workflow("x", idle_timeout="1"), "idle_timeout: a timedelta"),
    ]
    for declare, message in refused:
        with pytest.raises(DeclarationError, match=message):
            declare()


def _text(go: str) -> str:
    return go


@pytest.mark.spec("WF-10")
def test_a_signature_says_what_is_waited_for_but_not_for_how_long() -> None:
    """A worker must have the same type; a longer timeout is an option, which stands in the graph."""
    def one(model: Any, **options: Any) -> Node:
        with registry.isolated():
            flow = Workflow("w")
            flow.wait("go", model, **options)
            return flow.graph.nodes[0]

    assert one(int).signature == one(int, timeout=5).signature != one(str).signature
    assert one(int) != one(int, timeout=5)
