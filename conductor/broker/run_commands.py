"""Commands on runs: what can be sent as a Celery task by its name. Arguments and answers are plain JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from conductor.broker.commanding import Call
from conductor.errors import BadInput, RunFinished
from conductor.operations.batches import RATE, preview, preview_json, standing, submit
from conductor.runs.batching import Action
from conductor.runs.erasing import erase_named
from conductor.runs.erasing import erase_run as erase
from conductor.runs.finding import Where, find
from conductor.runs.fork import fork_id
from conductor.runs.fork import fork_run as fork
from conductor.runs.fsck import fsck as recount
from conductor.runs.outcome import outcome
from conductor.runs.recover import recover as bring_back
from conductor.runs.showing import show_run as show
from conductor.store.reads import read_events, read_graph

__all__ = ["COMMANDS"]

_MOMENTS = ("eta", "expires", "deadline")
_MOST_EVENTS = _MOST_RUNS = 1000


def start_run(call: Call, workflow: str, input: Any = None, **options: Any) -> dict[str, Any]:
    """Start a run by its workflow's name. Without a key the message's id serves as one: a redelivered message starts nothing twice."""
    if call.message_id:
        options.setdefault("key", call.key(""))
    handle = call.conductor.start(workflow, input, **_moments(workflow, options))
    return {"run_id": handle.id}


def _moments(workflow: str, options: dict[str, Any]) -> dict[str, Any]:
    """Times as JSON has them: ISO 8601 with a zone."""
    read = dict(options)
    for name in _MOMENTS:
        if isinstance(text := options.get(name), str):
            try:
                read[name] = datetime.fromisoformat(text)
            except ValueError:
                raise BadInput(what=f"start of workflow {workflow}", field=name, problem=f"{text[:40]!r} is no time as ISO 8601") from None
    return read


def cancel_run(
    call: Call, run_id: str, reason: str = "", actor: str = "", terminate: bool = False, compensate: bool = False,
) -> dict[str, Any]:
    """Cancel a run; with `compensate` undo first what it had done."""
    return call.conductor.cancel(run_id, reason=reason, actor=actor, terminate=terminate, compensate=compensate)


def pause_run(call: Call, run_id: str, reason: str = "", actor: str = "") -> dict[str, Any]:
    """Stop claims of a run; running attempts may commit."""
    return call.done(run_id) or call.conductor.pause(run_id, reason=reason, actor=call.signed(actor))


def resume_run(call: Call, run_id: str, actor: str = "") -> dict[str, Any]:
    """Let a paused run go on."""
    return call.done(run_id) or call.conductor.resume(run_id, actor=call.signed(actor))


def retry_run(call: Call, run_id: str, actor: str = "") -> dict[str, Any]:
    """Open a new generation of a failed run."""
    return call.done(run_id) or call.conductor.retry(run_id, actor=call.signed(actor))


def fork_run(call: Call, run_id: str, from_: str, changes: dict[str, Any] | None = None, key: str = "") -> dict[str, Any]:
    """Start a new run on today's code that keeps what a step of an old run stood on. Without a key the message's id serves as one: a
    redelivered message finds the first fork."""
    call.conductor._check_id(run_id)
    beside = fork_id(run_id, call.message_id) if call.message_id and not key else ""
    told = fork(call.engine, run_id, from_=from_, changes=changes, new_id=beside, key=key)
    return {"run_id": told.run_id, "forked_from": run_id, "from": from_, "effects_repeat": True}


def signal_run(
    call: Call, run: str, signal: str, value: Any = None, key: str | None = None, id: str = "",
) -> dict[str, Any]:
    """Send a signal to a run, or with a key to a workflow's run. Without an id the message's own serves: delivered twice
    it is one signal."""
    return call.conductor.signal(run, signal, value, key=key, id=id or call.message_id)


def advance_run(call: Call, run: str, step: str, result: Any = None, key: str | None = None, actor: str = "") -> dict[str, Any]:
    """Answer for an agent step of a run, or with a key of a workflow's run."""
    return call.conductor.advance(run, step, result, key=key, actor=actor)


def grant_run(call: Call, run_id: str) -> dict[str, Any]:
    """Consent for everything in a run, as long as it has not ended."""
    call.conductor._check_id(run_id)
    call.conductor.grant_run(run_id, on=True)
    return {"run_id": run_id, "consent": True}


def revoke_run(call: Call, run_id: str) -> dict[str, Any]:
    """Take the consent of a run back. One that has ended has none."""
    call.conductor._check_id(run_id)
    try:
        call.conductor.grant_run(run_id, on=False)
    except RunFinished:
        return {"run_id": run_id, "consent": False}
    return {"run_id": run_id, "consent": False}


