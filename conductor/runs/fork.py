"""Fork: a new run on today's graph that keeps what a step of an old run stood on, and runs that step and everything else again.

Kept steps are copied inside the server, so the new run lives in the partition of the old one. Its keys (`ctx.key`) are new: effects of
steps that run happen again. A changed input is seen only by steps that run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from conductor import codec
from conductor.declare.limits import limit_keys
from conductor.errors import BadInput, ForkRefused, KeyConflict, LaneFull, UnknownRun, UnknownStep, UnknownWorkflow
from conductor.fold import ancestors
from conductor.ids import derived_id, new_run_id, partition_of
from conductor.records import Graph, LaneTerms, NewRun, NodeKind
from conductor.runs.parking import awake
from conductor.runs.returning import returned
from conductor.state import StepState
from conductor.store.answers import Started
from conductor.store.copying import Restless, read_snapshot
from conductor.store.reads import RunRecord, StepRecord, read_graph, read_input, read_run, read_steps

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["ForkPlan", "fork_id", "fork_run", "plan_fork"]

_STAYS = (StepState.COMPLETED, StepState.SKIPPED)


@dataclass(frozen=True, slots=True)
class ForkPlan:
    """`records`: index in the new graph → record and, where it is kept, its index in the old graph. `roots` are ready at once."""

    records: dict[int, tuple[str, int | None]] = field(default_factory=dict)
    roots: tuple[int, ...] = ()
    skipped: frozenset[int] = frozenset()  # roots all of whose predecessors were skipped
    sources: dict[int, int] = field(default_factory=dict)  # each that begins anew → the step in the old graph that gave its list


def plan_fork(
    run_id: str, from_: str, today: Graph, old: Graph, steps: Mapping[int, StepRecord], *, undone: bool = False,
) -> ForkPlan:
    """Keep all that stands upstream of `from_`; refuse if any of it is not what it was, or had not ended well."""
    start = today.index_of(from_)
    if start is None or today.nodes[start].kind.beside:
        known = ", ".join(node.name for node in today.steps)
        raise UnknownStep(run_id=run_id, workflow=today.workflow, step=from_, known=known)
    kept = {index: _kept_from(run_id, from_, today, old, steps, index) for index in sorted(ancestors(today, [start]))}
    if gone := [old.nodes[source].name for source in kept.values() if undone and old.undo_of(source)]:
        problem = f"step {gone[0]!r} before it was undone, so nothing can stand on it; fork from {gone[0]!r} or earlier"
        raise ForkRefused(run_id=run_id, step=from_, problem=problem)
    ends = {index: steps[source].state for index, source in kept.items()}
    records: dict[int, tuple[str, int | None]] = {
        index: (f"{ends[index].letter};0;0;0;0;0;0;", source) for index, source in kept.items()
    }
    roots, skipped = [], set()
    for node in today.steps:
        if node.index in kept:
            continue
        ended = [ends[parent] for parent in node.parents if parent in kept]
        left = len(node.parents) - len(ended)
        if left == 0:
            roots.append(node.index)
            if ended and StepState.COMPLETED not in ended and node.kind is not NodeKind.SLEEP:
                skipped.add(node.index)
        elif ended:
            flags = ("c" if StepState.COMPLETED in ended else "") + ("z" if StepState.SKIPPED in ended else "")
            records[node.index] = (f"P;{left};{flags}", None)
    anew = [node for node in today.steps if node.index not in kept]
    sources = {node.index: kept[node.source] for node in anew if node.source is not None and node.source in kept}
    return ForkPlan(records, tuple(roots), frozenset(skipped), sources)


def _kept_from(run_id: str, from_: str, today: Graph, old: Graph, steps: Mapping[int, StepRecord], index: int) -> int:
    """Where in the old run a kept step stands."""
    node = today.nodes[index]
    source = old.index_of(node.name)

    def refused(problem: str) -> ForkRefused:
        return ForkRefused(run_id=run_id, step=from_, problem=problem)

    if source is None:
        raise refused(f"step {node.name!r} before it is new, so the run has no result for it; fork from {node.name!r} or earlier")
    if old.nodes[source].signature != node.signature or old.nodes[source].kind is not node.kind:
        raise refused(f"step {node.name!r} before it has another signature today; fork from {node.name!r} or earlier")
    record = steps[source]
    if record.state not in _STAYS or (record.state is StepState.SKIPPED and "u" in record.flags):
        raise refused(f"step {node.name!r} before it is {record.state} and only completed steps are kept; fork from there or earlier")
    return source


def fork_run(
    engine: Engine, run_id: str, *, from_: str, changes: Mapping[str, Any] | None = None, new_id: str = "", key: str = "",
) -> Started:
    """Start the fork. `changes` replace fields of the input, which is then checked like any other. The same `key` is the same fork of this
    run, and a conflict if it is another one; so is a `new_id` that the caller derived, at home where the old run is."""
    store = engine.store
    new_id = new_id or (fork_id(run_id, f"key:{key}") if key else "")
    awake(engine, run_id)
    run = read_run(store, run_id) or returned(engine, run_id)
    if run is None:
        raise UnknownRun(run_id=run_id, namespace=store.namespace)
    flow = engine.workflows.get(run.workflow)
    if flow is None:
        raise UnknownWorkflow(workflow=run.workflow, known=", ".join(sorted(engine.workflows)) or "none")
    old = read_graph(store, run.partition, run.graph)
    plan = plan_fork(run_id, from_, flow.graph, old, read_steps(store, run_id, old), undone=bool(run.undone))
    _refuse_references(engine, run_id, from_, plan)
    payload = _input(flow, run, read_input(store, run_id) or codec.NULL, changes or {})
    totals = {index: _length(store, run_id, source) for index, source in plan.sources.items()}
    made = _new_run(run, flow, payload, new_id or new_run_id(store.partitions, run.partition))
    if key:
        made = replace(made, digest=codec.fingerprint(codec.encode(dict(changes or {})), from_))
    started: Started = store.start(
        made, flow.graph, roots=plan.roots, records=plan.records, totals=totals, skipped=plan.skipped)
    if started.word == "UNKNOWN":
        raise UnknownRun(run_id=run_id, namespace=store.namespace)
    if started.word == "CONFLICT":
        raise KeyConflict(workflow=run.workflow, key=key, run_id=new_id)
    if started.word == "LANE_FULL":
        raise LaneFull(lane=run.lane, active=started.lane[0], queued=started.lane[1])
    engine.poke(started.pokes)
    return started


def fork_id(run_id: str, what: str) -> str:
    """The id of a fork that is the same whenever it is asked for, in the home of the run."""
    return derived_id(f"fork\0{run_id}\0{what}", int(run_id.replace("-", "")[:12], 16), partition_of(run_id))


def _refuse_references(engine: Engine, run_id: str, from_: str, plan: ForkPlan) -> None:
    """A blob dies with the run it is named after, so a fork must not keep what refers to one."""
    if not codec.has_blobs() or not any(source is not None for _, source in plan.records.values()):
        return
    try:
        found = read_snapshot(engine.store, run_id)
    except Restless:
        found = None
    if found is None or any(text.startswith("b1:") for text in (*found.payloads(),) if text != found.fields.get("i")):
        problem = "results before it lie in the blob store under the run they came from; start a new run instead"
        raise ForkRefused(run_id=run_id, step=from_, problem=problem)


def _length(store: Any, run_id: str, index: int) -> int:
    """How long the list is that a kept step gave."""
    found = store.values(store.keys.shard(run_id, index), [f"{index}r"])[0] or codec.encode([])
    return int(found.split(";")[1]) if found.startswith("@") else len(codec.split_list(found))


def _input(flow: Any, run: RunRecord, payload: str, changes: Mapping[str, Any]) -> str:
    """The old input with its changes, checked by the workflow's model."""
    value = codec.decode(payload)
    if not changes:
        return str(flow.encode_input(value, limit=codec.size_limit()))
    what = f"fork of run {run.run_id}"
    if not isinstance(value, dict):
        raise BadInput(what=what, field=next(iter(changes)), problem="the input has no fields that could be changed")
    if unknown := [name for name in changes if name not in value]:
        raise BadInput(what=what, field=unknown[0], problem=f"the input has no such field; it has {', '.join(value)}")
    return str(flow.encode_input(value | dict(changes), limit=codec.size_limit()))


def _new_run(run: RunRecord, flow: Any, payload: str, new_id: str) -> NewRun:
    """The fork takes over who asked, how long it is kept, and the lane, which lives in the same partition; it has no idempotency key of
    its own."""
    return NewRun(
        run_id=new_id, workflow=run.workflow, input=payload, queue=run.queue, priority=run.priority,
        session=run.session, tags=run.tags, deadline_ms=run.deadline - run.created_at if run.deadline else 0,
        retain_completed_ms=run.retain_completed_ms, retain_failed_ms=run.retain_failed_ms, forked_from=run.run_id,
        lane=LaneTerms.read(run.lane, run.lane_terms) if run.lane else None, lane_key=run.lane_key,
        limit_keys=limit_keys(flow.limits, lambda: flow.read_input(payload), f"fork of run {run.run_id}"),
        idle_timeout_ms=run.idle_timeout_ms,
    )
