"""Consent: a capability that requires it runs for a session only if that session has granted it: once, for a time, or always.

Authority: the session's grants in the store, read in one script just before the code runs. A once-grant is consumed under the op id, so
two ops never share one, and every replay of the op that got it passes. Revoking takes effect at the next attempt; it stops no running code.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

from conductor.declare.durations import Duration, in_ms
from conductor.errors import BadInput, ConsentRequired
from conductor.store.sessions import USES, GrantEntry, GrantMode, SessionVerbs

__all__ = ["grant", "grant_json", "granted", "require", "revoke"]

_NOBODY = (
    "capability {capability} needs the consent of a session, and no session was given: name one with session=, "
    "then grant it with `conductor grant SESSION {capability}` (once, for a time, or always)"
)


def grant(
    store: SessionVerbs, session: str, capability: str, mode: GrantMode = "once", *, lasting: Duration | None = None, by: str = "",
    grant_id: str = "",
) -> str:
    """Let `capability` run for `session`; `by` says who decided. Answers the grant id: the same id again grants nothing more.

    `once` adds one use to those left. `until` (with `lasting`) and `always` take each other's place: the last word counts.
    """
    given = grant_id or uuid4().hex
    word = store.grant(session, capability, mode, grant_id=given, length_ms=_length(capability, mode, lasting), by=by)
    if word == "FULL":
        problem = f"{USES} uses are granted and not used; grant it for a time, or always"
        raise BadInput(what=f"grant of {capability} to session {session}", field="mode", problem=problem)
    return given


def revoke(store: SessionVerbs, session: str, capability: str = "") -> None:
    """Take back what `session` granted, for one capability or for all; ops that used a grant before need a new one as well."""
    store.revoke(session, capability)


def granted(store: SessionVerbs, session: str) -> list[GrantEntry]:
    """The grants of `session` that can still be used."""
    return store.grants(session)


def grant_json(entry: GrantEntry) -> dict[str, Any]:
    """A grant as others see it; times in ms of the store's clock."""
    return {
        "capability": entry.capability, "mode": entry.mode, "until": entry.until or None, "granted_at": entry.granted_at,
        "by": entry.granted_by, "grant_id": entry.grant_id or None,
    }


def require(store: SessionVerbs, session: str, capability: str, op_id: str) -> None:
    """Pass if `op_id` may run `capability` for `session`, else `ConsentRequired`. Asked just before the code runs, at every attempt."""
    if not session:
        raise ConsentRequired(_NOBODY.format(capability=capability), capability=capability, session="")
    if store.use_grant(session, capability, op_id) != "OK":
        raise ConsentRequired(capability=capability, session=session)


def _length(capability: str, mode: GrantMode, lasting: Duration | None) -> int:
    what = f"grant of {capability}"
    if mode not in ("once", "until", "always"):
        raise BadInput(what=what, field="mode", problem=f"{mode!r} is not once, until or always")
    if (mode == "until") != (lasting is not None):
        problem = "it says for how long a grant `until` lasts" if mode == "until" else f"a grant `{mode}` has no duration"
        raise BadInput(what=what, field="lasting", problem=problem)
    try:
        return 0 if lasting is None else in_ms(lasting, least=timedelta(milliseconds=1))
    except ValueError as error:
        raise BadInput(what=what, field="lasting", problem=str(error)) from None
