"""Capabilities that come along: telling a surface, and replaying another operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from conductor.declare import registry
from conductor.declare.capability import capability
from conductor.declare.context import Ctx
from conductor.declare.effects import EffectSpec, Verdict
from conductor.errors import OperationFailed, PermanentError, TransientError
from conductor.operations import acting, call, read
from conductor.operations.answers import Completed, QueuedForRetry, Submitted, TimedOut
from conductor.sessions.inbox import Message
from conductor.sessions.surfaces import Surface, SurfaceOptions, build
from conductor.state import OpState

if TYPE_CHECKING:
    from conductor.settings import Settings
    from conductor.wiring import Engine

__all__ = ["NOTIFY", "RETRY", "surfaces_of"]

NOTIFY, RETRY = "conductor.notify", "conductor.retry"
_WAIT_SECONDS = 60.0


def surfaces_of(settings: Settings) -> dict[str, Surface]:
    """The surfaces that the settings name."""
    return build(settings.notify, SurfaceOptions(settings.notify_secret or "", settings.notify_allow_private))


def _engine() -> Engine:
    conductor: Any = registry.current("built-in capability")
    engine: Engine = conductor.engine
    return engine


@capability(NOTIFY, retry="replay", timeout=30)
def notify(surface: str, message: dict[str, Any]) -> str:
    """Tell one notification surface. Each has an operation of its own, so that one that fails or hangs holds up no other."""
    known = surfaces_of(_engine().settings)
    if surface not in known:
        raise PermanentError(f"there is no surface {surface!r} any more; the setting conductor_notify has {', '.join(known) or 'none'}")
    body = message.get("body")
    known[surface].send(Message(
        str(message["id"]), str(message["kind"]), str(message["operation_id"]), int(message.get("at", 0)),
        dict(body) if isinstance(body, Mapping) else {}))
    return surface


def inner_effects(operation_id: str, ctx: Ctx) -> Verdict:
    """Whether the effects of the operation that is replayed are in place: its own manifest, asked with its own parameters.

    Asking only the replay itself would call a half-written inner operation done. If the inner record is gone, nothing can be asked.
    """
    engine = _engine()
    inner = read.find(engine, operation_id)
    if inner.state is OpState.COMPLETED:
        return Verdict.VERIFIED
    found = registry.capabilities.get(inner.capability)
    judge = found.judge() if found is not None else None
    if found is None or judge is None:
        return Verdict.INDETERMINATE
    return judge({"params": found.shape.read(found.encode(inner.params))}, ctx).verdict


@capability(RETRY, retry="verify_first", timeout=120, effects=(EffectSpec("inner operation", inner_effects),))
def replay(operation_id: str) -> Any:
    """Replay another operation from its record, and give its result. Parameters are not sent again."""
    engine = _engine()
    answer = acting.retry(engine, operation_id, actor=RETRY)
    if isinstance(answer, (QueuedForRetry, Submitted, TimedOut)):
        answer = call.follow(engine, operation_id, _WAIT_SECONDS)
    if isinstance(answer, Completed):
        return answer.result
    if isinstance(answer, (QueuedForRetry, Submitted, TimedOut)):
        raise TransientError(f"operation {operation_id} has not ended yet; it is looked at again")
    raise OperationFailed(
        operation_id=operation_id, capability=read.find(engine, operation_id).capability, state=answer.status,
        error=getattr(answer, "error", None) or answer.status)
