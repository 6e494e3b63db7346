"""What is wanted, as conditions; and cursors, signed with the archive's own secret, so that every replica takes them and nobody makes one.

Runs come newest first by (created, run id). Neither ever changes, so a page that is read while others write repeats nothing and leaves
nothing out.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from dataclasses import astuple, replace
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, select, tuple_

from conductor.archive.records import ArchiveFilter, Kind
from conductor.archive.rows import ERASED, Row, mark_value
from conductor.archive.tables import MARK_ERROR, MARK_STEP, MARK_TAG, MARK_WAITING, marks, runs
from conductor.errors import BadInput
from conductor.state import RunState

__all__ = ["Cursors", "conditions", "in_namespace"]

_PREFIX: Final = re.compile(r"[0-9a-f-]{1,36}\Z")
_STATES: Final = frozenset(str(state) for state in RunState)
_EQUAL: Final = ("workflow", "key", "session")
_MARKED: Final = {MARK_TAG: "tag", MARK_STEP: "step", MARK_ERROR: "error_kind", MARK_WAITING: "waiting_for"}
_MOMENTS: Final = ("created_since_ms", "created_until_ms", "ended_since_ms", "ended_until_ms", "idle_longer_than_ms", "now_ms")
_NO_MOMENTS: Final[dict[str, Any]] = dict.fromkeys(_MOMENTS)
_KINDS: Final = frozenset(str(kind) for kind in Kind)


def in_namespace(namespace: str) -> ColumnElement[bool]:
    """All runs of a namespace. What was erased is not one of them."""
    return and_(runs.c.namespace == namespace, runs.c.kind != ERASED)


def conditions(wanted: ArchiveFilter, namespace: str) -> list[ColumnElement[bool]]:
    """Everything that must hold for a wanted run. Unknown values are refused: nothing found and nothing asked must not look alike."""
    _check(wanted)
    found = [in_namespace(namespace)]
    found += [runs.c[column] == value for column in _EQUAL if (value := getattr(wanted, column))]
    if wanted.run_id_prefix:
        found += [runs.c.run_id >= wanted.run_id_prefix, runs.c.run_id < f"{wanted.run_id_prefix}g"]  # hex digits end at f
    if wanted.version:
        found.append(runs.c.version.startswith(wanted.version, autoescape=True))
    if wanted.sessions is not None:
        found.append(runs.c.session.in_(wanted.sessions))
    if wanted.states:
        found.append(runs.c.state.in_([str(state) for state in wanted.states]))
    if wanted.kinds:
        found.append(runs.c.kind.in_([str(kind) for kind in wanted.kinds]))
    found += [_marked(namespace, what, value) for what, name in _MARKED.items() if (value := getattr(wanted, name))]
    return found + _times(wanted)


def _marked(namespace: str, what: str, value: str) -> ColumnElement[bool]:
    has = and_(marks.c.namespace == namespace, marks.c.what == what, marks.c.value == mark_value(value))
    return runs.c.run_id.in_(select(marks.c.run_id).where(has))


def _times(wanted: ArchiveFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    for column, since, until in (
        (runs.c.created_at_ms, wanted.created_since_ms, wanted.created_until_ms),
        (runs.c.ended_at_ms, wanted.ended_since_ms, wanted.ended_until_ms),
    ):
        if since is not None:
            found.append(column >= since)
        if until is not None:
            found.append(column < until)
    idle = and_(runs.c.idle_since_ms.is_not(None), runs.c.terminal == 0)
    if wanted.idle is not None:
        found.append(idle if wanted.idle else ~idle)
    if wanted.idle_longer_than_ms is not None and wanted.now_ms is not None:
        found.append(and_(idle, runs.c.idle_since_ms < wanted.now_ms - wanted.idle_longer_than_ms))
    return found


def _check(wanted: ArchiveFilter) -> None:
    def refuse(field: str, problem: str) -> None:
        raise BadInput(what="search", field=field, problem=problem)

    for field, values, known in (("state", wanted.states, _STATES), ("kind", wanted.kinds, _KINDS)):
        if strangers := sorted(set(map(str, values)) - known):
            refuse(field, f"{', '.join(strangers)} is none of {', '.join(sorted(known))}")
    if wanted.run_id_prefix and not _PREFIX.match(wanted.run_id_prefix):
        refuse("run_id_prefix", f"{wanted.run_id_prefix[:64]!r} is not the beginning of a run id")
    if wanted.idle_longer_than_ms is not None and (wanted.now_ms is None or wanted.idle_longer_than_ms < 0):
        refuse("idle_longer_than_ms", "it needs now_ms, the time of the store, and must not be negative")
    if any("\0" in value for value in astuple(wanted) if isinstance(value, str)):
        refuse("filter", "it holds a NUL character")


class Cursors:
    """Makes and reads the cursors of one archive and namespace."""

    def __init__(self, secret: str, namespace: str) -> None:
        self._key = f"{secret}:{namespace}".encode()

    def after(self, row: Row, wanted: ArchiveFilter) -> str:
        """The cursor behind a row in a search for `wanted`."""
        body = json.dumps([row["created_at_ms"], row["run_id"], self._search(wanted)]).encode()
        return base64.urlsafe_b64encode(self._sign(body) + body).decode()

    def behind(self, cursor: str, wanted: ArchiveFilter) -> ColumnElement[bool]:
        """The condition that continues a search where a cursor stands."""
        created, run_id, search = self._read(cursor)
        if search != self._search(wanted):
            problem = "it belongs to a search with another filter; begin again without a cursor"
            raise BadInput(what="search", field="cursor", problem=problem)
        return tuple_(runs.c.created_at_ms, runs.c.run_id) < (created, run_id)

    def _read(self, cursor: str) -> tuple[int, str, str]:
        try:
            raw = base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True)
        except ValueError:  # also what is not ASCII
            raw = b""
        if len(raw) < 16 or not hmac.compare_digest(raw[:16], self._sign(raw[16:])):
            raise BadInput(what="search", field="cursor", problem="it is not one that this archive gave; begin again without a cursor")
        created, run_id, search = json.loads(raw[16:])
        return created, run_id, search

    def _search(self, wanted: ArchiveFilter) -> str:
        """What stands for a search. Times do not: counted back from now, they are others at each page."""
        return self._sign(repr(replace(wanted, **_NO_MOMENTS)).encode()).hex()

    def _sign(self, body: bytes) -> bytes:
        return hmac.new(self._key, body, hashlib.sha256).digest()[:16]
