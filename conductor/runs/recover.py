"""Recovery: after a restart the indexes say what the records say; after a loss the runs come back that the archive had seen.

Authority: the store. Where it has a run, its record counts and the indexes follow it, run by run, in one script each, beside live
workers. Where it has none, the archive is asked only if the store was wiped (it has no epoch, and the archive has seen one) or if a person
says that an old backup was restored: otherwise a run that is not there was purged, and must not come back. What differs then is decided by
the greater (generation, event number); what has ended beats what has not. That holds for parked runs as for others: a stub has its
numbers too.

Races: two recoveries at once do the same work twice; a run is visible only by the last script of its restoring, which refuses if it is
there.
Failure: a record that cannot be read is told and left; it never stops the others. A recovery that dies is called again.

Work after the moment of the checkpoint is repeated: what stood under a lease is taken from its holder by the stall sweep as from any lost
worker, so effects are verified before they are repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from conductor.archive import ArchivedRun, Kind
from conductor.errors import ArchiveRefused, ArchiveUnreachable, ConductorError, StoreUnreachable
from conductor.ids import is_run_id
from conductor.runs.archiving import open_snapshot
from conductor.runs.mend import stand_up
from conductor.runs.parking import wake
from conductor.store.indexes import record_ids, record_places
from conductor.store.notices import Unreachable
from conductor.store.reads import RunRecord, read_now, read_run, read_runs
from conductor.store.stubs import Stub, read_stub, stub_pages

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["Recovery", "recover", "recover_at_start"]

logger = logging.getLogger(__name__)

_NOTED, _LATELY_MS = "recover", 60_000
_PAGE = 500  # runs that the archive is asked for at once
_Order = tuple[int, int, int]
_STOPS = (StoreUnreachable, ArchiveUnreachable, ArchiveRefused, *Unreachable)


@dataclass
class Recovery:
    """What a recovery did. `restored` came back from the archive; `moments` say up to when each partition was copied there."""

    dry_run: bool = False
    wiped: bool = False
    epoch: int = 0
    recovered: int = 0
    restored: int = 0
    expired: int = 0
    finished: int = 0
    skipped: int = 0
    consent_kept: int = 0
    errors: list[str] = field(default_factory=list)
    moments: dict[int, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def failed(self, run_id: str, error: BaseException) -> None:
        self.errors.append(f"{run_id}: {type(error).__name__}: {error}")
        logger.warning("run %s was not recovered, the others are: %s", run_id, error)


def recover(engine: Engine, *, dry_run: bool = False, restored: bool = False) -> Recovery:
    """Bring the store in order. `restored`: it was set back to an old backup, so the archive may know better."""
    told = Recovery(dry_run, epoch=engine.store.epoch())
    before = engine.store.incarnation()
    met = _from_records(engine, told)
    if engine.archive.configured:
        _from_archive(engine, told, met, restored=restored)
    if not dry_run and before:
        engine.store.set_recovered(f"{before.rpartition(';')[0]};{told.epoch}")
    _log(told)
    return told


def recover_at_start(engine: Engine) -> Recovery | None:
    """What a process does when it starts: recover, if the server was restarted, replaced or set back since that was done last; else
    indexes and records have changed together. What goes wrong is told and stops no start."""
    if not engine.settings.recovery_enabled:
        return None
    try:
        last, now = engine.store.last_sweeps()
        if 0 <= now - last.get(_NOTED, 0) < _LATELY_MS:
            return None  # another is at it
        mine = engine.store.incarnation()
        if mine and mine == engine.store.recovered_in():
            return None
        engine.store.swept(_NOTED)
        return recover(engine)
    except Exception as error:
        logger.warning("recovery did not run, `conductor recover` runs it again: %s: %s", type(error).__name__, error)
        return None


def _from_records(engine: Engine, told: Recovery) -> set[str]:
    """Every run that the store has a record of; gives them all."""
    met: set[str] = set()
    for page in _recorded(engine):
        met.update(page)
        try:
            suspects = _suspects(engine, page, told)
        except _STOPS:
            raise
        except Exception:  # one of them cannot be read: each by itself then
            suspects = page
        for run_id in suspects:
            _guarded(told, run_id, partial(_one, engine, run_id, told))
    return met


def _recorded(engine: Engine) -> Iterator[list[str]]:
    """The ids of all records, from the keys themselves: an index may be what was lost."""
    seen: set[str] = set()
    for page in record_ids(engine.store):
        fresh = [run_id for run_id in page if is_run_id(run_id) and run_id not in seen]
        seen.update(fresh)
        yield fresh


def _suspects(engine: Engine, run_ids: list[str], told: Recovery) -> list[str]:
    """Those of some runs whose indexes may not say what their records say: nearly always none, in two round trips."""
    runs = [run for run in read_runs(engine.store, run_ids) if run is not None]
    places = record_places(engine.store, runs)
    suspects = [run.run_id for run, place in zip(runs, places, strict=True) if not place.fits]
    fine = {run.run_id for run in runs} - set(suspects)
    told.skipped += len(fine)
    told.consent_kept += sum(place.has_consent for run, place in zip(runs, places, strict=True) if run.run_id in fine and not run.ended)
    return suspects


def _one(engine: Engine, run_id: str, told: Recovery) -> None:
    """Put one run into its indexes."""
    run = read_run(engine.store, run_id)
    if run is None:
        return
    word = engine.store.recover_run(run_id, dry=told.dry_run)
    if word == "FINISHED":
        told.finished += 1
        return
    if word == "RECOVERED":
        if not told.dry_run:
            stand_up(engine, run_id)
        if not told.dry_run and engine.store.expire_idle(run_id)[0] == "OK":
            told.expired += 1  # an orphan whose time was over is not brought back to wait on
            return
        told.recovered += 1
    else:
        told.skipped += 1
    told.consent_kept += bool(not run.ended and engine.store.client().hexists(engine.store.keys.run(run_id), "bl"))


def _from_archive(engine: Engine, told: Recovery, met: set[str], *, restored: bool) -> None:
    archive = engine.archive.open()
    told.moments = {moment.partition: moment.shipped_ms for moment in archive.moments()}
    seen = archive.epoch()
    told.wiped = not told.epoch and seen > 0
    if told.wiped or restored:
        for page in archive.unfinished(kinds=(Kind.CHECKPOINT, Kind.PARKED), unreadable=told.failed):
            for row in page:
                _guarded(told, row.run_id, partial(_back, engine, row, told))
    if restored:
        for some in _overtaken(engine, met):
            _guarded(told, some, partial(_ended, engine, some, told))
    if told.wiped or restored:
        _keys(engine, told)
    if not told.dry_run and (told.wiped or restored or not told.epoch):
        told.epoch = max(told.epoch, seen) + 1
        engine.store.set_epoch(told.epoch)


def _guarded(told: Recovery, run_id: str, work: Callable[[], None]) -> None:
    """One run; what is wrong with it is told and never stops the others."""
    try:
        work()
    except _STOPS:
        raise
    except Exception as error:
        told.failed(run_id, error)


def _stands(engine: Engine, run_id: str) -> tuple[RunRecord | None, Stub | None, _Order]:
    """What the store has of a run, and at which position: none is the smallest."""
    run = read_run(engine.store, run_id)
    stub = read_stub(engine.store, run_id) if run is None else None
    if run is not None:
        return run, None, (run.generation, int(run.ended), run.events)
    return None, stub, (stub.generation, 0, stub.n) if stub else (0, 0, 0)


def _back(engine: Engine, row: ArchivedRun, told: Recovery) -> None:
    """One run that has not ended as far as the archive knows."""
    run, _, mine = _stands(engine, row.run_id)
    if mine >= (row.generation, 0, row.n):
        if run is not None and not told.dry_run:
            stand_up(engine, row.run_id)  # a recovery before this one may have died after it was back
        return
    if not told.dry_run and not _brought(engine, row.run_id, told):
        return
    if not told.dry_run and engine.store.expire_idle(row.run_id)[0] == "OK":
        told.expired += 1
    else:
        told.restored += 1


def _overtaken(engine: Engine, met: set[str]) -> Iterator[str]:
    """Runs and stubs of an old backup that had ended since, or were erased."""
    parked = chain.from_iterable(stub_pages(engine.store, partition) for partition in range(engine.store.partitions))
    everything = chain(sorted(met), (stub.run_id for page in parked for stub in page))
    while some := list(islice(everything, _PAGE)):
        for run_id, place in engine.archive.open().positions(some).items():
            if place.terminal and _stands(engine, run_id)[2] < place.order:
                yield run_id


def _ended(engine: Engine, run_id: str, told: Recovery) -> None:
    """What the archive has of its end becomes its record; what was erased goes again."""
    if not told.dry_run and not _brought(engine, run_id, told):
        run = read_run(engine.store, run_id)
        if run is None or engine.archive.open().get(run_id) is not None:
            return
        engine.poke(engine.store.drop_run(run_id, generation=run.generation, at_event=run.events).pokes)
    told.finished += 1


def _brought(engine: Engine, run_id: str, told: Recovery) -> bool:
    """Put what the archive knows of a run into the place of what the store has of it; whether it is there now."""
    row = engine.archive.open().get(run_id, with_snapshot=True)
    if row is None:
        return False
    snapshot = open_snapshot(row)
    parent = snapshot.fields.get("up", "").partition(";")[0]
    if parent and read_run(engine.store, parent) is None and (above := engine.archive.open().get(parent)) and not above.is_terminal:
        _back(engine, above, told)  # whoever meets a child without its parent ends it
    run, stub, _ = _stands(engine, run_id)
    if stub is not None:
        word, pokes = wake(engine, run_id)
        engine.poke(pokes)
        return word == "OK"
    if run is not None:
        dropped = engine.store.drop_run(run_id, generation=run.generation, at_event=run.events)
        engine.poke(dropped.pokes)
        if dropped.word == "CHANGED":
            raise ConductorError("it moved while its newer copy was to take its place; recover again")
    back = engine.store.restore(snapshot)
    engine.poke(back.pokes)
    if back.word == "TORN":
        raise ConductorError(f"what stands under its keys is not its snapshot at event {snapshot.n}; recover again")
    stand_up(engine, run_id)
    return back.word == "OK"


def _keys(engine: Engine, told: Recovery) -> None:
    """A run that has ended holds its idempotency key for some days more: who asks again must not start it again."""
    now = read_now(engine.store)
    since = now - int(engine.settings.key_retention_days * 86_400_000)
    for page in engine.archive.open().keyed(ended_since_ms=max(0, since), unreadable=told.failed):
        for row in page:
            _guarded(told, row.run_id, partial(_key, engine, row, now, told))


def _key(engine: Engine, row: ArchivedRun, now: int, told: Recovery) -> None:
    full = engine.archive.open().get(row.run_id, with_snapshot=True)
    if full is None or told.dry_run:
        return
    run = open_snapshot(full).fields
    left = int(run.get("e") or 0) + int(run.get("kr") or 0) - now
    if left > 0 and run.get("k"):
        lane = f"@{run['ln']}" if run.get("ln") else ""
        engine.store.keep_key(row.run_id, f"{run['w']}{lane}:{run['k']}", run.get("kd", ""), left)


def _log(told: Recovery) -> None:
    moved: Iterable[int] = (told.recovered, told.restored, told.expired, told.finished, len(told.errors))
    level = logging.INFO if any(moved) else logging.DEBUG
    logger.log(
        level, "recovery%s: %d recovered, %d restored from the archive, %d expired, %d finished, %d skipped, %d errors, epoch %d",
        " (dry run)" if told.dry_run else "", told.recovered, told.restored, told.expired, told.finished, told.skipped, len(told.errors),
        told.epoch,
    )
