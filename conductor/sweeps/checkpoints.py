"""Checkpoints, written behind: what changed is copied to the archive about a second later, for the day the store is gone.

Authority: none; the store decides, a row of an older event number never replaces a newer one, and the engine never waits. What has changed
is read from the notices that scripts write anyway, so a run costs nothing more. Notices of progress are told once in a window, so a run is
read only when the window of its notice is over: what was not told is in it by then. The stream is capped: a shipper that finds its place
cut off looks for what was overlooked (`overlooked.py`). Until it has, and as long as a run would not hold still to be copied, the place
from which on something is missing stands as the partition's gap: lag counts from it, and the archive's moment stays.

Two shippers at once copy the same twice. A shipper that dies after the put and before it has noted its place copies again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from conductor.archive import Kind
from conductor.runs.archiving import put_rows, rows_of
from conductor.store.reads import read_now
from conductor.store.scripts import NOTICE_MS
from conductor.sweeps.guard import Found, Moves, SweepReport, over_partitions, unlocked
from conductor.sweeps.overlooked import overlooked

if TYPE_CHECKING:
    from conductor.store import Glance
    from conductor.wiring import Engine

__all__ = ["LATE_MS", "NAME", "lag_ms", "sweep_checkpoints"]

NAME = "checkpoints"
LATE_MS = 5_000  # from this lag on whoever watches is told that something is wrong
_BATCH = 100  # runs of one transaction
_AT_MOST = 2000  # notices of one look
_ALL_AGAIN_MS, _SETTLED_MS = 30_000, 2000
_BEGIN = "0-0"
_BEGUN = "checkpoints_begun"  # note of when the last look began that came to its end


def sweep_checkpoints(engine: Engine, *, dry_run: bool = False, glance: Glance | None = None) -> SweepReport:
    """Copy to the archive what has changed since the last time. Nothing without an archive, nor in a store that has yet to be recovered."""

    def work() -> Sequence[Found]:
        if not _epoch(engine):
            return []
        noted, now = engine.store.last_sweeps()
        begun = noted.get(_BEGUN, 0)
        found = over_partitions(NAME, range(engine.store.partitions), lambda partition: _ship(engine, partition, begun, dry_run))
        if not dry_run:
            engine.store.swept(_BEGUN, now)
        return found

    return unlocked(engine, NAME, work, dry_run=dry_run)


def lag_ms(engine: Engine) -> int:
    """How old the oldest change is that has not been copied; 0 if all is. Never too little: what was cut off unseen counts from where the
    shipper stands."""
    noted, now = engine.store.last_sweeps()
    begun, oldest = noted.get(_BEGUN, 0), []
    for partition in range(engine.store.partitions):
        place, gap, _ = engine.store.shipping(partition)
        after: Any = engine.store.client().xrange(_stream(engine, partition), f"({place or _BEGIN}", "+", count=1)
        if gap or _is_cut_off(engine, partition, place):
            oldest.append(_ms(gap or _missed_since(engine, partition, place, begun)))
        elif after:
            oldest.append(_ms(after[0][0]))
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


def _ship(engine: Engine, partition: int, begun: int, dry_run: bool) -> Iterable[Found]:
    client, now = engine.store.client(), read_now(engine.store)
    place, gap, looked = engine.store.shipping(partition)
    entries: Any = client.xrange(_stream(engine, partition), f"({place or _BEGIN}", "+", count=_AT_MOST)
    told = [(notice, said["r"]) for notice, said in entries if _ms(notice) < now - 2 * NOTICE_MS]
    if _is_cut_off(engine, partition, place):
        gap = gap or _missed_since(engine, partition, place, begun)
    elif gap in dict(told):
        gap = ""  # a notice, not a time: that of a run that would not hold still, which is told again
    # Seldom, so that a busy partition can catch up; not while all that is left is new, for then it would seem cut off again.
    is_time = not 0 <= now - looked < _ALL_AGAIN_MS and (bool(told) or now - _ms(gap or _BEGIN) > _SETTLED_MS)
    look_at_all = bool(gap) and is_time
    if dry_run or not (told or look_at_all):
        if gap and not dry_run:
            engine.store.set_shipping(partition, gap=gap, looked=looked)
        return
    put, restless = 0, set[str]()
    for some in _chunks(dict.fromkeys(run_id for _, run_id in told)):
        put += _put(engine, some, restless)
    if look_at_all:
        for some in overlooked(engine, partition, _ms(gap)):
            put += _put(engine, some, restless)
        gap = gap if restless else ""
    _note(engine, partition, told, restless, gap, now if look_at_all else looked, covered=now if look_at_all else 0)
    yield Moves(put, ())


def _note(
    engine: Engine, partition: int, told: Sequence[tuple[str, str]], restless: Collection[str], gap: str, looked: int, *, covered: int,
) -> None:
    """How far everything is copied: up to the first notice of a run that would not hold still."""
    done = [notice for notice, _ in takewhile(lambda one: one[1] not in restless, told)]
    if covered and not restless:
        done.append(f"{covered - 2 * NOTICE_MS}-0")
    if restless and not gap:
        gap = next((notice for notice, run_id in told if run_id in restless), "")
    engine.store.set_shipping(partition, gap=gap, looked=looked)
    if done:
        newest = max(done, key=_number)
        engine.store.set_shipped(partition, newest)
        if not gap:
            engine.archive.open().ship(partition, engine.store.epoch(), _ms(newest))


def _is_cut_off(engine: Engine, partition: int, place: str) -> bool:
    """Whether notices behind our place may be gone from the capped stream: it begins behind it, and not with the first notice ever."""
    client, stream = engine.store.client(), _stream(engine, partition)
    first: Any = client.xrange(stream, count=1)
    if not first or (place and _number(place) >= _number(first[0][0])):
        return False
    info: Any = client.xinfo_stream(stream)
    return int(info.get("entries-added", -1)) != int(info["length"])


def _missed_since(engine: Engine, partition: int, place: str, begun: int) -> str:
    """From when on (ms) something may have been missed: not before our place, nor before the last time that everything was seen. Where
    nothing was ever shipped nobody knows, and the oldest notice that is there stands for it."""
    if not place:
        first: Any = engine.store.client().xrange(_stream(engine, partition), count=1)
        return str(_ms(first[0][0]))
    return str(max(_ms(place), begun - 2 * NOTICE_MS))


def _ms(notice: str) -> int:
    return _number(notice)[0]


def _number(notice: str) -> tuple[int, int]:
    ms, _, rest = notice.partition("-")
    return int(ms), int(rest or 0)


def _chunks(runs: Iterable[str]) -> Iterator[list[str]]:
    some: list[str] = []
    for run_id in runs:
        some.append(run_id)
        if len(some) == _BATCH:
            yield some
            some = []
    if some:
        yield some


def _put(engine: Engine, run_ids: Sequence[str], restless: set[str]) -> int:
    copies = rows_of(engine, run_ids, Kind.CHECKPOINT, restless=restless.add)
    rows = [row for snapshot, row in copies if not snapshot.fields.get("qr")]
    put_rows(engine, rows)
    return len(rows)
