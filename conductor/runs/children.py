"""Child runs: a step calls another workflow, waits without a worker or a message, and goes on when the child has ended.

Authority: the store. The child's id is derived from the step's key and the life of its run, so whoever repeats the call finds the first
child; it lives in its root's partition and is bound to its parent's generation. States of the step: claimed → (child started) → waiting →
ready, by the script that ends the child → claimed → completed or failed. Races: a child that has ended before the step waits is found by
the commit that says so; a child whose parent ended, failed or lives in another generation is refused by every claim and commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conductor import codec
from conductor.declare.context import key_of
from conductor.declare.limits import limit_keys
from conductor.errors import BadInput, CallTooDeep, ChildEnded, ChildGone, ValueTooLarge
from conductor.ids import derived_id, partition_of
from conductor.records import Attempt, NewRun, Node, Outcome, OutcomeKind
from conductor.runs.read import leaf_values
from conductor.store.reads import RunRecord, read_graph, read_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from conductor.declare.workflow import Workflow
    from conductor.wiring import Engine

__all__ = ["ENDED", "Children", "child_of"]

ENDED = "v"  # flag of a step: what it waited for has ended


def child_of(store: Any, run_id: str, index: int) -> str:
    """The run that a step has called; empty if it has called none."""
    return str(store.values(store.keys.shard(run_id, index), [f"{index}c"])[0] or "")


class Children:
    """Starts and reads child runs for one worker thread. `tell` writes down an error as it is kept of an attempt."""

    def __init__(self, engine: Engine, tell: Callable[[Attempt, BaseException, str, int], str]) -> None:
        self._engine, self._tell = engine, tell

    def call(self, held: Attempt, node: Node, flow: Workflow[Any], payload: str, ran_ms: int) -> Outcome:
        """Start the child, or find it again, and say that the step waits for it."""
        child_id, known = self._find(held, node)
        if known is None:
            told = self._engine.store.start(self._new(held, node, flow, payload, child_id), flow.graph)
            if told.word == "TOO_DEEP":
                return self._failed(held, node, CallTooDeep(step=node.name, workflow=flow.name, run_id=held.run_id), "call_too_deep")
            if told.word == "RUN_ENDED":  # nobody will hear this either
                return Outcome(held, OutcomeKind.GIVEN_BACK, reason="run_ended")
            self._engine.poke(told.pokes)
        return Outcome(held, OutcomeKind.CALLED, reason=child_id, ran_ms=ran_ms, policy=node.policy)

    def ended(self, held: Attempt, node: Node) -> Outcome:
        """What became of the child becomes the outcome of the step."""
        store = self._engine.store
        child_id = child_of(store, held.run_id, held.index)
        child = read_run(store, child_id)
        if child is None or not child.ended:
            return self._failed(held, node, ChildGone(step=node.name, run_id=child_id), "child_failed")
        if child.state != "completed":
            why = child.reason or "no reason was given"
            error = ChildEnded(workflow=child.workflow, step=node.name, state=child.state, reason=why, run_id=child_id)
            return self._failed(held, node, error, f"child_{child.state}")
        try:
            return Outcome(held, OutcomeKind.COMPLETED, payload=self._result(child), total=-1, policy=node.policy)
        except (ValueTooLarge, BadInput) as large:
            return self._failed(held, node, large, "bad_result")

    def _result(self, child: RunRecord) -> str:
        graph = read_graph(self._engine.store, child.partition, child.graph)
        values = leaf_values(self._engine.store, child.run_id, graph)
        if len(values) == 1 and isinstance(only := next(iter(values.values())), str):
            return codec.pack(codec.unpack(only)) if codec.blob_names(only) else only  # a blob of the child's dies with the child
        read = {name: codec.decode(value) if isinstance(value, str) else value and [*value] for name, value in values.items()}
        whole = next(iter(read.values())) if len(read) == 1 else read
        return codec.encode(whole, limit=self._engine.payload_limit, what=f"result of run {child.run_id}")

    def _find(self, held: Attempt, node: Node) -> tuple[str, RunRecord | None]:
        """One child for all lives of the run, unless an earlier life's ended without success: a retried run calls anew."""
        store, stamp = self._engine.store, int(held.run_id.replace("-", "")[:12], 16)
        key = key_of(held.run_id, node.name)
        life = int(store.values(store.keys.run(held.run_id), ["lv"])[0] or 0)
        for number in range(life + 1):
            child_id = derived_id(f"{key}\0call\0{number}", stamp, partition_of(held.run_id))
            child = read_run(store, child_id)
            if child is not None and (number == life or child.state == "completed" or _goes_on(child, held)):
                return child_id, child
        return child_id, None

    def _new(self, held: Attempt, node: Node, flow: Workflow[Any], payload: str, child_id: str) -> NewRun:
        """A child takes over who asked, the deadline, and unless told otherwise queue and priority; it has no lane and no key."""
        store, settings = self._engine.store, self._engine.settings
        queue, priority, tags = store.values(store.keys.run(held.run_id), ["q", "p", "tg"])
        kept, failed = flow.retain_completed_ms, flow.retain_failed_ms
        return NewRun(
            run_id=child_id, workflow=flow.name, input=payload, queue=node.queue or queue or self._engine.default_queue,
            priority=int(priority or 5) if node.priority is None else node.priority, session=held.session,
            tags=tuple(filter(None, (tags or "").split(","))), deadline_at=held.deadline,
            retain_completed_ms=int(settings.retention_completed_seconds * 1000) if kept is None else kept,
            retain_failed_ms=int(settings.retention_failed_seconds * 1000) if failed is None else failed,
            bound_to=f"{held.run_id};{held.generation};{held.index}",
            limit_keys=limit_keys(flow.limits, lambda: flow.read_input(payload), f"call of workflow {flow.name}"),
        )

    def _failed(self, held: Attempt, node: Node, error: Exception, reason: str) -> Outcome:
        return Outcome(held, OutcomeKind.FAILED, reason=reason, policy=node.policy, error=self._tell(held, error, "permanent", 0))


def _goes_on(child: RunRecord, held: Attempt) -> bool:
    """Whether a child of an earlier life is still bound to the generation that asks: a run that a failure had paused went on."""
    return not child.ended and child.bound_to == f"{held.run_id};{held.generation}"
