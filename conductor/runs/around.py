"""What stands around a run: scopes that are paused, queues in which somebody works, the names of workers, starts that are still to come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conductor.records import Graph
from conductor.state import RunState
from conductor.store.reads import RunRecord, Source, read_events, read_graph, read_now, read_runs

__all__ = ["Hold", "busy_queues", "cancelled_by", "concerning", "read_holds", "read_starts", "worker_names"]

_LAST_EVENTS = 20


@dataclass(frozen=True, slots=True)
class Hold:
    """A paused scope (`all`, `workflow:x`, `queue:x`): since when, and why."""

    since: int
    reason: str


def read_holds(source: Source) -> dict[str, Hold]:
    """What is paused, by scope; every partition has the same."""
    found: Mapping[str, str] = source.client().hgetall(source.keys.of(0, "holds"))
    parted = {scope: text.partition(";") for scope, text in sorted(found.items())}
    return {scope: Hold(int(since or 0), reason) for scope, (since, _, reason) in parted.items()}


def concerning(scopes: Iterable[str], run: RunRecord, graph: Graph) -> list[str]:
    """Which of the scopes hold something of this run, the widest first; none if it has ended."""
    if run.ended:
        return []
    mine = [
        "all", f"workflow:{run.workflow}", *(f"capability:{node.capability}" for node in graph.nodes if node.capability),
        *(f"queue:{node.queue or run.queue}" for node in graph.nodes),
    ]
    held = set(scopes)
    return [scope for scope in dict.fromkeys(mine) if scope in held]


def busy_queues(source: Source) -> frozenset[str]:
    """The queues of which some attempt runs under a lease that has not ended."""
    now = read_now(source)
    pipe = source.client().pipeline(transaction=False)
    for number in range(source.partitions):
        pipe.zrangebyscore(source.keys.of(number, "leases"), now, "+inf")
    leased = [member.split(":") for members in pipe.execute() for member in members]
    runs = {run.run_id: run for run in read_runs(source, sorted({parts[0] for parts in leased})) if run and not run.ended}
    return frozenset(_queue_of(source, runs[run_id], int(index)) for run_id, index, *_ in leased if run_id in runs)


def _queue_of(source: Source, run: RunRecord, index: int) -> str:
    return read_graph(source, run.partition, run.graph).nodes[index].queue or run.queue


def worker_names(source: Source, tags: Iterable[str]) -> dict[str, str]:
    """The names of workers by the tags that stand in logs; a worker that was forgotten keeps its tag."""
    wanted = sorted(set(filter(None, tags)))
    if not wanted:
        return {}
    found: Sequence[str | None] = source.client().hmget(source.keys.of(0, "workers"), wanted)
    return {tag: (text or "").partition(";")[2] or tag for tag, text in zip(wanted, found, strict=True)}


def read_starts(source: Source, runs: Iterable[RunRecord]) -> dict[str, int]:
    """When delayed starts are due, by run id; those that have begun are left out."""
    delayed = [run for run in runs if run.roots and not run.ended]
    pipe = source.client().pipeline(transaction=False)
    for run in delayed:
        pipe.zscore(source.keys.of(run.partition, "due"), f"start:{run.run_id}")
    found: Sequence[Any] = pipe.execute() if delayed else []
    return {run.run_id: int(at) for run, at in zip(delayed, found, strict=True) if at is not None}


def cancelled_by(source: Source, run: RunRecord) -> str:
    """Who cancelled a run; empty if nobody said so."""
    if run.state not in (RunState.CANCELLED, RunState.COMPENSATING):
        return ""
    first = max(0, run.events - _LAST_EVENTS)
    said = ("cancelled", "compensating")
    last = [event for event in read_events(source, run.run_id, first, _LAST_EVENTS) if event.kind in said and event.actor]
    return last[-1].actor if last else ""
