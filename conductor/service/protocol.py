"""What one connection may cost before a request stands: bytes and seconds of its head, and how many connections there are.

The server underneath bounds neither (its parser hands over header by header, for ever), and a connection that sends a byte now and then
would be kept. Bodies are bounded by the guard (`limits.py`), which sees requests only when their head is whole.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["Bounded", "bounded"]

_LONGEST_HEAD = 65_536


class Bounded(HttpToolsProtocol):
    """HTTP/1.1 by httptools, with bounds. `patience` and `most` are set by `bounded`."""

    patience: ClassVar[float] = 10.0
    most: ClassVar[int] = 1000

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head = 0
        self._in_head = False
        self._timer: asyncio.TimerHandle | None = None
        if len(self.connections) > self.most:
            self.app = _full
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_whole()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        if self.cycle is None or self.cycle.response_complete:
            self._expect_head()  # a byte of anything ends the server's own patience with an idle connection, so ours begins
        super().data_received(data)
        if self._in_head and self._head > _LONGEST_HEAD and not self.transport.is_closing():
            problem = f"the head of the request is larger than {_LONGEST_HEAD} bytes"
            self._refuse(431, "too_large", problem, "Send fewer and shorter headers.")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "bad_request", "this is not an HTTP/1.1 request that has one meaning", "Send well-formed HTTP.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head = True, 0
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_is_whole()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.patience, self._too_slow)

    def _head_is_whole(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, status: int, code: str, message: str, hint: str) -> None:
        """Answered here, because no request stands that the app could answer. What comes after it on this connection is not read."""
        body = json.dumps({"error": {"code": code, "message": message, "hint": hint}}).encode()
        head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()


def bounded(patience: float, most: int) -> type[Bounded]:
    """The protocol with these bounds."""
    return type("Bounded", (Bounded,), {"patience": patience, "most": most})


async def _full(_scope: Any, _receive: Any, send: Any) -> None:
    """Instead of the app, for a connection too many."""
    told = {"code": "too_many_connections", "message": "this service has as many connections as it may", "hint": "Try again in a moment."}
    body = json.dumps({"error": told}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
