"""Sessions, that is whoever asked: registering, what they granted, their inbox.

A session is a name; nothing has to be made before it is used. A caller bound to sessions knows no others: whatever the name, and whether
anybody ever used it, the answer is the same. The inbox as a stream of events is served by `events.py`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Header
from pydantic import Field

from conductor.errors import UnknownMessage, UnknownSession
from conductor.runs.consenting import reconcile_consent
from conductor.service.access import Caller, Reader, Served, Writer
from conductor.service.forms import Body, Limit, Word
from conductor.service.shown import Acknowledged, Granted, Grants, Inbox, Registered, Revoked
from conductor.sessions import consent
from conductor.store.reads import read_now

if TYPE_CHECKING:
    from conductor.broker.conductor import Conductor

from conductor.service.segments import SegmentRoute

__all__ = ["inbox_page", "known_session", "router"]

router = APIRouter(route_class=SegmentRoute, prefix="/v1", tags=["sessions"])


def known_session(caller: Caller, session: str) -> None:
    """Refuse every session but those the caller is bound to, in one and the same way."""
    if not caller.sees(session):
        raise UnknownSession(session=session)


@router.put("/sessions/{session}", response_model=Registered)
def register(session: str, caller: Writer, conductor: Served) -> Any:
    """A session begins, or comes back. The consent that its live runs carry is kept, what ended runs have left over is revoked."""
    known_session(caller, session)
    return reconcile_consent(conductor.engine, session).to_json() | _granted(conductor, session)


# Consent.


class Granting(Body):
    capability: Word = Field(examples=["files.erase"])
    mode: Literal["once", "until", "always"] = "once"
    lasting: float | None = Field(None, gt=0, le=10**9, description="seconds; of a grant `until`", examples=[3600])


@router.get("/sessions/{session}/grants", response_model=Grants)
def list_grants(session: str, caller: Reader, conductor: Served) -> Any:
    """What a session has granted and can still be used."""
    known_session(caller, session)
    return _granted(conductor, session)


def _granted(conductor: Conductor, session: str) -> dict[str, Any]:
    return {"session": session, "grants": [consent.grant_json(one) for one in conductor.grants(session)]}


@router.post("/sessions/{session}/grants", status_code=201, response_model=Granted)
def grant(
    session: str, asked: Granting, caller: Writer, conductor: Served,
    key: Annotated[str, Header(alias="Idempotency-Key", max_length=128, description="the same key again grants nothing more")] = "",
) -> Any:
    """Let a capability that needs consent run for a session: once, for a time, or always."""
    known_session(caller, session)
    found = conductor.capability(asked.capability)  # a misspelt name would grant nothing, and nobody would notice
    lasting = None if asked.lasting is None else timedelta(seconds=asked.lasting)
    grant_id = consent.grant(
        conductor.engine.store, session, found.name, asked.mode, lasting=lasting, by=caller.actor, grant_id=key)
    return {
        "session": session, "capability": found.name, "mode": asked.mode, "grant_id": grant_id, "needed": found.options.consent,
    }


@router.delete("/sessions/{session}/grants", response_model=Revoked)
def revoke_all(session: str, caller: Writer, conductor: Served) -> Any:
    """Take back everything a session has granted; it counts from the next attempt on."""
    known_session(caller, session)
    conductor.revoke(session)
    return {"session": session, "capability": None, "revoked": True}


@router.delete("/sessions/{session}/grants/{capability}", response_model=Revoked)
def revoke(session: str, capability: str, caller: Writer, conductor: Served) -> Any:
    """Take back what a session has granted to one capability."""
    known_session(caller, session)
    conductor.revoke(session, capability)
    return {"session": session, "capability": capability, "revoked": True}


# Inbox.


def inbox_page(conductor: Conductor, caller: Caller, session: str, after: str, limit: int) -> dict[str, Any]:
    """Messages that nobody has acknowledged, oldest first, after a place."""
    known_session(caller, session)
    found = conductor.inbox(session, after=after, limit=limit)
    return {
        "session": session, "messages": [one.to_dict() for one in found], "last": found[-1].cursor if found else after,
        "now": read_now(conductor.engine.store),
    }


@router.get("/sessions/{session}/inbox", response_model=Inbox)
def read_inbox(session: str, caller: Reader, conductor: Served, after: str = "", limit: Limit = 100) -> Any:
    """A page of a session's inbox. A message stays until it is acknowledged; `Accept: text/event-stream` gives messages as they come."""
    return inbox_page(conductor, caller, session, after, limit)


@router.post("/sessions/{session}/inbox/{message_id:path}/ack", response_model=Acknowledged)
def acknowledge(session: str, message_id: str, caller: Writer, conductor: Served) -> Any:
    """A message was dealt with and is not shown again. A second time is harmless; one that was never there is an error."""
    known_session(caller, session)
    if not conductor.acknowledge(session, message_id):
        raise UnknownMessage(session=session, message_id=message_id)
    return {"session": session, "message_id": message_id, "acknowledged": True}
