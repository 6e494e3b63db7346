"""The forms of what comes in: bodies are strict and take no field they do not know, queries refuse a parameter they do not know.

`"12"` is not 12 and 12 is not true in a body, where JSON says which is which; a query has texts only, so there numbers are read.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["Body", "Limit", "Query", "Reason", "Recorded", "Seconds", "Word"]


class Body(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Query(BaseModel):
    """The parameters of a request."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _once(cls, given: Any) -> Any:
        """An empty value names nothing: `?state=` is a mistake, not every state."""
        if isinstance(given, dict):
            for name, value in given.items():
                if value == "":
                    raise ValueError(f"{name} is empty; leave it out")
        return given


# It is redacted before it is written, for it is shown to everybody who sees what was moved.
Reason = Annotated[str, Field(max_length=512, description="why; stands in the audit record and where what was moved is shown")]
Recorded = Annotated[str, Field(max_length=512, description="why; stands in the audit record")]
Word = Annotated[str, Field(max_length=1024)]
Limit = Annotated[int, Field(ge=1, le=1000, description="how many at most")]
# A bound of a field of its own does not count beside one that stands here.
Seconds = Annotated[float, Field(ge=0, le=10**9)]
