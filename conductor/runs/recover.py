"""Recovery: after a restart the indexes say what the records say; after a loss the runs come back that the archive had seen.

Authority: the store. Where it has a run, its record counts and the indexes follow it, run by run, in one script each, beside live
workers. Where it has none, the archive is asked only if the store was wiped (it has no epoch, and the archive has seen one) or if a person
says that an old backup was restored: otherwise a run that is not there was purged, and must not come back. What differs then is decided by
the greater (generation, event number); what has ended beats what has not.

Races: two recoveries at once do the same work twice; a run is visible only by the last script of its restoring, which refuses if it is
there.
Failure: a record that cannot be read is told and left; it never stops the others. A recovery that dies is called again.

Work after the moment of the checkpoint is repeated: what stood under a lease is taken from its holder by the stall sweep as from any lost
worker, so effects are verified before they are repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from conductor.archive import ArchivedRun, Kind
from conductor.errors import ArchiveRefused, ArchiveUnreachable, ConductorError, StoreUnreachable
from conductor.ids import is_run_id
from conductor.runs.archiving import open_snapshot
from conductor.runs.mend import mend
from conductor.store.indexes import record_ids, record_places
from conductor.store.notices import Unreachable
from conductor.store.reads import RunRecord, read_run, read_runs
from conductor.store.snapshots import Snapshot

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["Recovery", "recover", "recover_at_start"]

logger = logging.getLogger(__name__)

_NOTED, _LATELY_MS = "recover", 60_000
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
    met = _from_records(engine, told)
    if engine.archive.configured:
        _from_archive(engine, told, met, restored=restored)
    _log(told)
    return told


def recover_at_start(engine: Engine) -> Recovery | None:
    """What a process does when it starts: recover, unless another did a minute ago. What goes wrong is told and stops no start."""
    if not engine.settings.recovery_enabled:
        return None
    try:
        last, now = engine.store.last_sweeps()
        if 0 <= now - last.get(_NOTED, 0) < _LATELY_MS:
            return None
        engine.store.swept(_NOTED)
        return recover(engine)
    except Exception as error:
        logger.warning("recovery did not run, `conductor recover` runs it again: %s: %s", type(error).__name__, error)
        return None


def _from_records(engine: Engine, told: Recovery) -> set[str]:
    """Every run that the store has a record of; gives those that have not ended."""
    live: set[str] = set()
    for page in _recorded(engine):
        try:
            suspects = _suspects(engine, page, live, told)
        except _STOPS:
            raise
        except Exception:  # one of them cannot be read: each by itself then
            suspects = page
        for run_id in suspects:
            try:
                if _one(engine, run_id, told):
                    live.add(run_id)
            except _STOPS:
                raise
            except Exception as error:
                told.failed(run_id, error)
    return live


def _recorded(engine: Engine) -> Iterator[list[str]]:
    """The ids of all records, from the keys themselves: an index may be what was lost."""
    seen: set[str] = set()
    for page in record_ids(engine.store):
        fresh = [run_id for run_id in page if is_run_id(run_id) and run_id not in seen]
        seen.update(fresh)
        yield fresh


def _suspects(engine: Engine, run_ids: list[str], live: set[str], told: Recovery) -> list[str]:
    """Those of some runs whose indexes may not say what their records say: nearly always none, in two round trips."""
    runs = [run for run in read_runs(engine.store, run_ids) if run is not None]
    places = record_places(engine.store, runs)
    suspects = [run.run_id for run, place in zip(runs, places, strict=True) if not place.fits]
    fine = {run.run_id for run in runs} - set(suspects)
    told.skipped += len(fine)
    told.consent_kept += sum(place.has_consent for run, place in zip(runs, places, strict=True) if run.run_id in fine and not run.ended)
    live |= {run.run_id for run in runs if run.run_id in fine and not run.ended}
    return suspects


def _one(engine: Engine, run_id: str, told: Recovery) -> bool:
    """Put one run into its indexes; whether it lives."""
    run = read_run(engine.store, run_id)
    if run is None:
        return False
    word = engine.store.recover_run(run_id, dry=told.dry_run)
    if word == "FINISHED":
        told.finished += 1
        return False
    if word == "RECOVERED":
        if not told.dry_run:
            _stand_up(engine, run)
        if not told.dry_run and engine.store.expire_idle(run_id)[0] == "OK":
            told.expired += 1  # an orphan whose time was over is not brought back to wait on
            return False
        told.recovered += 1
    else:
        told.skipped += 1
    told.consent_kept += bool(not run.ended and engine.store.client().hexists(engine.store.keys.run(run_id), "bl"))
    return not run.ended


def _stand_up(engine: Engine, run: RunRecord) -> None:
    """Derive from its records where its steps belong."""
    fresh = read_run(engine.store, run.run_id)
    if fresh is not None and not fresh.ended:
        mend(engine, fresh)


def _from_archive(engine: Engine, told: Recovery, live: set[str], *, restored: bool) -> None:
    archive = engine.archive.open()
    told.moments = {moment.partition: moment.shipped_ms for moment in archive.moments()}
    seen = archive.epoch()
    told.wiped = not told.epoch and seen > 0
    if told.wiped or restored:
        pages = archive.unfinished(kinds=(Kind.CHECKPOINT, Kind.PARKED), unreadable=told.failed)
        for row in (row for page in pages for row in page):
            _back(engine, row, told)
    if restored:
        for run_id in sorted(live):
            _overtaken(engine, run_id, told)
    if not told.dry_run and (told.wiped or restored or not told.epoch):
        told.epoch = max(told.epoch, seen) + 1
        engine.store.set_epoch(told.epoch)


def _back(engine: Engine, row: ArchivedRun, told: Recovery) -> None:
    """One run that has not ended as far as the archive knows."""
    try:
        run = read_run(engine.store, row.run_id)
        if run is not None and (run.ended or (run.generation, run.events) >= (row.generation, row.n)):
            if not run.ended and not told.dry_run:
                _stand_up(engine, run)  # a recovery before this one may have died after it was back
            return
        if not told.dry_run:
            _restore(engine, row.run_id, told, replaces=run)
        if not told.dry_run and engine.store.expire_idle(row.run_id)[0] == "OK":
            told.expired += 1
        else:
            told.restored += 1
    except _STOPS:
        raise
    except Exception as error:
        told.failed(row.run_id, error)


def _overtaken(engine: Engine, run_id: str, told: Recovery) -> None:
    """A run that lives in an old backup and had ended since: its row says how."""
    try:
        run, row = read_run(engine.store, run_id), engine.archive.open().get(run_id)
        if run is None or row is None or not row.is_terminal or row.generation < run.generation:
            return
        if not told.dry_run:
            engine.store.cancel(run_id, reason="restored_from_backup", actor="recover")
            engine.store.purge(run_id)
            engine.store.forget_entries(run_id)
        told.finished += 1
    except _STOPS:
        raise
    except Exception as error:
        told.failed(run_id, error)


def _restore(engine: Engine, run_id: str, told: Recovery, *, replaces: RunRecord | None) -> None:
    row = engine.archive.open().get(run_id, with_snapshot=True)
    if row is None:
        return
    snapshot: Snapshot = open_snapshot(row)
    parent = snapshot.fields.get("up", "").partition(";")[0]
    if parent and read_run(engine.store, parent) is None and (above := engine.archive.open().get(parent)) and not above.is_terminal:
        _back(engine, above, told)  # whoever meets a child without its parent ends it
    if replaces is not None:
        engine.store.cancel(run_id, reason="restored_from_backup", actor="recover")
        engine.store.purge(run_id)
        engine.store.forget_entries(run_id)
    word = engine.store.restore(snapshot).word
    if word == "TORN":
        raise ConductorError(f"the log of its snapshot at event {snapshot.n} is not whole")
    if (run := read_run(engine.store, run_id)) is not None:
        _stand_up(engine, run)


def _log(told: Recovery) -> None:
    moved: Iterable[int] = (told.recovered, told.restored, told.expired, told.finished, len(told.errors))
    level = logging.INFO if any(moved) else logging.DEBUG
    logger.log(
        level, "recovery%s: %d recovered, %d restored from the archive, %d expired, %d finished, %d skipped, %d errors, epoch %d",
        " (dry run)" if told.dry_run else "", told.recovered, told.restored, told.expired, told.finished, told.skipped, len(told.errors),
        told.epoch,
    )
