"""The archive sweep: ended runs whose time in the store is over go to SQL first, then out of the store.

Authority: the store. Each step may be repeated: a row put twice is put once, and a run is purged only as it was put (at the same event
number), so one that a retry reopens between the two steps stays and its row is overtaken by the next. Nothing is locked while SQL is
asked: two sweepers at once do the same work twice, and a database that hangs keeps nobody out. While the archive is away runs stay.

From 80 % of `maxmemory` on it hurries: runs that ended a minute ago go too, before their retention is over. Stand-alone operations are not
archived; the retention sweep deletes them when their retention is over, and never before, because nobody else has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from conductor import codec
from conductor.archive import Erased, Kind
from conductor.runs.archiving import put_rows, rows_of
from conductor.runs.doctor import nodes_of
from conductor.store.reads import RunRecord, read_run, read_runs
from conductor.sweeps.guard import Found, Moves, SweepReport, over_partitions, unlocked

if TYPE_CHECKING:
    from conductor.store import Glance
    from conductor.wiring import Engine

__all__ = ["HURRY", "NAME", "hurries", "sweep_archive"]

NAME = "archive"
HURRY = 0.8
_BATCH, _AT_MOST = 50, 500  # runs of one transaction, and of one partition in one sweep
_LEFT_ALONE_MS = 60_000  # whoever waits for a run's result gets it, however full the store is


def sweep_archive(engine: Engine, *, dry_run: bool = False, glance: Glance | None = None) -> SweepReport:
    """Move ended runs to the archive, and delete from it what is past its own retention. Nothing without an archive."""

    def work() -> Sequence[Found]:
        hurry = hurries(engine)
        seen = glance or engine.store.glance()
        partitions = range(engine.store.partitions) if hurry else seen.purgeable
        found = over_partitions(NAME, partitions, lambda partition: _move(engine, partition, seen.now, hurry, dry_run))
        return found if dry_run else [*found, *_expire(engine, seen.now)]

    return unlocked(engine, NAME, work, dry_run=dry_run)


def hurries(engine: Engine) -> bool:
    """Whether memory is short, on any node. Where the server does not let us look, it is not."""
    try:
        found: list[Any] = [node.info("memory") for node in nodes_of(engine.store.client()).values()]
    except Exception:
        return False
    return any(int(info["maxmemory"]) and int(info["used_memory"]) >= HURRY * int(info["maxmemory"]) for info in found)


def _move(engine: Engine, partition: int, now: int, hurry: bool, dry_run: bool) -> Iterable[Found]:
    wanted: list[str] = []
    for page in engine.store.ended_by_time(partition, until=None if hurry else now, operations=False):
        runs = [run for run in read_runs(engine.store, page) if run is not None and run.ended]
        wanted += [run.run_id for run in runs if not hurry or (run.ended_at < now - _LEFT_ALONE_MS and not _is_asked_for(engine, run))]
        if len(wanted) >= _AT_MOST:
            break
    for at in range(0, len(wanted), _BATCH):
        some = wanted[at : at + _BATCH]
        gone = some if dry_run else _move_some(engine, some, due_only=not hurry)
        yield Moves(len(gone), tuple(f"{run_id} archived" for run_id in gone))


def _is_asked_for(engine: Engine, run: RunRecord) -> bool:
    """A child's result is its parent's to take as long as that has not ended."""
    if not run.bound_to:
        return False
    parent = read_run(engine.store, run.bound_to.partition(";")[0])
    return parent is not None and not parent.ended


def _move_some(engine: Engine, run_ids: Sequence[str], *, due_only: bool) -> list[str]:
    rows = [row for _, row in rows_of(engine, run_ids, Kind.FINISHED) if row.is_terminal]
    kept = put_rows(engine, rows)
    put = [row for row in rows if row.run_id in kept]
    return [row.run_id for row in put if engine.store.purge(row.run_id, due_only=due_only, at_event=row.n).word == "OK"]


def _expire(engine: Engine, now: int) -> list[Found]:
    gone: tuple[Erased, ...] = engine.archive.open().purge(now, at_most=_AT_MOST)
    codec.drop_blobs(name for one in gone for name in one.blobs)
    return [Moves(len(gone), tuple(f"{one.run_id} archive_retention_over" for one in gone))] if gone else []
