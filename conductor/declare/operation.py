"""A capability as the engine stores it: a graph of one step, whose options depend on why it is queued."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from conductor.declare.code import Code
from conductor.declare.context import Ctx
from conductor.declare.freezing import signature
from conductor.declare.options import Options
from conductor.declare.shapes import shape_of
from conductor.declare.steps import Declared, Feed, Slot
from conductor.records import Backoff, Graph, Node, NodeKind, QueueReason, RetryPolicy

if TYPE_CHECKING:
    from conductor.declare.capability import Capability

__all__ = ["PREFIX", "OperationFlow", "capability_of", "operation_flow"]

PREFIX = "op:"  # no workflow can be called so
_ONCE = RetryPolicy(max=0, backoff=Backoff.NONE)


def capability_of(workflow: str) -> str:
    """The capability that a stored workflow name means; empty if it is a workflow's."""
    return workflow.removeprefix(PREFIX) if workflow.startswith(PREFIX) else ""


class OperationFlow:
    """What the engine asks of a workflow, answered for a capability: a name, a graph for each reason, the code."""

    retain_completed_ms: int | None = None
    retain_failed_ms: int | None = None

    def __init__(self, capability: Capability[..., Any]) -> None:
        self.capability = capability
        self.name = f"{PREFIX}{capability.name}"

    @cached_property
    def _step(self) -> Declared:
        found = self.capability
        slots = (
            Slot("params", Feed.INPUT, annotation=found.params, shape=found.shape),
            Slot("ctx", Feed.CTX, annotation=Ctx),
        )
        own = found.options
        options = Options(effect=True, idempotent=own.idempotent, capability=found, timeout_ms=own.timeout_ms)
        flow: Any = self
        return Declared(
            flow=flow, name=found.name, kind=NodeKind.STEP, index=0, options=options, slots=slots, returns=found.returns,
            shape=shape_of(found.returns, f"capability {found.name}"), fn=found.run, judge=found.judge(),
        )

    @cached_property
    def _signature(self) -> str:
        return signature(self._step)

    @cached_property
    def codes(self) -> Mapping[int, Code]:
        return {0: Code(self._step, self._signature)}

    @cached_property
    def _graphs(self) -> dict[QueueReason, Graph]:
        own, deferred = self.capability.options, QueueReason.DEFERRED
        alone = self.capability.alone or own.timeout_ms > 0 or own.limit is not None
        node = Node(
            index=0, name=self.capability.name, alone=alone, wants_input=True, timeout_ms=own.timeout_ms, lease_ms=own.lease_ms,
            queue=own.queue, retry=own.policy, signature=self._signature, capability=self.capability.name, budget=own.budget,
            limit=own.limit.name if own.limit else "", limit_terms=own.limit.terms if own.limit else "",
        )
        once = replace(node, lease_ms=own.deferred_lease_ms, retry=_ONCE)
        return {reason: Graph.build(self.name, (once if reason is deferred else node,)) for reason in QueueReason}

    def graph_for(self, reason: QueueReason) -> Graph:
        """The graph of an operation queued for this reason."""
        return self._graphs[reason]

    @property
    def graph(self) -> Graph:
        return self._graphs[QueueReason.RETRY]


_flows: dict[int, tuple[Capability[..., Any], OperationFlow]] = {}


def operation_flow(capability: Capability[..., Any]) -> OperationFlow:
    """The flow of a capability, made once."""
    known = _flows.get(id(capability))
    if known is None or known[0] is not capability:
        known = _flows[id(capability)] = (capability, OperationFlow(capability))
    return known[1]
