"""Reading stand-alone operations over all partitions: by time, by what waits for a retry, and counts that cost the same however many."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from conductor.records import QueueReason
from conductor.store.indexes import zset_pages
from conductor.store.reads import Source, read_runs

__all__ = ["QueueCounts", "open_steps", "operations_by_time", "queue_counts"]

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
    merged = heapq.merge(*(_newest(source, number) for number in range(source.partitions)), reverse=True)
    page: list[str] = []
    for _, operation_id in merged:
        page.append(operation_id)
        if len(page) == _PAGE:
            yield page
            page = []
    if page:
        yield page


def _newest(source: Source, partition: int) -> Iterator[tuple[int, str]]:
    first = 0
    while True:
        found = source.client().zrevrange(source.keys.of(partition, "ops"), first, first + _PAGE - 1, withscores=True)
        yield from ((int(score), operation_id) for operation_id, score in found)
        if len(found) < _PAGE:
            return
        first += _PAGE


def open_steps(source: Source, *, ops: bool = True) -> Iterator[tuple[str, int, int | None]]:
    """Steps and items that wait for a retry, from the due index: run, index, item. `ops=False` leaves stand-alone operations out."""
    for partition in range(source.partitions):
        for page in zset_pages(source, partition, "due"):
            waiting = [member.split(":")[1:] for member, _ in page if member.startswith("retry:")]
            runs = dict(zip((ref[0] for ref in waiting), read_runs(source, [ref[0] for ref in waiting]), strict=True)) if not ops else {}
            for run_id, index, *item in waiting:
                run = runs.get(run_id)
                if ops or (run is not None and not run.queue_reason and not run.ended):
                    yield run_id, int(index), int(item[0]) if item else None


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
