"""The application of `tests.support.app`, with a lane so narrow that it is busy or full at once."""

from __future__ import annotations

from conductor import Lane, Workflow
from tests.support.app import app, conductor

__all__ = ["app", "conductor", "narrow"]

narrow: Workflow[None] = Workflow("narrow", lane=Lane("narrow", 1, 1, queue_timeout_minutes=1))
go = narrow.wait("go", int)
