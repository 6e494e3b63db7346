"""Recounting one run: its records, counters and index entries against what folding its log gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from conductor.fold import fold
from conductor.idleness import is_idle, is_orphan
from conductor.log import Event, Folded, FoldedStep, UnreadableEntry
from conductor.records import Graph, NodeKind
from conductor.runs.places import missing
from conductor.state import RunState, StepState
from conductor.store.indexes import run_places, scores
from conductor.store.lanes import read_place
from conductor.store.reads import (
    EachRecord,
    RunRecord,
    Source,
    StepRecord,
    read_each,
    read_events,
    read_graph,
    read_items,
    read_run,
    read_steps,
    read_undos,
)

__all__ = ["Count", "recount"]

_UNDER_WAY = (StepState.READY, StepState.RUNNING, StepState.RETRY_PENDING)
_COUNTERS = {"left": "l", "active": "a", "failed": "f"}
_SOFT = {"ready": "r", "due": "d", "waiters": "o", "agents": "oa", "children": "ch"}


@dataclass(slots=True)
class Count:
    """What one look at a run found. `before` and `after` are the log's length at its begin and end: only equal ones make it one moment."""

    before: int = 0
    after: int = 0
    graph: str = ""
    wrong: list[str] = field(default_factory=list)

    def differ(self, what: str, expected: Any, found: Any) -> None:
        if expected != found:
            self.wrong.append(f"{what}: {_text(expected)} expected, {_text(found)} found")


def _text(value: Any) -> str:
    return "nothing" if value is None or value == "" else str(value)


def recount(source: Source, run_id: str) -> Count:
    """One look at one run."""
    count = Count()
    run = read_run(source, run_id)
    if run is None:
        return count
    count.before, count.graph = run.events, run.graph
    try:
        graph = read_graph(source, run.partition, run.graph)
        steps, eaches = read_steps(source, run_id, graph), read_each(source, run_id, graph)
        folded = fold(_events(source, run), graph)
    except (LookupError, UnreadableEntry, ValueError) as found:
        count.wrong.append(str(found))
        count.after = run.events
        return count
    count.wrong += folded.violations
    _compare_run(count, run, folded)
    _compare_steps(count, run, graph, steps, folded)
    items = _compare_eaches(count, source, run, eaches, folded)
    _compare_undos(count, source, run, graph, folded)
    _places_of_run(count, source, run)
    if not run.ended:
        count.wrong += [str(one) for one in missing(source, run, graph, steps, eaches, items)]
    again = read_run(source, run_id)
    count.after = again.events if again else -1
    return count


def _events(source: Source, run: RunRecord) -> Iterator[Event]:
    """The log as it was when the run was read."""
    after = 0
    while after < run.events:
        page = read_events(source, run.run_id, after, min(1000, run.events - after))
        if not page:
            return
        yield from page
        after += len(page)


def _compare_run(count: Count, run: RunRecord, folded: Folded) -> None:
    count.differ("state", folded.state, run.state)
    count.differ("generation", folded.generation, run.generation)
    count.differ("number of events", folded.number, run.events)
    if run.ended or run.state in ("paused", "compensating"):
        count.differ("reason", folded.reason, run.reason)
    for name, short in (_COUNTERS | (_SOFT if folded.trusted else {})).items():
        count.differ(f"counter {short}", getattr(folded, name), getattr(run, name))
    if folded.trusted and not run.ended:
        count.differ("steps that wait", sorted(folded.waiting), sorted(run.waiting))
    count.differ("ended_at", folded.ended_at, run.ended_at)


def _compare_steps(count: Count, run: RunRecord, graph: Graph, steps: dict[int, StepRecord], folded: Folded) -> None:
    kept = (StepState.COMPLETED, StepState.SKIPPED)
    for index, record in steps.items():
        told = folded.steps[index]
        if run.forked_from and not told.fence and told.state in kept and record.state in kept:
            continue  # kept from another run: the log only says that it had ended
        _compare_record(count, f"step {graph.nodes[index].name}", record, told)
        if record.state is StepState.PENDING and not graph.nodes[index].kind.beside:
            count.differ(f"step {graph.nodes[index].name}: open parents", told.left, record.left)


def _compare_record(count: Count, where: str, record: StepRecord, told: FoldedStep) -> None:
    count.differ(where, told.state, record.state)
    if told.state is record.state and record.state is not StepState.PENDING:
        count.differ(f"{where}: attempt", told.attempt, record.attempt)
        count.differ(f"{where}: fence", told.fence, record.fence)


