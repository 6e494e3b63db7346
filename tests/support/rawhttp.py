"""The service on a real port, as `conductor serve` runs it, and bytes sent to it as they are."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from typing import Any

import uvicorn

from conductor.service.protocol import bounded
from tests.support.waiting import eventually

__all__ = ["RawServer", "request"]


def request(method: str = "POST", path: str = "/v1/runs", body: bytes = b"", *headers: str, kind: str = "application/json", length: bool = True) -> bytes:
    """The bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers]
    lines += [f"Content-Type: {kind}"] if kind else []
    lines += [f"Content-Length: {len(body)}"] if length and (body or method != "GET") else []
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


class RawServer:
    """The app of a conductor behind the bounded protocol, in a thread."""

    def __init__(self, conductor: Any, *, patience: float = 10, most: int = 1000) -> None:
        self.app = conductor.asgi()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        config = uvicorn.Config(
            self.app, http=bounded(patience, most), ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
            proxy_headers=False)
        self.server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def start(self) -> RawServer:
        self._thread.start()
        eventually(lambda: self.server.started, 20, what="the service listens")
        return self

    def close(self) -> None:
        self.server.should_exit = self.server.force_exit = True
        self._thread.join(10)
        self._socket.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def say(self, data: bytes, *, more: bytes = b"", pause: float = 0.0) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON of the answer to these bytes."""
        with self.connect() as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)
                if more:
                    time.sleep(pause)
                    connection.sendall(more)
            return self.answer(connection)

    @staticmethod
    def answer(connection: socket.socket) -> tuple[int, dict[str, str], Any]:
        """One answer; status 0 if the connection was closed without one."""
        held = b""
        while b"\r\n\r\n" not in held:
            try:
                part = connection.recv(65536)
            except ConnectionResetError:
                part = b""
            if not part:
                return 0, {}, None
            held += part
        head, _, body = held.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        while len(body) < int(headers.get("content-length", "0")):
            body += connection.recv(65536)
        return int(first.split()[1]), headers, json.loads(body) if headers.get("content-type") == "application/json" else body
