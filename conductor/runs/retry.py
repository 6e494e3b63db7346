"""Retry of a failed run, and going on after a failure that paused one: which steps stay, which begin anew.

The plan is pure and made from records; the store applies it only if the log has not grown since, so a plan is never applied to a run it
was not made for. What completed stays, with its result; what was skipped stays unless the skip came from a failure upstream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from conductor.errors import Conflict, LaneFull, NotFailed, Superseded, UnknownRun, WasUndone
from conductor.records import Graph, Node, NodeKind
from conductor.runs.parking import run_or_stub
from conductor.runs.returning import returned
from conductor.state import RunState, StepState
from conductor.store.answers import Moved
from conductor.store.lanes import lane_counts
from conductor.store.reads import RunRecord, StepRecord, read_graph, read_steps

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["Plan", "in_order", "plan_reopening", "resume_failed", "retry_run"]

_TRIES = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """`reset`: index → its new record (`P;left;flags`, or `R;flags` for one that becomes ready at once); `was`: the letter of the state
    before, empty where the record stays as it is. `eaches`: those whose items begin anew, but for the completed ones. `left`: steps that
    have not ended after the plan."""

    reset: dict[int, str] = field(default_factory=dict)
    was: dict[int, str] = field(default_factory=dict)
    eaches: tuple[int, ...] = ()
    left: int = 0

    @property
    def ready(self) -> list[int]:
        return [index for index, record in self.reset.items() if not record.startswith("P;")]

    @property
    def triples(self) -> dict[int, tuple[str, str]]:
        """What has to be written: a step that nobody has touched is already as it should be."""
        return {index: (record, self.was[index]) for index, record in self.reset.items() if self.was[index]}


def plan_reopening(graph: Graph, steps: Mapping[int, StepRecord]) -> Plan:
    """What a new life of the run keeps and what it resets."""
    kept: dict[int, StepState] = {}
    for index in in_order(graph):
        record = steps[index]
        if record.state is StepState.COMPLETED or (record.state is StepState.SKIPPED and _skip_stays(graph, index, record, kept)):
            kept[index] = record.state
    reset: dict[int, str] = {}
    for node in graph.nodes:
        if node.kind.beside:
            if steps[node.index].state is not StepState.PENDING:
                reset[node.index] = "P;0;"
        elif node.index not in kept:
            reset[node.index] = _fresh(node.parents, kept) + _remembered(node, steps[node.index])
    eaches = tuple(index for index in reset if graph.nodes[index].kind is NodeKind.EACH)
    was = {index: "" if _untouched(record, steps[index]) else steps[index].state.letter for index, record in reset.items()}
    return Plan(reset, was, eaches, len(graph.steps) - len(kept))


def _remembered(node: Node, step: StepRecord) -> str:
    """An effect stays in doubt, and so does one whose attempt nobody will hear any more; code that has run is asked about before it runs
    again; what a signal or an agent gave is not asked for again, but a child that failed is."""
    flags = step.flags.partition("w")[0]
    doubt, ran = "d" in flags or step.state is StepState.RUNNING, "o" in flags or step.attempt > 0
    return "d" * doubt + "v" * ("v" in flags and node.kind is not NodeKind.CALL) + "o" * ran


def _untouched(record: str, step: StepRecord) -> bool:
    return step.state is StepState.PENDING and record == f"P;{step.left};{step.flags}"


def in_order(graph: Graph) -> Iterator[int]:
    """Indexes of all steps, each after its parents."""
    open_parents = {node.index: len(node.parents) for node in graph.steps}
    free = [index for index, count in open_parents.items() if count == 0]
    while free:
        index = free.pop()
        yield index
        for after in graph.successors[index]:
            open_parents[after] -= 1
            if open_parents[after] == 0:
                free.append(after)


def _skip_stays(graph: Graph, index: int, record: StepRecord, kept: Mapping[int, StepState]) -> bool:
    """A skip that came from a failure upstream (flag `u`), or from parents that begin anew, must be decided again."""
    return "u" not in record.flags and all(parent in kept for parent in graph.nodes[index].parents)


def _fresh(parents: Sequence[int], kept: Mapping[int, StepState]) -> str:
    """The record of a step that begins anew: it waits for the parents that do so too."""
    ended = [kept[parent] for parent in parents if parent in kept]
    left = len(parents) - len(ended)
    if left:
        flags = ("c" if StepState.COMPLETED in ended else "") + ("z" if StepState.SKIPPED in ended else "")
        return f"P;{left};{flags}"
    return "R;s" if parents and StepState.COMPLETED not in ended else "R;"


def retry_run(engine: Engine, run_id: str, *, actor: str = "", only: int | None = None) -> Moved:
    """Open a new generation of a failed run. Completed steps and items stay, the rest get fresh budgets, keys are unchanged. With `only`
    it is Superseded if the run lives in another generation by now: whoever repeats himself retries nothing twice."""
    return _reopen(engine, run_id, actor=actor, generation=True, only=only)


def resume_failed(engine: Engine, run_id: str, *, actor: str = "", only: int | None = None) -> Moved:
    """Go on with a run that a failed step has paused (policy `pause`): the same plan, in the same generation."""
    return _reopen(engine, run_id, actor=actor, generation=False, only=only)


def _reopen(engine: Engine, run_id: str, *, actor: str, generation: bool, only: int | None) -> Moved:
    store = engine.store
    for _ in range(_TRIES):
        run = run_or_stub(engine, run_id) or returned(engine, run_id, partial(_is_wanted, generation=generation, only=only))
        if run is None:
            raise UnknownRun(run_id=run_id, namespace=store.namespace)
        if only is not None and run.generation != only:
            raise Superseded(run_id=run_id, generation=only, found=run.generation)
        if not _may_reopen(run, generation):
            raise NotFailed(run_id=run_id, state=run.state)
        if run.undone:
            raise WasUndone(run_id=run_id)
        graph = read_graph(store, run.partition, run.graph)
        plan = plan_reopening(graph, read_steps(store, run_id, graph))
        moved: Moved = store.reopen(
            run_id, at_event=run.events, reset=plan.triples, eaches=plan.eaches, steps=plan.left, hooks=graph.hooks, actor=actor,
            generation=generation, only=only,
        )
        if moved.word == "OK":
            engine.poke(moved.pokes)
            return moved
        if moved.word == "LANE_FULL":
            active, queued = lane_counts(store, run.partition, run.lane)
            raise LaneFull(lane=run.lane, active=active, queued=queued)
        # CHANGED, REFUSED or SUPERSEDED: somebody was faster; what they made of the run is judged anew.
    raise Conflict(run_id=run_id, problem=f"it moved {_TRIES} times while a retry was planned")


def _is_wanted(run: RunRecord, *, generation: bool, only: int | None) -> bool:
    """Whether a run that only the archive has is to be brought back for this; if not, its row tells why."""
    return _may_reopen(run, generation) and not run.undone and only in (None, run.generation)


def _may_reopen(run: RunRecord, generation: bool) -> bool:
    if generation:
        return run.state is RunState.FAILED
    return run.state is RunState.PAUSED and run.phase == "U"
