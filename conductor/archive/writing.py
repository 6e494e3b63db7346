"""The statements that write. Which row stays is decided in the statement, so no lock or order of calls is needed for it.

Within a transaction rows are written in the order of their ids, so that two batches that meet in the same runs wait instead of
deadlocking, and a run's row before its marks: the row's lock guards them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Connection, Insert, Table, and_, delete, insert, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from conductor.archive.connecting import Connections
from conductor.archive.records import ArchivedRun, Erased
from conductor.archive.rows import ERASED, PRECEDENCE, Row, erased_from, erased_row, mark_value, marks_of, to_row
from conductor.archive.tables import MARK_TAG, marks, moments, runs

__all__ = ["erase", "erase_expired", "erase_marked", "put_rows", "rows_of", "ship_moment", "stayed"]

T = TypeVar("T")
_BATCH: Final = 500  # rows of one transaction that deletes, ids of one statement
_DAY_MS: Final = 86_400_000


def rows_of(archived: Iterable[ArchivedRun], namespace: str) -> list[dict[str, Any]]:
    """The rows to put, by id, one for each run: a statement cannot decide twice about one row."""
    greatest: dict[str, dict[str, Any]] = {}
    for run in archived:
        row = to_row(run, namespace)
        known = greatest.get(run.run_id)
        if known is None or _precedence(row) > _precedence(known):
            greatest[run.run_id] = row
    return [greatest[run_id] for run_id in sorted(greatest)]


def put_rows(connection: Connection, rows: Sequence[dict[str, Any]]) -> int:
    """Write the rows that take precedence over what is there; tell how many did."""
    statement = _greater_stays(connection, runs, PRECEDENCE).returning(runs.c.run_id)
    written = {row.run_id for row in connection.execute(statement, rows)}
    if written:
        _unmark(connection, rows[0]["namespace"], sorted(written))
        if found := [mark for row in rows if row["run_id"] in written for mark in marks_of(row)]:
            connection.execute(insert(marks), found)
    return len(written)


def stayed(connection: Connection, rows: Sequence[dict[str, Any]]) -> set[str]:
    """Of which of these rows the archive has exactly this one, or, if the run has ended, another that says that it has."""
    order = [runs.c[name] for name in PRECEDENCE]
    found: dict[str, tuple[int, ...]] = {}
    for some in _chunks(rows):
        which = and_(runs.c.namespace == rows[0]["namespace"], runs.c.run_id.in_([row["run_id"] for row in some]))
        found |= {run_id: tuple(place) for run_id, *place in connection.execute(select(runs.c.run_id, *order).where(which))}
    over = PRECEDENCE.index("terminal")
    there = [(row, found.get(row["run_id"], ())) for row in rows]
    return {row["run_id"] for row, place in there if place and (place == _precedence(row) or (row["terminal"] and place[over]))}


def ship_moment(connection: Connection, moment: Mapping[str, Any]) -> None:
    connection.execute(_greater_stays(connection, moments, ("epoch", "shipped_ms")), moment)


def erase(connections: Connections, namespace: str, run_ids: Iterable[str]) -> tuple[Erased, ...]:
    """Delete runs by id, some in each transaction."""
    gone: list[Erased] = []
    for some in _chunks(sorted(set(run_ids))):
        with connections.writing() as connection:
            gone += _delete(connection, namespace, some, runs.c.kind != ERASED)
    return tuple(gone)


def erase_expired(connections: Connections, namespace: str, before_ms: int, at_most: int | None) -> tuple[Erased, ...]:
    """Delete what has passed its time, blank rows of erased runs too. What was chosen is locked, or a retry between would be lost."""
    gone: list[Erased] = []
    expired = runs.c.delete_after_ms <= before_ms
    while True:
        room = _BATCH if at_most is None else min(_BATCH, at_most - len(gone))
        query = select(runs.c.run_id).where(runs.c.namespace == namespace, expired).order_by(runs.c.delete_after_ms).limit(max(room, 0))
        with connections.writing() as connection:
            found = sorted(connection.scalars(query.with_for_update(skip_locked=True)))
            gone += _delete(connection, namespace, found, expired)
        if len(found) < _BATCH:
            return tuple(gone)


def erase_marked(connections: Connections, namespace: str, by: str, value: str, at_ms: int) -> tuple[Erased, ...]:
    """Put a blank row in the place of each run with this id, tag or session; an id gets one even if nothing is there yet."""
    gone: list[Erased] = []
    while True:
        with connections.writing() as connection:
            found = _to_erase(connection, namespace, by, value)
            ids = sorted({row["run_id"] for row in found} | ({value} if by == "run_id" else set()))
            if ids:
                put_rows(connection, [erased_row(namespace, run_id, at_ms + _DAY_MS) for run_id in ids])
        gone += [erased_from(row) for row in found]
        if len(found) < _BATCH:
            return tuple(gone)


def _to_erase(connection: Connection, namespace: str, by: str, value: str) -> Sequence[Row]:
    if by == "tag":
        marked = and_(marks.c.namespace == namespace, marks.c.what == MARK_TAG, marks.c.value == mark_value(value))
        holds: ColumnElement[bool] = runs.c.run_id.in_(select(marks.c.run_id).where(marked))
    else:
        holds = runs.c[by] == value
    query = select(runs.c.run_id, runs.c.blobs).where(runs.c.namespace == namespace, runs.c.kind != ERASED, holds)
    return connection.execute(query.order_by(runs.c.run_id).limit(_BATCH).with_for_update()).mappings().all()


def _delete(connection: Connection, namespace: str, run_ids: Sequence[str], still: ColumnElement[bool]) -> list[Erased]:
    """Delete rows for which `still` holds, then their marks; tell which were runs."""
    if not run_ids:
        return []
    which = and_(runs.c.namespace == namespace, runs.c.run_id.in_(run_ids), still)
    rows = connection.execute(delete(runs).where(which).returning(runs.c.run_id, runs.c.kind, runs.c.blobs)).mappings().all()
    _unmark(connection, namespace, [row["run_id"] for row in rows])
    return [erased_from(row) for row in rows if row["kind"] != ERASED]


def _unmark(connection: Connection, namespace: str, run_ids: Sequence[str]) -> None:
    for some in _chunks(run_ids):
        connection.execute(delete(marks).where(marks.c.namespace == namespace, marks.c.run_id.in_(some)))


def _greater_stays(connection: Connection, table: Table, order: Sequence[str]) -> Insert:
    """Insert, or replace what is there if the new row is greater by these columns."""
    made: Any = (postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert)(table)
    identity = [column.name for column in table.primary_key]
    greater = tuple_(*(made.excluded[name] for name in order)) > tuple_(*(table.c[name] for name in order))
    changed = {column.name: made.excluded[column.name] for column in table.c if column.name not in identity}
    statement: Insert = made.on_conflict_do_update(index_elements=identity, set_=changed, where=greater)
    return statement


def _precedence(row: Row) -> tuple[int, ...]:
    return tuple(row[name] for name in PRECEDENCE)


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while some := list(islice(rest, _BATCH)):
        yield some
