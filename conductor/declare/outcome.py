"""What a last step (`@flow.on_failure`, `@flow.on_finish`) is told about its run."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["FailedStep", "RunOutcome"]


class FailedStep(BaseModel):
    """A step that failed for good; `items` are the indexes that failed where it is an `each`."""

    model_config = ConfigDict(frozen=True)

    step: str
    reason: str = ""
    error: str = ""
    items: tuple[int, ...] = ()


class RunOutcome(BaseModel):
    """How the run is about to end: its final state, the reason, and the steps that failed."""

    model_config = ConfigDict(frozen=True)

    state: str
    reason: str = ""
    failed: tuple[FailedStep, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the run completed."""
        return self.state == "completed"
