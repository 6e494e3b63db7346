"""What of a run was undone: of a fan-out many undos are one line for people, with its items counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from conductor.records import Graph
from conductor.state import StepState
from conductor.store.reads import EachRecord, RunRecord, Source, StepRecord, read_undos

__all__ = ["Undone", "read_undone"]

_OPEN = (StepState.RUNNING, StepState.RETRY_PENDING, StepState.READY)
_GOOD = (StepState.COMPLETED, StepState.SKIPPED)


@dataclass(frozen=True, slots=True)
class Undone:
    """The undo of a fan-out: the record that says most, and how many items are where."""

    record: StepRecord
    each: EachRecord


def read_undone(
    source: Source, run: RunRecord, graph: Graph, records: Mapping[int, StepRecord]
) -> tuple[dict[int, Undone], int]:
    """By the index of the undo, what was undone of an `each`; and how many undos are planned and not begun."""
    if not run.undone:
        return {}, 0
    left = int(source.client().llen(source.keys.run(run.run_id, "undo")))
    found: dict[int, dict[int, StepRecord]] = {}
    for (index, item), record in read_undos(source, run.run_id, graph).items():
        found.setdefault(index, {})[item] = record
    return {index: _counted(items) for index, items in found.items()}, left


def _counted(items: Mapping[int, StepRecord]) -> Undone:
    """One that is under way says most, then one that failed."""
    failed = tuple(sorted(item for item, record in items.items() if record.state is StepState.FAILED))
    order = {state: place for place, state in enumerate((*_OPEN, StepState.FAILED, *_GOOD))}
    said = min(items.values(), key=lambda record: order.get(record.state, len(order)))
    done = sum(record.state in _GOOD for record in items.values())
    running = sum(record.state is StepState.RUNNING for record in items.values())
    return Undone(said, EachRecord(len(items), len(items), done, len(failed), running, bad=failed[:200]))
