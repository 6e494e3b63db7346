"""Query parameters that a route does not know, or that came twice, are refused: a filter that is ignored shows the wrong things."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from fastapi import Request

from conductor.service.errors import UnknownFilter

__all__ = ["refuse_strangers"]

_KNOWN = "conductor_parameters"  # kept on the route itself


def refuse_strangers(request: Request) -> None:
    """Of the route that was matched: what it declares, or lists under `parameters` in its `openapi_extra`."""
    if not request.scope["query_string"]:
        return
    known, seen = _parameters(request.scope["route"]), set()
    for name, _ in request.query_params.multi_items():
        shown = name[:100]
        if name not in known:
            near = get_close_matches(shown, known, n=1)
            told = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(known)) or 'none'}"
            raise UnknownFilter(problem=f"unknown parameter {shown!r}{told}", field=shown)
        if name in seen:
            raise UnknownFilter(problem=f"parameter {shown!r} was given twice", field=shown)
        seen.add(name)


def _parameters(route: Any) -> frozenset[str]:
    found: frozenset[str] | None = getattr(route, _KNOWN, None)
    if found is None:
        extra = (route.openapi_extra or {}).get("parameters", ())
        found = frozenset(_declared(route.dependant)) | {told["name"] for told in extra if told["in"] == "query"}
        setattr(route, _KNOWN, found)
    return found


def _declared(dependant: Any) -> set[str]:
    names: set[str] = set()
    for field in dependant.query_params:
        model = getattr(field.field_info.annotation, "model_fields", None)
        names |= {inner.alias or name for name, inner in model.items()} if model else {field.alias}
    for inner in dependant.dependencies:
        names |= _declared(inner)
    return names
