"""Bringing back an ended run that only the archive has, for those who go on from it: `retry` and `fork`.

Authority: the store. A row comes back only while the store has neither the run nor a stub of it, and only one that ended: what had not
ended and is not there was purged, or the store was wiped, and then recovery is asked. The copy stands like any ended run, under no key and
in no lane, for ten minutes at least; if nobody moves it by then the archive sweep takes it away again. Of two that bring it back the
second finds it there. Its row stays; the checkpoint of its next life overtakes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from conductor.errors import ArchivedRunCorrupt
from conductor.runs.archived import archived_row
from conductor.runs.archiving import open_snapshot
from conductor.store.reads import RunRecord, read_run, run_from_fields

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["returned"]


def returned(engine: Engine, run_id: str, wanted: Callable[[RunRecord], bool] = lambda run: True) -> RunRecord | None:
    """The record of an ended run from its row, None if it has none. It is back in the store if it is `wanted`."""
    row = archived_row(engine, run_id, with_snapshot=True)
    if row is None or not row.is_terminal:
        return None
    try:
        snapshot = open_snapshot(row)
        run = run_from_fields(run_id, snapshot.fields, snapshot.n)
    except (ValueError, KeyError, TypeError) as error:
        raise ArchivedRunCorrupt(run_id=run_id, prefix="archive", problem=str(error)) from error
    if not wanted(run):
        return run
    if engine.store.restore(snapshot).word == "TORN":
        problem = f"the log of its snapshot at event {snapshot.n} is not whole"
        raise ArchivedRunCorrupt(run_id=run_id, prefix="archive", problem=problem)
    return read_run(engine.store, run_id)
