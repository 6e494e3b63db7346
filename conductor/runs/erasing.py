"""Erasing: an ended run with everything it left, in the store, in the archive and among the blobs.

Order: the store first, then the row, then the blobs. A process that dies in between leaves something that nobody refers to, and the same
call finds it again: a blank row keeps a slow shipper from bringing an erased run back, and blobs without a run are found by their age.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from conductor import codec
from conductor.archive import ArchiveFilter
from conductor.blobs import FileBlobs
from conductor.runs.archiving import blobs_of
from conductor.runs.parking import wake
from conductor.state import RunState
from conductor.store.copying import Restless, read_snapshot
from conductor.store.listing import Filter, list_runs
from conductor.store.operations import operations_by_time
from conductor.store.reads import RunRecord, read_now, read_runs
from conductor.store.stubs import read_stub

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["drop_orphan_blobs", "erase_run", "erase_session", "marked_runs", "purge_but_blobs", "purge_run"]


def purge_run(engine: Engine, run_id: str) -> bool:
    """Delete an ended run from the store, and its blobs. Whether it was there to be deleted."""
    left = purge_but_blobs(engine, run_id)
    codec.drop_blobs(left or ())
    return left is not None


def purge_but_blobs(engine: Engine, run_id: str, *, due_only: bool = False) -> tuple[str, ...] | None:
    """Delete an ended run from the store; gives the names of the blobs that this leaves to the caller, None if nothing was deleted."""
    try:
        found = read_snapshot(engine.store, run_id) if codec.has_blobs() else None
    except Restless:
        return None  # it has not ended
    if engine.store.purge(run_id, due_only=due_only, at_event=found.n if found else None).word != "OK":
        return None
    return blobs_of(found) if found else ()


def erase_run(engine: Engine, run_id: str) -> bool:
    """Delete a run everywhere. Whether there was something to delete; a run that has not ended is left as it is (False)."""
    stub = read_stub(engine.store, run_id)
    if stub is not None:
        if stub.state is not RunState.CANCELLED:
            return False
        wake(engine, run_id)  # its record comes back as cancelled, and goes with everything else
    purged = purge_run(engine, run_id)
    if not engine.archive.configured or engine.store.client().exists(engine.store.keys.run(run_id)):
        return purged
    gone = engine.archive.open().purge_matching(at_ms=read_now(engine.store), run_id=run_id)
    codec.drop_blobs(name for one in gone for name in one.blobs)
    return purged or bool(gone)


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
