"""Outside systems for effects and messages: a page server that counts and fails at chosen points, and a receiver of webhooks over TLS."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.tls import certificate

__all__ = ["Pages", "Received", "Receiver", "pages", "receiver"]


class Pages:
    """Pages by path. The n-th PUT of a path takes the n-th word of its plan: `apply`, `apply+cut`, `half+cut`, `refuse`, `apply+silent`.
    Counts every request."""

    def __init__(self) -> None:
        self.plans: dict[str, list[str]] = {}
        self.contents: dict[str, bytes] = {}
        self.puts: Counter[str] = Counter()
        self.gets: Counter[str] = Counter()
        self.keys: dict[str, list[str]] = {}
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.url = ""

    def word(self, path: str) -> str:
        with self.lock:
            self.puts[path] += 1
            plan = self.plans.get(path, ["apply"])
            return plan[min(self.puts[path], len(plan)) - 1]


class _PageHandler(BaseHTTPRequestHandler):
    pages: Pages

    def do_PUT(self) -> None:
        mine = self.pages
        body = self.rfile.read(int(self.headers["Content-Length"]))
        mine.keys.setdefault(self.path, []).append(self.headers["Idempotency-Key"])
        what, _, end = mine.word(self.path).partition("+")
        if what == "refuse":
            self._answer(503, b"not now")
            return
        mine.contents[self.path] = body if what == "apply" else body[: len(body) // 2]
        if end == "silent":
            mine.closing.wait(10)
        if end:
            self.close_connection = True  # without a word: the caller cannot know
            self.connection.close()
            return
        self._answer(201, b"")

    def do_GET(self) -> None:
        mine = self.pages
        mine.gets[self.path] += 1
        found = mine.contents.get(self.path)
        self._answer(404, b"") if found is None else self._answer(200, found)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A connection that is cut on purpose is not worth a trace."""


@contextmanager
def _serving(server: _Server) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def pages() -> Iterator[Pages]:
    """A server of pages on loopback."""
    made = Pages()
    server = _Server(("127.0.0.1", 0), type("Handler", (_PageHandler,), {"pages": made}))
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    with _serving(server):
        yield made
        made.closing.set()


@dataclass(frozen=True)
class Received:
    """One delivery to a webhook."""

    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.body)
        return told


@dataclass
class Receiver:
    """What a webhook has received. `url` is what the setting names, `authority` the certificate that its callers must trust."""

    url: str
    authority: Path
    away_for: set[str] = field(default_factory=set)  # the first delivery about each of these operations is answered with 503
    received: list[Received] = field(default_factory=list)


class _HookHandler(BaseHTTPRequestHandler):
    receiver: Receiver

    def do_POST(self) -> None:
        mine = self.receiver
        got = Received(dict(self.headers.items()), self.rfile.read(int(self.headers["Content-Length"])))
        mine.received.append(got)
        about = got.message["operation_id"]
        self.send_response(503 if about in mine.away_for else 204)
        mine.away_for.discard(about)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def receiver(directory: Path) -> Iterator[Receiver | None]:
    """A webhook on loopback with a certificate made for it; None where no `openssl` can make one."""
    if shutil.which("openssl") is None:
        yield None
        return
    signed = certificate(directory)
    made = Receiver("", signed.file)
    server = _Server(("127.0.0.1", 0), type("Handler", (_HookHandler,), {"receiver": made}))
    server.socket = signed.context().wrap_socket(server.socket, server_side=True)
    made.url = f"webhook+https://localhost:{server.server_address[1]}/told?token=hidden"
    with _serving(server):
        yield made
