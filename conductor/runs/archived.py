"""Looking at runs that only the archive has: the same views, made from a snapshot instead of the store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from conductor import log
from conductor.archive import ArchivedRun
from conductor.errors import ArchivedRunCorrupt, UnknownRun
from conductor.ids import is_run_id
from conductor.records import NodeKind
from conductor.runs.archiving import open_snapshot
from conductor.runs.read import RunView, step_view, view_run
from conductor.state import StepState
from conductor.store.reads import EachRecord, each_from_pairs, parse_step, read_now, run_from_fields
from conductor.store.snapshots import Snapshot
from conductor.store.standing import Standing

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["archived_events", "archived_row", "archived_values", "row_summary", "view_anywhere", "view_archived"]


def archived_row(engine: Engine, run_id: str, *, with_snapshot: bool = False) -> ArchivedRun | None:
    """The row of a run, None where there is none or no archive."""
    if not engine.archive.configured or not is_run_id(run_id):
        return None
    return engine.archive.open().get(run_id, with_snapshot=with_snapshot)


def view_archived(engine: Engine, row: ArchivedRun) -> RunView:
    """A run as a person sees it, from its row."""
    snapshot = _whole(row)
    run, graph = run_from_fields(row.run_id, snapshot.fields, snapshot.n), snapshot.graph
    said = {event.index: event for event in archived_events(snapshot) if event.index is not None and event.items is None}
    views = []
    for node in graph.nodes:
        record, event = parse_step(_field(snapshot, node.index), len(node.parents)), said.get(node.index)
        if node.kind is NodeKind.UNDO and record.state is StepState.PENDING:
            continue  # nothing of it was asked for
        each = _each(snapshot, node.index) if node.kind is NodeKind.EACH else None
        view = step_view(run, node, record, Standing(), each)
        shown = event is not None and record.state in (StepState.FAILED, StepState.SKIPPED)
        views.append(replace(
            view, reason=event.reason if event and shown else "", error=_error(snapshot, node.index, record.state), calls=node.calls,
            child=_field(snapshot, node.index, "c") or "",
        ))
    actor = next((event.actor for event in reversed(archived_events(snapshot)) if event.kind == "cancelled"), "")
    return RunView(run, graph, read_now(engine.store), tuple(views), actor=actor)


def view_anywhere(engine: Engine, run_id: str) -> RunView:
    """A run from wherever it is: the store, or its row if it is parked or has left."""
    try:
        return view_run(engine.store, run_id)
    except UnknownRun:
        row = archived_row(engine, run_id, with_snapshot=True)
        if row is None:
            raise
        return view_archived(engine, row)


def archived_events(snapshot: Snapshot) -> list[log.Event]:
    return list(log.parse_all(snapshot.keys.get("log", [])))


def archived_values(row: ArchivedRun) -> tuple[str | None, dict[int, str | None]]:
    """The payloads of the input and of those leaves whose result is one payload."""
    snapshot = _whole(row)
    leaves = {node.index: _field(snapshot, node.index, "r") for node in snapshot.graph.leaves if node.kind is not NodeKind.EACH}
    return snapshot.fields.get("i"), {index: text for index, text in leaves.items() if text is None or not text.startswith("@")}


def row_summary(row: ArchivedRun, now: int) -> dict[str, Any]:
    """One row of a list, as `runs/read.py` tells those of the store."""
    return {
        "run_id": row.run_id, "workflow": row.workflow, "state": row.state, "reason": row.reason, "generation": row.generation,
        "session": row.session, "key": row.key, "tags": list(row.tags), "created_at": row.created_at_ms, "ended_at": row.ended_at_ms,
        "duration_ms": max(0, (row.ended_at_ms or now) - row.created_at_ms), "progress_at": row.moved_at_ms, "events": row.n,
        "failed_steps": list(row.failed_steps), "error_kind": row.error_kind or None, "waiting_for": list(row.waiting_for),
        "idle_since": row.idle_since_ms, "archived": str(row.kind), "kept_until": row.delete_after_ms,
    }


def _whole(row: ArchivedRun) -> Snapshot:
    try:
        return open_snapshot(row)
    except (ValueError, KeyError, TypeError) as problem:
        raise ArchivedRunCorrupt(run_id=row.run_id, prefix="archive", problem=str(problem)) from problem


def _field(snapshot: Snapshot, index: int, suffix: str = "") -> str | None:
    fields: Mapping[str, str] = snapshot.fields if index < 32 else _pairs(snapshot, f"s{index // 32}")
    return fields.get(f"{index}{suffix}")


def _pairs(snapshot: Snapshot, tail: str) -> dict[str, str]:
    parts = snapshot.keys.get(tail, [])
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _each(snapshot: Snapshot, index: int) -> EachRecord:
    return each_from_pairs(_pairs(snapshot, f"e{index}"))


def _error(snapshot: Snapshot, index: int, state: StepState) -> Mapping[str, Any]:
    """The last error of a failed step or of one of its items."""
    if state is not StepState.FAILED:
        return {}
    told = [text for name, text in _pairs(snapshot, "err").items() if name.split(":")[0] == str(index)]
    try:
        found = json.loads(told[-1]) if told else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
