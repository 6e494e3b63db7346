"""What following a run comes to: typed codes, the service's terminal record, and the result the caller keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from conductor.client.errors import ConductorRestarted, ConductorUnreachable, DownstreamLost, FollowingStopped, Unrecoverable, told
from conductor.errors import ConductorError, GetTimeout, LaneBusy, LaneFull, RunCancelled, RunFailed, UnknownRun

__all__ = ["Code", "Event", "Outcome", "Result", "State"]


class State(StrEnum):
    """Where the follower stands. It is not the state of the run."""

    RUNNING = "running"
    LOST_CONNECTION = "lost_connection"
    POLLING = "polling"
    RECOVERED = "recovered"
    NOT_FOUND = "not_found"
    GAVE_UP = "gave_up"
    FAILED = "failed"
    READY = "ready"


class Code(StrEnum):
    """How following a run ended. The first four are the run's own ends; the others say why its end is not known here."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LANE_BUSY = "lane_busy"  # its lane had no place in time: it failed, nothing of it ran while it waited
    LANE_FULL = "lane_full"  # refused at the start: there is no run
    CONDUCTOR_RESTARTED = "conductor_restarted"  # the service answers, the store's epoch changed, the run is unknown
    RUN_NOT_FOUND = "run_not_found"  # the service answers, same epoch, the run is unknown
    CONDUCTOR_UNREACHABLE = "conductor_unreachable"  # nobody answered until the backoff was used up
    UNRECOVERABLE = "unrecoverable"  # somebody answers, and the polling budget is used up
    DOWNSTREAM_LOST = "downstream_lost"  # it is running, without live lease or event for too long
    STOPPED = "stopped"  # the caller's own stop()
    TIMED_OUT = "timed_out"  # the caller's own timeout; the run goes on


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run's history. `data` is all of it, as the service tells it."""

    number: int
    kind: str
    at: int
    data: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, told: Mapping[str, Any], number: int = 0) -> Event:
        """Raises ValueError if it is none."""
        found = told.get("number", number)
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise ValueError(f"an event without a number: {str(told)[:200]}")
        return cls(found, str(told.get("kind") or ""), _whole(told.get("at")), dict(told))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run stands, as the service's outcome route tells it. Times are ms of the store's clock."""

    run_id: str
    state: str
    ended: bool
    workflow: str = ""
    generation: int = 0
    reason: str = ""
    ended_at: int = 0
    deadline: int = 0
    last_event: int = 0
    live_leases: int = 0
    progress_at: int = 0
    due: int = 0  # how much of it comes by the clock: repeats, a delayed start
    children: int = 0  # runs that it waits for
    held: bool = False  # somebody has paused its workflow, a queue of it, or everything
    limited: bool = False  # a step of it waits for its limit
    now: int = 0  # the service's clock when it answered; 0: it did not say
    parked: bool = False
    result: Any = None
    error: Mapping[str, Any] = field(default_factory=dict)
    epoch: str = ""

    @classmethod
    def of(cls, told: object, now: int = 0) -> Outcome:
        """Raises ValueError if that is none: half an answer must not be taken for an end."""
        if not isinstance(told, Mapping) or not isinstance(told.get("state"), str) or not isinstance(told.get("ended"), bool):
            raise ValueError(f"not an outcome: {str(told)[:200]}")
        plain: dict[str, Any] = {name: str(told.get(name) or "") for name in ("run_id", "state", "workflow", "reason", "epoch")}
        plain |= {name: _whole(told.get(name)) for name in _NUMBERS}
        error = told.get("error") or told.get("result_error")
        return cls(
            **plain, ended=told["ended"], now=_whole(told.get("now")) or now, parked=bool(told.get("parked")),
            held=bool(told.get("held")), limited=bool(told.get("limited")),
            result=told.get("result"), error=dict(error) if isinstance(error, Mapping) else {},
        )


_NUMBERS = ("generation", "ended_at", "deadline", "last_event", "live_leases", "progress_at", "due", "children")


def _whole(found: object) -> int:
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


@dataclass(frozen=True, slots=True)
class Result:
    """How following a run ended here. `state` is that of the follower: ready, failed, not_found or gave_up."""

    code: Code
    run_id: str
    state: str
    value: Any = None
    reason: str = ""
    problem: str = ""
    last_event: int = 0
    seconds: float = 0
    url: str = ""
    outcome: Outcome | None = None
    refused: ConductorError | None = None  # of `lane_full`: what the service said

    @property
    def ok(self) -> bool:
        """Whether the run has completed."""
        return self.code is Code.COMPLETED

    @property
    def ended(self) -> bool:
        """Whether the run itself has ended; else it may still go on."""
        return self.code in _ENDED

    def get(self) -> Any:
        """The run's result, or the exception that its code means."""
        if self.ok and not (self.outcome and self.outcome.error):
            return self.value
        raise self._error()

    def _error(self) -> Exception:
        known = self.outcome or Outcome(self.run_id, "unknown", ended=False)
        if self.ok:  # it completed, and its result is not to be had: it has been purged, or its blob is away
            return told(known.error, url=self.url)
        failures = [(str(one.get("step")), _said(one)) for one in known.error.get("failed") or () if isinstance(one, Mapping)]
        details: dict[str, Any] = {
            "run_id": self.run_id, "workflow": known.workflow, "reason": self.reason or "no reason was given", "url": self.url,
            "problem": self.problem, "seconds": f"{self.seconds:g}", "state": known.state, "failures": failures, "result": self,
            "steps": "; ".join(f"{step} ({why})" for step, why in failures) or "none", "namespace": "of the service",
        }
        said = str(known.error.get("message") or "") if self.ended else ""
        return self.refused or _RAISED[self.code](said, **details)

    def to_json(self) -> dict[str, Any]:
        """For logs and programs."""
        return {
            "code": self.code, "run_id": self.run_id, "state": self.state, "value": self.value, "reason": self.reason,
            "problem": self.problem, "last_event": self.last_event, "outcome": asdict(self.outcome) if self.outcome else None,
        }


def _said(failed: Mapping[str, Any]) -> str:
    error = failed.get("error")
    text = error.get("message") if isinstance(error, Mapping) else error
    return str(text or failed.get("reason") or "no error was recorded")


_ENDED = frozenset({Code.COMPLETED, Code.FAILED, Code.CANCELLED, Code.LANE_BUSY})
_RAISED: Mapping[Code, type[ConductorError]] = {
    Code.FAILED: RunFailed, Code.CANCELLED: RunCancelled, Code.LANE_BUSY: LaneBusy, Code.LANE_FULL: LaneFull,
    Code.CONDUCTOR_RESTARTED: ConductorRestarted, Code.RUN_NOT_FOUND: UnknownRun, Code.CONDUCTOR_UNREACHABLE: ConductorUnreachable,
    Code.UNRECOVERABLE: Unrecoverable, Code.DOWNSTREAM_LOST: DownstreamLost, Code.STOPPED: FollowingStopped, Code.TIMED_OUT: GetTimeout,
}
