"""Lists in which parked runs stand among the others: those of the store, and those that only their rows in the archive describe.

Which runs are parked the store says: a row of a run that is back, or was cancelled meanwhile, is an old one. Both lists are in the same
order (created, id), so a page and its cursor mean the same in both: a page shows what is above the place down to which both were looked at.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from conductor.archive import ArchivedRun, ArchiveFilter, Kind
from conductor.runs.archiving import open_snapshot
from conductor.store.listing import Filter, Page, list_runs, read_cursor
from conductor.store.reads import RunRecord, as_dict, read_graph
from conductor.store.sifting import is_of_kind, last_errors, waiting_for
from conductor.store.stubs import read_stubs

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["list_with_parked"]

_PAGES, _ROWS = 20, 200

_Place = tuple[int, str]


def list_with_parked(engine: Engine, wanted: Filter, *, cursor: str = "", limit: int = 50, look_at_most: int = 20_000) -> Page:
    """The newest runs that match, parked ones included where there is an archive."""
    page = list_runs(engine.store, wanted, cursor=cursor, limit=limit, look_at_most=look_at_most)
    if not engine.archive.configured:
        return page
    stop = read_cursor(page.cursor)
    parked, reached = _parked(engine, wanted, read_cursor(cursor), stop, limit)
    floor = max((place for place in (stop, reached) if place is not None), default=None)
    both = sorted([*page.runs, *parked], key=_place, reverse=True)
    merged = [run for run in both if floor is None or _place(run) >= floor]
    end = _place(merged[limit - 1]) if len(merged) > limit else floor
    return Page(tuple(merged[:limit]), "" if end is None else f"{end[0]}-{end[1]}")


def _place(run: RunRecord) -> _Place:
    return run.created_at, run.run_id


def _parked(
    engine: Engine, wanted: Filter, before: _Place | None, stop: _Place | None, limit: int
) -> tuple[list[RunRecord], _Place | None]:
    """Parked runs that match, and how far was looked; None: to the end, or to where the list of the store stopped."""
    until = min(before[0] + 1 if before else 2**62, wanted.until + 1 if wanted.until else 2**62)
    by = ArchiveFilter(
        workflow=wanted.workflow, key=wanted.key, session=wanted.session, tag=wanted.tag, kinds=(Kind.PARKED,), version=wanted.version,
        created_since_ms=wanted.since or None, created_until_ms=until,
        sessions=None if wanted.sessions is None else tuple(sorted(wanted.sessions)),
    )
    cursor, found, place = None, list[RunRecord](), before
    for _ in range(_PAGES):
        page = engine.archive.open().search(by, limit=_ROWS, cursor=cursor)
        stubs = read_stubs(engine.store, [row.run_id for row in page.runs])
        for row in page.runs:
            place = (row.created_at_ms, row.run_id)
            if stop is not None and place < stop:
                return found, None
            stub = stubs.get(row.run_id)
            if stub is None or stub.n != row.n or (before is not None and place >= before):
                continue
            run = _record(row, stub.as_run())
            if _is_wanted(engine, wanted, row, run):
                found.append(run)
                if len(found) == limit:
                    return found, place
        cursor = page.cursor
        if cursor is None:
            return found, None
    return found, place


def _record(row: ArchivedRun, stub: RunRecord) -> RunRecord:
    """What the stub says, with what only the row knows."""
    return replace(stub, session=row.session, tags=row.tags, progress_at=row.moved_at_ms)


def _is_wanted(engine: Engine, wanted: Filter, row: ArchivedRun, run: RunRecord) -> bool:
    """The same questions as to a run of the store; what the store has no more of, the row answers."""
    if not wanted.matches(run) or (wanted.waiting_for and not waiting_for(engine.store, run, wanted.waiting_for)):
        return False
    if wanted.step and wanted.step not in row.failed_steps:
        graph = read_graph(engine.store, run.partition, run.graph)
        if wanted.step not in {graph.nodes[index].name for index in run.waiting}:
            return False
    return not wanted.error_kind or _has_met(engine, row, wanted.error_kind)


def _has_met(engine: Engine, row: ArchivedRun, kind: str) -> bool:
    """A parked run waits, so what has failed of it failed for good, and the rest of it went on."""
    whole = engine.archive.open().get(row.run_id, with_snapshot=True) if row.failed_steps else None
    if whole is None:
        return False
    snapshot = open_snapshot(whole)
    pairs = snapshot.keys.get("err", [])
    errors = dict(zip(pairs[::2], pairs[1::2], strict=True))
    failed = {snapshot.graph.index_of(name) for name in row.failed_steps}
    last = last_errors(errors)
    return any(is_of_kind(as_dict(errors[name]), kind) for (index, _), (_, name) in last.items() if index in failed)
