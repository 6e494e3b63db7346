"""Which runs a text names: an id, the beginning of one, or `last`. The command line and HTTP read names in the same way.

Authority: the store; an id that it does not have is looked for among parked runs and in the archive. What belongs to a session that the
caller does not see has no name for that caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from conductor.archive import ArchiveFilter
from conductor.errors import BadInput, UnknownRun
from conductor.ids import is_run_id
from conductor.runs.archived import archived_row
from conductor.store.listing import Ambiguous, Filter, find_run_by_prefix, list_runs
from conductor.store.reads import read_session
from conductor.store.stubs import read_stub

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["NEWEST", "runs_named", "seen"]

NEWEST = "last"
_SEVERAL = 4


def runs_named(engine: Engine, text: str, *, within: frozenset[str] | None = None) -> list[str]:
    """The run that a text names, or several if it is the beginning of more than one id. UnknownRun if it names none."""
    found = _newest(engine, within) if text == NEWEST else seen(engine, _beginning(engine, text), within)
    if not found:
        raise UnknownRun(run_id=text, namespace=engine.store.namespace)
    return found


def seen(engine: Engine, ids: Iterable[str], within: frozenset[str] | None) -> list[str]:
    """Those that belong to one of these sessions; None is everybody's."""
    return list(ids) if within is None else [run_id for run_id in ids if _session(engine, run_id) in within]


def _newest(engine: Engine, within: frozenset[str] | None) -> list[str]:
    return [run.run_id for run in list_runs(engine.store, Filter(sessions=within), limit=1).runs]


def _beginning(engine: Engine, text: str) -> Sequence[str]:
    try:
        found = find_run_by_prefix(engine.store, text)
    except Ambiguous as several:
        return several.found
    except ValueError as problem:
        raise BadInput(what="name of a run", field="run", problem=str(problem)) from None
    return [found] if found else _elsewhere(engine, text)


def _elsewhere(engine: Engine, text: str) -> list[str]:
    """Runs that are parked, or that only the archive has."""
    if is_run_id(text) and read_stub(engine.store, text) is not None:
        return [text]
    if not engine.archive.configured:
        return []
    page = engine.archive.open().search(ArchiveFilter(run_id_prefix=text.strip().lower()), limit=_SEVERAL)
    return [run.run_id for run in page.runs]


def _session(engine: Engine, run_id: str) -> str | None:
    session = read_session(engine.store, run_id)
    if session is None and (row := archived_row(engine, run_id)) is not None:
        return row.session
    return session
