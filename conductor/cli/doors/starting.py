"""How a run is to be started, checked before anything is sent or written: by either door with the same words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from conductor.declare.starting import StartOptions, start_options

__all__ = ["chosen"]


def chosen(workflow: str, key: str | None, options: Mapping[str, Any]) -> StartOptions:
    """The options of one start; durations are given in seconds."""
    given: dict[str, Any] = {name: timedelta(seconds=value) if isinstance(value, float) else value for name, value in options.items()}
    return start_options(workflow, key=key, **given)
