"""Reading stand-alone operations over all partitions: by time, by what waits for a retry, and counts that cost the same however many."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from conductor.records import QueueReason
from conductor.store.indexes import hash_pages, newest_first, oldest_first, zset_pages
from conductor.store.reads import RunRecord, Source, read_runs

__all__ = [
    "QueueCounts", "due_entries", "newest_operations", "open_operations", "open_steps", "operations_by_time", "queue_counts",
    "retried_step",
]

_PAGE = 200


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """Stand-alone operations: queued by reason, running, ms of the next attempt and of the oldest's creation (None if there is none)."""

    queued: dict[str, int]
    running: int
    next_at: int | None
    oldest: int | None


def operations_by_time(source: Source) -> Iterator[list[str]]:
    """Ids, newest first, in pages, merged over all partitions."""
    for page in newest_operations(source):
        yield [operation_id for _, operation_id in page]


def newest_operations(source: Source, *, until: int = 0, before: tuple[int, str] | None = None) -> Iterator[list[tuple[int, str]]]:
    """The same with the ms of their creation: those made at `until` or earlier, below a place in the list."""
    yield from _pages(heapq.merge(
        *(newest_first(source, number, "ops", until=until, before=before) for number in range(source.partitions)), reverse=True))


def due_entries(source: Source, *, after: tuple[int, int, str] | None = None) -> Iterator[list[tuple[int, int, str]]]:
    """What is due, in pages: partition, ms and member, one partition after the other, behind a place."""
    for partition in range(after[0] if after else 0, source.partitions):
        behind = after[1:] if after and after[0] == partition else None
        for page in _pages(oldest_first(source, partition, "due", after=behind)):
            yield [(partition, at, member) for at, member in page]


def _pages(places: Iterator[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    page: list[tuple[int, str]] = []
    for place in places:
        page.append(place)
        if len(page) == _PAGE:
            yield page
            page = []
    if page:
        yield page


def retried_step(member: str) -> tuple[str, int, int | None] | None:
    """The step or item that an entry of the due index is a retry of: run, index, item."""
    kind, *ref = member.split(":")
    return (ref[0], int(ref[1]), int(ref[2]) if len(ref) > 2 else None) if kind == "retry" else None


def open_steps(source: Source) -> Iterator[tuple[RunRecord, int, int | None]]:
    """Steps and items of live runs that wait for a retry: run, index, item. Stand-alone operations are not among them."""
    for partition in range(source.partitions):
        for page in zset_pages(source, partition, "due"):
            waiting = [found for member, _ in page if (found := retried_step(member))]
            for run, (_, index, item) in zip(read_runs(source, [run_id for run_id, _, _ in waiting]), waiting, strict=True):
                if run is not None and not run.queue_reason and not run.ended:
                    yield run, index, item


def open_operations(source: Source) -> Iterator[RunRecord]:
    """Stand-alone operations that have not ended."""
    for partition in range(source.partitions):
        for page in hash_pages(source, partition, "ops:open"):
            yield from (run for run in read_runs(source, [run_id for run_id, _ in page]) if run is not None and not run.ended)


def queue_counts(source: Source) -> QueueCounts:
    """One pipelined pass over all partitions."""
    reasons = list(QueueReason)
    pipe = source.client().pipeline(transaction=False)
    for partition in range(source.partitions):
        pipe.hlen(source.keys.of(partition, "ops:open"))
        for reason in reasons:
            key = source.keys.of(partition, f"queued:{reason}")
            pipe.zcard(key)
            pipe.zrange(key, 0, 0, withscores=True)
    replies, width = pipe.execute(), 1 + 2 * len(reasons)
    rows = [replies[at : at + width] for at in range(0, len(replies), width)]
    queued = {reason.value: sum(row[1 + 2 * at] for row in rows) for at, reason in enumerate(reasons)}
    firsts = [row[2 + 2 * at][0] for row in rows for at in range(len(reasons)) if row[2 + 2 * at]]
    opened = sum(row[0] for row in rows)
    waiting = [operation_id for page in _open_ids(source) for operation_id in page]
    following = min((int(score) for _, score in firsts), default=None)
    return QueueCounts(queued, opened - sum(queued.values()), following, _oldest(source, waiting))


def _open_ids(source: Source) -> list[list[str]]:
    """The ids of all open operations, by partition."""
    pipe = source.client().pipeline(transaction=False)
    for partition in range(source.partitions):
        pipe.hkeys(source.keys.of(partition, "ops:open"))
    return list(pipe.execute())


def _oldest(source: Source, ids: list[str]) -> int | None:
    """When the oldest was made: an id begins with its time, so only a few candidates are read."""
    found = [run.created_at for run in read_runs(source, heapq.nsmallest(20, ids)) if run is not None and not run.ended] if ids else []
    return min(found, default=None)
