"""`conductor fsck`: recounts everything from the records and their logs, beside live workers, and tells every difference.

A run that moves while it is looked at looks wrong without being so. Therefore a difference of a run counts only if two looks at the same
event number saw it, and a difference of an index only if it is still there when its run is looked at again. Entries of ended runs that
whoever meets them will drop are not differences; entries that point to nothing of a live run are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from conductor.ids import is_run_id, partition_of
from conductor.records import NodeKind, QueueReason
from conductor.runs.recount import Count, recount
from conductor.state import RunState, StepState
from conductor.store.indexes import hash_pages, key_pages, list_members, scores, zset_pages
from conductor.store.lanes import LaneView, list_lanes, read_lane
from conductor.store.limits import list_limits, wrong_in_limit
from conductor.store.reads import RunRecord, Source, read_graph, read_items, read_run, read_runs, read_steps
from conductor.store.stubs import read_stub, stub_pages

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["Difference", "Progress", "fsck"]

_LOOKS = 8
_PRIORITY = 10**13  # the score of a ready entry is its priority times this, and since when in ms


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not as the log says, where, and of which run if of one."""

    partition: int
    where: str
    what: str

    def __str__(self) -> str:
        return f"[{self.partition:02x}] {self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a recount is: after each page."""

    partition: int
    partitions: int
    runs: int
    differences: int


def fsck(engine: Engine, progress: Callable[[Progress], None] | None = None) -> list[Difference]:
    """Recount all partitions. An empty list means that everything is as it should be."""
    store = engine.store
    found: list[Difference] = []
    runs = 0
    for partition in range(store.partitions):
        for differences, looked in _partition(store, partition):
            found += differences
            runs += looked
            if progress is not None:
                progress(Progress(partition, store.partitions, runs, len(found)))
    return found


def _partition(source: Source, partition: int) -> Iterator[tuple[list[Difference], int]]:
    for tail in ("runs", "ops"):
        for page in zset_pages(source, partition, tail):
            yield [found for run_id, _ in page for found in _run(source, partition, run_id)], len(page)
    for check in (_active, _ended, _ready, _leases, _due, _aside, _lanes, _limits, _parked, _graphs, _keys):
        yield list(check(source, partition)), 0


def _run(source: Source, partition: int, run_id: str) -> list[Difference]:
    """Look until two looks at the same event number agree; a run that never stands still long enough is left alone."""
    last: Count | None = None
    for _ in range(_LOOKS):
        count = recount(source, run_id)
        if not count.wrong:
            return []
        if count.before != count.after:
            last = None
            continue
        if last is not None and last.before == count.before:
            return [Difference(partition, f"run {run_id}", what) for what in count.wrong if what in last.wrong]
        last = count
    return []


def _still(source: Source, partition: int, where: str, run_id: str, wrong: Callable[[RunRecord | None], str]) -> list[Difference]:
    """A difference of an index entry: asked twice at the same event number."""
    for _ in range(_LOOKS):
        first = read_run(source, run_id)
        if not (told := wrong(first)):
            return []
        again = read_run(source, run_id)
        if (first.events if first else 0) == (again.events if again else 0) and wrong(again) == told:
            return [Difference(partition, where, told)]
    return []


def _active(source: Source, partition: int) -> Iterator[Difference]:
    """Nothing but live runs stands in the active hash and in the progress index, nothing but live operations in theirs."""
    for tail in ("active", "ops:open"):
        for page in hash_pages(source, partition, tail):
            yield from _foreign(source, partition, tail, [run_id for run_id, _ in page], lambda run: not run.ended)
    for tail in ("orphans", "orphans:due", "progress", *(f"queued:{reason}" for reason in QueueReason)):
        for scored in zset_pages(source, partition, tail):
            yield from _foreign(source, partition, tail, [run_id for run_id, _ in scored], lambda run: not run.ended)


def _foreign(
    source: Source, partition: int, tail: str, run_ids: list[str], belongs: Callable[[RunRecord], bool]
) -> Iterator[Difference]:
    """Entries of runs that are gone or do not belong into this index."""
    for run_id, met in zip(run_ids, read_runs(source, run_ids), strict=True):
        if (met is not None and belongs(met)) or (met is None and _is_parked_orphan(source, tail, run_id)):
            continue

        def wrong(run: RunRecord | None, run_id: str = run_id) -> str:
            if (run is not None and belongs(run)) or not _has(source, partition, tail, run_id):
                return ""
            if run is None and _is_parked_orphan(source, tail, run_id):
                return ""
            return f"{run_id} is {run.state if run else 'gone'} and has an entry"

        yield from _still(source, partition, tail, run_id, wrong)


