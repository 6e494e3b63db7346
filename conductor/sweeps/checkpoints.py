"""Checkpoints, written behind: what changed is copied to the archive about a second later, for the day the store is gone.

Authority: none; the store decides, a row of an older event number never replaces a newer one, and the engine never waits. What has changed
is read from the notices that scripts write anyway, so a run costs nothing more. Notices of progress are told once in a window, so a run is
read only when the window of its notice is over: what was not told is in it by then. The stream is capped: a shipper that finds its place
cut off reads every run of the partition.

Two shippers at once copy the same twice. A shipper that dies after the put and before it has noted its place copies again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from conductor.archive import Kind
from conductor.runs.archiving import put_rows, rows_of
from conductor.store.indexes import zset_pages
from conductor.store.reads import read_now
from conductor.store.scripts import NOTICE_MS
from conductor.sweeps.guard import Found, Moves, SweepReport, over_partitions, unlocked

if TYPE_CHECKING:
    from conductor.store import Glance
    from conductor.wiring import Engine

__all__ = ["LATE_MS", "NAME", "lag_ms", "sweep_checkpoints"]

NAME = "checkpoints"
LATE_MS = 5_000  # from this lag on whoever watches is told that something is wrong
_BATCH = 100  # runs of one transaction
_AT_MOST = 2000  # notices of one look
_ALL_AGAIN_MS = 30_000
_BEGIN = "0-0"


def sweep_checkpoints(engine: Engine, *, dry_run: bool = False, glance: Glance | None = None) -> SweepReport:
    """Copy to the archive what has changed since the last time. Nothing without an archive, nor in a store that has yet to be recovered."""

    def work() -> Sequence[Found]:
        if not _epoch(engine):
            return []
        return over_partitions(NAME, range(engine.store.partitions), lambda partition: _ship(engine, partition, dry_run))

    return unlocked(engine, NAME, work, dry_run=dry_run)


def lag_ms(engine: Engine) -> int:
    """How old the oldest change is that has not been copied; 0 if all is."""
    now, oldest = read_now(engine.store), []
    for partition in range(engine.store.partitions):
        found: Any = engine.store.client().xrange(_stream(engine, partition), f"({engine.store.shipped(partition) or _BEGIN}", "+", count=1)
        oldest += [int(entry[0].partition("-")[0]) for entry in found]
    return max(0, now - min(oldest)) if oldest else 0


def _epoch(engine: Engine) -> int:
    """The store's epoch. One that has none, beside an archive that has seen one, was wiped: its runs come back by `recover` first."""
    mine = engine.store.epoch()
    if not mine and not engine.archive.open().epoch():
        engine.store.set_epoch(1)
        return 1
    return mine


def _stream(engine: Engine, partition: int) -> str:
    return engine.store.keys.of(partition, "notices")


def _ship(engine: Engine, partition: int, dry_run: bool) -> Iterable[Found]:
    client, now = engine.store.client(), read_now(engine.store)
    place = engine.store.shipped(partition)
    first: Any = client.xrange(_stream(engine, partition), count=1)
    entries: Any = client.xrange(_stream(engine, partition), f"({place or _BEGIN}", "+", count=_AT_MOST)
    told = [(notice, said["r"]) for notice, said in entries if int(notice.partition("-")[0]) < now - 2 * NOTICE_MS]
    cut_off = bool(first) and (not place or _number(place) < _number(first[0][0]))
    look_at_all = _is_due(engine, partition, now, cut_off)
    if not told and not look_at_all:
        return
    runs: Iterator[str] | list[str] = _all(engine, partition) if look_at_all else list(dict.fromkeys(run_id for _, run_id in told))
    put = 0
    for some in _chunks(runs):
        put += 0 if dry_run else _put(engine, some)
    if not dry_run and told:
        engine.store.set_shipped(partition, told[-1][0])
        engine.archive.open().ship(partition, engine.store.epoch(), int(told[-1][0].partition("-")[0]))
    yield Moves(put, ())


def _is_due(engine: Engine, partition: int, now: int, cut_off: bool) -> bool:
    """Whether every run must be looked at, because notices were cut off: twice a minute at most, so that a busy partition can catch up."""
    missed, looked = engine.store.shipping(partition)
    if not cut_off and not missed:
        return False
    due = not 0 <= now - looked < _ALL_AGAIN_MS
    engine.store.set_shipping(partition, missed=not due, looked=now if due else looked)
    return due


def _number(notice: str) -> tuple[int, int]:
    ms, _, rest = notice.partition("-")
    return int(ms), int(rest or 0)


def _all(engine: Engine, partition: int) -> Iterator[str]:
    for page in zset_pages(engine.store, partition, "runs"):
        yield from (run_id for run_id, _ in page)


def _chunks(runs: Iterable[str]) -> Iterator[list[str]]:
    some: list[str] = []
    for run_id in runs:
        some.append(run_id)
        if len(some) == _BATCH:
            yield some
            some = []
    if some:
        yield some


def _put(engine: Engine, run_ids: Sequence[str]) -> int:
    rows = [row for snapshot, row in rows_of(engine, run_ids, Kind.CHECKPOINT) if not snapshot.fields.get("qr")]
    put_rows(engine, rows)
    return len(rows)
