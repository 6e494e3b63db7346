"""What holds work back: lanes, limits, queues, and what is paused (holds).

A caller bound to sessions sees of a lane its own runs and how many others there are, of a limit no keys: they may name other people.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter
from fastapi import Body as Json
from pydantic import Field

from conductor.errors import BadInput
from conductor.runs.gating import KEEP, lane_json, lanes, limit_json, limits, limits_as_declared, set_limit
from conductor.runs.scopes import Scoped, holds_json, pause_scope, queues_json, resume_scope
from conductor.service.access import Admin, Caller, Reader, Served
from conductor.service.forms import Body, Word
from conductor.service.shown import Holds, Lane, Lanes, Limits, LimitShown, Queues, ScopeMoved
from conductor.store.lanes import LaneView
from conductor.store.limits import LimitView
from conductor.store.reads import read_runs

if TYPE_CHECKING:
    from conductor.broker.conductor import Conductor

from conductor.service.segments import SegmentRoute

__all__ = ["router"]

router = APIRouter(route_class=SegmentRoute, prefix="/v1")


# Lanes.


@router.get("/lanes", response_model=Lanes, tags=["lanes"])
def list_lanes(caller: Reader, conductor: Served) -> Any:
    """Lanes that somebody is in, and those that are declared here."""
    conductor.import_code()
    return {"lanes": [_lane(conductor, caller, view) for view in lanes(conductor.engine)]}


@router.get("/lanes/{name}", response_model=Lane, tags=["lanes"])
def show_lane(name: str, caller: Reader, conductor: Served) -> Any:
    """One lane: who has a place, and who is queued, in the order of admission."""
    return _lane(conductor, caller, lanes(conductor.engine, name)[0])


def _lane(conductor: Conductor, caller: Caller, view: LaneView) -> dict[str, Any]:
    told = lane_json(view) | {"active_count": len(view.active), "queued_count": len(view.queue)}
    if caller.sessions is None:
        return told
    runs = read_runs(conductor.engine.store, [*view.active, *view.queue])
    mine = {run.run_id for run in runs if run is not None and caller.sees(run.session)}
    return told | {name: [run_id for run_id in told[name] if run_id in mine] for name in ("active", "queue")}


# Limits.


class LimitSet(Body):
    """What is left out stays as it is; null takes it away."""

    rate: Word | None = Field(None, description="so many in such a time", examples=["500/m"])
    concurrency: int | None = Field(None, ge=1, le=1_000_000, description="so many at once")


@router.get("/limits", response_model=Limits, tags=["limits"])
def list_limits(caller: Reader, conductor: Served) -> Any:
    """Limits that are in use, set, or declared here."""
    conductor.import_code()
    return {"limits": [_limit(caller, view) for view in limits(conductor.engine)]}


@router.get("/limits/{name}", response_model=LimitShown, tags=["limits"])
def show_limit(name: str, caller: Reader, conductor: Served) -> Any:
    """One limit: what it allows, how much of that is used, who waits."""
    return _limit(caller, limits(conductor.engine, name)[0])


@router.put("/limits/{name}", response_model=LimitShown, tags=["limits"])
def put_limit(name: str, asked: LimitSet, caller: Admin, conductor: Served) -> Any:
    """Set a limit for all workers, at once. It stands above the code's word until it is taken back."""
    given = asked.model_fields_set
    if not given:
        raise BadInput(what=f"limit {name}", field="rate", problem="nothing was given; say rate, concurrency or both")
    rate, concurrency = (asked.rate if "rate" in given else KEEP), (asked.concurrency if "concurrency" in given else KEEP)
    return _limit(caller, set_limit(conductor.engine, name, rate=rate, concurrency=concurrency))


@router.delete("/limits/{name}", response_model=LimitShown, tags=["limits"])
def as_declared(name: str, caller: Admin, conductor: Served) -> Any:
    """Take back what was set: the code's word counts again."""
    return _limit(caller, limits_as_declared(conductor.engine, name))


def _limit(caller: Caller, view: LimitView) -> dict[str, Any]:
    told = limit_json(view)
    return told if caller.sessions is None else told | {"waiting": {}, "held_back": {}}


# Queues and what is paused.


class Holding(Body):
    reason: Word = "requested"


@router.get("/queues", response_model=Queues, tags=["queues"])
def list_queues(_caller: Reader, conductor: Served) -> Any:
    """What stands ready and what runs, per queue, and what is paused."""
    return {"queues": queues_json(conductor.engine), "holds": holds_json(conductor.engine)}


@router.get("/holds", response_model=Holds, tags=["queues"])
def list_holds(_caller: Reader, conductor: Served) -> Any:
    """What is paused: `all`, `workflow:NAME`, `queue:NAME`, `capability:NAME`."""
    return {"holds": holds_json(conductor.engine)}


@router.put("/holds/{scope:path}", response_model=ScopeMoved, tags=["queues"])
def hold(scope: str, _caller: Admin, conductor: Served, asked: Annotated[Holding, Json(default_factory=Holding)]) -> Any:
    """Stop claims of a workflow, a queue, a capability or everything; what runs may end, starts are still accepted."""
    return _scoped(pause_scope(conductor.engine, scope, asked.reason))


@router.delete("/holds/{scope:path}", response_model=ScopeMoved, tags=["queues"])
def lift(scope: str, _caller: Admin, conductor: Served) -> Any:
    """Let go on what was paused."""
    return _scoped(resume_scope(conductor.engine, scope))


def _scoped(told: Scoped) -> dict[str, Any]:
    return told.to_json() | {"word": told.word.lower()}