def _is_parked_orphan(source: Source, tail: str, run_id: str) -> bool:
    stub = read_stub(source, run_id) if tail in ("orphans", "orphans:due") else None
    return stub is not None and stub.state is RunState.WAITING_SIGNAL


def _has(source: Source, partition: int, tail: str, member: str) -> bool:
    if tail in ("active", "ops:open"):
        return bool(source.client().hexists(source.keys.of(partition, tail), member))
    return scores(source, partition, tail, [member]) != [None]


def _ended(source: Source, partition: int) -> Iterator[Difference]:
    """Members of the indexes of ended runs are runs in that state."""
    for state in ("completed", "failed", "cancelled"):
        for page in zset_pages(source, partition, f"ended:{state}"):
            yield from _foreign(source, partition, f"ended:{state}", [run_id for run_id, _ in page], partial(_in_state, state))


def _in_state(state: str, run: RunRecord) -> bool:
    return run.state == state


def _ready(source: Source, partition: int) -> Iterator[Difference]:
    for tail in [tail for page in key_pages(source, partition) for tail in page if tail.startswith(("ready:", "limited:"))]:
        yield from _entries(source, partition, tail, "", (StepState.READY,))


def _leases(source: Source, partition: int) -> Iterator[Difference]:
    yield from _entries(source, partition, "leases", "", (StepState.RUNNING,))


def _due(source: Source, partition: int) -> Iterator[Difference]:
    yield from _entries(source, partition, "due", "retry", (StepState.RETRY_PENDING,))
    yield from _entries(source, partition, "due", "timer", (StepState.WAITING,))
    yield from _entries(source, partition, "due", "lapse", (StepState.WAITING,))


def _entries(source: Source, partition: int, tail: str, kind: str, states: tuple[StepState, ...]) -> Iterator[Difference]:
    """Entries of live runs point to a step or item in the right state. Those of ended or gone runs wait for whoever meets them."""
    for page in zset_pages(source, partition, tail):
        for member, score in page:
            ref = member.removeprefix(f"{kind}:") if kind else member
            run_id, *place = ref.split(":")
            if (kind and ref == member) or not is_run_id(run_id):
                continue

            # A ready entry that stands since before a reopening is dropped by whoever meets it.
            since = score % _PRIORITY if tail.startswith("ready:") else None

            def wrong(run: RunRecord | None, place: list[str] = place, member: str = member, since: int | None = since) -> str:
                if run is not None and since is not None and since < run.reopened_at:
                    return ""
                state = _misplaced(source, run, place, states)
                return f"{member} points to a step that is {state}" if state and _has(source, partition, tail, member) else ""

            yield from _still(source, partition, tail, run_id, wrong)


