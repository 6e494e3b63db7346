"""Schedules: the list, one with its last ticks, pause, resume, drop. A caller bound to sessions sees those that start work for them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Body as Json

from conductor.operations.schedules import orphans
from conductor.operations.timetable import drop, find_schedule, list_schedules, pause, resume, schedule_json
from conductor.service.access import Admin, Reader, Served, Writer
from conductor.service.forms import Body, Word
from conductor.service.segments import SegmentRoute
from conductor.service.shown import Moved, Schedules, ScheduleShown

__all__ = ["router"]

router = APIRouter(route_class=SegmentRoute, prefix="/v1", tags=["schedules"])


class Pausing(Body):
    reason: Word = "requested"


@router.get("/schedules", response_model=Schedules)
def list_all(caller: Reader, conductor: Served) -> Any:
    """Schedules with their next tick and their last ones."""
    return {"schedules": list_schedules(conductor.engine, caller.sees), "now": conductor.engine.store.job_clock()}


@router.get("/schedules/{name}", response_model=ScheduleShown)
def show(name: str, caller: Reader, conductor: Served) -> Any:
    """One schedule."""
    found = find_schedule(conductor.engine, name, caller.sees)
    return schedule_json(found, found.name in orphans(conductor.engine, [found]))


@router.post("/schedules/{name}/pause", response_model=Moved)
def pause_schedule(name: str, caller: Writer, conductor: Served, asked: Annotated[Pausing, Json(default_factory=Pausing)]) -> Any:
    """Stop it from ticking. What it has started goes on."""
    find_schedule(conductor.engine, name, caller.sees)
    return _moved(name, pause(conductor.engine, name, asked.reason))


@router.post("/schedules/{name}/resume", response_model=Moved)
def resume_schedule(name: str, caller: Writer, conductor: Served) -> Any:
    """Let it tick again, at its next tick from now; what it passed over is not made up for."""
    find_schedule(conductor.engine, name, caller.sees)
    return _moved(name, resume(conductor.engine, name))


@router.delete("/schedules/{name}", response_model=Moved)
def drop_schedule(name: str, caller: Admin, conductor: Served) -> Any:
    """Take it out of the store. One that code declares is refused: a worker would write it again."""
    find_schedule(conductor.engine, name, caller.sees)
    return _moved(name, drop(conductor.engine, name))


def _moved(name: str, word: str) -> dict[str, str]:
    return {"schedule": name, "word": word.lower()}
