"""One operation as people and programs see it, whatever they ask through: its record, where it stands, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conductor.operations.why import look, step_of, why
from conductor.runs.words import Spelling

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["show_operation"]

_PLAIN = Spelling()


def show_operation(engine: Engine, operation_id: str, *, values: bool = False, spelling: Spelling = _PLAIN) -> dict[str, Any]:
    """Everything about one operation. `values` adds parameters and result, which may hold what not everybody should read."""
    found, view = look(engine, operation_id)
    said = why(found, view, spelling)
    told = {name: value for name, value in found.to_json().items() if values or name not in ("params", "result")}
    step = step_of(found, view)
    told |= {"queue": step.queue, "why": {"sentence": said.sentence, "command": said.command or None}}
    return told | ({"progress": dict(step.progress)} if step.progress else {})
