"""The history of a run in pages, wherever the run is: in the store, parked, or in the archive only.

Authority: the store if it has the run, else the row that its stub names, else the row. An ended run says so (`end`) on the page that holds
its last event, and only if nothing has reopened it while the page was read; a run that is parked never does: what was said to it meanwhile
becomes events when it is back. Reading wakes nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from conductor import log
from conductor.archive import ArchivedRun
from conductor.errors import ArchivedRunCorrupt
from conductor.ids import is_run_id, partition_of
from conductor.runs.archived import archived_row
from conductor.runs.archiving import open_snapshot
from conductor.runs.around import worker_names
from conductor.state import RUN, RunState, terminal
from conductor.store.following import LogPage, read_log
from conductor.store.reads import read_graph
from conductor.store.stubs import Stub, read_stub

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["End", "Histories", "HistoryPage"]

_ENDED = terminal(RUN)
_ROWS = 4  # logs from the archive that are kept: each is read whole
_TAGS = 1000


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended, and in which generation."""

    state: str
    reason: str
    generation: int

    def to_json(self) -> dict[str, Any]:
        return {"state": self.state, "reason": self.reason, "generation": self.generation}


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Events as others see them; `total` is how many the run has, `end` how it ended if the last of them is on this page."""

    session: str
    total: int
    events: tuple[dict[str, Any], ...]
    end: End | None = None


@dataclass(frozen=True, slots=True)
class _Row:
    """The log of a run as a row has it."""

    n: int
    generation: int
    names: Mapping[int, str]
    entries: Sequence[str]


class Histories:
    """Reads histories, from any thread; keeps what is dear to read: names of workers, and the last few logs from the archive."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._workers: dict[str, str] = {}
        self._rows: OrderedDict[str, _Row] = OrderedDict()

    def page(self, run_id: str, after: int = 0, limit: int = 100) -> HistoryPage | None:
        """The events behind number `after`, at most `limit`; None if nobody knows the run."""
        if not is_run_id(run_id):
            return None
        found = read_log(self._engine.store, run_id, after, limit)
        if found is not None:
            return self._of_store(run_id, found, after, limit)
        stub = read_stub(self._engine.store, run_id)
        row = archived_row(self._engine, run_id)
        if stub is not None and (row is None or row.n != stub.n):  # its row is missing: the run is known, its history is not
            return HistoryPage(row.session if row else "", stub.n, ())
        return None if row is None else self._of_archive(row, stub, after, limit)

    def _of_store(self, run_id: str, found: LogPage, after: int, limit: int) -> HistoryPage:
        try:
            graph = read_graph(self._engine.store, partition_of(run_id), found.graph)
            names = {node.index: node.name for node in graph.nodes} if found.entries else {}
        except LookupError:  # purged while it was read
            names = {}
        last = found.settled and RunState(found.state) in _ENDED and len(found.entries) < limit and after <= found.total
        end = End(found.state, found.reason, found.generation) if last else None
        return HistoryPage(found.session, found.total, self._told(found.entries, after, names), end)

    def _of_archive(self, row: ArchivedRun, stub: Stub | None, after: int, limit: int) -> HistoryPage:
        kept = self._row(row)
        entries = kept.entries[after : after + limit]
        last = stub is None and row.is_terminal and len(entries) < limit and after <= kept.n
        end = End(str(row.state), row.reason, row.generation) if last else None
        return HistoryPage(row.session, kept.n, self._told(entries, after, kept.names), end)

    def _row(self, row: ArchivedRun) -> _Row:
        with self._lock:
            known = self._rows.get(row.run_id)
            if known is not None and (known.n, known.generation) == (row.n, row.generation):
                self._rows.move_to_end(row.run_id)
                return known
        whole = archived_row(self._engine, row.run_id, with_snapshot=True) or row
        try:
            snapshot = open_snapshot(whole)
        except (ValueError, KeyError, TypeError, AssertionError) as problem:
            raise ArchivedRunCorrupt(run_id=row.run_id, prefix="archive", problem=str(problem)) from problem
        names = {node.index: node.name for node in snapshot.graph.nodes}
        made = _Row(snapshot.n, whole.generation, names, snapshot.keys.get("log", []))
        with self._lock:
            self._rows[row.run_id] = made
            while len(self._rows) > _ROWS:
                self._rows.popitem(last=False)
        return made

    def _told(self, entries: Sequence[str], after: int, names: Mapping[int, str]) -> tuple[dict[str, Any], ...]:
        events = list(_parsed(entries, after))
        self._learn({event.worker for event in events if isinstance(event, log.Event) and event.worker})
        return tuple(self._as_json(event, names) for event in events)

    def _as_json(self, event: log.Event | dict[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
        if isinstance(event, dict):
            return event
        named = replace(event, worker=self._workers.get(event.worker, event.worker)) if event.worker else event
        return named.to_json(names)

    def _learn(self, tags: set[str]) -> None:
        """The names of workers that were not met before."""
        if fresh := tags - self._workers.keys():
            if len(self._workers) > _TAGS:
                self._workers = {}
            self._workers |= worker_names(self._engine.store, fresh)


def _parsed(entries: Sequence[str], after: int) -> Iterator[log.Event | dict[str, Any]]:
    """An entry of a later release is shown as it stands: it must not hide the others."""
    for number, entry in enumerate(entries, after + 1):
        try:
            yield log.parse(number, entry)
        except log.UnreadableEntry:
            at = entry.split(";", 2)[1:2]
            yield {"number": number, "kind": "unreadable", "at": int(at[0]) if at and at[0].isdigit() else 0, "entry": entry[:200]}
