"""What answers about many runs and about the service itself look like; the rest of `shown_runs.py`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from conductor.service.shown_runs import RunRow

__all__ = ["Audit", "BatchAsked", "BatchPreview", "BatchShown", "Health", "PurgeShown", "Ready"]


# Many runs.


class BatchPreview(BaseModel):
    dry_run: Literal[True]
    action: str
    count: int
    more: bool = Field(description="there are at least `count`")
    examples: list[str]
    runs: list[RunRow]
    now: int


class BatchAsked(BaseModel):
    batch_id: str


class BatchShown(BaseModel):
    batch_id: str
    state: str
    action: str
    where: dict[str, Any]
    done: int
    changed: int
    unchanged: int
    failed: int
    total: int | None
    errors: list[dict[str, str]]
    actor: str
    reason: str
    rate: float
    error: str | None
    created_at: int
    ended_at: int | None


class PurgeShown(BaseModel):
    found: int
    purged: int
    kept: list[str] = Field(description="some that had not ended, or were not there")
    examples: list[str]
    more: bool = Field(description="there are more than are erased at once: ask again")
    dry_run: bool


class DeedShown(BaseModel):
    at: int
    id: str
    actor: str
    action: str
    target: str
    reason: str
    status: int


class Audit(BaseModel):
    deeds: list[DeedShown]
    cursor: str | None


# The service itself.


class Health(BaseModel):
    status: Literal["ok"]


class FailedCheck(BaseModel):
    check: str
    found: str
    remedy: str


class HeldScope(BaseModel):
    since: int
    reason: str


class Parking(BaseModel):
    on: bool
    why: str | None = Field(description="why idle runs stay in memory")


class Ready(BaseModel):
    """Without scope `read`, `status` and `health` alone."""

    status: Literal["ready", "unavailable"]
    health: Literal["green", "red"]
    version: str | None = None
    namespace: str | None = None
    store: str | None = None
    durability: str | None = None
    epoch: str | None = None
    failed: list[FailedCheck] | None = None
    holds: dict[str, HeldScope] | None = None
    parking: Parking | None = None
    checkpoint_lag_seconds: float | None = None
    sweeps: dict[str, float] | None = None
