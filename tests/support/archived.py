"""Archived runs for tests."""

from __future__ import annotations

from typing import Any

from conductor.archive import ArchivedRun, Kind
from conductor.ids import new_run_id
from conductor.state import RunState

__all__ = ["finished", "parked"]


def finished(**changes: Any) -> ArchivedRun:
    """A completed run of namespace `shop`."""
    values: dict[str, Any] = {
        "namespace": "shop", "run_id": new_run_id(16), "generation": 1, "n": 9, "kind": Kind.FINISHED, "state": RunState.COMPLETED,
        "workflow": "order", "created_at_ms": 1_000, "progress_at_ms": 1_500, "ended_at_ms": 2_000, "delete_after_ms": 9_000,
        "key": "order-7", "session": "ada", "version": "0011223344556677", "tags": ("eu", "gift"), "snapshot": b'{"steps":[]}' * 20,
    }
    return ArchivedRun(**(values | changes))


def parked(**changes: Any) -> ArchivedRun:
    """One that waits for `approval`."""
    waiting: dict[str, Any] = {
        "kind": Kind.PARKED, "state": RunState.WAITING_SIGNAL, "ended_at_ms": None, "delete_after_ms": None, "idle_since_ms": 1_500,
        "waiting_for": ("approval",),
    }
    return finished(**(waiting | changes))
