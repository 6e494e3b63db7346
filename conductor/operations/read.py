"""Reading operations: one record as callers see it, and what lists ask of it (`listing.py`). Steps of runs are operations too.

Nothing here changes anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from conductor import codec
from conductor.declare.context import key_of
from conductor.declare.operation import capability_of
from conductor.errors import UnknownOperation
from conductor.ids import is_run_id, partition_of
from conductor.records import Graph, Node, NodeKind, QueueReason
from conductor.state import OpState, StepState
from conductor.store.indexes import scores
from conductor.store.reads import (
    RunRecord,
    StepRecord,
    parse_step,
    read_errors,
    read_graph,
    read_input,
    read_run,
    read_steps,
)

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = [
    "ERROR_KINDS", "EXHAUSTED", "STATUSES", "OpFilter", "Operation", "Place", "find", "place_of", "read_operation",
]

EXHAUSTED = ("retries_exhausted", "retry_age_exceeded")
STATUSES = (*(state.value for state in OpState), *(f"queued_{reason}" for reason in QueueReason))
"""What lists can be filtered by: states, and what a queued one is queued as."""
ERROR_KINDS = ("transient", "permanent", "unknown", "outcome_unknown", "effect_in_doubt")
_UNDO = ":undo"
_ITEM = re.compile(r"[0-9]{1,9}\Z")  # `isdigit` also takes digits that are no numbers
_STATES = {
    StepState.RUNNING: OpState.RUNNING, StepState.COMPLETED: OpState.COMPLETED, StepState.SKIPPED: OpState.COMPLETED,
    StepState.FAILED: OpState.FAILED, StepState.CANCELLED: OpState.CANCELLED,
}


class Operation(BaseModel):
    """The record of an operation. Times are ms on the store's clock."""

    model_config = ConfigDict(frozen=True)

    operation_id: str
    capability: str
    state: OpState
    queued: bool
    queued_for_retry: bool  # the older name of queued + retry
    queue_reason: str = ""
    status: str  # as lists show it: queued_retry, queued_deferred_submit, queued_scheduled_job, or the state
    reason: str = ""
    retry_at: int | None = None
    attempt: int = 0
    max_retries: int = 0
    lease_seconds: float = 0
    holder: str = ""
    fence: int = 0
    lease_until: int | None = None
    error_kind: str | None = None
    error: str | None = None
    originating_session_id: str = ""
    run_id: str | None = None
    step: str | None = None
    generation: int = 1
    created_at: int = 0
    ended_at: int | None = None
    retry_history: tuple[dict[str, Any], ...] = ()
    params: Any = None
    result: Any = None

    def to_json(self) -> dict[str, Any]:
        """What lists and `--json` show."""
        return self.model_dump(mode="json", exclude_none=True)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operation is stored: its run, the step in it, the item if it is one."""

    run: RunRecord
    graph: Graph
    index: int = 0
    item: int | None = None

    @property
    def stand_alone(self) -> bool:
        return bool(self.run.queue_reason)


@dataclass(frozen=True, slots=True)
class OpFilter:
    """Which operations: empty fields match all. `older_than_ms` is age since creation; `sessions` are all that a caller may see."""

    state: str = ""
    capability: str = ""
    error_kind: str = ""
    session: str = ""
    older_than_ms: int = 0
    sessions: frozenset[str] | None = None

    def may_match(self, run: RunRecord, now: int) -> bool:
        """What the run alone says, before anything more of it is read."""
        return (
            (not self.session or run.session == self.session)
            and (self.sessions is None or run.session in self.sessions)
            and now - run.created_at >= self.older_than_ms
            and (not run.queue_reason or self._may_match_alone(run))
        )

    @property
    def may_match_steps(self) -> bool:
        """Whether a step can be wanted: only those that wait for a retry are listed, and a worker may have taken one meanwhile."""
        return self.state in ("", OpState.QUEUED, OpState.RUNNING, f"queued_{QueueReason.RETRY}")

    def _may_match_alone(self, run: RunRecord) -> bool:
        """A stand-alone operation is its run, which knows its capability, why it is queued, and how it ended."""
        if self.capability and capability_of(run.workflow) != self.capability:
            return False
        if run.ended:
            return not self.state or self.state == _ended(run)
        return self.state in ("", OpState.QUEUED, OpState.RUNNING, f"queued_{run.queue_reason}")

    def matches(self, found: Operation) -> bool:
        return (
            (not self.state or self.state in (found.state, found.status))
            and (not self.capability or found.capability == self.capability)
            and (not self.error_kind or found.error_kind == self.error_kind)
        )


def place_of(engine: Engine, operation_id: str) -> Place:
    """Where it is: a stand-alone operation by its id, a step by `run:step[:item]`. UnknownOperation if it is nowhere."""
    store = engine.store
    run_id, _, rest = operation_id.partition(":")
    # An id names its partition, and one that somebody made up may name one that this store does not have.
    run = read_run(store, run_id) if is_run_id(run_id) and partition_of(run_id) < store.partitions else None
    if run is None or bool(run.queue_reason) == bool(rest):
        raise UnknownOperation(operation_id=operation_id, namespace=store.namespace)
    graph = read_graph(store, run.partition, run.graph)
    if not rest:
        return Place(run, graph)
    undo = _UNDO if rest.endswith(_UNDO) else ""
    name, _, item = rest.removesuffix(_UNDO).partition(":")
    index = graph.index_of(f"{name}{undo}")
    of = graph.nodes[index].undoes if index is not None and undo else index
    is_each = of is not None and graph.nodes[of].kind is NodeKind.EACH
    if index is None or (item and not (_ITEM.match(item) and is_each)):
        raise UnknownOperation(operation_id=operation_id, namespace=store.namespace)
    return Place(run, graph, index, int(item) if item else None)


def find(engine: Engine, operation_id: str) -> Operation:
    """One operation with parameters, result and history."""
    return read_operation(engine, place_of(engine, operation_id), whole=True)


def read_operation(engine: Engine, place: Place, *, whole: bool = False) -> Operation:
    """The record of one operation; `whole` adds parameters, result and the history of its attempts."""
    store, run, node = engine.store, place.run, place.graph.nodes[place.index]
    record = _record(engine, place)
    errors = _errors(engine, place)
    last = errors[-1] if errors else {}
    state = _state(run, record)
    queued = state is OpState.QUEUED
    fresh = not record.attempt and run.queue_reason == QueueReason.RETRY  # called on a worker that has not taken it yet
    why = run.queue_reason or ("retry" if record.state is StepState.RETRY_PENDING else "")
    ref = f"{run.run_id}:{place.index}" + ("" if place.item is None else f":{place.item}")
    lease = scores(store, run.partition, "leases", [ref])[0] if state is OpState.RUNNING else None
    return Operation(
        operation_id=run.run_id if place.stand_alone else _key_of(place, node),
        capability=capability_of(run.workflow) or node.capability or f"{run.workflow}.{node.name}", state=state, queued=queued,
        queued_for_retry=queued and why == QueueReason.RETRY and not fresh, queue_reason=why,
        status=f"queued_{why}" if queued and why and not fresh else state,
        reason=run.reason if place.stand_alone else "", retry_at=_retry_at(engine, run, ref) if queued else None, attempt=record.attempt,
        max_retries=node.retry.max if node.retry else 5, lease_seconds=node.lease_ms / 1000, holder=run.orchestrator if lease else "",
        fence=record.fence, lease_until=lease, error_kind=last.get("kind"), error=last.get("message"), originating_session_id=run.session,
        run_id=_run_of(place), step=None if place.stand_alone else node.name, generation=run.generation, created_at=run.created_at,
        ended_at=run.ended_at or None, retry_history=tuple(_told(one) for one in errors) if whole else (),
        params=_decoded(read_input(store, run.run_id)) if whole and place.stand_alone else None,
        result=_result(engine, place, record, whole),
    )


def _errors(engine: Engine, place: Place) -> list[dict[str, Any]]:
    """What went wrong in its attempts, in their order, one generation after the other."""
    prefix = f"{place.index}:" if place.item is None else f"{place.index}:{place.item}:"
    found = {
        name.removeprefix(prefix): error for name, error in read_errors(engine.store, place.run.run_id).items() if name.startswith(prefix)
    }
    order = {name: (int(name.partition("@")[2] or 1), int(name.partition("@")[0])) for name in found if name.partition("@")[0].isdigit()}
    return [found[name] for name in sorted(order, key=order.__getitem__)]


def _record(engine: Engine, place: Place) -> StepRecord:
    store, run = engine.store, place.run
    if place.item is None:
        return read_steps(store, run.run_id, place.graph, [place.index])[place.index]
    undoes = place.graph.nodes[place.index].undoes  # the record of what undoes an item stands beside that item's
    index, field = (place.index, f"{place.item}") if undoes is None else (undoes, f"{place.item}u")
    found: Any = store.client().hget(store.keys.items(run.run_id, index, place.item), field)
    return parse_step(found)


def _key_of(place: Place, node: Node) -> str:
    """The key under which the step's code acts on the world."""
    if node.undoes is None:
        return key_of(place.run.run_id, node.name, place.item)
    return f"{key_of(place.run.run_id, place.graph.nodes[node.undoes].name, place.item)}{_UNDO}"


