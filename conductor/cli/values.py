"""JSON that a user gives on the command line, read strictly: what means two things, or is too deep to be a value, is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from conductor.codec import MAX_DEPTH
from conductor.errors import BadInput

__all__ = ["loose_json", "read_json"]


class _Twice(ValueError):
    """A key stands twice in one object."""


def read_json(text: str | None, what: str = "JSON") -> Any:
    """The value of a text, of `@file`, or of standard input for `-`; None if nothing was given."""
    if text is None:
        return None
    try:
        if text == "-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8")
        return _parse(text, what)
    except OSError as problem:
        raise click.BadParameter(f"{text[1:]!r} cannot be read: {problem.strerror}", param_hint="JSON") from None
    except _Twice as problem:
        raise click.BadParameter(str(problem), param_hint="JSON") from None
    except ValueError as problem:
        raise click.BadParameter(f"not JSON: {problem}", param_hint="JSON") from None


def loose_json(text: str, what: str) -> Any:
    """The value of a text; what is not JSON is taken as text."""
    try:
        return _parse(text, what)
    except _Twice as problem:
        raise click.BadParameter(f"{what}: {problem}", param_hint="--set") from None
    except ValueError:
        return text


def _parse(text: str, what: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise BadInput(what=what, field="value", problem=f"it is nested deeper than {MAX_DEPTH} levels") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Which of two values under one key counts differs from reader to reader."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Twice(f"the key {name!r} stands twice in one object")
        found[name] = value
    return found
