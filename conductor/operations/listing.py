"""Lists of operations: stand-alone ones, newest first, then the steps of runs that wait for a retry; and the queue at a glance.

What a page costs does not depend on how many operations there are: it looks at a bounded number, at most of them only as far as their
record goes, and a cursor says where it stopped. A rare filter may so find a short page, even an empty one, and a cursor to go on from. A
step whose retry is put off meanwhile may be met again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from conductor.errors import BadInput
from conductor.ids import is_run_id
from conductor.operations.read import Operation, OpFilter, Place, read_operation
from conductor.records import QueueReason
from conductor.runs.cursors import read_cursor, signed
from conductor.state import OpState
from conductor.store.operations import due_entries, newest_operations, open_operations, open_steps, queue_counts, retried_step
from conductor.store.reads import RunRecord, read_graph, read_now, read_runs

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["MOST", "Listed", "list_operations", "status", "status_within"]

MOST = 10_000
_LOOK_AT_MOST = 20_000
_WHOLE = 50  # what an operation costs that is read whole and does not match, in looks at a record
_COUNTED = 10_000
_BESIDE = re.compile(r"s-(\d{1,3})-(\d{1,16})-(.{1,200})\Z")
_ALONE = re.compile(r"o-(\d{1,16})-(.{36})\Z")


class Listed(list[Operation]):
    """A page of operations. With a `cursor` there may be more, even if this page is short."""

    def __init__(self, found: list[Operation], cursor: str = "") -> None:
        super().__init__(found)
        self.cursor = cursor


@dataclass(frozen=True, slots=True)
class _Candidate:
    """What stands at a place of the list. Without a run nothing stands there any more, or something else that is due."""

    place: str
    run: RunRecord | None = None
    index: int = 0
    item: int | None = None


def list_operations(
    engine: Engine, wanted: OpFilter | None = None, *, cursor: str = "", limit: int = 50, steps: bool = True, patient: bool = False,
) -> Listed:
    """A page of the operations that match. `patient` looks on until there are `limit` of them, or no more, however long that takes."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST:
        raise BadInput(what="list of operations", field="limit", problem=f"{str(limit)[:40]} is not from 1 to {MOST}")
    chosen, now, looks = wanted or OpFilter(), read_now(engine.store), 0
    search = {"list": "operations", "steps": steps} | {name: value for name, value in asdict(chosen).items() if name != "sessions"}
    found: list[Operation] = []
    place = read_cursor(engine, search, chosen.sessions, cursor)
    for one in _candidates(engine, chosen, now, place, steps):
        looks += 1
        if one.run is not None and chosen.may_match(one.run, now):
            read = read_operation(engine, Place(one.run, read_graph(engine.store, one.run.partition, one.run.graph), one.index, one.item))
            if chosen.matches(read):
                found.append(read)
            else:
                looks += _WHOLE
        if len(found) == limit or (looks >= _LOOK_AT_MOST and not patient):
            return Listed(found, signed(engine, search, chosen.sessions, one.place))
    return Listed(found)


def _candidates(engine: Engine, chosen: OpFilter, now: int, place: str, steps: bool) -> Iterator[_Candidate]:
    """All of the list behind a place of it."""
    behind = _BESIDE.match(place)
    if behind is None:
        yield from _alone(engine, chosen, now, place)
    if steps and chosen.may_match_steps:
        yield from _steps(engine, (int(behind[1]), int(behind[2]), behind[3]) if behind else None)


def _alone(engine: Engine, chosen: OpFilter, now: int, place: str) -> Iterator[_Candidate]:
    read = _ALONE.match(place)
    before = (int(read[1]), read[2]) if read and is_run_id(read[2]) else None
    until = now - chosen.older_than_ms if chosen.older_than_ms else 0
    for page in newest_operations(engine.store, until=max(1, until) if chosen.older_than_ms else 0, before=before):
        runs = read_runs(engine.store, [operation_id for _, operation_id in page])
        yield from (_Candidate(f"o-{at}-{operation_id}", run) for (at, operation_id), run in zip(page, runs, strict=True))


def _steps(engine: Engine, after: tuple[int, int, str] | None) -> Iterator[_Candidate]:
    for page in due_entries(engine.store, after=after):
        refs = [retried_step(member) for _, _, member in page]
        ids = sorted({ref[0] for ref in refs if ref})
        runs = dict(zip(ids, read_runs(engine.store, ids), strict=True))
        for (partition, at, member), ref in zip(page, refs, strict=True):
            run, place = runs[ref[0]] if ref else None, f"s-{partition}-{at}-{member}"
            if ref is None or run is None or run.queue_reason or run.ended:
                yield _Candidate(place)
            else:
                yield _Candidate(place, run, ref[1], ref[2])


def status(engine: Engine) -> dict[str, Any]:
    """The queue at a glance: how many are queued and why, when the next is due, how old the oldest is."""
    now, seen = read_now(engine.store), queue_counts(engine.store)
    steps = sum(1 for _ in open_steps(engine.store))
    return {
        "queued": {**seen.queued, "retry_steps": steps}, "running": seen.running, "next_retry_at": seen.next_at,
        "oldest_age_seconds": round(max(0, now - seen.oldest) / 1000, 1) if seen.oldest else None,
    }


def status_within(engine: Engine, sessions: frozenset[str]) -> dict[str, Any]:
    """The same, of the operations of some sessions only: each that is open is looked at, because nothing counts by session."""
    now, found = read_now(engine.store), list[Operation]()
    for place in _open(engine, sessions):
        found.append(read_operation(engine, place))
        if len(found) == _COUNTED:
            break
    queued = [one for one in found if one.queued]
    alone = [one for one in queued if one.step is None]
    due = [one.retry_at for one in queued if one.retry_at is not None]
    counts = {reason.value: sum(one.queue_reason == reason for one in alone) for reason in QueueReason}
    return {
        "queued": {**counts, "retry_steps": len(queued) - len(alone)}, "running": sum(one.state is OpState.RUNNING for one in found),
        "next_retry_at": min(due, default=None),
        "oldest_age_seconds": round(max(0, now - min(one.created_at for one in queued)) / 1000, 1) if queued else None,
    }


def _open(engine: Engine, sessions: frozenset[str]) -> Iterator[Place]:
    store = engine.store
    for run in open_operations(store):
        if run.session in sessions:
            yield Place(run, read_graph(store, run.partition, run.graph))
    for run, index, item in open_steps(store):
        if run.session in sessions:
            yield Place(run, read_graph(store, run.partition, run.graph), index, item)
