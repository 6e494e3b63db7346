"""Which runs a shipper of checkpoints has overlooked, after notices were cut off: those of which the archive has less than the store.

It looks where such a run must stand: among the active ones, those queued in lanes, those started since, and those that the archive takes
for unfinished. Runs that had ended before are not met. For each page the event numbers are compared, so only what has changed is copied.
A run that was reopened and has ended again within one gap is met when its retention is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from conductor.archive import Kind, Position
from conductor.state import RUN, RunState, terminal
from conductor.store.indexes import hash_pages, zset_pages

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["overlooked"]

_ENDED = frozenset(str(state) for state in terminal(RUN))
_BEFORE_MS = 1000  # a run is created a little before its notice
_FIELDS = ("st", "g", "pg", "nt", "qr")


def overlooked(engine: Engine, partition: int, since: int) -> Iterator[list[str]]:
    """Runs of a partition whose copies are behind, some at a time. `since` (ms): nothing was missed before."""
    for page in _candidates(engine, partition, since):
        if found := _ahead(engine, page):
            yield found


def _candidates(engine: Engine, partition: int, since: int) -> Iterator[list[str]]:
    store = engine.store
    for page in hash_pages(store, partition, "active"):
        yield [run_id for run_id, _ in page]
    lanes: Any = store.client().smembers(store.keys.of(partition, "lanes"))
    for lane in sorted(lanes):
        for queued in zset_pages(store, partition, f"lane:{lane}:queue"):
            yield [run_id for run_id, _ in queued]
    yield from store.created_since(partition, since - _BEFORE_MS)
    for rows in engine.archive.open().unfinished(kinds=(Kind.CHECKPOINT,), ending=f"{partition:02x}"):
        yield [row.run_id for row in rows]


def _ahead(engine: Engine, run_ids: Sequence[str]) -> list[str]:
    """Those of which the store knows more than the archive."""
    pipe = engine.store.client().pipeline(transaction=False)
    for run_id in run_ids:
        pipe.hmget(engine.store.keys.run(run_id), list(_FIELDS))
        pipe.llen(engine.store.keys.run(run_id, "log"))
    replies = pipe.execute() if run_ids else []
    there = engine.archive.open().positions(run_ids)
    found = []
    for run_id, fields, events in zip(run_ids, replies[::2], replies[1::2], strict=True):
        state, generation, progress, noted, queue_reason = fields
        if state is None or queue_reason:
            continue
        mine = Position(int(generation or 1), RunState(state) in _ENDED, int(events), max(int(progress or 0), int(noted or 0)))
        known = there.get(run_id)
        if known is None or (*mine.order, mine.noted_ms) > (*known.order, known.noted_ms):
            found.append(run_id)
    return found
