"""The event log: what entries say, how they read, and what folding them gives."""

from __future__ import annotations

import pytest

from conductor.fold import ancestors, fold
from conductor.log import KINDS, Folded, UnreadableEntry, parse, parse_all
from conductor.records import FailurePolicy, Graph, Node, NodeKind
from conductor.state import RunState, StepState

CHAIN = Graph.build("order", (Node(0, "reserve"), Node(1, "charge", parents=(0,)), Node(2, "ship", parents=(1,))))
FAN = Graph.build("fan", (
    Node(0, "split"), Node(1, "work", NodeKind.EACH, parents=(0,), source=0, max_parallel=2), Node(2, "join", parents=(1,)),
))


def folded(graph: Graph, *entries: str) -> Folded:
    return fold(parse_all(entries), graph)


def test_every_kind_can_be_read() -> None:
    for code, (kind, _) in KINDS.items():
        event = parse(7, f"{code};1000")
        assert (event.number, event.kind, event.at) == (7, kind, 1000)
        assert event.kind == kind
        assert event.to_json()["kind"] == kind


def test_fields_are_typed() -> None:
    claimed = parse(2, "k;1000;4;55;3-9;ab12")
    assert (claimed.index, claimed.fence, claimed.items, claimed.worker) == (4, 55, (3, 9), "ab12")
    assert list(claimed.item_numbers) == list(range(3, 10))
    retried = parse(3, "t;1000;4;55;;2000;transient")
    assert (retried.items, retried.delay_ms, retried.reason) == (None, 2000, "transient")
    started = parse(1, "u;1000;0,3;;start")
    assert (started.index, started.ready, started.reason) == (None, (0, 3), "start")


def test_a_reason_may_hold_separators() -> None:
    assert parse(9, "K;1000;no; not today;ann").reason == "no; not today"
    assert parse(9, "K;1000;no; not today;ann").actor == "ann"


@pytest.mark.parametrize("entry", ["?;1000", "k;soon;1;2", "k;1000;1;x", "s;1000;1;a,b;0", ""])
def test_what_cannot_be_read_names_its_event(entry: str) -> None:
    with pytest.raises(UnreadableEntry, match="event 12"):
        parse(12, entry)


@pytest.mark.spec("RUN-9")
def test_folding_a_chain_gives_states_and_counters() -> None:
    told = folded(CHAIN, "s;1;1;0;0", "k;2;0;10;;w", "c;3;0;10", "k;3;1;11;;w")
    assert told.violations == []
    assert [told.steps[i].state for i in range(3)] == [StepState.COMPLETED, StepState.RUNNING, StepState.PENDING]
    assert (told.left, told.ready, told.active, told.due, told.failed) == (2, 0, 1, 0, 0)
    assert (told.steps[1].attempt, told.steps[1].fence, told.steps[1].worker) == (1, 11, "w")


@pytest.mark.spec("RUN-9")
def test_folding_an_each_counts_its_items() -> None:
    told = folded(FAN, "s;1;1;0;0", "k;2;0;10;;w", "c;3;0;10;;5", "k;4;1;11;0-1;w", "c;5;1;11;0-0", "t;5;1;12;1;100;transient")
    each = told.eaches[1]
    assert told.violations == []
    assert (each.total, each.cursor, each.active) == (5, 2, 0)
    assert (told.ready, told.due, told.active) == (1, 1, 0)
    assert {number: item.state for number, item in each.items.items()} == {0: StepState.COMPLETED, 1: StepState.RETRY_PENDING}


@pytest.mark.spec("RUN-7")
def test_a_failure_under_continue_makes_downstream_ready_to_be_skipped() -> None:
    graph = Graph.build("g", (Node(0, "a", policy=FailurePolicy.CONTINUE), Node(1, "b", parents=(0,))))
    told = folded(graph, "s;1;1;0;0", "k;2;0;10;;w", "f;3;0;10;;permanent_error")
    assert (told.steps[1].state, told.failed, told.left, told.ready) == (StepState.READY, 1, 1, 1)


@pytest.mark.spec("RUN-11")
def test_a_reopened_run_keeps_what_completed() -> None:
    told = folded(
        CHAIN, "s;1;1;0;0", "k;2;0;10;;w", "c;3;0;10", "k;3;1;11;;w", "f;4;1;11;;permanent_error", "e;4;failed;step_failed", "g;9;2;1;2;ann",
    )
    assert told.violations == []
    assert (told.state, told.generation, told.left, told.ready, told.failed) == (RunState.RUNNING, 2, 2, 1, 0)
    assert [told.steps[i].state for i in range(3)] == [StepState.COMPLETED, StepState.READY, StepState.PENDING]


@pytest.mark.parametrize(("entries", "what"), [
    (("s;1;1;0;0", "k;2;0;10;;w", "c;3;0;10", "c;4;0;10"), "cannot be completed"),
    (("s;1;1;0;0", "k;2;0;10;;w", "c;3;0;99"), "fence 10, not 99"),
    (("s;1;1;0;0", "k;2;1;10;;w"), "cannot be claimed"),
    (("s;1;1;0;0", "K;2;no;ann", "k;3;0;10;;w"), "after the run ended"),
    (("s;1;1;0;0", "k;2;0;10;;w", "K;2;no;ann", "c;3;0;10"), "after the run ended"),
    (("s;1;1;0;0", "e;2;completed", "e;3;failed;x"), "after the run ended"),
    (("s;1;1;0;0", "r;2"), "cannot be resumed"),
    (("s;1;1;0;0", "k;2;9;10;;w"), "the graph has 3"),
])
@pytest.mark.spec("RUN-9", "CAN-4")
def test_illegal_moves_are_found(entries: tuple[str, ...], what: str) -> None:
    assert any(what in found for found in folded(CHAIN, *entries).violations)


def test_a_gap_in_the_numbers_is_found() -> None:
    assert fold([parse(1, "s;1;1;0;0"), parse(3, "k;2;0;10;;w")], CHAIN).violations


def test_a_fork_begins_with_what_it_kept() -> None:
    told = folded(CHAIN, "s;1;1;2;0")
    assert told.violations == []
    assert [told.steps[i].state for i in range(3)] == [StepState.COMPLETED, StepState.COMPLETED, StepState.READY]
    assert told.left == 1


def test_ancestors_are_all_that_stands_upstream() -> None:
    assert ancestors(CHAIN, [2]) == {0, 1}
    assert ancestors(CHAIN, [0]) == frozenset()
