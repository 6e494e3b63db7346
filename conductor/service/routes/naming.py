"""Short names: which run or operation the beginning of an id means, or `last`. What people type, and programs have no need of."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from conductor.operations.naming import operations_named
from conductor.runs.naming import runs_named
from conductor.service.access import Reader, Served
from conductor.service.segments import SegmentRoute
from conductor.service.shown import Named

__all__ = ["router"]

router = APIRouter(route_class=SegmentRoute, prefix="/v1/named")


@router.get("/runs/{run_id}", response_model=Named, tags=["runs"])
def name_run(run_id: str, caller: Reader, conductor: Served) -> Any:
    """The run that an id, at least four characters of its beginning, or `last` names; several, if it is the beginning of more than one."""
    return {"ids": runs_named(conductor.engine, run_id, within=caller.sessions)}


@router.get("/operations/{operation_id}", response_model=Named, tags=["operations"])
def name_operation(operation_id: str, caller: Reader, conductor: Served) -> Any:
    """The same of a stand-alone operation; a step is named by its run, as `run:step[:item]`."""
    return {"ids": operations_named(conductor.engine, operation_id, within=caller.sessions)}
