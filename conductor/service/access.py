"""Who calls, and what they may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request

from conductor.service.errors import Forbidden

if TYPE_CHECKING:
    from conductor.broker.conductor import Conductor
else:
    Conductor = Any

__all__ = ["ALL_SCOPES", "Admin", "Caller", "Reader", "Served", "Writer"]

ALL_SCOPES = frozenset({"read", "write", "admin"})


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a name for the record, scopes, and the sessions it is bound to (None: everybody's)."""

    actor: str
    scopes: frozenset[str]
    sessions: frozenset[str] | None = None

    def sees(self, session: str) -> bool:
        """Whether what belongs to `session` exists for this caller."""
        return self.sessions is None or session in self.sessions


async def _served(request: Request) -> Conductor:
    found: Conductor = request.app.state.conductor
    return found


def _scope(name: str) -> Any:
    async def check(request: Request) -> Caller:
        caller: Caller = await request.app.state.access.caller(request)
        if name not in caller.scopes:
            raise Forbidden(problem=f"this needs scope {name}, and {caller.actor} has {', '.join(sorted(caller.scopes)) or 'none'}")
        return caller

    return check


Served = Annotated[Conductor, Depends(_served)]
Reader = Annotated[Caller, Depends(_scope("read"))]
Writer = Annotated[Caller, Depends(_scope("write"))]
Admin = Annotated[Caller, Depends(_scope("admin"))]


class Access:
    """Finds out who calls."""

    async def caller(self, request: Request) -> Caller:
        return Caller("local", ALL_SCOPES)