def _compare_eaches(
    count: Count, source: Source, run: RunRecord, eaches: dict[int, EachRecord], folded: Folded
) -> dict[int, dict[int, StepRecord]]:
    """Compare all items; give back those that should have an entry somewhere."""
    open_items: dict[int, dict[int, StepRecord]] = {}
    for index, each in eaches.items():
        told = folded.eaches[index]
        if run.forked_from and not told.items and folded.steps[index].state is StepState.COMPLETED:
            continue
        where = f"each {index}"
        ended = (StepState.COMPLETED, StepState.SKIPPED)
        sums = {
            "cursor": told.cursor, "done": told.count(*ended), "failed": told.count(StepState.FAILED), "active": told.active,
            "again": len(told.again),
        }
        # A deadline refuses what still runs without touching its records.
        for name, expected in sums.items():
            count.differ(f"{where}: {name}", expected, getattr(each, name))
        _compare_reopening(count, where, source, run, each, told.closed)
        if not run.forked_from:
            count.differ(f"{where}: total", told.total, each.total)
        members = {int(member) for member in source.client().zrange(source.keys.run(run.run_id, f"e{index}:again"), 0, -1)}
        count.differ(f"{where}: members of again", sorted(told.again), sorted(members))
        open_items[index] = {}
        met = 0
        for page in read_items(source, run.run_id, index, each.cursor):
            met += len(page)
            for item, record in page.items():
                _compare_record(count, f"item {index}:{item}", record, told.items.get(item, FoldedStep()))
                if record.state in (StepState.RUNNING, StepState.RETRY_PENDING) and item not in told.closed:
                    open_items[index][item] = record
        count.differ(f"{where}: items with a record", len(told.items), met)
    return open_items


def _compare_undos(count: Count, source: Source, run: RunRecord, graph: Graph, folded: Folded) -> None:
    """What undoes items, each with a record beside its item's; one at a time, so that their number says little and their order all."""
    if not run.undone:
        return
    met = read_undos(source, run.run_id, graph)
    for (index, item), record in met.items():
        _compare_record(count, f"undo {index}:{item}", record, folded.undos.get((index, item), FoldedStep()))
    count.differ("undos of items with a record", len(folded.undos), len(met))
    open_ones = sum(undo.state in _UNDER_WAY for undo in folded.undos.values())
    open_ones += sum(folded.steps[node.index].state in _UNDER_WAY for node in graph.nodes if node.kind is NodeKind.UNDO)
    if run.ended or run.phase == "C":
        count.differ("undos under way", 0 if run.ended else 1, open_ones)


def _compare_reopening(count: Count, where: str, source: Source, run: RunRecord, each: EachRecord, closed: set[int]) -> None:
    """What a reopening has yet to reach is what the each says, and while the run lives somebody will go on with it."""
    first, last = each.anew or (0, -1)
    count.differ(f"{where}: items that nobody will begin anew", [], sorted(number for number in closed if not first <= number <= last)[:10])
    if each.anew and not run.ended and not run.phase:
        count.differ(f"{where}: entry of its reopening", True, scores(source, run.partition, "due", [f"anew:{run.run_id}"]) != [None])


def _places_of_run(count: Count, source: Source, run: RunRecord) -> None:
    at = run_places(source, run)
    if run.lane:
        _place_in_lane(count, source, run)
    if run.ended or run.state is RunState.QUEUED:
        count.differ("entry in active", None, at["active"])
        count.differ("entry in progress", None, at["progress"])
    elif at["active"] is None:
        count.differ("entry in active", "one", None)
    else:
        state, workflow, *_ = at["active"].split(";")
        count.differ("state in active", run.state, state)
        count.differ("workflow in active", run.workflow, workflow)
        # An operation stands in `queued` while no attempt holds it, a run in `progress` as long as it lives.
        # While it is idle it is out of the way of those who look for runs that do not move.
        wanted = run.active == 0 if run.queue_reason else not is_idle(run)
        count.differ("entry in queued" if run.queue_reason else "entry in progress", wanted, at["progress"] is not None)
    idle = not run.queue_reason and is_idle(run)
    count.differ("whether it is idle", idle, run.state is RunState.WAITING_SIGNAL)
    count.differ("idle_since is set", idle, run.idle_since > 0)
    orphan = idle and is_orphan(run)
    count.differ("entry in orphans", run.progress_at if orphan else None, None if at["orphans"] is None else int(at["orphans"]))
    count.differ("entry in orphans:due", orphan, at["orphans:due"] is not None)
    count.differ("entry in runs", run.created_at, None if at["runs"] is None else int(at["runs"]))
    for state in ("completed", "failed", "cancelled"):
        count.differ(f"entry in ended:{state}", run.state == state, at[state] is not None)
    if run.key and not run.ended:
        count.differ("run of its key", run.run_id, (at["key"] or "").partition(";")[0])
    if not run.ended and not run.phase and run.state is not RunState.QUEUED:
        count.differ("entry of its delayed start", bool(run.roots), at["start"] is not None)


def _place_in_lane(count: Count, source: Source, run: RunRecord) -> None:
    """It has a place, or one in the queue with a timer if the queue has one, or has not asked yet, or has ended."""
    at = read_place(source, run)
    delayed = bool(run.roots) and run.state is not RunState.QUEUED
    if run.state is not RunState.COMPENSATING:  # it keeps the place it has, and takes none if it had not got one yet
        count.differ(f"place in lane {run.lane}", not run.ended and run.state is not RunState.QUEUED and not delayed, at.active)
    count.differ(f"place in the queue of lane {run.lane}", run.state is RunState.QUEUED, at.position > 0)
    if at.position and at.timeout_ms:
        count.differ("timer of its queue", True, at.until > 0)
    if run.state is RunState.QUEUED and run.left:  # a retry of last steps alone opens none
        count.differ("first steps to be opened", True, bool(run.roots))
