"""The shop with workflows that wait, fail and queue, and its HTTP service in this process."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from conductor import Lane, Limit, Workflow
from tests.integration.shop import Order, Shop
from tests.support.http import Api

__all__ = ["Bureau", "Draft"]


class Draft(BaseModel):
    text: str


class Bureau(Shop):
    """The shop, with a workflow that waits for a signal and then for an agent, one in a lane, and one under a limit."""

    def __init__(self, redis_url: str, namespace: str, auth: Any = None, **settings: Any) -> None:
        super().__init__(redis_url, namespace, **settings)
        self.api = Api(self.conductor, auth=auth)

    def declare(self) -> None:
        super().declare()
        asking: Workflow[Any] = Workflow("asking")

        @asking.step
        def begin() -> int:
            return 1

        word = asking.wait("word", Draft, after=[begin])
        answer = asking.agent("draft", Draft, after=[word])

        @asking.step(after=[answer])
        def finish(draft: Draft) -> str:
            return draft.text

        metered: Workflow[Any] = Workflow("metered")

        @metered.step(limit=Limit("meter", "1/h"))
        def measure() -> int:
            return 1

        queued: Workflow[Any] = Workflow("queued", input=Order, lane=Lane("desk", 1, 1))

        @queued.step
        def work(order: Order) -> int:
            return order.number

    def run(self, workflow: str = "cli_orders", value: Any = None, **more: Any) -> str:
        """Start one over HTTP."""
        given = {"number": 3} if value is None and workflow in ("cli_orders", "queued") else value
        return str(self.api.post("/v1/runs", {"workflow": workflow, "input": given, **more})["run_id"])

    def done(self, value: Any = None, **more: Any) -> str:
        """Start one and work until nothing is left to do."""
        run_id = self.run(value=value, **more)
        self.drain()
        return run_id
