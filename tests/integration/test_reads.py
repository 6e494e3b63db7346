"""Reading runs: records, lists, queues, notices, and what people are shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from conductor.errors import UnknownRun
from conductor.ids import new_run_id
from conductor.records import Attempt, Graph, NewRun, Node, NodeKind, Outcome, OutcomeKind
from conductor.runs.read import leaf_values, run_result, summary, to_json, view_run
from conductor.runs.why import why
from conductor.state import RunState, StepState
from conductor.store import Store, Want
from conductor.store.listing import Ambiguous, Filter, find_run_by_prefix, list_runs, queues
from conductor.store.notices import glimpse, last_notice, wait_notice
from conductor.store.reads import read_each, read_errors, read_events, read_graph, read_input, read_items, read_live, read_run, read_steps
from tests.conftest import MakeStore
from tests.support.crew import engine_of

PAIR = Graph.build("order", (Node(0, "reserve", signature="a", queue="fast"), Node(1, "charge", parents=(0,), signature="b")))
FAN = Graph.build("fan", (Node(0, "split", signature="a"), Node(1, "work", NodeKind.EACH, (0,), source=0, max_parallel=99, signature="b")))


def begin(store: Store, graph: Graph, **options: Any) -> str:
    options.setdefault("run_id", new_run_id(store.partitions))
    run = NewRun(**({"workflow": graph.workflow, "input": 'j1:{"n":1}', "queue": "q"} | options))
    assert store.start(run, graph).word == "OK"
    return run.run_id


def claim(store: Store, queue: str = "q", limit: int = 1, partition: int = 0) -> list[Attempt]:
    store.register_code("k", ["a", "b"])
    return store.claim(partition, Want(queue, limit, "k", "worker-1", first=True)).attempts


def end(store: Store, attempts: list[Attempt], kind: OutcomeKind = OutcomeKind.COMPLETED, **outcome: Any) -> None:
    after = {held.index: ",".join(map(str, _graph(store, held).successors[held.index])) for held in attempts}
    outcomes = [(Outcome(held, kind, **({"payload": f"j1:{held.item or held.index}", "total": -1} | outcome)), after[held.index]) for held in attempts]
    assert set(store.commit(0, outcomes, Want("q", 0, "k", "worker-1")).answers) <= {"OK"}


def _graph(store: Store, held: Attempt) -> Graph:
    return read_graph(store, 0, held.graph)


def test_a_run_is_read_as_it_was_written(store: Store) -> None:
    run_id = begin(store, PAIR, session="ann", key="k-1", digest="d", tags=("x", "y"), priority=2, deadline_ms=60_000)
    run = read_run(store, run_id)
    assert run is not None
    assert (run.workflow, run.state, run.session, run.key, run.tags, run.priority) == ("order", RunState.RUNNING, "ann", "k-1", ("x", "y"), 2)
    assert (run.left, run.ready, run.active, run.events, run.generation) == (2, 1, 0, 1, 1)
    assert run.deadline == run.created_at + 60_000
    assert read_input(store, run_id) == 'j1:{"n":1}'
    assert read_run(store, new_run_id(1)) is None
    assert read_run(store, "no id") is None


def test_steps_items_and_errors_are_read(store: Store) -> None:
    run_id = begin(store, FAN)
    end(store, claim(store), total=70)
    first, *others = claim(store, limit=10)
    end(store, others)
    end(store, [first], OutcomeKind.RETRY, reason="transient", delay_ms=60_000, error=json.dumps({"type": "OSError", "message": "gone"}))
    steps, each = read_steps(store, run_id, FAN), read_each(store, run_id, FAN)[1]
    assert (steps[0].state, steps[1].state) == (StepState.COMPLETED, StepState.RUNNING)
    assert (each.total, each.cursor, each.done) == (70, 10, 9)
    items = {item: record.state for page in read_items(store, run_id, 1, each.cursor) for item, record in page.items()}
    assert items == {0: StepState.RETRY_PENDING} | dict.fromkeys(range(1, 10), StepState.COMPLETED)
    assert read_errors(store, run_id) == {"1:0:1": {"type": "OSError", "message": "gone"}}
    assert [event.number for event in read_events(store, run_id, after=2, limit=2)] == [3, 4]


@pytest.mark.spec("WF-1")
def test_results_are_made_of_the_leaves(store: Store) -> None:
    run_id = begin(store, FAN)
    end(store, claim(store), total=130)
    while held := claim(store, limit=50):
        end(store, held)
    assert run_result(engine_of(store), run_id, "fan", FAN) == [item or 1 for item in range(130)]
    both = Graph.build("two", (Node(0, "a", signature="a"), Node(1, "b", signature="b")))
    run_id = begin(store, both)
    end(store, claim(store, limit=5))
    assert run_result(engine_of(store), run_id, "two", both) == {"a": 0, "b": 1}
    assert leaf_values(store, run_id, both, {0: "j1:7", 1: None}) == {"a": "j1:7", "b": None}


def test_lists_are_merged_by_time_and_paged(make_store: Any) -> None:
    store = make_store(4)
    ids = [begin(store, PAIR, session=f"s{number % 2}") for number in range(23)]
    expected = sorted(ids, key=lambda run_id: (read_run(store, run_id).created_at, run_id), reverse=True)  # type: ignore[union-attr]
    found: list[str] = []
    cursor = ""
    while True:
        page = list_runs(store, cursor=cursor, limit=5)
        found += [run.run_id for run in page.runs]
        if not page.cursor:
            break
        cursor = page.cursor
    assert found == expected
    assert len(list_runs(store, Filter(session="s1"), limit=50).runs) == 11
    with pytest.raises(ValueError, match="cursor"):
        list_runs(store, cursor="nonsense")


def test_lists_filter_by_state_key_and_time(make_store: Any) -> None:
    store = make_store(1)
    ids = [begin(store, PAIR, key=f"k{number}", digest="d", tags=(f"t{number}",)) for number in range(4)]
    store.cancel(ids[1], reason="no")
    middle = read_run(store, ids[2])
    assert middle is not None

    def listed(**wanted: Any) -> set[str]:
        return {run.run_id for run in list_runs(store, Filter(**wanted)).runs}

    assert listed(states=frozenset({RunState.CANCELLED})) == {ids[1]}
    assert listed(states=frozenset({RunState.RUNNING})) == {ids[0], ids[2], ids[3]}
    assert listed(states=frozenset({RunState.FAILED})) == set()
    assert listed(workflow="order", key="k3") == {ids[3]}
    assert listed(tag="t0") == {ids[0]}
    assert listed(since=middle.created_at + 3_600_000) == set()
    assert listed(until=middle.created_at - 3_600_000) == set()
    assert listed(workflow="other") == set()


@pytest.mark.spec("CLI-3")
def test_a_run_is_found_by_the_beginning_of_its_id(make_store: Any) -> None:
    store = make_store(2)
    run_id = begin(store, PAIR)
    assert find_run_by_prefix(store, run_id) == run_id
    assert find_run_by_prefix(store, run_id[:24]) == run_id
    assert find_run_by_prefix(store, "0000") is None
    for number in range(3):
        begin(store, PAIR, run_id=f"{run_id[:-5]}{'abc'[number]}{'0' if run_id[-4] != '0' else '1'}{run_id[-3:]}")
    with pytest.raises(Ambiguous, match="several run ids"):
        find_run_by_prefix(store, run_id[:24])
    for nonsense in ("ab", "xyz!", ""):
        with pytest.raises(ValueError, match="beginning of a run id"):
            find_run_by_prefix(store, nonsense)


@pytest.mark.spec("STK-6")
def test_queues_tell_what_stands_and_what_runs(store: Store) -> None:
    begin(store, PAIR)
    begin(store, PAIR, priority=0)
    claim(store, "fast")
    found = {queue.queue: queue for queue in queues(store)}
    assert (found["fast"].ready, found["fast"].running) == (1, 1)
    assert 0 <= found["fast"].oldest_ready_ms < 60_000


def test_a_notice_wakes_whoever_reads_on(store: Store) -> None:
    before = last_notice(store, 0)
    run_id = begin(store, PAIR)
    said = wait_notice(store, 0, before, 1, run_id)
    assert (said.met, said.state, said.event) == (True, "running", 1)
    assert wait_notice(store, 0, said.last_id, 0.01, run_id).met is False
    begin(store, PAIR)
    other = wait_notice(store, 0, said.last_id, 1, run_id)
    assert not other.met
    assert other.last_id != said.last_id
    assert last_notice(store, 0) == other.last_id


def test_a_glimpse_brings_state_and_results(store: Store) -> None:
    wide = Graph.build("wide", tuple(Node(index, f"s{index}", signature="a") for index in range(40)))
    run_id = begin(store, wide)
    while held := claim(store, limit=10):
        end(store, held)
    seen = glimpse(store, run_id, [3, 35])
    assert seen is not None
    assert (seen.state, seen.workflow, seen.results) == ("completed", "wide", {3: "j1:3", 35: "j1:35"})
    assert glimpse(store, new_run_id(1)) is None


@pytest.mark.spec("ERR-3", "CLI-5")
def test_a_view_shows_where_each_step_stands_and_why(store: Store) -> None:
    run_id = begin(store, PAIR)
    assert "charge" in to_json(view_run(store, run_id))["steps"][1]["name"]
    (held,) = claim(store, "fast")
    store.note(held, "live", json.dumps({"done": 1, "total": 4, "note": "boxes"}))
    seen = view_run(store, run_id)
    assert (seen.steps[0].state, seen.steps[0].worker, seen.steps[0].progress["note"]) == (StepState.RUNNING, "worker-1", "boxes")
    assert "is running reserve on worker-1" in why(seen).sentence
    assert read_live(store, run_id)["0"]["done"] == 1
    error = json.dumps({"type": "ValueError", "message": "no"})
    end(store, [held], OutcomeKind.RETRY, reason="transient", delay_ms=50_000, error=error)
    seen = view_run(store, run_id)
    assert "waits for retry 1/5 of reserve in" in why(seen).sentence
    assert "ValueError: no" in why(seen).sentence
    store.cancel(run_id, reason="changed my mind")
    seen = view_run(store, run_id)
    assert [step.state for step in seen.steps] == [StepState.CANCELLED, StepState.CANCELLED]
    assert "changed my mind" in why(seen).sentence
    with pytest.raises(UnknownRun):
        view_run(store, new_run_id(1))


@pytest.mark.spec("RUN-10", "RUN-9")
def test_a_summary_never_holds_payloads(store: Store) -> None:
    run = read_run(store, begin(store, PAIR, input='j1:"secret"'))
    assert run is not None
    assert "secret" not in json.dumps(summary(run, run.created_at + 5))
    assert summary(run, run.created_at + 5)["duration_ms"] == 5


@pytest.mark.spec("RUN-5")
def test_a_refusal_among_several_answers_leaves_none_behind_for_the_next_question(make_store: MakeStore) -> None:
    store = make_store()
    store.client().set(store.keys.of(0, "lock:x"), "1")
    with pytest.raises(redis.exceptions.ResponseError, match=r"WRONGTYPE|wrong kind"):
        store._command("read", [("HGET", store.keys.of(0, "lock:x"), "a"), ("ZCARD", store.keys.of(0, "runs"))])
    assert store._read("EXISTS", store.keys.of(0, "lock:x")) == 1
    store.client().delete(store.keys.of(0, "lock:x"))
