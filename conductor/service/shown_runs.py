"""What answers about runs look like, for the OpenAPI document and for whoever generates a client of it. Times are ms on the store's clock.

A field that stands here without a default is always there, null where there is nothing. These answers are rendered by `reply` and pass no
model on their way; tests hold them to what stands here.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "CancelledRun", "ConsentShown", "EventsPage", "ForkShown", "MovedRun", "OutcomeShown", "RunRow", "RunShown", "RunWhy", "Runs", "Said",
    "Started", "Taken",
]


class WaiterShown(BaseModel):
    """What a step waits for; `until` is 0 where there is no end."""

    step: str
    kind: Literal["signal", "agent", "time"]
    signal: str
    until: int
    instructions: str


class RunRow(BaseModel):
    """A run of the store."""

    run_id: str
    workflow: str
    state: str
    reason: str
    generation: int
    queue: str
    priority: int
    lane: str | None
    session: str
    key: str
    tags: list[str]
    created_at: int
    ended_at: int | None
    deadline: int | None
    duration_ms: int
    progress_at: int
    idle_since: int | None
    idle_ms: int | None
    active_waiters: list[WaiterShown]
    forked_from: str | None
    parent_id: str | None
    root_id: str | None
    starts_at: int | None
    held: list[str] = Field(description="what is paused and keeps it from going on")
    events: int
    steps_left: int
    steps_failed: int
    running: int
    ready: int


class ArchivedRow(BaseModel):
    """A run that only the archive has; listed with `archived=true`."""

    run_id: str
    workflow: str
    state: str
    reason: str
    generation: int
    session: str
    key: str
    tags: list[str]
    created_at: int
    ended_at: int | None
    duration_ms: int
    progress_at: int | None
    events: int
    failed_steps: list[str]
    error_kind: str | None
    waiting_for: list[str]
    idle_since: int | None
    archived: str
    kept_until: int | None


class Runs(BaseModel):
    runs: list[RunRow | ArchivedRow]
    cursor: str | None
    now: int
    warning: str | None = Field(None, description="what could not be asked; left out where all could")


class StepShown(BaseModel):
    """Also attempt, times, worker, error, items and progress, where there is something to tell."""

    model_config = ConfigDict(extra="allow")

    index: int
    name: str
    kind: str
    state: str


class Said(BaseModel):
    sentence: str
    command: str | None


class RunShown(RunRow):
    """With `values` also `input`, and `result` of a run that has completed, or `values_error`."""

    model_config = ConfigDict(extra="allow")

    now: int
    progress: dict[str, int] = Field(description="how many steps are in which state")
    holds: dict[str, Any]
    steps: list[StepShown]
    parked: bool
    archived: str | None
    kept_until: int | None
    why: Said


class RunWhy(BaseModel):
    run_id: str
    workflow: str
    state: str
    reason: str
    sentence: str
    command: str | None


class FailedStep(BaseModel):
    step: str
    reason: str
    error: str
    items: list[int] | None = Field(None, description="of an `each`: which of its items")


class EndError(BaseModel):
    code: str
    message: str
    failed: list[FailedStep]


class ResultError(BaseModel):
    code: str
    message: str


class OutcomeShown(BaseModel):
    """A run that has ended has `result`, or `error` in its place; `result_error` says why a result cannot be told."""

    run_id: str
    workflow: str
    session: str
    state: str
    ended: bool
    generation: int
    reason: str
    ended_at: int | None
    deadline: int | None
    last_event: int
    live_leases: int
    due: int
    children: int
    held: list[str]
    limited: bool
    progress_at: int | None
    parked: bool
    epoch: str | None
    result: Any = None
    error: EndError | None = None
    result_error: ResultError | None = None


class Started(BaseModel):
    run_id: str
    workflow: str
    new: bool
    state: str


class MovedRun(BaseModel):
    """`ok`, or what was found instead: `already`, …"""

    run_id: str
    word: str
    state: str


class CancelledRun(MovedRun):
    """`ok`, `already`, `compensating`, or `ended`, with how it ended."""

    reason: str
    at: int


class ConsentShown(BaseModel):
    run_id: str
    consent: bool


class Taken(BaseModel):
    """`taken`, `kept` (nothing waits for it yet) or `repeated`."""

    run_id: str
    word: str
    step: str | None
    state: str
    id: str | None = Field(None, description="of a signal")


class ForkShown(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    run_id: str
    forked_from: str
    from_: str = Field(alias="from")
    effects_repeat: bool
    new: bool


class EventShown(BaseModel):
    """And the fields of its kind: `step`, `reason`, `actor`, `fence`, …"""

    model_config = ConfigDict(extra="allow")

    number: int
    kind: str
    at: int


class EndShown(BaseModel):
    state: str
    reason: str
    generation: int


class EventsPage(BaseModel):
    events: list[EventShown]
    last: int = Field(description="give it as `after` to read on")
    end: EndShown | None = Field(description="how the run ended, if this is the last page")
