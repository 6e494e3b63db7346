"""One run as the service and programs see it: its view from wherever it is, why it stands so, and its values if they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conductor import codec
from conductor.archive import ArchivedRun
from conductor.errors import ConductorError, UnknownRun, redact
from conductor.runs.archived import archived_row, archived_values, view_archived
from conductor.runs.outcome import shown_result
from conductor.runs.read import RunView, to_json, view_run, with_queues
from conductor.runs.why import Why, why
from conductor.runs.words import Spelling
from conductor.state import RunState
from conductor.store.reads import read_input
from conductor.store.stubs import Stub, read_stub

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["explain_run", "show_run"]

_LONGEST = 500
_PLAIN = Spelling()

_Found = tuple[RunView, ArchivedRun | None, Stub | None]


def show_run(engine: Engine, run_id: str, *, values: bool = False, spelling: Spelling = _PLAIN) -> dict[str, Any]:
    """Everything about one run. `values` adds input and result, which may hold what not everybody should read."""
    view, row, stub = _found(engine, run_id)
    told = to_json(view) | {"parked": stub is not None, "archived": None, "kept_until": None}
    if row is not None:
        told |= {"archived": str(row.kind), "kept_until": row.delete_after_ms}
    if stub is not None and stub.reason:
        told |= {"state": stub.state, "reason": stub.reason, "actor": stub.actor, "ended_at": stub.ended_at or None}
    said = _said_of_stub(stub, spelling) if stub is not None and stub.reason else _said(engine, view, row, spelling)
    told["why"] = {"sentence": redact(said.sentence), "command": said.command}
    told["reason"] = redact(told["reason"])
    for step in told["steps"]:
        if "error" in step:
            step["error"] = _without_secrets(step["error"])
    return told | (_values(engine, view, row) if values else {})


def explain_run(engine: Engine, run_id: str, *, spelling: Spelling = _PLAIN) -> dict[str, Any]:
    """In one sentence why a run stands so; also of a parked one that cannot be shown whole, because the archive has lost it."""
    try:
        view, row, stub = _found(engine, run_id)
    except UnknownRun:
        if (stub := read_stub(engine.store, run_id)) is None:
            raise
        return _explained(stub.run_id, stub.workflow, stub.state, stub.reason, _said_of_stub(stub, spelling))
    if stub is not None and stub.reason:
        return _explained(stub.run_id, stub.workflow, stub.state, stub.reason, _said_of_stub(stub, spelling))
    run = view.run
    return _explained(run.run_id, run.workflow, run.state, run.reason, _said(engine, view, row, spelling))


def _explained(run_id: str, workflow: str, state: str, reason: str, said: Why) -> dict[str, Any]:
    return {
        "run_id": run_id, "workflow": workflow, "state": state, "reason": redact(reason), "sentence": redact(said.sentence),
        "command": said.command or None,
    }


def _said(engine: Engine, view: RunView, row: ArchivedRun | None, spelling: Spelling) -> Why:
    return why(with_queues(engine.store, view) if row is None else view, spelling)


def _said_of_stub(stub: Stub, spelling: Spelling) -> Why:
    """Of a parked run to which something was said, or whose row is missing."""
    what = f"run {stub.run_id} ({stub.workflow}) was parked"
    if stub.reason == "archive_missing":
        back = f"{spelling.conductor} resume {stub.run_id}"
        return Why(f"{what}, and the archive does not have it: bring its row back, then resume it", back)
    return Why(f"{what}; it is {stub.state}: {stub.reason}")


def _without_secrets(error: dict[str, Any]) -> dict[str, Any]:
    """What went wrong, without its traceback; the text is whoever raised it's, so it may hold anything and be of any length."""
    told = {name: value for name, value in error.items() if name != "traceback"}
    return told | {"message": redact(str(told.get("message", "")))[:_LONGEST]}


def _found(engine: Engine, run_id: str) -> _Found:
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
