"""A workflow as others see it: what it takes as JSON schema, its graph as JSON and as a mermaid diagram. Reads declarations, no store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from conductor.declare.hints import describe
from conductor.declare.workflow import Workflow
from conductor.records import Graph, NodeKind

__all__ = ["flowchart", "graph_json", "input_schema", "mermaid", "workflow_json"]

_SHAPES = {
    NodeKind.STEP: '["{}"]', NodeKind.EACH: '[["{}"]]', NodeKind.SLEEP: '("{}")', NodeKind.WAIT: '>"{}"]',
    NodeKind.AGENT: '>"{}"]', NodeKind.CALL: '[["{}"]]',
    NodeKind.ON_FAILURE: '>"{}"]', NodeKind.ON_FINISH: '>"{}"]', NodeKind.UNDO: '{{{{"{}"}}}}',
}


def graph_json(found: Graph) -> dict[str, Any]:
    """The steps of a graph and what they wait for."""
    return {"workflow": found.workflow, "hash": found.hash, "nodes": [_node(found, index) for index in range(len(found.nodes))]}


def _node(found: Graph, index: int) -> dict[str, Any]:
    node = found.nodes[index]
    return {
        "index": index, "name": node.name, "kind": node.kind, "after": [found.nodes[parent].name for parent in node.parents],
        "queue": node.queue or None, "max_parallel": node.max_parallel or None, "signature": node.signature,
        "retries": node.retry.max if node.retry else None, "undoes": None if node.undoes is None else found.nodes[node.undoes].name,
    }


def mermaid(found: Graph) -> str:
    """The same as a flowchart, for a README or a page."""
    return flowchart(graph_json(found))


def flowchart(told: Mapping[str, Any]) -> str:
    """A graph that was told as JSON, as a mermaid flowchart."""
    nodes = told["nodes"]
    place = {node["name"]: node["index"] for node in nodes}
    lines = ["flowchart LR"]
    shown = [node for node in nodes if node["kind"] != NodeKind.UNDO or node["undoes"] is not None]
    lines += [f"    n{node['index']}{_SHAPES[node['kind']].format(node['name'].replace(chr(34), '#quot;'))}" for node in shown]
    lines += [f"    n{place[parent]} --> n{node['index']}" for node in nodes for parent in node["after"]]
    lines += [f"    n{node['index']} -.-o n{place[node['undoes']]}" for node in nodes if node["undoes"] is not None]
    return "\n".join(lines)


def input_schema(flow: Workflow[Any]) -> dict[str, Any] | None:
    """What a run is started with, as JSON schema; None if it takes nothing. A type that JSON schema cannot say is named in words."""
    if flow.input_type is None:
        return None
    try:
        return dict(TypeAdapter(flow.input_type).json_schema())
    except PydanticUserError:
        return {"description": describe(flow.input_type)}


def workflow_json(flow: Workflow[Any]) -> dict[str, Any]:
    """One workflow: what it takes, its lane, and its graph."""
    return {
        "workflow": flow.name, "input": input_schema(flow), "on_failure": flow.policy, "lane": flow.lane.name if flow.lane else None,
        "graph": graph_json(flow.graph),
    }
