"""The retention sweep: deletes ended runs whose time in the store is over (where there is an archive, only operations: runs go there
first), lists that were staged and never committed, and the names of workers that have not been seen for a day."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from conductor import codec
from conductor.runs.erasing import drop_orphan_blobs, purge_but_blobs
from conductor.store.reads import read_now
from conductor.sweeps.guard import Found, Moves, SweepReport, guarded, over_partitions

if TYPE_CHECKING:
    from conductor.store import Glance
    from conductor.wiring import Engine

__all__ = ["NAME", "sweep_retention"]

NAME = "retention"
_BATCH = 200
_AT_MOST = 1.0  # seconds of deleting in one sweep: in a worker's timer other sweeps wait behind it
_UNSEEN_MS = 86_400_000
_HOUR_MS = 3_600_000
_ORPHANS = "orphan_blobs"


def sweep_retention(engine: Engine, *, dry_run: bool = False, glance: Glance | None = None) -> SweepReport:
    """Delete what is past its retention, batch by batch in all partitions, as long as batches are full and for a second at most. With a
    backlog left it is overdue again at once, so that as much is deleted as ends, and no sweep holds the server for long."""
    left: list[int] = []
    blobs: list[str] = []

    def work() -> Sequence[Found]:
        seen, until = glance or engine.store.glance(), time.monotonic() + _AT_MOST
        left[:], found = seen.purgeable, list[Found]()
        while left:
            looked = over_partitions(NAME, left, lambda partition: _purge(engine, partition, blobs, dry_run))
            found += looked
            left[:] = [one.partition for one in looked if isinstance(one, _Purged) and one.more and not dry_run]
            if time.monotonic() > until:
                break
        if not dry_run:
            found += over_partitions(NAME, seen.staged, lambda partition: _drop_staged(engine, partition))
            found += over_partitions(NAME, [0], lambda partition: _forget_workers(engine, partition, seen.now))
        return found

    report = guarded(engine, NAME, work, dry_run=dry_run)
    codec.drop_blobs(blobs)  # outside the lock, as everything that asks others: the blob store is the user's, and may take any time
    if report.ran and not dry_run:
        _drop_orphans(engine)
        if left:
            engine.store.swept(NAME, ago_ms=int(engine.settings.retention_sweep_seconds * 1000))
    return report


@dataclass(frozen=True, slots=True)
class _Purged(Moves):
    """What went in one partition."""

    partition: int = 0
    more: bool = False


def _drop_orphans(engine: Engine) -> None:
    """Blobs whose writer died before anything named them: looked for once an hour."""
    if not codec.has_blobs():
        return
    last, now = engine.store.last_sweeps()
    if now - last.get(_ORPHANS, 0) > _HOUR_MS:
        engine.store.swept(_ORPHANS)
        drop_orphan_blobs(engine, now / 1000)


def _purge(engine: Engine, partition: int, blobs: list[str], dry_run: bool) -> Iterable[Found]:
    if not engine.archive.configured:
        runs = engine.store.due_for_purge(partition, _BATCH)
    else:  # runs go there first, by a sweep of their own: SQL must not hold this one up
        due = engine.store.ended_by_time(partition, until=read_now(engine.store), operations=True)
        runs = list(islice((run_id for page in due for run_id in page), _BATCH))
    gone = []
    for run_id in runs:
        left = () if dry_run else purge_but_blobs(engine, run_id, due_only=True)
        if left is not None:
            gone.append(run_id)
            blobs += left
    causes = tuple(f"{run} retention_over" for run in gone)
    yield _Purged(len(gone), causes, partition=partition, more=bool(gone) and len(runs) >= _BATCH)


def _drop_staged(engine: Engine, partition: int) -> Iterable[Found]:
    """Chunks of long lists whose attempt lost its fence before it could name them."""
    dropped = engine.store.drop_staged(partition, limit=_BATCH)
    yield Moves(dropped, (f"partition {partition}: {dropped} staged lists without owner",) if dropped else ())


def _forget_workers(engine: Engine, partition: int, now: int) -> Iterable[Found]:
    """A worker that comes back in the same moment says its name again within minutes; until then its tag is shown."""
    client, key = engine.store.client(), engine.store.keys.of(partition, "workers")
    known: Any = client.hgetall(key)
    gone = [tag for tag, text in known.items() if now - int(text.partition(";")[0] or 0) > _UNSEEN_MS]
    if gone:
        client.hdel(key, *gone)
    yield Moves(len(gone), (f"{len(gone)} workers not seen for a day",) if gone else ())
