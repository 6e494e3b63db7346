"""The terminal record of a run: how it ended and why, for whoever asks from outside. It is durable and sanitized.

Authority: the record of the run in the store; of a parked one its stub; of one that has left its row in the archive. Nothing that a run
may have produced can gainsay it: a failed run is answered before any value of it is looked at, and a value that cannot be read stands
beside the record as `result_error`, never in its place.
Trust: messages of errors are redacted and of bounded length; no traceback, no argument, no name of a host is in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from conductor.archive import ArchivedRun
from conductor.declare.results import Results
from conductor.errors import ConductorError, CorruptPayload, LaneBusy, RunCancelled, RunFailed, UnknownRun, ValueTooLarge, redact
from conductor.records import Graph
from conductor.runs.archived import archived_row, archived_values, view_archived
from conductor.runs.around import concerning, read_holds
from conductor.runs.read import RunView, error_text, run_result, view_run
from conductor.state import RUN, RunState, StepState, terminal
from conductor.store.indexes import scores
from conductor.store.reads import RunRecord, read_graph, read_run
from conductor.store.standing import count_live_leases
from conductor.store.stubs import Stub, read_stub

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["has_ended", "outcome", "plain", "shown_result"]

_ENDED = terminal(RUN)
_MOST_ITEMS = 10_000
_MOST_STEPS = 100
_LONGEST = 500


def has_ended(told: Mapping[str, Any]) -> bool:
    return bool(told["ended"])


def outcome(engine: Engine, run_id: str) -> dict[str, Any]:
    """How a run stands, and how it ended if it has. Raises UnknownRun for one that neither the store nor the archive has."""
    run = read_run(engine.store, run_id)
    if run is not None:
        if run.ended:
            return _standing(run) | _end(engine, run, None)
        return _standing(run) | {"live_leases": count_live_leases(engine.store, run)} | _kept_back(engine, run)
    stub, row = read_stub(engine.store, run_id), archived_row(engine, run_id)
    if row is None and stub is None:
        raise UnknownRun(run_id=run_id, namespace=engine.settings.namespace)
    if stub is not None:
        return _parked(stub, row)
    assert row is not None
    return _archived(engine, row)


def _standing(run: RunRecord) -> dict[str, Any]:
    return {
        "run_id": run.run_id, "workflow": run.workflow, "session": run.session, "state": run.state, "ended": run.ended,
        "generation": run.generation, "reason": redact(run.reason), "ended_at": run.ended_at or None, "deadline": run.deadline or None,
        "last_event": run.events, "live_leases": 0, "due": run.due, "children": run.children, "held": [], "limited": False,
        "progress_at": run.progress_at, "parked": False,
    }


def _kept_back(engine: Engine, run: RunRecord) -> dict[str, Any]:
    """What keeps a running run from going on though its workers are well: scopes that somebody has paused (`held`), and a limit that a
    worker has asked in vain (`limited`). Whoever waits for the run must not take it for lost then."""
    if run.state not in (RunState.RUNNING, RunState.COMPENSATING):
        return {}
    holds, graph = read_holds(engine.store), _graph(engine, run)
    under: dict[str, list[str]] = {}
    for node in graph.nodes if graph is not None and run.ready else ():
        if node.limit:
            under.setdefault(node.stands_in(run.queue), []).append(f"{run.run_id}:{node.index}")
    waits = any(
        at is not None for queue, members in under.items()
        for at in scores(engine.store, run.partition, f"limited:{queue}", members)
    )
    return {"held": concerning(holds, run, graph) if holds and graph is not None else [], "limited": waits}


def _graph(engine: Engine, run: RunRecord) -> Graph | None:
    try:
        return read_graph(engine.store, run.partition, run.graph)
    except LookupError:  # purged since we looked
        return None


def _parked(stub: Stub, row: ArchivedRun | None) -> dict[str, Any]:
    """What was said to a parked run counts from the moment it was said."""
    run = stub.as_run()
    told = _standing(run) | {"parked": True, "session": row.session if row else "", "progress_at": row.moved_at_ms if row else None}
    if run.ended:
        told["error"] = _error(run, ())
    return told


def _archived(engine: Engine, known: ArchivedRun) -> dict[str, Any]:
    try:
        row = archived_row(engine, known.run_id, with_snapshot=True)
        if row is None:  # erased since we looked
            raise UnknownRun(run_id=known.run_id, namespace=engine.settings.namespace)
        view = view_archived(engine, row)
    except CorruptPayload:
        return _row_alone(known)
    told = _standing(view.run) | {"session": row.session}
    return told | _end(engine, view.run, row, view) if view.run.ended else told


def _row_alone(row: ArchivedRun) -> dict[str, Any]:
    """What stands beside the snapshot, where that cannot be read any more."""
    run = RunRecord(
        row.run_id, row.workflow, row.version, row.state, row.reason, row.generation, session=row.session, created_at=row.created_at_ms,
        ended_at=row.ended_at_ms or 0, progress_at=row.moved_at_ms, events=row.n,
    )
    told = _standing(run)
    if row.state is RunState.COMPLETED:
        told |= {"result": None, "result_error": {"code": "archived_run_corrupt", "message": "its archived values cannot be read"}}
    elif row.is_terminal:
        told["error"] = _error(run, [{"step": step, "reason": "", "error": row.error_kind} for step in row.failed_steps])
    return told


def _end(engine: Engine, run: RunRecord, row: ArchivedRun | None, view: RunView | None = None) -> dict[str, Any]:
    """The result, or the error in its place."""
    if run.state is not RunState.COMPLETED:
        return {"error": _error(run, _failed(view or _looked_at(engine, run)) if run.state is RunState.FAILED else ())}
    try:
        graph = view.graph if view else read_graph(engine.store, run.partition, run.graph)
        return {"result": shown_result(engine, run, graph, archived_values(row)[1] if row else None)}
    except ConductorError as error:
        return {"result": None, "result_error": {"code": error.code, "message": redact(str(error))[:_LONGEST]}}
    except (LookupError, ValueError) as error:
        problem = f"the result cannot be read: {type(error).__name__}"
        return {"result": None, "result_error": {"code": "result_unreadable", "message": problem}}


def _looked_at(engine: Engine, run: RunRecord) -> RunView | None:
    """The steps of an ended run; None if they are gone or cannot be read, which changes nothing about how it ended."""
    try:
        return view_run(engine.store, run.run_id)
    except (ConductorError, LookupError, ValueError):
        return None


def _failed(view: RunView | None) -> list[dict[str, Any]]:
    found = view.named(StepState.FAILED)[:_MOST_STEPS] if view else []
    return [
        {"step": step.name, "reason": step.reason, "error": redact(error_text(step.error)),
         **({"items": list(step.each.bad)} if step.each and step.each.bad else {})}
        for step in found
    ]


def _error(run: RunRecord, failed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The same words as the exception that `Handle.get` raises."""
    reason = redact(run.reason) or ("step_failed" if run.state is RunState.FAILED else "no reason was given")
    steps = "; ".join(f"{_place(one)} ({one['error'] or one['reason'] or 'no error was recorded'})" for one in failed) or "none"
    kind: ConductorError
    if run.state is RunState.CANCELLED:
        kind = RunCancelled(run_id=run.run_id, workflow=run.workflow, reason=reason)
    elif reason == "lane_busy":
        kind = LaneBusy(run_id=run.run_id, workflow=run.workflow, lane=run.lane)
    else:
        kind = RunFailed(run_id=run.run_id, workflow=run.workflow, reason=reason, steps=steps)
    return {"code": kind.code, "message": str(kind)[: 4 * _LONGEST], "failed": list(failed)}


def _place(failed: Mapping[str, Any]) -> str:
    return f"{failed['step']} (items {', '.join(map(str, failed['items']))})" if failed.get("items") else str(failed["step"])


def shown_result(engine: Engine, run: RunRecord, graph: Graph, known: Mapping[int, str | None] | None = None) -> Any:
    """The result of a completed run as plain JSON, whatever types its workflow gives it; a long list is refused rather than loaded."""
    return plain(run_result(engine, run.run_id, run.workflow, graph, known))


def plain(value: Any) -> Any:
    """A result as plain JSON."""
    return json.loads(json.dumps(to_jsonable_python(value, fallback=_plain, by_alias=False)))


def _plain(value: Any) -> Any:
    if isinstance(value, Results):
        if len(value) > _MOST_ITEMS:
            raise ValueTooLarge(what="the list of results", size=len(value), limit=_MOST_ITEMS, unit="items")
        return to_jsonable_python(list(value), fallback=_plain, by_alias=False)
    return str(value)
