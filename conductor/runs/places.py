"""Where each open step of a live run must stand: in the ready index, under a lease, in the due index. What stands nowhere cannot move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from conductor.records import Graph, NodeKind
from conductor.state import StepState
from conductor.store.indexes import list_members, scores
from conductor.store.reads import EachRecord, RunRecord, Source, StepRecord, read_undos

__all__ = ["Missing", "missing"]

_IN_PLAY = {"H": (NodeKind.ON_FAILURE, NodeKind.ON_FINISH), "C": (NodeKind.UNDO,)}  # by phase: all that is still counted


@dataclass(frozen=True, slots=True)
class Missing:
    """An entry that should be there: `place` is `ready`, `leases`, or the kind of a due entry (`retry`, `timer`, `lapse`)."""

    place: str
    run_id: str
    index: int
    name: str
    item: int | None = None

    @property
    def ref(self) -> str:
        return f"{self.run_id}:{self.index}" + ("" if self.item is None else f":{self.item}")

    def __str__(self) -> str:
        if self.place == "ready":
            return f"step {self.name} is ready and stands nowhere"
        return f"{self.ref} has no entry in leases" if self.place == "leases" else f"{self.place}:{self.ref} has no entry in due"


def missing(
    source: Source, run: RunRecord, graph: Graph, steps: Mapping[int, StepRecord], eaches: Mapping[int, EachRecord],
    items: Mapping[int, Mapping[int, StepRecord]],
) -> list[Missing]:
    """What stands in no place. A run that is failing or stopping keeps only leases; last steps alone count while they run."""
    if run.phase in ("F", "U"):
        return []
    wanted = list(_wanted(run, graph, steps, eaches, items))
    if run.phase == "C":
        wanted += _undos(source, run, graph)
    found = [one for one in wanted if one.place == "ready" and not _stands(source, run, graph, one)]
    for place in ("leases", "due"):
        members = [one for one in wanted if one.place != "ready" and (one.place == "leases") == (place == "leases")]
        names = [one.ref if place == "leases" else f"{one.place}:{one.ref}" for one in members]
        found += [one for one, score in zip(members, scores(source, run.partition, place, names), strict=True) if score is None]
    return found


def _wanted(
    run: RunRecord, graph: Graph, steps: Mapping[int, StepRecord], eaches: Mapping[int, EachRecord],
    items: Mapping[int, Mapping[int, StepRecord]],
) -> Iterator[Missing]:
    for index, record in steps.items():
        node = graph.nodes[index]
        if run.phase in _IN_PLAY and node.kind not in _IN_PLAY[run.phase]:
            continue
        each = eaches.get(index)
        if _is_listed(record, each):
            yield Missing("ready", run.run_id, index, node.name)
        if record.state is StepState.RUNNING and (each is None or record.fence):
            yield Missing("leases", run.run_id, index, node.name)
        if record.state is StepState.RETRY_PENDING:
            yield Missing("retry", run.run_id, index, node.name)
        if record.state is StepState.WAITING and (node.delay_ms or node.kind is NodeKind.SLEEP):
            yield Missing("timer" if node.kind is NodeKind.SLEEP else "lapse", run.run_id, index, node.name)
        for item, inner in items.get(index, {}).items():
            if inner.state in (StepState.RUNNING, StepState.RETRY_PENDING):
                place = "leases" if inner.state is StepState.RUNNING else "retry"
                yield Missing(place, run.run_id, index, node.name, item)


def _undos(source: Source, run: RunRecord, graph: Graph) -> Iterator[Missing]:
    """The undo of an item that is under way."""
    for (index, item), record in read_undos(source, run.run_id, graph).items():
        place = {StepState.READY: "ready", StepState.RUNNING: "leases", StepState.RETRY_PENDING: "retry"}.get(record.state)
        if place:
            yield Missing(place, run.run_id, index, graph.nodes[index].name, item)


def _is_listed(record: StepRecord, each: EachRecord | None) -> bool:
    """Whether a step has an entry to be claimed by. An `each` over an empty list, or behind a failure, is claimed like a step."""
    by_items = each is not None and each.total and "u" not in record.flags
    return bool(each.listed) if each is not None and by_items else record.state is StepState.READY


def _stands(source: Source, run: RunRecord, graph: Graph, one: Missing) -> bool:
    """What is ready stands in its queue, or where a claim put it: held by its run or workflow, or set aside for want of code."""
    node = graph.nodes[one.index]
    queue = node.stands_in(run.queue)
    if scores(source, run.partition, f"ready:{queue}", [one.ref]) != [None]:
        return True
    if node.limit and scores(source, run.partition, f"limited:{queue}", [one.ref]) != [None]:
        return True
    holds = [run.workflow, *([f"capability:{node.capability}"] if node.capability else [])]
    if any(scores(source, run.partition, f"held:{name}", [f"{queue}\n{one.ref}"]) != [None] for name in holds):
        return True
    if str(one.index) in list_members(source, source.keys.run(run.run_id, "held")):
        return True
    aside = list_members(source, source.keys.of(run.partition, f"aside:{node.signature}"))
    return any(entry.endswith(f"\n{one.ref}") for entry in aside)