def batch_runs(
    call: Call, action: str, where: dict[str, Any], reason: str = "requested", actor: str = "", dry_run: bool = True, rate: float = RATE,
    session: str = "", key: str = "",
) -> dict[str, Any]:
    """One action (`retry`, `cancel`, `pause`, `resume`) on every run that the filters of a list name: a dry run unless it says otherwise.
    With a session only runs of it are meant. Without a key the message's id serves as one."""
    if action not in set(Action):
        raise BadInput(what="batch", field="action", problem=f"{action[:40]!r} is none of: {', '.join(Action)}")
    chosen, wanted = Action(action), Where.parse(where)
    if dry_run:
        return preview_json(call.engine, chosen, preview(call.engine, chosen, wanted, session=session))
    return {"batch_id": submit(
        call.engine, chosen, wanted, reason=reason, actor=actor, rate=rate, session=session, key=call.key(key))}


def show_batch(call: Call, batch_id: str) -> dict[str, Any]:
    """How far a batch is, or what it came to."""
    return standing(call.engine, batch_id)


def purge(call: Call, run_id: str = "", tag: str = "", session: str = "", dry_run: bool = True) -> dict[str, Any]:
    """Delete everywhere, for good, one run, or all that have ended of a tag or a session: a dry run unless it says otherwise."""
    return erase_named(call.engine, run_id=run_id, tag=tag, session=session, dry_run=dry_run).to_json()


def erase_run(call: Call, run_id: str) -> dict[str, Any]:
    """Delete an ended run everywhere: store, archive and blobs. `erased` is false if there was nothing to delete, or it has not ended."""
    call.conductor._check_id(run_id)
    return {"run_id": run_id, "erased": erase(call.engine, run_id)}


# Looking.


def list_runs(call: Call, limit: int = 50, cursor: str = "", **where: Any) -> dict[str, Any]:
    """Runs, newest first, by the filters of every list: `status="failed"`, `workflow=`, `session=`, `tag=`, `since=`, … With a `cursor`
    there may be more."""
    if not 1 <= limit <= _MOST_RUNS:
        raise BadInput(what="list of runs", field="limit", problem=f"{limit} is outside 1 to {_MOST_RUNS}")
    found = find(call.engine, Where.parse(where), cursor=cursor, limit=limit)
    return {"runs": found.rows, "cursor": found.cursor or None, "warning": found.warning or None}


def show_run(call: Call, run_id: str, values: bool = False) -> dict[str, Any]:
    """One run with its steps, and why it stands where it stands; with `values` also its input and result."""
    call.conductor._check_id(run_id)
    return show(call.engine, run_id, values=values)


def run_outcome(call: Call, run_id: str) -> dict[str, Any]:
    """How a run stands, and how it ended if it has: the durable record."""
    call.conductor._check_id(run_id)
    return outcome(call.engine, run_id)


def run_events(call: Call, run_id: str, after: int = 0, limit: int = 200) -> dict[str, Any]:
    """A page of a run's log: events after number `after`."""
    call.conductor._check_id(run_id)
    if not 1 <= limit <= _MOST_EVENTS or after < 0:
        raise BadInput(what="events of a run", field="limit", problem=f"limit is from 1 to {_MOST_EVENTS}, and after from 0")
    store, run = call.engine.store, call.run(run_id)
    names = {node.index: node.name for node in read_graph(store, run.partition, run.graph).nodes}
    found = list(read_events(store, run_id, after, limit))
    return {"run_id": run_id, "events": [event.to_json(names) for event in found], "last": found[-1].number if found else after}


# Upkeep.


def recover(call: Call, dry_run: bool = False, restored: bool = False) -> dict[str, Any]:
    """Bring the store in order, beside live workers; `restored`: it was set back to an old backup."""
    return bring_back(call.engine, dry_run=dry_run, restored=restored).to_json()


def fsck(call: Call) -> dict[str, Any]:
    """Recount everything; `differences` is empty if all is as it should be."""
    return {"differences": [asdict(one) for one in recount(call.engine)]}


COMMANDS: Mapping[str, Callable[..., Any]] = {
    "conductor.start_run": start_run, "conductor.cancel_run": cancel_run, "conductor.pause_run": pause_run,
    "conductor.resume_run": resume_run, "conductor.retry_run": retry_run, "conductor.fork_run": fork_run,
    "conductor.signal_run": signal_run, "conductor.advance_run": advance_run, "conductor.grant_run": grant_run,
    "conductor.revoke_run": revoke_run, "conductor.erase_run": erase_run, "conductor.purge": purge,
    "conductor.batch_runs": batch_runs, "conductor.show_batch": show_batch,
    "conductor.list_runs": list_runs, "conductor.show_run": show_run, "conductor.run_outcome": run_outcome,
    "conductor.run_events": run_events,
    "conductor.recover": recover, "conductor.fsck": fsck,
}
