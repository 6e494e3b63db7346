"""May new work be accepted? Asked before every start, answered from memory nearly always.

A run is accepted only where the promise holds: the first start of a process looks whether the server keeps what it acknowledges, as a
worker does when it starts. And only while there is room: from 90 % of `maxmemory` on starts are refused, so that the rest is left to
commits, retries and cancels of what was accepted. The memory is looked at once a second at most. Where the server does not let us look, it
decides itself: at 100 % it refuses the start script, and no other.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from conductor.errors import StoreFull
from conductor.runs.doctor import examine, nodes_of, refuse_unsafe

if TYPE_CHECKING:
    from conductor.settings import Settings
    from conductor.store import Store

__all__ = ["FULL", "Admission"]

FULL = 0.9
_LOOK_SECONDS = 1.0


class Admission:
    """Of one process. Two threads that look at once look twice, which is harmless."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._is_safe = False
        self._looked_at = -_LOOK_SECONDS
        self._full = ""

    def check(self) -> None:
        """Raise UnsafeServer or StoreFull. A server that is away is the start's own matter: it waits for it and says so."""
        if not self._is_safe:
            self._check_server()
        if time.monotonic() - self._looked_at >= _LOOK_SECONDS:
            self._look_at_memory()
        if self._full:
            raise StoreFull(used=self._full)

    def _check_server(self) -> None:
        checks = examine(self._store.client(), self._settings)
        if any(check.name == "reachability" and check.status == "failed" for check in checks):
            return
        refuse_unsafe(checks, self._settings, url=self._store.url)
        self._is_safe = True

    def _look_at_memory(self) -> None:
        try:  # on a cluster the fullest node counts: a run may have its home anywhere
            share = max(_share(node.info("memory")) for node in nodes_of(self._store.client()).values())
        except Exception:  # blocked by its provider, or away: then the script is the judge
            self._full = ""
            return
        self._full = f"{share:.0%}" if share >= FULL else ""
        self._looked_at = time.monotonic()


def _share(info: Any) -> float:
    used, most = int(info["used_memory"]), int(info["maxmemory"])
    return used / most if most else 0.0
