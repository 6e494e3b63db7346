"""Start: checked input becomes a run. Only after the store has it is anyone told; the poke that follows may be lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conductor import codec
from conductor.declare.lanes import Lane, turn_of
from conductor.declare.limits import limit_keys
from conductor.declare.starting import StartOptions
from conductor.declare.workflow import Workflow
from conductor.errors import KeyConflict, LaneFull
from conductor.ids import home_of_start, new_run_id
from conductor.records import LaneTerms, NewRun

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["Accepted", "start"]


@dataclass(frozen=True, slots=True)
class Accepted:
    """An accepted run: its id, whether it is new, and where a follower begins to listen."""

    run_id: str
    new: bool
    notice: str


def start(engine: Engine, flow: Workflow[Any], *, payload: str, options: StartOptions, run_id: str = "") -> Accepted:
    """Write the run; the same key with the same input and session is the same run, another body under it a conflict. A `run_id` that the
    caller derived makes a repeated start the same run as well; it must name the home of the key, if there is one."""
    run = _new_run(engine, flow, payload, options, run_id)
    told = engine.store.start(run, flow.graph)
    if told.word == "CONFLICT":
        raise KeyConflict(workflow=flow.name, key=options.key, run_id=told.run_id)
    if told.word == "LANE_FULL":
        raise LaneFull(lane=run.lane.name if run.lane else "", active=told.lane[0], queued=told.lane[1])
    engine.poke(told.pokes)
    return Accepted(told.run_id, told.word == "OK", told.notice)


def _new_run(engine: Engine, flow: Workflow[Any], payload: str, options: StartOptions, run_id: str) -> NewRun:
    settings, partitions = engine.settings, engine.store.partitions
    lane, turn = _lane(flow, payload, options)
    home = home_of_start(flow.name, options.key, lane.name if lane else "", partitions)
    completed, failed = flow.retain_completed_ms, flow.retain_failed_ms
    return NewRun(
        run_id=run_id or new_run_id(partitions, home), workflow=flow.name, input=payload, queue=options.queue or engine.default_queue,
        priority=5 if options.priority is None else options.priority, session=options.session, key=options.key,
        digest=codec.fingerprint(payload, options.session) if options.key else "", tags=options.tags,
        delay_ms=options.delay_ms, start_at=options.start_at_ms, expires_ms=options.expires_ms, deadline_ms=options.deadline_ms,
        retain_completed_ms=_ms(settings.retention_completed_seconds) if completed is None else completed,
        retain_failed_ms=_ms(settings.retention_failed_seconds) if failed is None else failed,
        key_retention_ms=_ms(settings.key_retention_days * 86_400), idle_timeout_ms=_ms(settings.idle_timeout_hours * 3600),
        lane=lane, lane_key=turn,
        limit_keys=limit_keys(flow.limits, lambda: flow.read_input(payload), f"start of workflow {flow.name}"),
    )


def _lane(flow: Workflow[Any], payload: str, options: StartOptions) -> tuple[LaneTerms | None, str]:
    """The lane that this start goes into, its own or the workflow's, and whose turn it takes there."""
    chosen = flow.lane if options.lane is None else options.lane
    if not isinstance(chosen, Lane):
        return chosen, ""
    value = flow.read_input(payload) if chosen.key else None
    return chosen.terms, turn_of(chosen.key, value, f"start of workflow {flow.name}", "lane")


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
