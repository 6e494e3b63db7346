"""The lifecycle tables and what is derived from them."""

from __future__ import annotations

from pathlib import Path

import pytest

import conductor
from conductor.state import OPERATION, RUN, STEP, OpState, RunState, StepState, Table, lifecycle_markdown, may, mermaid, sources, terminal

_NEW_LIFE = {"reset", "reopened", "requeued"}
_TABLES = {"run": (RUN, RunState), "step": (STEP, StepState), "operation": (OPERATION, OpState)}


@pytest.fixture(params=sorted(_TABLES))
def table(request: pytest.FixtureRequest) -> Table:
    return _TABLES[request.param][0]


def test_every_state_has_a_row_and_every_target_is_a_state() -> None:
    for rows, states in _TABLES.values():
        assert set(rows) == set(states)
        assert {target for row in rows.values() for target in row.values()} <= set(states)


@pytest.mark.spec("RUN-11", "CAN-2")
def test_a_terminal_state_is_left_only_into_a_new_life(table: Table) -> None:
    for state in terminal(table):
        assert set(table[state]) <= _NEW_LIFE
        assert all(target not in terminal(table) for target in table[state].values())


def test_what_is_terminal() -> None:
    assert terminal(RUN) == {RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED}
    assert terminal(STEP) == {StepState.COMPLETED, StepState.FAILED, StepState.SKIPPED, StepState.CANCELLED}
    assert terminal(OPERATION) == {OpState.COMPLETED, OpState.FAILED, OpState.EXHAUSTED, OpState.CANCELLED}


def test_completed_and_cancelled_runs_never_live_again() -> None:
    assert not RUN[RunState.COMPLETED]
    assert not RUN[RunState.CANCELLED]


@pytest.mark.spec("CAN-1")
def test_whatever_has_not_ended_can_be_cancelled(table: Table) -> None:
    assert sources(table, "cancelled") == set(table) - terminal(table)


def test_every_state_is_reached_from_the_first(table: Table) -> None:
    first = OpState.QUEUED if table is OPERATION else next(iter(table))
    reached, todo = {first}, [first]
    while todo:
        for target in table[todo.pop()].values():
            if target not in reached:
                reached.add(target)
                todo.append(target)
    assert reached == set(table)


def test_sources_and_may_agree(table: Table) -> None:
    facts = {fact for row in table.values() for fact in row}
    for fact in facts:
        assert sources(table, fact) == {state for state in table if may(table, state, fact) is not None}


def test_letters_are_unique_single_and_read_back() -> None:
    letters = [state.letter for state in StepState]
    assert len(set(letters)) == len(letters) == len(StepState)
    assert all(len(letter) == 1 for letter in letters)
    assert [StepState.of(letter) for letter in letters] == list(StepState)


def test_the_diagram_names_every_move(table: Table) -> None:
    lines = [line.strip() for line in mermaid(table).splitlines()]
    for state, row in table.items():
        for fact, target in row.items():
            assert f"{state} --> {target}: {fact}" in lines
    assert [line for line in lines if line.endswith("--> [*]")] == [f"{state} --> [*]" for state in table if state in terminal(table)]


def test_the_readme_shows_the_generated_diagrams() -> None:
    text = (Path(conductor.__file__).parent / "README.md").read_text()
    _, begun, rest = text.partition("<!-- lifecycle:begin")
    shown, ended, _ = rest.partition("<!-- lifecycle:end -->")
    assert begun
    assert ended
    body = shown.partition("-->\n")[2]
    assert body.strip() == lifecycle_markdown().strip(), "run `python -m conductor.state` and put what it prints between the markers"
