"""The plans of retry and fork: what stays, what begins anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import ForkRefused, UnknownStep
from conductor.records import Graph, Node, NodeKind
from conductor.runs.fork import plan_fork
from conductor.runs.retry import in_order, plan_reopening
from conductor.state import StepState
from conductor.store.reads import StepRecord

P, R, X, W, T, C, F, Z = (StepState.of(letter) for letter in "PRXWTCFZ")


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    size = draw(st.integers(1, 12))
    nodes = []
    for index in range(size):
        parents = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set()
        kind = draw(st.sampled_from([NodeKind.STEP, NodeKind.STEP, NodeKind.EACH])) if parents else NodeKind.STEP
        nodes.append(Node(index, f"s{index}", kind, tuple(sorted(parents)), signature=f"g{index}"))
    if draw(st.booleans()):
        nodes.append(Node(size, "last", NodeKind.ON_FINISH))
    return Graph.build("g", tuple(nodes))


@st.composite
def histories(draw: st.DrawFn) -> tuple[Graph, dict[int, StepRecord]]:
    """A graph and states that a run of it could have: nothing has begun before its parents ended."""
    graph = draw(graphs())
    steps: dict[int, StepRecord] = {node.index: StepRecord() for node in graph.nodes}
    for index in in_order(graph):
        parents = [steps[parent] for parent in graph.nodes[index].parents]
        if any(parent.state not in (C, Z, F) for parent in parents):
            continue
        if any(parent.state is F or "u" in parent.flags for parent in parents):
            steps[index] = draw(st.sampled_from([StepRecord(Z, flags="u"), StepRecord(R, flags="u"), StepRecord()]))
        elif parents and all(parent.state is Z for parent in parents):
            steps[index] = draw(st.sampled_from([StepRecord(Z, flags="s"), StepRecord(R, flags="s")]))
        else:
            steps[index] = StepRecord(draw(st.sampled_from([C, C, C, Z, F, R, X, T])))
    return graph, steps


@pytest.mark.spec("RUN-11")
@given(histories())
def test_a_plan_keeps_what_completed_and_counts_open_parents(history: tuple[Graph, dict[int, StepRecord]]) -> None:
    graph, steps = history
    plan = plan_reopening(graph, steps)
    kept = {node.index for node in graph.steps} - plan.reset.keys()
    assert all(index in kept for index in in_order(graph) if steps[index].state is C)
    assert all(steps[index].state in (C, Z) for index in kept)
    assert plan.left == len(graph.steps) - len(kept)
    for node in graph.steps:
        if node.index in kept:
            assert steps[node.index].state is C or all(parent in kept for parent in node.parents)
            continue
        left = sum(parent not in kept for parent in node.parents)
        assert plan.reset[node.index].startswith(f"P;{left};" if left else "R;")
    assert not plan.left or plan.ready
    assert {index for index in plan.eaches} == {index for index in plan.reset if graph.nodes[index].kind is NodeKind.EACH}  # noqa: C416


@given(graphs())
def test_order_puts_parents_first(graph: Graph) -> None:
    order = list(in_order(graph))
    assert sorted(order) == [node.index for node in graph.steps]
    assert all(order.index(parent) < order.index(node.index) for node in graph.steps for parent in node.parents)


def test_a_skip_stays_only_if_nothing_upstream_begins_anew() -> None:
    graph = Graph.build("g", (Node(0, "a"), Node(1, "b"), Node(2, "c", parents=(0,)), Node(3, "d", parents=(2,)), Node(4, "e", parents=(1,))))
    steps = {0: StepRecord(F), 1: StepRecord(Z), 2: StepRecord(Z, flags="u"), 3: StepRecord(Z, flags="s"), 4: StepRecord(Z, flags="s")}
    assert plan_reopening(graph, steps).reset == {0: "R;", 2: "P;1;", 3: "P;1;"}


def test_a_step_whose_parents_were_all_skipped_will_be_skipped_again() -> None:
    graph = Graph.build("g", (Node(0, "a"), Node(1, "b"), Node(2, "c", parents=(0,))))
    assert plan_reopening(graph, {0: StepRecord(Z), 1: StepRecord(F), 2: StepRecord(R, flags="s")}).reset == {1: "R;", 2: "R;s"}


OLD = Graph.build("g", (
    Node(0, "a", signature="A"), Node(1, "b", parents=(0,), signature="B"), Node(2, "c", parents=(1,), signature="C"),
    Node(3, "side", parents=(0,), signature="S"), Node(4, "join", parents=(2, 3), signature="J"), Node(5, "last", NodeKind.ON_FINISH),
))
DONE = {index: StepRecord(C) for index in range(6)}


@pytest.mark.spec("RUN-11")
def test_a_fork_keeps_what_its_step_stands_on() -> None:
    plan = plan_fork("r", "c", OLD, OLD, DONE)
    assert plan.roots == (2, 3)
    assert plan.records == {0: ("C;0;0;0;0;0;0;", 0), 1: ("C;0;0;0;0;0;0;", 1)}
    assert plan_fork("r", "join", OLD, OLD, DONE).roots == (4,)


def test_a_join_of_kept_and_new_waits_for_the_new() -> None:
    today = Graph.build("g", (Node(0, "x"), Node(1, "a", signature="A"), Node(2, "b", parents=(0, 1)), Node(3, "c", parents=(1,))))
    plan = plan_fork("r", "c", today, OLD, DONE)
    assert plan.records == {1: ("C;0;0;0;0;0;0;", 0), 2: ("P;1;c", None)}
    assert plan.roots == (0, 3)


@pytest.mark.spec("RUN-11", "ERR-2")
@pytest.mark.parametrize(("today", "steps", "problem"), [
    ((Node(0, "a", signature="changed"), Node(1, "b", parents=(0,))), DONE, "step 'a' before it has another signature"),
    ((Node(0, "new"), Node(1, "b", parents=(0,))), DONE, "step 'new' before it is new"),
    ((Node(0, "a", signature="A"), Node(1, "b", parents=(0,))), DONE | {0: StepRecord(F)}, "step 'a' before it is failed"),
    ((Node(0, "a", signature="A"), Node(1, "b", parents=(0,))), DONE | {0: StepRecord(Z, flags="u")}, "step 'a' before it is skipped"),
])
def test_a_fork_that_cannot_keep_is_refused(today: tuple[Node, ...], steps: dict[int, StepRecord], problem: str) -> None:
    with pytest.raises(ForkRefused) as refused:
        plan_fork("r", "b", Graph.build("g", today), OLD, steps)
    assert problem in str(refused.value)


@pytest.mark.parametrize("name", ["nothing", "last"])
def test_a_fork_from_an_unknown_or_last_step_is_refused(name: str) -> None:
    with pytest.raises(UnknownStep):
        plan_fork("r", name, OLD, OLD, DONE)
