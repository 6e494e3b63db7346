"""A run that nothing could move: re-derived from its log, so that it goes on by the ordinary road.

It should never be needed: every script leaves each open step in some index. It is the net below that: a run that has not moved for long
is folded from its log, what its records say is open and stands nowhere is put back, counters are set to what the log says, and a run
whose steps have all ended is closed. The store applies it only if the log has not grown since the look.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from conductor.fold import fold
from conductor.log import UnreadableEntry
from conductor.runs.places import missing
from conductor.state import RunState, StepState
from conductor.store.indexes import scores
from conductor.store.reads import (
    EachRecord,
    RunRecord,
    StepRecord,
    read_each,
    read_events,
    read_graph,
    read_items,
    read_run,
    read_runs,
    read_steps,
)

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["mend", "stand_up", "stuck_runs"]


def stuck_runs(engine: Engine, run_ids: Sequence[str]) -> Iterator[RunRecord]:
    """Those of these runs that are at work: candidates, most of them only slow."""
    for run in read_runs(engine.store, run_ids):
        if run is not None and run.state in (RunState.RUNNING, RunState.COMPENSATING):
            yield run


def stand_up(engine: Engine, run_id: str) -> None:
    """Derive from its records where the steps of a run belong that has come back. One that is queued in its lane stands nowhere else."""
    run = read_run(engine.store, run_id)
    if run is not None and not run.ended:
        mend(engine, run)


def mend(engine: Engine, run: RunRecord, *, dry_run: bool = False) -> list[str]:
    """Put back what stands nowhere. Empty if nothing is wrong, or if the run moved meanwhile."""
    if run.state is RunState.QUEUED:
        return []  # nothing of it stands before it is admitted
    store = engine.store
    graph = read_graph(store, run.partition, run.graph)
    steps, eaches = read_steps(store, run.run_id, graph), read_each(store, run.run_id, graph)
    items: dict[int, dict[int, StepRecord]] = {}
    for index, each in eaches.items():
        first, last = each.anew or (0, -1)
        pages = read_items(store, run.run_id, index, each.cursor)
        items[index] = {item: record for page in pages for item, record in page.items() if not first <= item <= last}
    try:
        folded = fold(read_events(store, run.run_id, 0, run.events), graph)
    except (UnreadableEntry, ValueError):
        return []  # written by a newer release; its own workers know better
    lost = missing(store, run, graph, steps, eaches, items)
    counted = (run.ready, run.active, run.due, run.waiters) == (folded.ready, folded.active, folded.due, folded.waiters)
    stands = folded.ready + folded.active + folded.due + folded.waiters + folded.children > 0 or _goes_on_later(engine, run)
    if not lost and (stands or run.phase in ("F", "U")) and (counted or not folded.trusted):
        return []
    unlisted = [index for index, each in eaches.items() if _should_be_listed(steps[index], each, graph.nodes[index].max_parallel)]
    told = [str(one) for one in lost] + [f"each {graph.nodes[index].name} has open items and is not listed" for index in unlisted]
    told = told or ["nothing of it stands anywhere"]
    if dry_run:
        return told
    counters = (folded.ready, folded.active, folded.due, folded.waiters, folded.agents)
    moved = store.mend(run.run_id, at_event=run.events, counters=counters, waiting=folded.waiting, lost=lost, unlisted=unlisted)
    engine.poke(moved.pokes)
    return told if moved.word == "OK" else []


def _goes_on_later(engine: Engine, run: RunRecord) -> bool:
    """Its start is delayed, or its reopening is under way."""
    return scores(engine.store, run.partition, "due", [f"start:{run.run_id}", f"anew:{run.run_id}"]) != [None, None]


def _should_be_listed(record: StepRecord, each: EachRecord, parallel: int) -> bool:
    opened = each.again > 0 or each.cursor < each.total
    return record.state in (StepState.READY, StepState.RUNNING) and opened and each.active < parallel and each.listed != 1
