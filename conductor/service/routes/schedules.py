"""Schedules: the list, one with its last ticks, pause, resume, drop. A caller bound to sessions sees those that start work for them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from fastapi import Body as Json
from pydantic import Field

from conductor.broker.crontabs import cadence_of
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


class Scheduling(Body):
    capability: Word = Field(examples=["report.send"])
    params: Any = Field(None, description="as GET /v1/capabilities/{name} shows", examples=[{"to": "ops"}])
    when: Annotated[float, Field(gt=0, le=10**9)] | Word = Field(
        description="a number of seconds, or the five fields of a crontab", examples=["30 6 * * 1-5"])
    tz: Word = Field("UTC", description="of a crontab", examples=["Europe/Berlin"])
    session: Word | None = Field(None, description="whom the operations belong to")
    overlap: Literal["skip", "allow"] = Field("skip", description="whether a tick is left out while the one before it still runs")


@router.get("/schedules", response_model=Schedules)
def list_all(caller: Reader, conductor: Served) -> Any:
    """Schedules with their next tick and their last ones."""
    return {"schedules": list_schedules(conductor.engine, caller.sees), "now": conductor.engine.store.job_clock()}


@router.get("/schedules/{name}", response_model=ScheduleShown)
def show(name: str, caller: Reader, conductor: Served) -> Any:
    """One schedule."""
    found = find_schedule(conductor.engine, name, caller.sees)
    return schedule_json(found, found.name in orphans(conductor.engine, [found]))


@router.put("/schedules/{name}", response_model=Moved, responses={201: {"model": Moved, "description": "a new one"}})
def put_schedule(name: str, asked: Scheduling, _caller: Admin, conductor: Served, response: Response) -> Any:
    """Call a capability on a schedule, or change the one of this name: `created`, `changed` or `same`. A tick is one operation, however
    many beats run. The name of a schedule that code declares is not for callers."""
    word = conductor.schedule(
        name, asked.capability, asked.params, when=cadence_of(name, asked.when), tz=asked.tz, session=asked.session or "",
        overlap=asked.overlap)
    response.status_code = 201 if word == "CREATED" else 200
    return _moved(name, word)


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
