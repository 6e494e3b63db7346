"""A verb that names a generation is done to that life of the run and to no other: whoever repeats himself moves nothing twice."""

from __future__ import annotations

from typing import Any

import pytest

from conductor.errors import Superseded
from conductor.ids import new_run_id
from conductor.records import Graph, NewRun, Node, Outcome, OutcomeKind
from conductor.runs.retry import plan_reopening, retry_run
from conductor.store import Store, Want
from conductor.store.reads import read_run, read_steps
from tests.support.crew import engine_of

ONE = Graph.build("one", (Node(0, "only", signature="a"),))


def failed(store: Store) -> str:
    run_id = new_run_id(store.partitions)
    store.start(NewRun(run_id, "one", "j1:1", "q"), ONE)
    fail(store)
    return run_id


def fail(store: Store) -> None:
    store.register_code("k", ["a"])
    (held,) = store.claim(0, Want("q", 1, "k", "w", first=True)).attempts
    store.commit(0, [(Outcome(held, OutcomeKind.FAILED, reason="permanent_error"), "")], Want("q", 0, "k", "w"))


def reopen(store: Store, run_id: str, only: int | None) -> str:
    """What `retry_run` sends, whatever it would have seen before: the script is the one that must refuse."""
    run = read_run(store, run_id)
    assert run is not None
    plan = plan_reopening(ONE, read_steps(store, run_id, ONE))
    told = store.reopen(
        run_id, at_event=run.events, reset=plan.triples, eaches=(), steps=plan.left, hooks="", actor="me", generation=True, only=only)
    return told.word


@pytest.mark.spec("CLI-4", "RUN-5")
def test_a_retry_that_names_a_generation_is_done_once_however_often_the_run_fails(store: Store) -> None:
    run_id = failed(store)
    assert retry_run(engine_of(store), run_id, actor="me", only=1).word == "OK"
    fail(store)
    log = store.log_of(run_id)
    with pytest.raises(Superseded, match="lives in generation 2"):
        retry_run(engine_of(store), run_id, actor="me", only=1)
    assert reopen(store, run_id, 1) == "SUPERSEDED"
    assert store.log_of(run_id) == log, "nothing was written"
    assert reopen(store, run_id, 2) == "OK"


@pytest.mark.spec("CLI-4")
def test_cancel_pause_and_resume_leave_another_generation_alone(store: Store) -> None:
    run_id = failed(store)
    retry_run(engine_of(store), run_id)
    log = store.log_of(run_id)

    def words(only: int) -> list[Any]:
        return [
            store.pause(run_id, reason="x", only=only).word, store.resume(run_id, only=only).word,
            store.cancel(run_id, reason="x", only=only).word,
        ]

    assert words(1) == ["SUPERSEDED"] * 3
    assert store.log_of(run_id) == log
    assert words(2) == ["OK", "OK", "OK"]
    assert words(1) == ["SUPERSEDED"] * 3
