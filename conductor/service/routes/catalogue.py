"""What can be started and called: workflows with their input and graph, capabilities with their parameters and what they promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse

from conductor.operations.offering import Offering, offer
from conductor.runs.drawing import mermaid, workflow_json
from conductor.service.access import Reader, Served
from conductor.service.forms import Word
from conductor.service.shown import Capabilities, CapabilityShown, Workflows, WorkflowShown

if TYPE_CHECKING:
    from conductor.broker.conductor import Conductor

from conductor.service.segments import SegmentRoute

__all__ = ["router"]

router = APIRouter(route_class=SegmentRoute, prefix="/v1")


# Workflows.


@router.get("/workflows", response_model=Workflows, tags=["workflows"])
def list_workflows(_caller: Reader, conductor: Served) -> Any:
    """The workflows that this service knows."""
    conductor.import_code()
    return {"workflows": [
        {"workflow": name, "steps": len(flow.graph.steps), "hash": flow.graph.hash, "lane": flow.lane.name if flow.lane else None}
        for name, flow in sorted(conductor.engine.workflows.items())
    ]}


@router.get("/workflows/{name}", response_model=WorkflowShown, tags=["workflows"])
def show_workflow(name: str, _caller: Reader, conductor: Served) -> Any:
    """What a run of it is started with, as JSON schema, and its graph."""
    return workflow_json(conductor.workflow(name))


@router.get("/workflows/{name}/mermaid", response_class=PlainTextResponse, tags=["workflows"])
def draw_workflow(name: str, _caller: Reader, conductor: Served) -> str:
    """Its graph as a mermaid diagram."""
    return f"{mermaid(conductor.workflow(name).graph)}\n"


# Capabilities.


@router.get("/capabilities", response_model=Capabilities, tags=["capabilities"])
def list_capabilities(_caller: Reader, conductor: Served, request: Request, text: Word = "") -> Any:
    """Capabilities whose name or documentation has every word of `text`."""
    conductor.import_code()
    reasons = _reasons(request, conductor)
    return {"capabilities": [offer(one, reasons.get(one.name, "")) for one in conductor.capabilities(text)]}


@router.get("/capabilities/{name}", response_model=CapabilityShown, tags=["capabilities"])
def show_capability(name: str, _caller: Reader, conductor: Served, request: Request) -> Any:
    """One capability: its parameters as JSON schema, and what it promises."""
    found = conductor.capability(name)
    return offer(found, _reasons(request, conductor).get(found.name, ""))


def _reasons(request: Request, conductor: Conductor) -> dict[str, str]:
    """Why some are disabled: one answer for all requests of some seconds."""
    state = request.app.state
    if not hasattr(state, "offering"):
        state.offering = Offering(conductor.engine)
    known: Offering = state.offering
    return known.reasons(conductor.capabilities())
