"""Where a run's open steps stand: in the due index, under a lease, set aside, behind a hold, or behind a poke that nobody answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conductor.records import Graph, NodeKind
from conductor.state import StepState
from conductor.store.reads import RunRecord, Source, StepRecord, as_dict, read_now

__all__ = ["Standing", "count_live_leases", "read_attempt_errors", "read_standing"]


@dataclass(frozen=True, slots=True)
class Standing:
    """Times are ms of the store's clock, by step index. `unanswered` is ms since a poke of that queue that got no answer."""

    due: dict[int, int] = field(default_factory=dict)
    leases: dict[int, int] = field(default_factory=dict)
    aside: frozenset[str] = frozenset()
    holds: dict[str, str] = field(default_factory=dict)
    unanswered: dict[str, int] = field(default_factory=dict)
    starts_at: int = 0
    limited: frozenset[int] = frozenset()  # ready, and waiting for its limit


def count_live_leases(source: Source, run: RunRecord) -> int:
    """How many attempts of a run are under a lease that has not run out. A dead worker's lease lapses long before anybody takes it away."""
    if run.ended or not run.active:
        return 0
    live = source.client().zrangebyscore(source.keys.of(run.partition, "leases"), read_now(source), "+inf")
    return sum(member.startswith(f"{run.run_id}:") for member in live)


def read_standing(source: Source, run: RunRecord, graph: Graph, records: Mapping[int, StepRecord]) -> Standing:
    """Everything about the open steps of one run in one round trip; nothing for a run that has ended."""
    if run.ended:
        return Standing()
    timed = {index: _due_kind(record.state, graph.nodes[index].kind) for index, record in records.items()
             if record.state in (StepState.RETRY_PENDING, StepState.WAITING)}
    running = [index for index, record in records.items() if record.state is StepState.RUNNING]
    names = {graph.nodes[index].stands_in(run.queue) for index, record in records.items() if record.state is StepState.READY} or {run.queue}
    wanted = sorted(names)
    pipe = source.client().pipeline(transaction=False)
    waits = [f"start:{run.run_id}", *(f"{kind}:{run.run_id}:{index}" for index, kind in timed.items())]
    pipe.zmscore(source.keys.of(run.partition, "due"), waits)
    pipe.zmscore(source.keys.of(run.partition, "leases"), [run.run_id, *(f"{run.run_id}:{index}" for index in running)])
    pipe.zrange(source.keys.of(run.partition, "aside"), 0, -1)
    pipe.hgetall(source.keys.of(run.partition, "holds"))
    pipe.hmget(source.keys.of(run.partition, "pokes"), wanted)
    at_hand = (StepState.READY, StepState.RUNNING)
    under = [index for index, record in records.items() if graph.nodes[index].limit and record.state in at_hand]
    for index in under:
        pipe.zscore(source.keys.of(run.partition, f"limited:{graph.nodes[index].stands_in(run.queue)}"), f"{run.run_id}:{index}")
    (start, *due), (_, *leases), aside, holds, pokes, *limited = pipe.execute()
    now = read_now(source)
    return Standing(
        {index: int(at) for index, at in zip(timed, due, strict=True) if at is not None},
        {index: int(at) for index, at in zip(running, leases, strict=True) if at is not None},
        frozenset(aside),
        {scope: text.partition(";")[2] for scope, text in holds.items()},
        {queue: now - int(at) for queue, at in zip(wanted, pokes, strict=True) if at is not None and int(at)},
        int(start or 0), frozenset(index for index, at in zip(under, limited, strict=True) if at is not None),
    )


def _due_kind(state: StepState, kind: NodeKind) -> str:
    return "retry" if state is StepState.RETRY_PENDING else "timer" if kind is NodeKind.SLEEP else "lapse"


def read_attempt_errors(source: Source, run_id: str, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Errors of the named attempts (`index[:item]:attempt`); those without one are left out."""
    if not names:
        return {}
    found = source.client().hmget(source.keys.run(run_id, "err"), list(names))
    return {name: as_dict(text) for name, text in zip(names, found, strict=True) if text is not None}
