"""How events are written for a stream: `id`, `event`, `data`, an empty line. Pure.

Nothing in an event can begin a line of its own: JSON escapes what ends a line, and of names and ids only what can be printed is written.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["comment", "frame", "place", "retry"]


def frame(event: str, data: Any, *, id: str | int = "") -> bytes:
    """One event."""
    lines = [f"id: {_one_line(str(id))}"] if id != "" else []
    lines += [f"event: {_one_line(event)}", f"data: {json.dumps(data, separators=(',', ':'))}", "", ""]
    return "\n".join(lines).encode()


def place(id: str | int) -> bytes:
    """Where a reader comes back to that has seen no event yet: an id alone is kept and shows nothing."""
    return f"id: {_one_line(str(id))}\n\n".encode()


def comment(text: str) -> bytes:
    """What no reader is shown; without text a heartbeat."""
    return f": {_one_line(text)}\n\n".encode()


def retry(ms: int) -> bytes:
    """After which time a browser comes back by itself."""
    return f"retry: {ms}\n\n".encode()


def _one_line(text: str) -> str:
    return "".join(sign for sign in text if sign.isprintable())
