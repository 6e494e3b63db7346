"""What a run keeps: the frozen graph, its hash, and the signatures by which workers know what they can run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from conductor import Workflow
from conductor.declare import registry
from conductor.records import Graph


class Order(BaseModel):
    id: int


class Payment(BaseModel):
    amount: int


def number() -> int:
    return 1


@st.composite
def dags(draw: st.DrawFn) -> list[set[int]]:
    size = draw(st.integers(1, 25))
    return [draw(st.sets(st.integers(0, n - 1), max_size=4)) if n else set() for n in range(size)]


@pytest.mark.spec("WF-10")
@settings(max_examples=60, deadline=None)
@given(dags(), st.randoms())
def test_any_graph_freezes_and_survives_its_stored_form(parents: list[set[int]], random: Any) -> None:
    with registry.isolated():
        flow = Workflow("dag")
        for n, before in enumerate(parents):
            flow.add(number, name=f"s{n}", after=[f"s{p}" for p in before], retry=None, priority=random.choice([None, 1, 9]))
        graph = flow.graph
    again = Graph.from_doc(graph.doc)
    assert again == graph
    assert [set(node.parents) for node in graph.nodes] == parents
    for index, following in enumerate(graph.successors):
        assert set(following) == {n for n, before in enumerate(parents) if index in before}
    assert set(graph.roots) == {n for n, before in enumerate(parents) if not before}


@pytest.mark.spec("WF-10")
def test_a_signature_covers_names_sources_and_types_but_not_bodies_or_options() -> None:
    def declared(**changes: Any) -> str:
        with registry.isolated():
            flow = Workflow(changes.get("workflow", "w"))
            flow.add(number, name=changes.get("source", "a"))

            def body(x: Any) -> Any:
                return changes

            body.__annotations__ = {"x": int, "return": changes.get("returns", str)}
            flow.add(body, name=changes.get("name", "b"), using={"x": changes.get("source", "a")}, **changes.get("options", {}))
            return flow.graph.nodes[1].signature

    same = declared()
    assert len(same) == 10
    assert declared(body="another") == declared(options={"queue": "gpu", "priority": 1, "timeout": 5, "after": "a"}) == same
    others = [declared(workflow="v"), declared(name="c"), declared(source="z"), declared(returns=int)]
    others.append(declared(options={"when": lambda x: x}))
    assert len({same, *others}) == 6


@pytest.mark.spec("WF-10")
def test_the_graphs_hash_changes_with_options_and_edges_only() -> None:
    def declared(body: Any = number, **options: Any) -> str:
        with registry.isolated():
            flow = Workflow("w")
            flow.add(number, name="a")
            flow.add(body, name="b", **options)
            return flow.graph.hash

    def other() -> int:
        return 2

    assert declared(other) == declared()
    assert len({declared(), declared(after="a"), declared(queue="gpu"), declared(timeout=3)}) == 4
