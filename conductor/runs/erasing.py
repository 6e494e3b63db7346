"""Erasing: an ended run with everything it left, in the store, in the archive and among the blobs, and with all that it has called.

Order: what it has called first, because only the run says which that is; then the store, then the row, then the blobs. A process that dies
in between leaves something that nobody refers to, and the same call finds it again: a blank row keeps a slow shipper from bringing an
erased run back, and blobs without a run are found by their age.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from conductor import codec
from conductor.archive import ArchiveFilter
from conductor.blobs import FileBlobs
from conductor.errors import ArchivedRunCorrupt, ArchiveFormatUnknown, BadInput, UnknownRun
from conductor.ids import is_run_id, partition_of
from conductor.runs.archiving import blobs_of, open_snapshot
from conductor.runs.parking import wake
from conductor.state import RunState
from conductor.store.copying import Restless, read_snapshot
from conductor.store.listing import Filter, list_runs
from conductor.store.operations import operations_by_time
from conductor.store.reads import RunRecord, read_now, read_run, read_runs
from conductor.store.snapshots import Snapshot
from conductor.store.stubs import read_stub

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = [
    "Erased", "drop_orphan_blobs", "erase_named", "erase_run", "erase_session", "marked_runs", "purge_but_blobs", "purge_run",
]

_AT_ONCE, _SHOWN = 1000, 20


def purge_run(engine: Engine, run_id: str, *, key: str = "") -> bool:
    """Delete an ended run from the store, and its blobs; with `key` also the idempotency key it was started under. Whether it was there."""
    left = purge_but_blobs(engine, run_id, key=key)
    codec.drop_blobs(left or ())
    return left is not None


def purge_but_blobs(engine: Engine, run_id: str, *, due_only: bool = False, key: str = "") -> tuple[str, ...] | None:
    """Delete an ended run from the store; gives the names of the blobs that this leaves to the caller, None if nothing was deleted."""
    try:
        found = read_snapshot(engine.store, run_id) if codec.has_blobs() else None
    except Restless:
        return None  # it has not ended
    if engine.store.purge(run_id, due_only=due_only, at_event=found.n if found else None, key=key).word != "OK":
        return None
    return blobs_of(found) if found else ()


def erase_run(engine: Engine, run_id: str, erased: set[str] | None = None) -> bool:
    """Delete a run everywhere, and all that it has called, child runs and operations, with what those have called. Whether there was
    something to delete; a run that has not ended is left as it is (False). Of several in one go, `erased` remembers which went."""
    erased = set() if erased is None else erased
    if run_id in erased:
        return True
    stub = read_stub(engine.store, run_id)
    if stub is not None:
        if stub.state is not RunState.CANCELLED:
            return False
        wake(engine, run_id)  # its record comes back as cancelled, and goes with everything else
    run = read_run(engine.store, run_id)
    if run is not None and not run.ended:
        return False
    copy = _archived(engine, run_id)
    for below in _called(engine, run_id, copy):  # first, while the run still says which they are
        engine.poke(engine.store.cancel(below, reason="run_ended", actor="engine").pokes)  # its run has ended: it would soon end with it
        erase_run(engine, below, erased)
    fields = {"w": run.workflow, "ln": run.lane, "k": run.key} if run is not None else copy.fields if copy is not None else {}
    gone = purge_run(engine, run_id, key=_key(fields))
    if engine.archive.configured and not engine.store.client().exists(engine.store.keys.run(run_id)):
        rows = engine.archive.open().purge_matching(at_ms=read_now(engine.store), run_id=run_id)
        codec.drop_blobs(name for one in rows for name in one.blobs)
        gone = gone or bool(rows)
    if gone:
        erased.add(run_id)
    return gone


def _archived(engine: Engine, run_id: str) -> Snapshot | None:
    """What the archive has of it. A row that cannot be read is erased all the same."""
    if not engine.archive.configured:
        return None
    try:
        row = engine.archive.open().get(run_id, with_snapshot=True)
        return None if row is None else open_snapshot(row)
    except (ArchivedRunCorrupt, ArchiveFormatUnknown, ValueError, KeyError, TypeError):
        return None


def _called(engine: Engine, run_id: str, copy: Snapshot | None) -> list[str]:
    """Child runs and operations that were bound to a run."""
    found: set[str] = set()
    for tail in ("ops", "called"):
        found.update(map(str, engine.store.client().smembers(engine.store.keys.run(run_id, tail))))
        found.update(copy.keys.get(tail, ()) if copy is not None else ())
    return sorted(found)


def _key(fields: Mapping[str, str]) -> str:
    """The idempotency key of a run as its name in the store ends; empty if it had none."""
    if not fields.get("k"):
        return ""
    return f"{fields['w']}{'@' + fields['ln'] if fields.get('ln') else ''}:{fields['k']}"


def marked_runs(engine: Engine, *, tag: str = "", session: str = "") -> list[str]:
    """Every run with this tag or of this session, in the store or the archive; of a session also its operations."""
    found = dict.fromkeys(run.run_id for run in _in_store(engine, Filter(tag=tag, session=session)))
    if session:
        for page in operations_by_time(engine.store):
            found |= dict.fromkeys(run.run_id for run in read_runs(engine.store, page) if run is not None and run.session == session)
    if engine.archive.configured:
        wanted, cursor = ArchiveFilter(tag=tag, session=session), None
        while True:
            rows = engine.archive.open().search(wanted, limit=1000, cursor=cursor)
            found |= dict.fromkeys([*(row.run_id for row in rows.runs), *rows.unreadable])
            cursor = rows.cursor
            if cursor is None:
                break
    return list(found)


@dataclass(frozen=True, slots=True)
class Erased:
    """`found` were named, `purged` of them are gone, `kept` (some of them) had not ended or were not there; `more` were not looked at."""

    found: int
    purged: int
    kept: tuple[str, ...]
    examples: tuple[str, ...]
    more: bool
    dry_run: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"kept": list(self.kept), "examples": list(self.examples)}


def erase_named(engine: Engine, *, run_id: str = "", tag: str = "", session: str = "", dry_run: bool) -> Erased:
    """Erase one run, or those of a tag or of a session with everything else it owns, so many at once that a caller can wait for it."""
    if sum(map(bool, (run_id, tag, session))) != 1:
        raise BadInput(what="purge", field="run_id", problem="name one of: run_id, tag, session")
    if run_id and (not is_run_id(run_id) or partition_of(run_id) >= engine.store.partitions):
        raise UnknownRun(run_id=run_id, namespace=engine.store.namespace)
    found = [run_id] if run_id else marked_runs(engine, tag=tag, session=session)
    chosen = found[:_AT_ONCE]
    erased: set[str] = set()
    kept = () if dry_run else tuple(one for one in chosen if not erase_run(engine, one, erased))
    if session and not dry_run:
        erase_session(engine, session)
    gone = 0 if dry_run else len(chosen) - len(kept)
    return Erased(len(found), gone, kept[:_SHOWN], tuple(found[:_SHOWN]), len(found) > len(chosen), dry_run)


def _in_store(engine: Engine, wanted: Filter) -> Iterator[RunRecord]:
    cursor = ""
    while True:
        page = list_runs(engine.store, wanted, cursor=cursor, limit=500)
        yield from page.runs
        cursor = page.cursor
        if not cursor:
            return


def drop_orphan_blobs(engine: Engine, now: float, *, older_seconds: float = 86_400) -> int:
    """Delete old blobs whose run neither the store nor the archive has; tell how many. Only of a store that can list its blobs."""
    store = codec.blob_store()
    if not isinstance(store, FileBlobs):
        return 0
    store.drop_unfinished(now - older_seconds)
    by_run: dict[str, list[str]] = {}
    for blob in store.listing(f"{engine.store.namespace}/", before=now - older_seconds):
        by_run.setdefault(blob.name.split("/")[1], []).append(blob.name)
    gone = [names for run_id, names in by_run.items() if not _is_kept(engine, run_id)]
    codec.drop_blobs(name for names in gone for name in names)
    return sum(map(len, gone))


def _is_kept(engine: Engine, run_id: str) -> bool:
    if engine.store.client().exists(engine.store.keys.run(run_id)):
        return True
    return engine.archive.configured and engine.archive.open().get(run_id) is not None


def erase_session(engine: Engine, session: str) -> None:
    """What a session owns beside its runs: its inbox and its grants."""
    engine.store.erase_session(session)
