"""The door: everything Conductor asks of SQL. Each method is one or more short transactions and may be repeated after any error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Self

from sqlalchemy import func, select

from conductor.archive.connecting import Connections
from conductor.archive.records import ArchivedRun, ArchiveFilter, ArchivePage, Erased, Examination, Kind, Moment, Position
from conductor.archive.rows import ERASED, Row, run_from
from conductor.archive.schema import newest_schema, prepare, schema_of
from conductor.archive.searching import Cursors, conditions, in_namespace
from conductor.archive.tables import facts, moments, runs
from conductor.archive.writing import erase, erase_expired, erase_marked, put_rows, rows_of, ship_moment, stayed
from conductor.errors import ArchivedRunCorrupt, ArchiveRefused, BadInput, ConductorError
from conductor.ids import is_run_id

__all__ = ["Archive"]

_MOST: Final = 1000  # runs of one page
_PLACES: Final = 500  # ids of one statement
_LISTED: Final = [column for column in runs.c if column is not runs.c.snapshot]

logger = logging.getLogger(__name__)


class Archive:
    """The archived runs of one namespace. One object serves all threads of a process and, after a fork, its children."""

    def __init__(self, connections: Connections, namespace: str, secret: str) -> None:
        self.namespace = namespace
        self._connections = connections
        self._cursors = Cursors(secret, namespace)

    @classmethod
    def open(cls, url: str, namespace: str) -> Self:
        """Connect, and make or bring forward the schema. `sqlite:////path/archive.db` or `postgresql://user:password@host/database`."""
        connections = Connections(url)
        try:
            prepare(connections)
            with connections.reading() as connection:
                secret = connection.scalar(select(facts.c.value).where(facts.c.name == "cursor_secret"))
            if secret is None:
                raise ArchiveRefused(
                    url=connections.url, problem="its fact cursor_secret is gone", remedy="bring back a backup of conductor_archive_facts"
                )
        except BaseException:
            connections.close()
            raise
        return cls(connections, namespace, secret)

    def close(self) -> None:
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The address, without credentials."""
        return self._connections.url

    # Writing.

    def put(self, archived: Iterable[ArchivedRun]) -> int:
        """Keep runs, all or none. Of all that was ever put under one id the greatest stays; tells how many of these were it and new."""
        rows = rows_of(archived, self.namespace)
        if not rows:
            return 0
        with self._connections.writing() as connection:
            return put_rows(connection, rows)

    def keep(self, archived: Iterable[ArchivedRun]) -> set[str]:
        """Put runs; tells which of them it has now as they were given (of one that has ended: as one that has), so that their source may
        let them go. A greater row of a history that the store has lost keeps its place."""
        rows = rows_of(archived, self.namespace)
        if not rows:
            return set()
        with self._connections.writing() as connection:
            put_rows(connection, rows)
            return stayed(connection, rows)

    def delete(self, run_ids: Iterable[str]) -> tuple[Erased, ...]:
        """Take runs out; they may be put again. Tells which were there."""
        return erase(self._connections, self.namespace, filter(is_run_id, run_ids))

    def purge(self, before_ms: int, *, at_most: int | None = None) -> tuple[Erased, ...]:
        """Take out what was to be kept until `before_ms` at most, some hundred in each transaction. Tells what went."""
        return erase_expired(self._connections, self.namespace, before_ms, at_most)

    def purge_matching(
        self, *, at_ms: int, run_id: str | None = None, tag: str | None = None, session: str | None = None
    ) -> tuple[Erased, ...]:
        """Erase by exactly one of id, tag and session. For a day from `at_ms` on, nothing that is put brings an erased run back."""
        given = {"run_id": run_id, "tag": tag, "session": session}
        named = [(by, value) for by, value in given.items() if value]
        if len(named) != 1 or "\0" in named[0][1]:
            raise BadInput(what="purge", field=", ".join(given), problem="exactly one of them is needed, neither empty nor with a NUL")
        return erase_marked(self._connections, self.namespace, *named[0], at_ms)

    # Reading.

    def get(self, run_id: str, *, with_snapshot: bool = False) -> ArchivedRun | None:
        """One run, or None. Its snapshot is given only if its format is known."""
        if not is_run_id(run_id):
            return None
        columns = [*runs.c] if with_snapshot else _LISTED
        query = select(*columns).where(in_namespace(self.namespace), runs.c.run_id == run_id)
        with self._connections.reading() as connection:
            row = connection.execute(query).mappings().one_or_none()
        return None if row is None else run_from(row)

    def search(self, wanted: ArchiveFilter | None = None, *, limit: int = 50, cursor: str | None = None) -> ArchivePage:
        """Some of the wanted runs, newest first and without snapshots, from where `cursor` stands."""
        wanted = wanted or ArchiveFilter()
        if not 1 <= limit <= _MOST:
            raise BadInput(what="search", field="limit", problem=f"{limit} is not between 1 and {_MOST}")
        holds = conditions(wanted, self.namespace)
        if cursor is not None:
            holds.append(self._cursors.behind(cursor, wanted))
        query = select(*_LISTED).where(*holds).order_by(runs.c.created_at_ms.desc(), runs.c.run_id.desc()).limit(limit + 1)
        rows = self._rows(query)
        bad: list[str] = []
        page = tuple(self._read(rows[:limit], lambda run_id, _: bad.append(run_id)))
        cursor = self._cursors.after(rows[limit - 1], wanted) if len(rows) > limit else None
        return ArchivePage(page, cursor, tuple(bad))

    def cursor_after(self, run: ArchivedRun, wanted: ArchiveFilter | None = None) -> str:
        """The cursor behind one run of a page, for a caller that used only the runs up to it (as one that mixes in runs of Redis)."""
        return self._cursors.after({"created_at_ms": run.created_at_ms, "run_id": run.run_id}, wanted or ArchiveFilter())

    def count(self, wanted: ArchiveFilter | None = None, *, at_most: int | None = None) -> int:
        """How many runs are wanted. With `at_most` the counting stops there."""
        some = select(runs.c.run_id).where(*conditions(wanted or ArchiveFilter(), self.namespace)).limit(at_most).subquery()
        with self._connections.reading() as connection:
            return int(connection.scalar(select(func.count()).select_from(some)) or 0)

    def unfinished(
        self, *, kinds: Iterable[str] = (Kind.PARKED, Kind.CHECKPOINT), after: str = "", page_size: int = 500,
        ending: str = "", unreadable: Callable[[str, Exception], object] | None = None,
    ) -> Iterator[tuple[ArchivedRun, ...]]:
        """Pages of the runs that have not ended, by id, without snapshots. After an error go on with `after`, the last id that was seen.
        `ending`: the last characters of the ids. A row that cannot be read is told to `unreadable`."""
        holds = [*conditions(ArchiveFilter(kinds=tuple(kinds)), self.namespace), runs.c.terminal == 0]
        if ending:
            holds.append(runs.c.run_id.endswith(ending, autoescape=True))
        return self._pages(holds, after, page_size, unreadable)

    def keyed(
        self, *, ended_since_ms: int, page_size: int = 500, unreadable: Callable[[str, Exception], object] | None = None,
    ) -> Iterator[tuple[ArchivedRun, ...]]:
        """Pages of the runs that ended since a moment and were started under a key."""
        holds = [*conditions(ArchiveFilter(ended_since_ms=ended_since_ms), self.namespace), runs.c.terminal == 1, runs.c.key != ""]
        return self._pages(holds, "", page_size, unreadable)

    def positions(self, run_ids: Sequence[str]) -> dict[str, Position]:
        """Where it stands with each of some runs that it has, erased ones included. Nothing else is read, so none is unreadable."""
        columns = (runs.c.run_id, runs.c.generation, runs.c.terminal, runs.c.n, runs.c.progress_at_ms, runs.c.kind)
        found: dict[str, Position] = {}
        for at in range(0, len(run_ids), _PLACES):
            which = (runs.c.namespace == self.namespace, runs.c.run_id.in_(list(run_ids[at : at + _PLACES])))
            with self._connections.reading() as connection:
                for run_id, generation, terminal, n, noted, kind in connection.execute(select(*columns).where(*which)):
                    found[run_id] = Position(generation, bool(terminal), n, noted, kind, kind == ERASED)
        return found

    def _pages(
        self, holds: Sequence[Any], after: str, page_size: int, unreadable: Callable[[str, Exception], object] | None,
    ) -> Iterator[tuple[ArchivedRun, ...]]:
        while True:
            rows = self._rows(select(*_LISTED).where(*holds, runs.c.run_id > after).order_by(runs.c.run_id).limit(page_size))
            if page := tuple(self._read(rows, unreadable)):
                yield page
            if len(rows) < page_size:
                return
            after = rows[-1]["run_id"]

    def _rows(self, query: Any) -> list[Row]:
        with self._connections.reading() as connection:
            return list(connection.execute(query).mappings())

    def _read(self, rows: Iterable[Row], unreadable: Callable[[str, Exception], object] | None) -> Iterator[ArchivedRun]:
        """Row by row: one that a newer release wrote, or that is damaged, must not hide the others."""
        for row in rows:
            try:
                yield run_from(row)
            except ArchivedRunCorrupt as error:
                logger.warning("left out: %s", error)
                if unreadable is not None:
                    unreadable(row["run_id"], error)

    # Moments.

    def ship(self, partition: int, epoch: int, at_ms: int) -> None:
        """Remember that all checkpoints of a partition up to `at_ms` are here. An older epoch or moment changes nothing."""
        with self._connections.writing() as connection:
            ship_moment(connection, {"namespace": self.namespace, "partition": partition, "epoch": epoch, "shipped_ms": at_ms})

    def moments(self) -> tuple[Moment, ...]:
        """Up to when each partition was shipped, by partition."""
        query = select(moments.c.partition, moments.c.epoch, moments.c.shipped_ms).where(moments.c.namespace == self.namespace)
        with self._connections.reading() as connection:
            return tuple(Moment(*row) for row in connection.execute(query.order_by(moments.c.partition)))

    def epoch(self) -> int:
        """The highest epoch of the store that anything was shipped in; 0: nothing was."""
        return max((moment.epoch for moment in self.moments()), default=0)

    # For doctor.

    def examine(self) -> Examination:
        """What can be said of the archive now. Never raises: what is wrong is part of the answer."""
        known = Examination(self.url, self._connections.dialect, False, self._connections.one_host, newest_schema=newest_schema())
        try:
            with self._connections.reading() as connection:
                server = ".".join(map(str, connection.dialect.server_version_info or ()))
                schema = schema_of(connection)
                counted = connection.execute(select(runs.c.kind, func.count()).where(in_namespace(self.namespace)).group_by(runs.c.kind))
                rows = {kind: int(number) for kind, number in counted}
        except ConductorError as error:
            return replace(known, problem=str(error))
        return replace(known, reachable=True, server=server, schema=schema, rows=tuple((kind, rows.get(kind, 0)) for kind in Kind))