def _misplaced(source: Source, run: RunRecord | None, place: list[str], states: tuple[StepState, ...]) -> str:
    """The state of the step an entry points to, if it should not be there; empty if it may."""
    # After an end, and while a failing run comes to it, entries are dropped by whoever meets them; a reopening takes its leases and timers.
    if run is None or run.ended or run.phase:
        return ""
    graph = read_graph(source, run.partition, run.graph)
    index = int(place[0])
    if index >= len(graph.nodes):
        return "not in its graph"
    state = read_steps(source, run.run_id, graph, [index])[index].state
    if len(place) > 1:
        item = int(place[1])
        pages = read_items(source, run.run_id, index, item + 1, page=1 + item // 64)
        record = next(iter(pages), {}).get(item)
        state = record.state if record else StepState.PENDING
    elif graph.nodes[index].kind is NodeKind.EACH and state is StepState.RUNNING:
        return ""
    return "" if state in states else state


def _aside(source: Source, partition: int) -> Iterator[Difference]:
    """What is set aside is listed under its signature, and every such list is known to the index."""
    known = {member for page in zset_pages(source, partition, "aside") for member, _ in page}
    lists = {tail.partition(":")[2] for page in key_pages(source, partition) for tail in page if tail.startswith("aside:")}
    for signature in known ^ lists:
        key = source.keys.of(partition, f"aside:{signature}")
        if bool(list_members(source, key)) != _has(source, partition, "aside", signature):
            yield Difference(partition, "aside", f"{signature} stands in the index or as a list, not as both")


def _parked(source: Source, partition: int) -> Iterator[Difference]:
    """A parked run is nowhere but among the parked, and only such runs wait to be woken."""
    for page in stub_pages(source, partition):
        for stub, run in zip(page, read_runs(source, [stub.run_id for stub in page]), strict=True):
            if run is not None and read_stub(source, stub.run_id) is not None:
                yield Difference(partition, "parked", f"{stub.run_id} is {run.state} and parked")
    for members in zset_pages(source, partition, "wake"):
        for run_id, _ in members:
            if read_stub(source, run_id) is None and _has(source, partition, "wake", run_id):
                yield Difference(partition, "wake", f"{run_id} is not parked")


def _lanes(source: Source, partition: int) -> Iterator[Difference]:
    """Who has a place, or one in a queue, is a live run of that lane; and nobody is queued while a place is free. That each run of a lane
    has its place is part of the recount of the run."""
    for lane in list_lanes(source, partition):
        first = read_lane(source, partition, lane)
        wrong = _wrong_in_lane(source, first) if first else []
        again = read_lane(source, partition, lane) if wrong else None
        if again is not None and again == first:
            yield from (Difference(partition, f"lane {lane}", what) for what in _wrong_in_lane(source, again) if what in wrong)


def _wrong_in_lane(source: Source, view: LaneView) -> list[str]:
    wrong = []
    for place, members in (("a place", view.active), ("a place in the queue", view.queue)):
        for run_id, run in zip(members, read_runs(source, members), strict=True):
            if run is None and read_stub(source, run_id) is not None:
                continue  # a parked run keeps its place
            queued = run is not None and run.state is RunState.QUEUED
            if run is None or run.ended or run.lane != view.name or queued != (place != "a place"):
                wrong.append(f"{run_id} is {run.state if run else 'gone'} and has {place}")
    if view.queue and len(view.active) < view.max_active and not view.admitting:
        wrong.append(f"{len(view.queue)} are queued while {view.max_active - len(view.active)} places are free")
    return wrong


def _limits(source: Source, partition: int) -> Iterator[Difference]:
    """In the home of each limit, every permit says what it was given for, and what waits for time has a timer."""
    for limit in list_limits(source, partition):
        if first := wrong_in_limit(source, partition, limit):
            yield from (Difference(partition, f"limit {limit}", what) for what in wrong_in_limit(source, partition, limit) if what in first)


def _graphs(source: Source, partition: int) -> Iterator[Difference]:
    """How many runs use each graph; seen twice, because runs start and go meanwhile."""
    first = _graph_counts(source, partition)
    if not first:
        return
    again = _graph_counts(source, partition)
    for name, (counted, stored) in again.items():
        if first.get(name) == (counted, stored):
            yield Difference(partition, f"graph {name}", f"{counted} runs use it, {stored} are counted")


def _graph_counts(source: Source, partition: int) -> dict[str, tuple[int, int]]:
    """Graphs whose recount differs, as (recounted, stored). A run met twice by the scan is counted once."""
    stored = {name: int(number) for page in hash_pages(source, partition, "graphs") for name, number in page}
    counted: Counter[str] = Counter()
    seen: set[str] = set()
    for page in (page for tail in ("runs", "ops") for page in zset_pages(source, partition, tail)):
        fresh = [run_id for run_id, _ in page if run_id not in seen]
        seen.update(fresh)
        counted.update(run.graph for run in read_runs(source, fresh) if run is not None)
    counted.update(stub.graph for page in stub_pages(source, partition) for stub in page if stub.run_id not in seen)
    return {name: (counted[name], stored.get(name, 0)) for name in counted.keys() | stored.keys() if counted[name] != stored.get(name, 0)}


def _keys(source: Source, partition: int) -> Iterator[Difference]:
    """Every key is of a known kind, and has an owner."""
    for page in key_pages(source, partition):
        for tail in page:
            key = source.keys.of(partition, tail)
            if source.keys.kind_of(key) is None:
                yield Difference(partition, f"key {tail}", "nobody owns it: it is not in the catalogue")
            elif (problem := _orphan(source, partition, tail)) and source.client().exists(key) and _orphan(source, partition, tail):
                # Asked twice: the owner may have gone between the two looks, with the key.
                yield Difference(partition, f"key {tail}", problem)


def _orphan(source: Source, partition: int, tail: str) -> str:
    kind, _, rest = tail.partition(":")
    if kind == "run":
        run_id = rest.partition(":")[0]
        if not is_run_id(run_id) or partition_of(run_id) != partition:
            return "its run id does not belong here"
        is_known = any(_has(source, partition, index, run_id) for index in ("runs", "ops"))
        return "" if is_known or read_stub(source, run_id) is not None else "its run is gone"
    if kind == "graph":
        return "" if source.client().hexists(source.keys.of(partition, "graphs"), rest) else "no run uses it"
    if kind == "key" and source.client().pttl(source.keys.of(partition, tail)) == -1:
        holder = (source.client().get(source.keys.of(partition, tail)) or "").partition(";")[0]
        run = read_run(source, holder)
        if run is None and is_run_id(holder) and read_stub(source, holder) is not None:
            return ""
        return "" if run is not None and not run.ended else "it never dies, and its run has ended or is gone"
    if kind in ("caller", "code", "lock") and source.client().pttl(source.keys.of(partition, tail)) == -1:
        return "it should die by itself and does not"
    return ""
