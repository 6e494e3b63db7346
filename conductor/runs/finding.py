"""Finding runs by every filter: the one list that the command line, HTTP, batches and tasks show.

What a page costs does not depend on how many runs there are: runs are read from the newest on, states that few runs are in from their own
index, and a page looks at a bounded number of runs. A rare filter may so find a short page, even an empty one, and a cursor to go on from.
Parked runs stand among the others; what only the archive has is listed apart (`archived`), by what rows are found by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conductor.archive import ArchiveFilter
from conductor.errors import ArchiveUnreachable, BadInput, NoArchive
from conductor.idleness import Waiter, active_waiters
from conductor.runs.archived import row_summary
from conductor.runs.around import concerning, read_holds, read_starts
from conductor.runs.cursors import read_cursor, signed
from conductor.runs.filters import Where
from conductor.runs.listing import list_with_parked
from conductor.runs.read import summary
from conductor.store.listing import Page, list_runs
from conductor.store.reads import RunRecord, read_graph, read_now
from conductor.store.sifting import ERROR_WORDS

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["MOST", "Found", "Where", "find", "page_of", "rows_of"]

MOST = 10_000
_ARCHIVE_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of runs, newest first. With a `cursor` there may be more. `warning` says what could not be asked."""

    rows: list[dict[str, Any]]
    cursor: str = ""
    now: int = 0
    warning: str = ""


def find(engine: Engine, where: Where, *, cursor: str = "", limit: int = 50, within: frozenset[str] | None = None) -> Found:
    """A page of the runs that match; with `within` only those of these sessions. While the archive is away, parked ones are left out."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST:
        raise BadInput(what="list of runs", field="limit", problem=f"{str(limit)[:40]} is not from 1 to {MOST}")
    now = read_now(engine.store)
    if where.archived:
        return _archived(engine, where, now, cursor=cursor, limit=limit, within=within)
    wanted, place, warning = where.to_filter(now, within), read_cursor(engine, where.to_json(), within, cursor), ""
    try:
        page = list_with_parked(engine, wanted, cursor=place, limit=limit)
    except ArchiveUnreachable as error:
        warning = f"parked runs are left out: {error}"
        page = list_runs(engine.store, wanted, cursor=place, limit=limit)
    return Found(rows_of(engine, page.runs, now), signed(engine, where.to_json(), within, page.cursor), now, warning)


def rows_of(engine: Engine, runs: Sequence[RunRecord], now: int) -> list[dict[str, Any]]:
    """The rows of several runs, with what holds them, when they begin and what they wait for."""
    held, starts = _held(engine, runs), read_starts(engine.store, runs)
    return [
        summary(run, now, starts_at=starts.get(run.run_id, 0), held=held[run.run_id], waiters=_waiters(engine, run)) for run in runs
    ]


def _held(engine: Engine, runs: Sequence[RunRecord]) -> dict[str, list[str]]:
    """Which paused scopes concern each run of a page. Graphs are asked for only while something is paused."""
    store, holds = engine.store, read_holds(engine.store)
    live = {run.run_id: run for run in runs if holds and not run.ended}
    return {run.run_id: [] for run in runs} | {
        run_id: concerning(holds, run, read_graph(store, run.partition, run.graph)) for run_id, run in live.items()
    }


def _waiters(engine: Engine, run: RunRecord) -> tuple[Waiter, ...]:
    """What a run waits for; its graph is read only if there is something."""
    return active_waiters(run, read_graph(engine.store, run.partition, run.graph)) if run.waiting and not run.ended else ()


def _archived(engine: Engine, where: Where, now: int, *, cursor: str, limit: int, within: frozenset[str] | None) -> Found:
    if not engine.archive.configured:
        raise NoArchive
    if where.lane:
        raise BadInput(what="filter", field="lane", problem="the archive does not keep lanes; leave it out, or leave out archived")
    if where.error_kind in ERROR_WORDS:
        problem = f"the archive keeps the class of an error, such as CardError, not whether it was {where.error_kind}"
        raise BadInput(what="filter", field="error_kind", problem=problem)
    by = ArchiveFilter(
        workflow=where.workflow, states=tuple(sorted(where.status)), key=where.key, session=where.session, tag=where.tag,
        version=where.version, step=where.step, error_kind=where.error_kind.rpartition(".")[2], waiting_for=where.waiting_for,
        created_since_ms=where.since, created_until_ms=None if where.until is None else where.until + 1, idle=where.idle,
        now_ms=now,
        idle_longer_than_ms=None if where.idle_duration_gt is None else int(where.idle_duration_gt * 1000),
        sessions=None if within is None else tuple(sorted(within)),
    )
    page = engine.archive.open().search(by, limit=min(limit, _ARCHIVE_PAGE), cursor=cursor or None)
    return Found([row_summary(row, now) for row in page.runs], page.cursor or "", now)


def page_of(engine: Engine, where: Where, *, at: int, place: str, limit: int, within: frozenset[str] | None, look_at_most: int) -> Page:
    """The same page as records, for whoever acts on them: what is idle is judged at `at`, and an archive that is away is an error."""
    return list_with_parked(engine, where.to_filter(at, within), cursor=place, limit=limit, look_at_most=look_at_most)
