"""What answers look like, for the OpenAPI document and for whoever generates a client of it. Times are ms on the store's clock."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from conductor.operations.read import Operation

__all__ = [
    "Acknowledged", "Capabilities", "CapabilityShown", "Grant", "Granted", "Grants", "Hold", "Holds", "Inbox", "Lane", "Lanes",
    "LimitShown", "Limits", "MessageShown", "Moved", "Named", "OperationFull", "OperationStatus", "Operations", "QueueShown", "Queues",
    "Registered", "Revoked", "Said", "ScheduleShown", "Schedules", "ScopeMoved", "WhySaid", "WorkflowBrief", "WorkflowShown", "Workflows",
]

_SOME_RUN = "01997f3a-52a1-7c33-9d1e-6a1f2f0c4d07"


class WhySaid(BaseModel):
    """In one sentence what it waits for or why it ended, and the command that would move it."""

    sentence: str
    command: str | None = None


class OperationFull(Operation):
    queue: str = ""
    progress: dict[str, Any] | None = Field(None, description="what its code has said last of how far it is")
    why: WhySaid


class Operations(BaseModel):
    operations: list[Operation]
    cursor: str | None = Field(description="where the next page begins; null if there are no more")
    now: int = Field(description="the store's clock")


class OperationStatus(BaseModel):
    queued: dict[str, int] = Field(examples=[{"retry": 2, "deferred_submit": 0, "scheduled_job": 1, "retry_steps": 0}])
    running: int
    next_retry_at: int | None
    oldest_age_seconds: float | None
    now: int


class Said(BaseModel):
    """`ok`, or what was found instead: `already`, `ended`."""

    operation_id: str
    word: str = Field(examples=["ok"])
    state: str = Field(examples=["cancelled"])
    reason: str = ""


class Named(BaseModel):
    """One id; several where more than one begins so."""

    ids: list[str] = Field(examples=[[_SOME_RUN]])


# Lanes, limits, queues, holds.


class Lane(BaseModel):
    """Who has a place, and who is queued, in the order of admission. A caller bound to sessions is shown its own runs, and all counts."""

    lane: str
    max_active: int
    max_queued: int | None
    queue_timeout_ms: int | None
    fair: bool
    active: list[str] = Field(examples=[[_SOME_RUN]])
    queue: list[str]
    active_count: int
    queued_count: int


class Lanes(BaseModel):
    lanes: list[Lane]


class LimitShown(BaseModel):
    limit: str
    rate: int | None = Field(description="so many may begin", examples=[500])
    per_ms: int | None = Field(description="in such a time", examples=[60_000])
    concurrency: int | None
    set_by_hand: bool
    running: int
    spent: int
    waiting: dict[str, int] = Field(description="how many wait, by key")
    held_back: dict[str, int] = Field(description="until when (ms) a key is held back")


class Limits(BaseModel):
    limits: list[LimitShown]


class Hold(BaseModel):
    since: int
    reason: str


class Holds(BaseModel):
    holds: dict[str, Hold] = Field(examples=[{"queue:gpu": {"since": 1_763_456_789_123, "reason": "driver update"}}])


class QueueShown(BaseModel):
    queue: str
    ready: int
    limited: int
    oldest_ready_ms: int
    running: int
    unanswered_ms: int = Field(description="for so long nobody has answered a poke")


class Queues(Holds):
    queues: list[QueueShown]


class ScopeMoved(BaseModel):
    """`ok`, `already` (it was paused before, for this reason) or `not_held`."""

    scope: str = Field(examples=["workflow:order"])
    word: str = Field(examples=["ok"])
    reason: str | None = None
    warning: str | None = None


# Schedules.


class ScheduleShown(BaseModel):
    """A schedule and its last ticks, the latest first. What a newer release wrote is not `readable` and says less."""

    model_config = ConfigDict(extra="allow")

    name: str
    when: str | None = None
    kind: str | None = None
    target: str | None = None
    overlap: str | None = None
    source: str | None = None
    readable: bool
    orphaned: bool = Field(description="no worker declares it any more")
    next_at: int | None
    paused_at: int | None
    paused_reason: str | None
    last_at: int | None
    last_id: str | None
    fired: int
    missed: int
    skipped: int
    ticks: list[dict[str, Any]]


class Schedules(BaseModel):
    schedules: list[ScheduleShown]
    now: int = Field(description="the clock that ticks are judged by")


class Moved(BaseModel):
    """`ok`, or `already` where nothing had to be changed; of one that was put `created`, `changed` or `same`."""

    schedule: str
    word: str = Field(examples=["ok"])


# Sessions.


class Grant(BaseModel):
    capability: str
    mode: str = Field(examples=["once"])
    until: int | None
    granted_at: int
    by: str
    grant_id: str | None


class Grants(BaseModel):
    session: str
    grants: list[Grant]


class Registered(Grants):
    """`kept`: runs whose consent for everything in them holds; `revoked`: ended runs from which it was taken."""

    kept: list[str]
    revoked: list[str]


class Granted(BaseModel):
    session: str
    capability: str
    mode: str
    grant_id: str
    needed: bool = Field(description="whether the capability asks for consent at all")


class Revoked(BaseModel):
    session: str
    capability: str | None
    revoked: bool


class MessageShown(BaseModel):
    """A message that nobody has acknowledged. `cursor` is where a reader goes on."""

    id: str
    kind: str = Field(examples=["retry_success"])
    operation_id: str
    at: int
    body: dict[str, Any]
    cursor: str


class Inbox(BaseModel):
    session: str
    messages: list[MessageShown]
    last: str = Field(description="give it as `after` to read on")
    now: int


class Acknowledged(BaseModel):
    session: str
    message_id: str
    acknowledged: bool


# The catalogue.


class WorkflowBrief(BaseModel):
    workflow: str
    steps: int
    hash: str
    lane: str | None


class Workflows(BaseModel):
    workflows: list[WorkflowBrief]


class WorkflowShown(BaseModel):
    workflow: str
    input: dict[str, Any] | None = Field(description="JSON schema of what a run is started with; null if it takes nothing")
    on_failure: str
    lane: str | None
    graph: dict[str, Any]


class CapabilityShown(BaseModel):
    name: str
    doc: str
    params: dict[str, Any] = Field(description="JSON schema of its parameters")
    retry: str
    max_retries: int
    effects: list[str]
    needs: list[str]
    consent: bool
    idempotent: bool
    lease_seconds: float
    disabled: str | None = Field(description="why it cannot be expected to work; null if it can")


class Capabilities(BaseModel):
    capabilities: list[CapabilityShown]
