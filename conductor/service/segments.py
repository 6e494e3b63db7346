"""Routes that match the path as it was sent, so that `%2F` in a name is a part of the name and no end of a segment.

The server hands the path over decoded, and in that a session `team/ada` would look like two segments. Names of sessions, lanes and
schedules are their users' own, so all that can stand in a segment must reach us. Only `.` and `..` cannot, because whatever lies between a
caller and us takes them for directions; no session can be named so.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from fastapi.routing import APIRoute
from starlette.routing import Match

__all__ = ["SegmentRoute"]

_SENT = "conductor.sent_path"  # of a scope: its path as it was sent; empty where that says nothing more


class SegmentRoute(APIRoute):
    """Asks the path as sent only where that can make a difference."""

    def matches(self, scope: Any) -> tuple[Match, Any]:
        if _SENT not in scope:
            scope[_SENT] = _sent(scope)
        if not (sent := scope[_SENT]):
            return super().matches(scope)
        match, found = super().matches({**scope, "path": sent, "root_path": ""})
        if match is not Match.NONE:
            found["path_params"] = {name: unquote(value) for name, value in found["path_params"].items()}
        return match, found


def _sent(scope: Any) -> str:
    """The path below the place where the service is mounted, not decoded, if a slash in it is encoded."""
    raw = (scope.get("raw_path") or b"").partition(b"?")[0].decode("latin-1")
    if "%2f" not in raw.lower() or unquote(raw) != scope["path"]:
        return ""  # nothing to tell apart, or whoever serves us has made another path of it
    root = scope.get("root_path", "").rstrip("/")
    if not scope["path"].startswith(f"{root}/"):
        return raw
    parts, deep = raw.split("/"), root.count("/") + 1
    return "/" + "/".join(parts[deep:]) if unquote("/".join(parts[:deep])) == root else ""
