"""Lists in which parked runs stand among the others: those of the store, and those that only their rows in the archive describe.

Which runs are parked the store says: a row of a run that is back, or was cancelled meanwhile, is an old one. Both lists are in the same
order (created, id), so a page and its cursor mean the same in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from conductor.archive import ArchivedRun, ArchiveFilter, Kind
from conductor.store.listing import Filter, Page, list_runs, read_cursor, waits_as_wanted
from conductor.store.reads import RunRecord
from conductor.store.stubs import read_stubs

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["list_with_parked"]

_PAGES, _ROWS = 20, 200

_Place = tuple[int, str]


def list_with_parked(engine: Engine, wanted: Filter, *, cursor: str = "", limit: int = 50) -> Page:
    """The newest runs that match, parked ones included where there is an archive."""
    page = list_runs(engine.store, wanted, cursor=cursor, limit=limit)
    if not engine.archive.configured:
        return page
    last = read_cursor(page.cursor)
    before = read_cursor(cursor)
    parked: list[RunRecord] = []
    for run in _parked(engine, wanted, before):
        if last is not None and (run.created_at, run.run_id) < last:
            break
        parked.append(run)
        if len(parked) == limit:
            break
    merged = sorted([*page.runs, *parked], key=lambda run: (run.created_at, run.run_id), reverse=True)
    shown = tuple(merged[:limit])
    more = page.cursor if len(merged) <= limit and len(parked) < limit else f"{shown[-1].created_at}-{shown[-1].run_id}"
    return Page(shown, more)


def _parked(engine: Engine, wanted: Filter, before: _Place | None) -> Iterator[RunRecord]:
    until = min(before[0] + 1 if before else 2**62, wanted.until + 1 if wanted.until else 2**62)
    by = ArchiveFilter(
        workflow=wanted.workflow, key=wanted.key, session=wanted.session, tag=wanted.tag, kinds=(Kind.PARKED,),
        created_since_ms=wanted.since or None, created_until_ms=until,
    )
    cursor = None
    for _ in range(_PAGES):
        found = engine.archive.open().search(by, limit=_ROWS, cursor=cursor)
        stubs = read_stubs(engine.store, [row.run_id for row in found.runs])
        for row in found.runs:
            stub = stubs.get(row.run_id)
            if stub is None or stub.n != row.n or (before is not None and (row.created_at_ms, row.run_id) >= before):
                continue
            run = _record(row, stub.as_run())
            if wanted.matches(run) and waits_as_wanted(engine.store, run, wanted):
                yield run
        cursor = found.cursor
        if cursor is None:
            return


def _record(row: ArchivedRun, stub: RunRecord) -> RunRecord:
    """What the stub says, with what only the row knows."""
    return replace(stub, session=row.session, tags=row.tags, progress_at=row.progress_at_ms)
