"""Erasing before its time: what people may ask to be forgotten."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from conductor.runs.erasing import erase_named
from conductor.service.access import Admin, Served
from conductor.service.forms import Body, Reason
from conductor.service.replies import example, reply
from conductor.service.shown_upkeep import PurgeShown

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["purge"])

_RUN = "01908f2e-7c1a-7b3e-9d55-3f1c5e0a7b05"
Name = Annotated[str, Field(min_length=1, max_length=256)]


class Purging(Body):
    """One of `run_id`, `tag` and `session`."""

    run_id: Name | None = None
    tag: Name | None = None
    session: Annotated[Name | None, Field(description="its runs and operations, its inbox and its grants")] = None
    dry_run: bool = Field(True, description="count, and delete nothing")
    reason: Reason = "requested"


@router.post("/purge", summary="Erase runs", responses={200: example("what was found, and what of it is gone", {
    "found": 3, "purged": 2, "kept": [_RUN], "examples": [_RUN], "more": False, "dry_run": False,
}, PurgeShown)})
def purge(body: Purging, served: Served, _caller: Admin) -> Response:
    """Delete for good what has ended, from the store, the archive and the blob store: a dry run unless it is asked not to be one. What has
    not ended is kept; with `more` ask again."""
    told = erase_named(
        served.engine, run_id=body.run_id or "", tag=body.tag or "", session=body.session or "", dry_run=body.dry_run)
    return reply(told.to_json())
