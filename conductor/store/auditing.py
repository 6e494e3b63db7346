"""The record of who did what: a capped stream in partition 0. It is written after the deed and never stands in its way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from conductor.errors import BadInput
from conductor.store.door import Door

__all__ = ["AuditVerbs", "Deed"]

_KEPT = 10_000
_PLACE = re.compile(r"\d{1,16}-\d{1,10}\Z")
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Deed:
    """One change: who, what (method and route), to what, why, and the status it was answered with. `place` is where it stands."""

    actor: str
    action: str
    target: str
    reason: str = ""
    status: int = 0
    place: str = ""

    def to_json(self) -> dict[str, Any]:
        told = asdict(self)
        return {"at": int(self.place.partition("-")[0] or 0), "id": told.pop("place")} | told


class AuditVerbs(Door):
    """Append and read; nothing is ever changed."""

    def record(self, deeds: Sequence[Deed]) -> None:
        """Append deeds; the oldest of some ten thousand give way."""
        to = ("XADD", self.keys.of(0, "audit"), "MAXLEN", "~", _KEPT, "*")
        self._command("audit", [
            (*to, "a", deed.actor, "d", deed.action, "t", deed.target, "y", deed.reason, "s", deed.status) for deed in deeds
        ])

    def deeds(self, *, before: str = "", limit: int = 100) -> list[Deed]:
        """The newest first, from the place `before` on."""
        if before and not _PLACE.match(before):
            raise BadInput(what="audit", field="cursor", problem="it is no place that a page has given")
        if not 1 <= limit <= _PAGE:
            raise BadInput(what="audit", field="limit", problem=f"{limit} is outside 1 to {_PAGE}")
        found: Any = self._client.xrevrange(self.keys.of(0, "audit"), f"({before}" if before else "+", "-", count=limit)
        return [Deed(said["a"], said["d"], said["t"], said["y"], int(said["s"]), place) for place, said in found]
