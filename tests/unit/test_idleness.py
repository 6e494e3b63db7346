"""Idleness as pure functions of the record, and what the log must fold to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conductor.fold import fold
from conductor.idleness import active_waiters, is_idle, is_orphan, orphan_until, waits_for
from conductor.log import parse, parse_all
from conductor.records import Graph, Node, NodeKind
from conductor.state import RUN, RunState, StepState, terminal
from conductor.store.reads import RunRecord

GRAPH = Graph.build("flow", (
    Node(0, "work"), Node(1, "go", NodeKind.WAIT, (0,), signal="yes", delay_ms=5), Node(2, "draft", NodeKind.AGENT, (0,), instructions="x"),
    Node(3, "nap", NodeKind.SLEEP, (0,), delay_ms=1)))
RECORD = RunRecord("r", "flow", "h", RunState.WAITING_SIGNAL, waiters=3, agents=1, waiting=(1, 2, 3), progress_at=1000, idle_timeout_ms=50)


@pytest.mark.spec("IDLE-1", "IDLE-2")
@pytest.mark.parametrize("counter", ["ready", "active", "due", "children"])
def test_whatever_can_move_by_itself_makes_a_run_busy(counter: str) -> None:
    assert is_idle(RECORD)
    assert not is_idle(replace(RECORD, **{counter: 1}))
    assert not is_idle(replace(RECORD, waiters=0, waiting=()))
    assert not is_idle(replace(RECORD, phase="F"))


@pytest.mark.spec("IDLE-1")
@pytest.mark.parametrize("state", sorted({*terminal(RUN), RunState.PAUSED, RunState.QUEUED, RunState.COMPENSATING}))
def test_a_run_that_is_over_paused_or_queued_is_not_idle(state: RunState) -> None:
    assert not is_idle(replace(RECORD, state=state))


@pytest.mark.spec("IDLE-2", "IDLE-7")
def test_the_waiters_of_a_record() -> None:
    waiters = active_waiters(RECORD, GRAPH, {1: 77})
    assert [(one.step, one.kind, one.signal, one.until, one.instructions) for one in waiters] == [
        ("go", "signal", "yes", 77, ""), ("draft", "agent", "", 0, "x"), ("nap", "time", "", 0, "")]
    assert [waits_for(waiters, name) for name in ("yes", "draft", "work")] == [True, True, False]
    assert active_waiters(replace(RECORD, state=RunState.CANCELLED), GRAPH) == ()


@pytest.mark.spec("IDLE-4")
def test_an_orphan_waits_for_agents_alone_and_the_most_patient_counts() -> None:
    assert not is_orphan(RECORD)
    orphan = replace(RECORD, waiters=1, agents=1, waiting=(2,))
    assert is_orphan(orphan)
    assert orphan_until(orphan, GRAPH) == 1050
    assert orphan_until(RECORD, GRAPH) == 0
    agents = Graph.build("flow", (Node(0, "a", NodeKind.AGENT, idle_ms=10), Node(1, "b", NodeKind.AGENT), Node(2, "c", NodeKind.AGENT, idle_ms=0)))
    both = replace(RECORD, waiters=2, agents=2, waiting=(0, 1))
    assert orphan_until(both, agents) == 1050
    assert orphan_until(replace(both, waiters=3, agents=3, waiting=(0, 1, 2)), agents) == 0, "one of them may be waited for without end"


@pytest.mark.spec("RUN-9", "IDLE-2")
def test_the_log_folds_to_states_counters_and_waiters() -> None:
    entries = ["s;1;1;0;0", "y;2;yes;id7", "k;3;0;5;;w", "c;4;0;5"]
    told = fold(parse_all(entries), GRAPH)
    assert told.violations == []
    assert [told.steps[index].state for index in range(4)] == [StepState.COMPLETED, StepState.READY, StepState.WAITING, StepState.WAITING]
    assert (told.ready, told.waiters, told.agents, told.waiting, told.early) == (1, 2, 1, (2, 3), []), "the kept signal was taken"
    more = fold(parse_all([*entries, "k;5;1;6;;w", "c;6;1;6;;;answered", "i;6;2,3", "j;7", "v;7;2;ann"]), GRAPH)
    assert (more.state, more.waiting, more.steps[2].state) == (RunState.RUNNING, (3,), StepState.READY)
    assert fold(parse_all([*entries, "v;5;0;x"]), GRAPH).violations, "a completed step cannot be answered"
    assert fold(parse_all([*entries, "j;5"]), GRAPH).violations, "it was not idle"


def test_the_new_entries_are_told_by_name() -> None:
    assert parse(1, "v;5;2;id7").to_json({2: "draft"}) == {"number": 1, "kind": "answered", "at": 5, "step": "draft", "index": 2, "by": "id7"}
    assert parse(1, "i;5;1,2").to_json()["waiters"] == [1, 2]
    assert parse(1, "y;5;go;id").to_json() == {"number": 1, "kind": "signal_kept", "at": 5, "signal": "go", "by": "id"}
