"""One run as the service and programs see it: its view from wherever it is, why it stands so, and its values if they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conductor import codec
from conductor.archive import ArchivedRun
from conductor.errors import ConductorError, UnknownRun, redact
from conductor.runs.archived import archived_row, archived_values, view_archived
from conductor.runs.outcome import shown_result
from conductor.runs.read import RunView, to_json, view_run, with_queues
from conductor.runs.why import Spelling, why
from conductor.state import RunState
from conductor.store.reads import read_input
from conductor.store.stubs import Stub, read_stub

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["show_run"]

_LONGEST = 500


def show_run(engine: Engine, run_id: str, *, values: bool = False, spelling: Spelling | None = None) -> dict[str, Any]:
    """Everything about one run. `values` adds input and result, which may hold what not everybody should read."""
    view, row, stub = _found(engine, run_id)
    told = to_json(view) | {"parked": stub is not None, "archived": None, "kept_until": None}
    if row is not None:
        told |= {"archived": str(row.kind), "kept_until": row.delete_after_ms}
    if view.actor:
        told["actor"] = view.actor
    if stub is not None and stub.reason:
        told |= {"state": stub.state, "reason": stub.reason, "actor": stub.actor, "ended_at": stub.ended_at or None}
    said = why(with_queues(engine.store, view) if row is None else view, spelling or Spelling())
    told["why"] = {"sentence": said.sentence, "command": said.command}
    told["reason"], told["why"]["sentence"] = redact(told["reason"]), redact(told["why"]["sentence"])
    for step in told["steps"]:
        if "error" in step:
            step["error"] = _without_secrets(step["error"])
    return told | (_values(engine, view, row) if values else {})


def _without_secrets(error: dict[str, Any]) -> dict[str, Any]:
    """What went wrong, without its traceback; the text is whoever raised it's, so it may hold anything and be of any length."""
    told = {name: value for name, value in error.items() if name != "traceback"}
    return told | {"message": redact(str(told.get("message", "")))[:_LONGEST]}


def _found(engine: Engine, run_id: str) -> tuple[RunView, ArchivedRun | None, Stub | None]:
    try:
        return view_run(engine.store, run_id), None, None
    except UnknownRun:
        stub, row = read_stub(engine.store, run_id), archived_row(engine, run_id, with_snapshot=True)
        if row is None:
            raise
        return view_archived(engine, row), row, stub


def _values(engine: Engine, view: RunView, row: ArchivedRun | None) -> dict[str, Any]:
    payload, known = archived_values(row) if row else (read_input(engine.store, view.run.run_id), None)
    told: dict[str, Any] = {}
    try:
        told["input"] = codec.decode(payload) if payload else None
        if view.run.state is RunState.COMPLETED:
            told["result"] = shown_result(engine, view.run, view.graph, known)
    except (ConductorError, LookupError) as error:
        told["values_error"] = redact(str(error))
    return told
