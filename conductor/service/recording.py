"""What was done through the service: an audit record for every change, and counts of requests for `/metrics`.

A deed is what was answered by a 2xx, but for what only looks (a dry run). It is recorded once it was done and before its caller is told, by
one append. A start is appended a moment later, with others: the run itself stands in the store with its session and key, and a start must
cost no more than the start. A record that cannot be written is logged and never turns what was done into an error.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool

from conductor.errors import redact
from conductor.service.access import CALLER
from conductor.store.auditing import Deed

if TYPE_CHECKING:
    from conductor.store import Store

__all__ = ["Recorder"]

logger = logging.getLogger(__name__)

_LATER = ("POST /v1/runs", "POST /v1/submit")
_PAUSE, _GRACE = 0.05, 5.0
_LONGEST = 500
_NOT_DEEDS = ("POST /v1/login", "POST /v1/logout")
_LOOKS_FIRST = ("POST /v1/batches", "POST /v1/purge")  # a dry run unless the body says otherwise


class Recorder:
    """Knows the store only to append to it."""

    def __init__(self, store: Store, body_key: str) -> None:
        self._store = store
        self._body_key = body_key
        self._waiting: queue.SimpleQueue[Deed | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None
        self.counts: dict[tuple[str, str, int], tuple[int, float]] = {}

    def around(self, scope: Any, send: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A `send` that records the deed before the answer leaves."""

        async def recorded(message: Any) -> None:
            if message["type"] == "http.response.start" and 200 <= message["status"] < 300 and CALLER in scope:
                await self._record(scope, message)
            await send(message)

        return recorded

    async def _record(self, scope: Any, message: Mapping[str, Any]) -> None:
        action = f"{scope['method']} {_template(scope)}"
        body = scope.get(self._body_key)
        if action in _NOT_DEEDS or (action in _LOOKS_FIRST and (not isinstance(body, dict) or body.get("dry_run", True))):
            return
        reason = body.get("reason", "") if isinstance(body, dict) else ""
        location = next((value.decode() for name, value in message.get("headers", ()) if name == b"location"), "")
        deed = Deed(
            scope[CALLER].actor, action, (location or scope["path"])[:_LONGEST], redact(str(reason))[:_LONGEST], message["status"])
        if action in _LATER:
            self._waiting.put(deed)
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, name="conductor-audit", daemon=True)
                self._writer.start()
        else:
            await run_in_threadpool(self._append, [deed])

    def _write(self) -> None:
        deed = self._waiting.get()
        while deed is not None:
            time.sleep(_PAUSE)  # what comes meanwhile goes with it
            deeds = [deed]
            with contextlib.suppress(queue.Empty):
                while (deed := self._waiting.get_nowait()) is not None:
                    deeds.append(deed)
            self._append(deeds)
            deed = None if deed is None else self._waiting.get()

    def close(self) -> None:
        """Write what is left, because this process is to end."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self._waiting.put(None)
            writer.join(_GRACE)

    def _append(self, deeds: list[Deed]) -> None:
        try:
            self._store.record(deeds)
        except Exception as error:
            why = type(error).__name__
            for deed in deeds:
                logger.warning("not recorded (%s): %s did %s to %s: %r", why, deed.actor, deed.action, deed.target, deed.reason)

    def count(self, scope: Any, status: int, seconds: float) -> None:
        """By route as it is declared, never as it was asked for: what callers send is no label."""
        place = (scope["method"] if scope["method"] in _METHODS else "other", _template(scope), status)
        number, total = self.counts.get(place, (0, 0.0))
        self.counts[place] = (number + 1, total + seconds)


_METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})


def _template(scope: Any) -> str:
    return str(getattr(scope.get("route"), "path", "unmatched"))