def _state(run: RunRecord, record: StepRecord) -> OpState:
    if run.queue_reason and run.ended:
        return _ended(run)
    if run.ended and record.state not in _STATES:
        return OpState.CANCELLED
    return _STATES.get(record.state, OpState.QUEUED)


def _ended(run: RunRecord) -> OpState:
    """How a stand-alone operation ended."""
    return OpState.EXHAUSTED if run.state == "failed" and run.reason in EXHAUSTED else OpState(run.state)


def _run_of(place: Place) -> str | None:
    return (place.run.bound_to.partition(";")[0] or None) if place.stand_alone else place.run.run_id


def _retry_at(engine: Engine, run: RunRecord, ref: str) -> int | None:
    if run.queue_reason:
        return scores(engine.store, run.partition, f"queued:{run.queue_reason}", [run.run_id])[0]
    found = scores(engine.store, run.partition, "due", [f"retry:{ref}", f"start:{run.run_id}"])
    return next((at for at in found if at is not None), None)


def _told(error: dict[str, Any]) -> dict[str, Any]:
    return {"at": error.get("at"), "error_kind": error.get("kind"), "type": error.get("type"), "error": error.get("message"),
            "worker": error.get("worker"), "ran_ms": error.get("ran_ms"), "waited_ms": error.get("waited_ms")}


def _decoded(payload: str | None) -> Any:
    return None if payload is None else codec.decode(payload)


def _result(engine: Engine, place: Place, record: StepRecord, whole: bool) -> Any:
    if not whole or record.state is not StepState.COMPLETED:
        return None
    store, run = engine.store, place.run
    field = place.index if place.item is None else place.item
    key = store.keys.shard(run.run_id, place.index) if place.item is None else store.keys.items(run.run_id, place.index, place.item)
    found: Any = store.client().hget(key, f"{field}r")
    return None if found is None or found.startswith("@") else codec.decode(found)
