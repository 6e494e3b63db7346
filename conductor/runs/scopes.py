"""Pausing and resuming more than one run: a workflow, a queue, a capability, everything; and what stands in the queues meanwhile.

Authority: every partition holds the same list of paused scopes, and its claims read it. Pausing again keeps the first reason, and completes
a pause that was cut off between two partitions; resuming twice is resuming once. Starts are still accepted, what runs may end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from conductor.codec import check_text
from conductor.declare.options import check_name, check_queue
from conductor.errors import BadInput, DeclarationError, redact
from conductor.runs.around import Hold, read_holds
from conductor.state import RUN, RunState, terminal
from conductor.store.listing import Filter, list_runs, queues

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["KINDS", "Scoped", "holds_json", "pause_scope", "queues_json", "resume_scope", "scope_named", "strange"]

_LIVE = frozenset(RunState) - terminal(RUN)
_KINDS = ("workflow", "queue", "capability")
KINDS = ("all", *_KINDS)
_REASON = 1024


@dataclass(frozen=True, slots=True)
class Scoped:
    """What became of a scope: OK, ALREADY (it was paused before, and for this reason) or NOT_HELD."""

    scope: str
    word: str
    reason: str = ""
    warning: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"scope": self.scope, "word": self.word, "reason": self.reason or None, "warning": self.warning or None}


def scope_named(text: str) -> str:
    """`all`, `workflow:NAME`, `queue:NAME` or `capability:NAME`, with a name that could be declared; else BadInput."""
    if text == "all":
        return text
    kind, _, name = text.partition(":")
    if kind not in _KINDS:
        raise BadInput(what="scope", field="scope", problem=f"it is none of: all, {', '.join(f'{one}:NAME' for one in _KINDS)}")
    try:
        return f"{kind}:{check_queue(name, '') if kind == 'queue' else check_name(name, '', kind)}"
    except DeclarationError as wrong:
        raise BadInput(what="scope", field=kind, problem=wrong.problem) from None


def pause_scope(engine: Engine, scope: str, reason: str = "requested") -> Scoped:
    """Nothing of it is claimed any more; what runs may end."""
    named = scope_named(scope)
    said = redact(check_text(reason, "reason", _REASON)) if reason else ""
    before = read_holds(engine.store).get(named)
    engine.store.hold(named, said if before is None else before.reason)
    warning = strange(engine, named)
    return Scoped(named, "OK", said, warning) if before is None else Scoped(named, "ALREADY", before.reason, warning)


def resume_scope(engine: Engine, scope: str) -> Scoped:
    """Let it go on; a run in it that is paused by itself stays paused."""
    named = scope_named(scope)
    moved = engine.store.unhold(named)
    engine.poke(moved.pokes)
    return Scoped(named, moved.word)


def strange(engine: Engine, scope: str) -> str:
    """A word of warning if nobody here knows what is paused: a misspelt name holds nothing. But a name may also be of code that is not
    here."""
    kind, _, name = scope.partition(":")
    if kind == "workflow" and name not in engine.workflows and not list_runs(engine.store, Filter(_LIVE, name), limit=1).runs:
        return f"no workflow {name!r} is declared here, and no live run has that name; known are {_named(engine.workflows)}"
    if kind == "capability" and name not in engine.capabilities:
        return f"no capability {name!r} is registered here; known are {_named(engine.capabilities)}"
    return ""


def _named(known: Mapping[str, Any]) -> str:
    return ", ".join(sorted(known)) or "none"


def holds_json(engine: Engine) -> dict[str, dict[str, Any]]:
    """What is paused, by scope: since when, and why."""
    held: Mapping[str, Hold] = read_holds(engine.store)
    return {scope: asdict(hold) for scope, hold in held.items()}


def queues_json(engine: Engine) -> list[dict[str, Any]]:
    """What stands ready and what runs, per queue."""
    return [
        {"queue": view.queue, "ready": view.ready, "limited": view.limited, "oldest_ready_ms": view.oldest_ready_ms,
         "running": view.running, "unanswered_ms": view.unanswered_ms} for view in queues(engine.store)
    ]
