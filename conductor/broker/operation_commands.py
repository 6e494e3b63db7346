"""Commands on operations and schedules. A message without a key is its own key: delivered twice it is one operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from conductor.broker.commanding import Call
from conductor.broker.crontabs import cadence_of
from conductor.errors import BadInput, UnknownRun
from conductor.operations import timetable
from conductor.operations.call import answer_of
from conductor.operations.offering import disabled_now, offer
from conductor.operations.read import ERROR_KINDS, STATUSES, OpFilter
from conductor.operations.schedules import orphans
from conductor.operations.why import look, why

__all__ = ["COMMANDS"]

_MOST = 1000


def call_capability(call: Call, capability: str, params: Any = None, session: str = "", key: str = "") -> dict[str, Any]:
    """Run a capability on this worker and answer as `Conductor.call` does. A redelivered message finds the first call."""
    return call.conductor.call(capability, params, session=session, key=call.key(key)).to_json()


def submit_capability(
    call: Call, capability: str, params: Any = None, session: str = "", key: str = "", queue: str | None = None,
    priority: int | None = None,
) -> dict[str, Any]:
    """Queue a deferred operation."""
    return call.conductor.submit(
        capability, params, session=session, key=call.key(key), queue=queue, priority=priority).to_json()


def retry_operation(call: Call, operation_id: str, actor: str = "", health_check: bool = False) -> dict[str, Any]:
    """Replay an operation from its record."""
    if _done(call, operation_id):
        return answer_of(call.engine, operation_id).to_json()
    return call.conductor.retry_operation(operation_id, health_check=health_check, actor=call.signed(actor)).to_json()


def _done(call: Call, operation_id: str) -> bool:
    """Whether this very message has moved it before. What is unknown was not."""
    try:
        return call.done(operation_id.partition(":")[0]) is not None
    except UnknownRun:
        return False


def cancel_operation(call: Call, operation_id: str, reason: str = "", actor: str = "") -> dict[str, Any]:
    """Cancel a stand-alone operation."""
    return call.conductor.cancel_operation(operation_id, reason=reason or "requested", actor=actor)


def resolve(call: Call, operation_id: str, landed: bool, value: Any = None, actor: str = "") -> dict[str, Any]:
    """Say whether an effect in doubt happened (`landed`), and what it gave. An operation by its id, a step by `run:step[:item]`."""
    if _done(call, operation_id):
        return answer_of(call.engine, operation_id).to_json()
    if not landed and value is not None:
        raise BadInput(what="resolve", field="value", problem="an effect that did not happen gave nothing; leave it out")
    return call.conductor.resolve(operation_id, happened=landed, value=value, actor=call.signed(actor)).to_json()


# Looking.


def list_operations(
    call: Call, state: str = "", capability: str = "", error_kind: str = "", session: str = "", older_than: float = 0, limit: int = 50,
    cursor: str = "",
) -> dict[str, Any]:
    """Operations, newest first, and steps of runs that wait for a retry. `older_than` is in seconds. With a `cursor` there may be more."""
    for field, value, known in (("state", state, STATUSES), ("error_kind", error_kind, ERROR_KINDS)):
        if value and value not in known:
            raise BadInput(what="list of operations", field=field, problem=f"{value[:80]!r} is none of: {', '.join(known)}")
    if not 1 <= limit <= _MOST:
        raise BadInput(what="list of operations", field="limit", problem=f"{limit} is outside 1 to {_MOST}")
    wanted = OpFilter(state, capability, error_kind, session, int(older_than * 1000))
    found = call.conductor.operations(wanted, cursor=cursor, limit=limit)
    return {"operations": [one.to_json() for one in found], "cursor": found.cursor or None}


def show_operation(call: Call, operation_id: str, values: bool = False) -> dict[str, Any]:
    """One operation, its attempts, and why it stands where it stands; with `values` also its parameters and result."""
    found, view = look(call.engine, operation_id)
    said = why(found, view)
    hidden = () if values else ("params", "result")
    told = {name: value for name, value in found.to_json().items() if name not in hidden}
    return told | {"why": {"sentence": said.sentence, "command": said.command or None}}


def operation_status(call: Call) -> dict[str, Any]:
    """The queue at a glance."""
    return call.conductor.operation_status()


def list_capabilities(call: Call, text: str = "") -> dict[str, Any]:
    """Capabilities whose name or documentation has every word of `text`; what they need is probed on this worker."""
    found = call.conductor.capabilities(text)
    disabled = disabled_now(call.engine, found)
    return {"capabilities": [offer(one, disabled.get(one.name, "")) for one in found]}


def show_capability(call: Call, capability: str) -> dict[str, Any]:
    """One capability: its parameters as JSON schema, and what it promises."""
    found = call.conductor.capability(capability)
    return offer(found, disabled_now(call.engine, [found]).get(found.name, ""))


# Schedules.


def schedule(
    call: Call, name: str, capability: str, when: float | str, params: Any = None, tz: str = "UTC", session: str = "",
    overlap: str = "skip",
) -> dict[str, Any]:
    """Call a capability on a schedule. `when` is a number of seconds, or the five fields of a crontab: `"30 6 * * 1-5"`."""
    word = call.conductor.schedule(name, capability, params, when=cadence_of(name, when), tz=tz, session=session, overlap=overlap)
    return {"schedule": name, "word": word}


def list_schedules(call: Call) -> dict[str, Any]:
    """All schedules with their next and last ticks."""
    return {"schedules": timetable.list_schedules(call.engine)}


def show_schedule(call: Call, name: str) -> dict[str, Any]:
    """One schedule with its last ticks."""
    found = timetable.find_schedule(call.engine, name)
    return timetable.schedule_json(found, found.name in orphans(call.engine, [found]))


def pause_schedule(call: Call, name: str, reason: str = "requested") -> dict[str, Any]:
    """Stop a schedule from ticking."""
    return {"schedule": name, "word": timetable.pause(call.engine, name, reason)}


def resume_schedule(call: Call, name: str) -> dict[str, Any]:
    """Let a paused schedule tick again, at its next tick from now."""
    return {"schedule": name, "word": timetable.resume(call.engine, name)}


def drop_schedule(call: Call, name: str) -> dict[str, Any]:
    """Take a schedule out of the store. One that is not there is gone already: a redelivered message says the same."""
    return {"schedule": name, "word": timetable.drop(call.engine, name) if call.engine.store.job(name) else "GONE"}


COMMANDS: Mapping[str, Callable[..., Any]] = {
    "conductor.call": call_capability, "conductor.submit": submit_capability, "conductor.retry_operation": retry_operation,
    "conductor.cancel_operation": cancel_operation, "conductor.resolve": resolve, "conductor.list_operations": list_operations,
    "conductor.show_operation": show_operation, "conductor.operation_status": operation_status,
    "conductor.list_capabilities": list_capabilities, "conductor.show_capability": show_capability,
    "conductor.schedule": schedule, "conductor.list_schedules": list_schedules, "conductor.show_schedule": show_schedule,
    "conductor.pause_schedule": pause_schedule, "conductor.resume_schedule": resume_schedule, "conductor.drop_schedule": drop_schedule,
}
