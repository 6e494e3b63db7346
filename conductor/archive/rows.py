"""A run as a row, and back. What must not be stored is refused before anything is written; what only garbles is cleaned."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from conductor.archive.records import READABLE, ArchivedRun, Erased, Kind
from conductor.archive.tables import MARK_ERROR, MARK_STEP, MARK_TAG, MARK_WAITING
from conductor.errors import ArchivedRunCorrupt, ArchiveFormatUnknown, BadInput
from conductor.ids import is_run_id
from conductor.state import RunState

__all__ = ["ERASED", "PRECEDENCE", "Row", "erased_from", "erased_row", "mark_value", "marks_of", "run_from", "to_row"]

PRECEDENCE: Final = ("generation", "terminal", "n", "progress_at_ms", "rank", "digest")  # the greater row stays, compared in this order
ERASED: Final = "erased"
Row = Mapping[Any, Any]

_NOT_COMPARED: Final = frozenset({"namespace", "run_id", "snapshot"})  # the same in both, or hashed apart
_LISTS: Final = ("tags", "failed_steps", "waiting_for", "blobs")
_MARKED: Final = {MARK_TAG: "tags", MARK_STEP: "failed_steps", MARK_WAITING: "waiting_for"}
_TEXTS: Final = ("workflow", "reason", "key", "session", "version", "error_kind")
_TIMES: Final = ("created_at_ms", "progress_at_ms", "ended_at_ms", "idle_since_ms", "delete_after_ms")
_LONGEST_MARK: Final = 512  # characters; an index of PostgreSQL takes 2,704 bytes
_HIGHEST: Final = 2**31 - 1
_LONGEST_NUMBER: Final = 2**63


def to_row(run: ArchivedRun, namespace: str) -> dict[str, Any]:
    """The row of a run, with the columns that decide which of two stays."""
    _check(run, namespace)
    row = {field.name: getattr(run, field.name) for field in fields(run)}
    row |= {name: _clean(row[name]) for name in _TEXTS}
    row |= {name: json.dumps([_clean(text) for text in row[name]], ensure_ascii=False) for name in _LISTS}
    row |= {"kind": str(run.kind), "state": str(run.state), "terminal": int(run.is_terminal), "rank": run.kind.rank}
    row["digest"] = _digest(row)
    row["snapshot"] = zlib.compress(row["snapshot"], 1)
    return row


def erased_row(namespace: str, run_id: str, delete_after_ms: int) -> dict[str, Any]:
    """A row that nothing put later can replace, and that tells nothing of the run but its id."""
    if not is_run_id(run_id):
        raise BadInput(what="run id", field="run_id", problem=f"{run_id!r} is not a run id")
    return {
        **dict.fromkeys(PRECEDENCE, 0), **dict.fromkeys(_TEXTS, ""), **dict.fromkeys(_LISTS, "[]"),
        "namespace": namespace, "run_id": run_id, "generation": _HIGHEST, "terminal": 1, "kind": ERASED, "state": ERASED, "format": 0,
        "created_at_ms": 0, "ended_at_ms": None, "idle_since_ms": None, "delete_after_ms": delete_after_ms, "snapshot": b"",
    }


def marks_of(row: Row) -> Iterator[dict[str, Any]]:
    """What a run is found by."""
    lists = {what: json.loads(row[column]) for what, column in _MARKED.items()}
    for what, values in (*lists.items(), (MARK_ERROR, filter(None, [row["error_kind"]]))):
        for value in {mark_value(text) for text in values}:
            yield {"namespace": row["namespace"], "run_id": row["run_id"], "what": what, "value": value}


def mark_value(text: str) -> str:
    """How a tag, step or name is spelled in the index."""
    return _clean(text)[:_LONGEST_MARK]


def run_from(row: Row) -> ArchivedRun:
    """The run of a row. Without the column `snapshot` it is not loaded; with it, its format must be known."""
    run_id, loaded = row["run_id"], "snapshot" in row
    if loaded and row["format"] not in READABLE:
        known = ", ".join(map(str, sorted(READABLE)))
        raise ArchiveFormatUnknown(run_id=run_id, format=row["format"], known=known)
    try:
        values = {field.name: row[field.name] for field in fields(ArchivedRun) if field.name != "snapshot"}
        values |= {name: tuple(json.loads(row[name])) for name in _LISTS}
        values |= {"kind": Kind(row["kind"]), "state": RunState(row["state"])}
        return ArchivedRun(**values, snapshot=zlib.decompress(row["snapshot"]) if loaded else None)
    except (ValueError, TypeError, zlib.error) as error:
        raise ArchivedRunCorrupt(run_id=run_id, prefix="archive", problem=str(error)) from error


def erased_from(row: Row) -> Erased:
    try:
        return Erased(row["run_id"], tuple(json.loads(row["blobs"])))
    except (ValueError, TypeError):
        return Erased(row["run_id"])  # a damaged row must be erasable too; blobs that nobody names are found by their age


def _check(run: ArchivedRun, namespace: str) -> None:
    def refuse(field: str, problem: str) -> None:
        raise BadInput(what=f"archiving run {run.run_id[:64]!r}", field=field, problem=problem)

    if run.format not in READABLE:
        known = ", ".join(map(str, sorted(READABLE)))
        raise ArchiveFormatUnknown(run_id=run.run_id, format=run.format, known=known)
    if not is_run_id(run.run_id):
        refuse("run_id", "it is not a run id")
    if run.namespace != namespace:
        refuse("namespace", f"it is of namespace {run.namespace!r}, this archive was opened for {namespace!r}")
    if run.snapshot is None:
        refuse("snapshot", "it was not loaded")
    if run.state not in set(RunState) or run.kind not in set(Kind):
        refuse("state", f"{run.state!r}, {run.kind!r} is not a state and a kind")
    if run.is_terminal != (run.kind == Kind.FINISHED) and run.kind != Kind.CHECKPOINT:
        refuse("kind", f"a run that is {run.state} cannot be {run.kind}")
    if not 1 <= run.generation < _HIGHEST or not 0 <= run.n < _LONGEST_NUMBER:
        refuse("generation", f"generation {run.generation}, event {run.n} is out of range")
    for name in _TIMES:
        moment = getattr(run, name)
        if moment is not None and not 0 <= moment < _LONGEST_NUMBER:
            refuse(name, f"{moment} is not a time in ms")


def _clean(text: str) -> str:
    """PostgreSQL takes no NUL, and neither takes half characters: a reason may quote anything."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _digest(row: Row) -> int:
    """Of all content: the same twice is recognized, and of two rows that differ at one event number everybody keeps the same one."""
    content = hashlib.blake2b(row["snapshot"], digest_size=8)
    content.update(repr(sorted((name, value) for name, value in row.items() if name not in _NOT_COMPARED)).encode())
    return int.from_bytes(content.digest()) >> 1  # the sign is left out
