"""The application of `tests.support.app`, with a lane so narrow that it is busy or full at once, and a limit that lets one step through."""

from __future__ import annotations

from conductor import Lane, Limit, Workflow
from tests.support.app import app, conductor

__all__ = ["app", "conductor", "metered", "narrow"]

narrow: Workflow[None] = Workflow("narrow", lane=Lane("narrow", 1, 1, queue_timeout_minutes=1))
go = narrow.wait("go", int)

metered: Workflow[None] = Workflow("metered")


@metered.step(limit=Limit("meter", "1/h"))
def measure() -> int:
    return 1
