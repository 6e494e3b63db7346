"""Commands on what holds work back (lanes, limits, scopes), on sessions, and on what can be started.

Each sets something to what it says, so delivered twice it is delivered once; between two that say different things the last one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Literal

from conductor.broker.commanding import Call
from conductor.runs.consenting import reconcile_consent
from conductor.runs.drawing import mermaid, workflow_json
from conductor.runs.gating import KEEP, lane_json, lanes, limit_json, limits, limits_as_declared
from conductor.runs.gating import set_limit as set_terms
from conductor.runs.scopes import holds_json, queues_json
from conductor.runs.scopes import pause_scope as hold
from conductor.runs.scopes import resume_scope as lift
from conductor.sessions import consent

__all__ = ["COMMANDS"]


# What holds work back.


def list_lanes(call: Call) -> dict[str, Any]:
    """Lanes that somebody is in, and those that are declared here."""
    return {"lanes": [lane_json(view) for view in lanes(call.engine)]}


def show_lane(call: Call, lane: str) -> dict[str, Any]:
    """One lane: who has a place, and who is queued, in the order of admission."""
    return lane_json(lanes(call.engine, lane)[0])


def list_limits(call: Call) -> dict[str, Any]:
    """Limits that are in use, set, or declared here."""
    return {"limits": [limit_json(view) for view in limits(call.engine)]}


def set_limit(call: Call, limit: str, rate: str | None = KEEP, concurrency: int | Literal["keep"] | None = KEEP) -> dict[str, Any]:
    """Set a limit for all workers, at once: `rate` as "500/m". What is left out stays as it is, null takes it away."""
    return limit_json(set_terms(call.engine, limit, rate=rate, concurrency=concurrency))


def reset_limit(call: Call, limit: str) -> dict[str, Any]:
    """Take back what was set: the code's word counts again."""
    return limit_json(limits_as_declared(call.engine, limit))


def list_queues(call: Call) -> dict[str, Any]:
    """What stands ready and what runs, per queue, and what is paused."""
    return {"queues": queues_json(call.engine), "holds": holds_json(call.engine)}


def pause_scope(call: Call, scope: str, reason: str = "requested") -> dict[str, Any]:
    """Stop claims of `all`, `workflow:NAME`, `queue:NAME` or `capability:NAME`; what runs may end, starts are still accepted."""
    return hold(call.engine, scope, reason).to_json()


def resume_scope(call: Call, scope: str) -> dict[str, Any]:
    """Let go on what was paused."""
    return lift(call.engine, scope).to_json()


# Sessions.


def register_session(call: Call, session: str) -> dict[str, Any]:
    """A session begins, or comes back: consent of its live runs is kept, of ended ones revoked."""
    return reconcile_consent(call.engine, session).to_json()


def grant(
    call: Call, session: str, capability: str, mode: Literal["once", "until", "always"] = "once", lasting: float | None = None,
    by: str = "",
) -> dict[str, Any]:
    """Let a capability run for a session: once, for a time (`lasting` seconds), or always. A redelivered message grants nothing more."""
    found = call.conductor.capability(capability)
    length = None if lasting is None else timedelta(seconds=lasting)
    grant_id = consent.grant(
        call.engine.store, session, found.name, mode, lasting=length, by=by, grant_id=call.message_id)
    return {"session": session, "capability": found.name, "mode": mode, "grant_id": grant_id, "needed": found.options.consent}


def revoke(call: Call, session: str, capability: str = "") -> dict[str, Any]:
    """Take a session's grants back, of one capability or all."""
    call.conductor.revoke(session, capability)
    return {"session": session, "capability": capability or None, "revoked": True}


def list_grants(call: Call, session: str) -> dict[str, Any]:
    """What a session has granted and can still be used."""
    return {"session": session, "grants": [consent.grant_json(one) for one in call.conductor.grants(session)]}


def inbox(call: Call, session: str, after: str = "", limit: int = 100) -> dict[str, Any]:
    """A session's messages that nobody has acknowledged, oldest first, after the place `after`."""
    found = call.conductor.inbox(session, after=after, limit=limit)
    return {"session": session, "messages": [one.to_dict() for one in found], "last": found[-1].cursor if found else after}


def acknowledge(call: Call, session: str, message_id: str) -> dict[str, Any]:
    """Take a message out of the inbox. `acknowledged` is false if it was never there."""
    return {"session": session, "message_id": message_id, "acknowledged": call.conductor.acknowledge(session, message_id)}


# What can be started.


def list_workflows(call: Call) -> dict[str, Any]:
    """The names of the workflows that this worker knows."""
    return {"workflows": sorted(call.engine.workflows)}


def show_workflow(call: Call, workflow: str) -> dict[str, Any]:
    """What a run of it is started with, as JSON schema; its graph, and the same as a mermaid diagram."""
    flow = call.conductor.workflow(workflow)
    return workflow_json(flow) | {"mermaid": mermaid(flow.graph)}


COMMANDS: Mapping[str, Callable[..., Any]] = {
    "conductor.list_lanes": list_lanes, "conductor.show_lane": show_lane, "conductor.list_limits": list_limits,
    "conductor.set_limit": set_limit, "conductor.reset_limit": reset_limit, "conductor.list_queues": list_queues,
    "conductor.pause_scope": pause_scope, "conductor.resume_scope": resume_scope,
    "conductor.register_session": register_session, "conductor.grant": grant, "conductor.revoke": revoke,
    "conductor.list_grants": list_grants, "conductor.inbox": inbox, "conductor.acknowledge": acknowledge,
    "conductor.list_workflows": list_workflows, "conductor.show_workflow": show_workflow,
}
