"""A service of the tests' own on a free port, and readers of its streams: one that reads, in a thread, and one that never does."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from tests.support.waiting import eventually

__all__ = ["Event", "Mute", "Reader", "Served"]


class Served:
    """The service of a conductor, in a thread."""

    def __init__(self, conductor: Any, *, send_buffer: int = 0, **options: Any) -> None:
        """`send_buffer` bounds what the kernel takes for a reader that reads nothing."""
        self.app = conductor.asgi(**options)
        self._socket = socket.create_server(("127.0.0.1", 0))
        if send_buffer:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self.port = int(self._socket.getsockname()[1])
        self.server = uvicorn.Server(uvicorn.Config(self.app, log_level="warning", lifespan="off"))
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._readers: list[Reader | Mute] = []

    def start(self) -> Served:
        self._thread.start()
        eventually(lambda: self.server.started, 20, what="the service listens")
        return self

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self.server.should_exit = self.server.force_exit = True
        self._thread.join(10)
        self._socket.close()

    @property
    def hub(self) -> Any:
        return self.app.state.streams

    @property
    def streams(self) -> int:
        """How many are open."""
        hub = getattr(self.app.state, "streams", None)
        return 0 if hub is None else int(hub.open)

    @property
    def listening(self) -> int:
        """Threads that wait in the store."""
        hub = getattr(self.app.state, "streams", None)
        return 0 if hub is None else int(hub.listening)

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        """Status and JSON of a request that is no stream."""
        status, _, told = self.ask("GET", path, headers)
        return status, told

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: Any = None) -> tuple[int, Any, Any]:
        """Status, headers and JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            said = {} if body is None else {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), {**said, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.headers, json.loads(answer.read() or b"null")
        finally:
            connection.close()

    def reader(self, path: str, **headers: str) -> Reader:
        made = Reader(self.port, path, headers)
        self._readers.append(made)
        return made

    def mute(self, path: str) -> Mute:
        made = Mute(self.port, path)
        self._readers.append(made)
        return made


@dataclass(frozen=True)
class Event:
    """One event of a stream, as a browser would dispatch it."""

    id: str
    kind: str
    data: Any


@dataclass
class _Heard:
    events: list[Event] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    last_id: str = ""
    over: bool = False


class Reader:
    """Reads a stream until it ends, by the rules of HTML's event streams. `Last_Event_ID="3"` is a header."""

    def __init__(self, port: int, path: str, headers: Mapping[str, str]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request("GET", path, headers={"Accept": "text/event-stream", **names})
        self._answer = self._connection.getresponse()
        self.status, self.headers = self._answer.status, self._answer.headers
        self._heard = _Heard()
        self.error = None if self.status == 200 else json.loads(self._answer.read())["error"]
        self._thread = threading.Thread(target=self._read, daemon=True)
        if self.status == 200:
            self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
            for kind, lines in _blocks(self._answer):
                self._take(kind, lines)
        self._heard.over = True

    def _take(self, comments: list[str], fields: list[tuple[str, str]]) -> None:
        self._heard.comments += comments
        found: dict[str, str] = {}
        data = []
        for name, value in fields:
            if name == "data":
                data.append(value)
            else:
                found[name] = value
        self._heard.last_id = found.get("id", self._heard.last_id)
        if data:
            self._heard.events.append(Event(self._heard.last_id, found.get("event", "message"), json.loads("\n".join(data))))

    @property
    def events(self) -> list[Event]:
        return list(self._heard.events)

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    @property
    def numbers(self) -> list[int]:
        """Of the events of a run, `end` left out."""
        return [event.data["number"] for event in self.events if event.kind != "end"]

    @property
    def comments(self) -> list[str]:
        return list(self._heard.comments)

    @property
    def last_id(self) -> str:
        return self._heard.last_id

    @property
    def over(self) -> bool:
        return self._heard.over

    def until(self, kind: str, timeout: float = 20, count: int = 1) -> Event:
        """Wait for the n-th event of a kind."""
        def found() -> Any:
            return [event for event in self.events if event.kind == kind][count - 1 : count]

        return eventually(found, timeout, what=lambda: f"event {kind}, after {self.kinds[-9:]} {self.comments[-3:]}")[0]

    def ended(self, timeout: float = 20) -> Event:
        """Wait for the end of the stream; it must end with `end`."""
        eventually(lambda: self.over, timeout, what=lambda: f"the stream ends, after {self.kinds[-9:]} {self.comments[-3:]}")
        assert self.kinds[-1:] == ["end"], (self.kinds, self.comments)
        return self.events[-1]

    def closed(self, timeout: float = 20) -> str:
        """Wait until the stream was closed without an end; tells why."""
        eventually(lambda: self.over, timeout, what=lambda: f"the stream is closed, after {self.kinds[-9:]} {self.comments[-3:]}")
        assert "end" not in self.kinds
        return self.comments[-1] if self.comments else ""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._connection.sock is not None:
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def _blocks(answer: Any) -> Iterator[tuple[list[str], list[tuple[str, str]]]]:
    comments: list[str] = []
    fields: list[tuple[str, str]] = []
    while line := answer.readline():
        text = line.decode().removesuffix("\n")
        if not text:
            yield comments, fields
            comments, fields = [], []
        elif text.startswith(":"):
            comments.append(text[1:].strip())
        else:
            name, _, value = text.partition(":")
            fields.append((name, value.removeprefix(" ")))


class Mute:
    """Asks for a stream and never reads a byte of it."""

    def __init__(self, port: int, path: str) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self.socket.connect(("127.0.0.1", port))
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())

    def close(self) -> None:
        self.socket.close()
