"""What a caller of an operation is told. Queued is not success; a timeout is not failure."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

__all__ = ["Answer", "Cancelled", "Completed", "Failed", "QueuedForRetry", "Submitted", "TimedOut"]


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)

    operation_id: str

    @property
    def ok(self) -> bool:
        """Whether the operation has completed."""
        return isinstance(self, Completed)

    def to_json(self) -> dict[str, Any]:
        """As HTTP, Celery and the command line show it: what does not apply is left out."""
        return self.model_dump(mode="json", exclude_none=True)


class Completed(_Answer):
    """It is done. With `post_write_recovery` the call itself reported no success, but every declared effect was found in place."""

    status: Literal["ok"] = "ok"
    result: Any = None
    post_write_recovery: bool | None = None
    warning: str | None = None
    effects_verified: int | None = None
    registry_auto_recovered: bool | None = None


class QueuedForRetry(_Answer):
    """It failed for now and is repeated by itself. This is not success: wait for `retry_success` or `retry_exhausted` in the inbox."""

    queued_for_retry: Literal[True] = True
    status: Literal["queued"] = "queued"
    queue_reason: Literal["retry"] = "retry"
    retry_hint: str
    retry_at: int
    error_kind: str | None = None
    error: str | None = None


class Submitted(_Answer):
    """It is queued and runs when a worker takes it; `hint` says how to learn its end."""

    status: Literal["queued"] = "queued"
    queue_reason: str
    hint: str


class TimedOut(_Answer):
    """The waiting is over, the operation is not: its outcome is unknown. Ask again under its id; do not send it again without a key."""

    status: Literal["timeout"] = "timeout"
    hint: str


class Failed(_Answer):
    """It ended without success and is not repeated by itself. `exhausted`: all its repeats are used up."""

    status: Literal["failed", "exhausted"] = "failed"
    error_kind: str | None = None
    error: str | None = None
    reason: str | None = None


class Cancelled(_Answer):
    """Somebody cancelled it, or the run it belonged to ended."""

    status: Literal["cancelled"] = "cancelled"
    reason: str | None = None


Answer = Completed | QueuedForRetry | Submitted | TimedOut | Failed | Cancelled
