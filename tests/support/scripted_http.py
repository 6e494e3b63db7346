"""An HTTP server that does what it is told: answers, streams, cuts, hangs. And both clients behind one face, so that a test drives either.

It speaks just enough HTTP/1.1, on loopback, in a thread of its own. What was asked is in `seen`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from conductor.client import AsyncClient, Client

__all__ = ["Answer", "Asked", "Cut", "Hang", "ScriptedHttp", "Stream", "awaited", "end", "error", "event", "outcome", "page"]


@dataclass(frozen=True)
class Asked:
    """A request that came in."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Answer:
    """JSON with a status; a text is sent as it is."""

    body: Any = None
    status: int = 200
    epoch: str = "e1"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stream:
    """Parts of a stream of events; a number among them is a pause. At its end it is closed, cut (no last chunk), or kept open (hang)."""

    parts: tuple[bytes | float, ...] = ()
    end: str = "close"
    epoch: str = "e1"


@dataclass(frozen=True)
class Cut:
    """The request is read, and the connection reset without an answer."""


@dataclass(frozen=True)
class Hang:
    """The request is read, and nothing ever answered."""


Done = Answer | Stream | Cut | Hang


def event(number: int, kind: str = "claimed", **more: Any) -> bytes:
    return f"id: {number}\nevent: {kind}\ndata: {json.dumps({'number': number, 'kind': kind, 'at': 1, **more})}\n\n".encode()


def page(*numbers: int) -> Answer:
    return Answer({"events": [{"number": number, "kind": "claimed", "at": 1} for number in numbers], "last": max([0, *numbers])})


def end(state: str = "completed", generation: int = 1) -> bytes:
    return f"event: end\ndata: {json.dumps({'state': state, 'reason': '', 'generation': generation})}\n\n".encode()


def outcome(state: str = "running", **more: Any) -> Answer:
    """How a run stands, as the service says it."""
    ended = state in ("completed", "failed", "cancelled")
    told = {
        "run_id": "r", "workflow": "order", "state": state, "ended": ended, "generation": 1, "reason": "", "ended_at": None, "deadline": None,
        "last_event": 0, "live_leases": 0 if ended else 1, "progress_at": 1, "parked": False, "epoch": "e1",
    }
    epoch = more.pop("header", "e1")
    return Answer(told | more, epoch=epoch)


def error(status: int, code: str, message: str = "no", epoch: str = "e1", **details: Any) -> Answer:
    return Answer({"error": {"code": code, "message": message, "hint": "do something else", "details": details}}, status, epoch)


class ScriptedHttp:
    """Listens on a port of its own while it is entered."""

    def __init__(self) -> None:
        self.seen: list[Asked] = []
        self.open = 0
        self._script: dict[tuple[str, str], list[Done]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted-http", daemon=True)
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def on(self, method: str, path: str, *answers: Done) -> None:
        """What this route does, one after the other; the last for ever. `PAGE` are events that are asked for without a stream."""
        self._script[method, path] = list(answers)

    def asked(self, method: str, path: str) -> list[Asked]:
        return [one for one in self.seen if (one.method, one.path) == (method, path)]

    def __enter__(self) -> Self:
        self._thread.start()
        self.listen()
        return self

    def listen(self) -> None:
        """Begin to listen, on the same port as before."""
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        self.port = int(self._server.sockets[0].getsockname()[1])

    def deaf(self) -> None:
        """Listen no longer: connections are refused."""
        if self._server is not None:
            self._run(self._close_door(self._server))
            self._server = None

    @staticmethod
    async def _close_door(server: asyncio.Server) -> None:
        server.close()

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while (asked := await _read(reader)) is not None:
                self.seen.append(asked)
                paged = asked.path.endswith("/events") and "event-stream" not in asked.headers.get("accept", "")
                script = self._script.get(("PAGE" if paged else asked.method, asked.path)) or [error(404, "unknown_route")]
                done = script.pop(0) if len(script) > 1 else script[0]
                if not await self._do(done, writer):
                    return
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            writer.transport.abort()

    async def _do(self, done: Done, writer: asyncio.StreamWriter) -> bool:
        """Do it; whether the connection goes on."""
        match done:
            case Answer(body=body, status=status, epoch=epoch, headers=headers):
                raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                kind = "text/html" if isinstance(body, str) else "application/json"
                writer.write(_head(status, {"Content-Type": kind, "Content-Length": str(len(raw)), **_epoch(epoch), **headers}) + raw)
                await writer.drain()
                return True
            case Stream(parts=parts, end=how, epoch=epoch):
                writer.write(_head(200, {"Content-Type": "text/event-stream; charset=utf-8", "Transfer-Encoding": "chunked", **_epoch(epoch)}))
                for part in parts:
                    if isinstance(part, bytes):
                        writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                        await writer.drain()
                    else:
                        await asyncio.sleep(part)
                if how == "hang":
                    await asyncio.Event().wait()
                if how == "close":
                    writer.write(b"0\r\n\r\n")
                    await writer.drain()
                return how == "close"
            case Cut():
                return False
            case Hang():
                await asyncio.Event().wait()
                return False


def _epoch(epoch: str) -> dict[str, str]:
    return {"Conductor-Epoch": epoch} if epoch else {}


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Told", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode()


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *rest = head.rstrip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    path, _, query = target.partition("?")
    return Asked(method, path, query, headers, json.loads(raw) if raw else None)


class _Awaited:
    """An asynchronous object as a synchronous one, on a loop in a thread: methods block, generators are iterated."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner, self._loop = inner, loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found
        return lambda *args, **more: self._call(found, args, more)

    def _call(self, method: Any, args: tuple[Any, ...], more: dict[str, Any]) -> Any:
        async def call() -> Any:
            made = method(*args, **more)
            return await made if inspect.iscoroutine(made) else made

        made = asyncio.run_coroutine_threadsafe(call(), self._loop).result()
        if inspect.isasyncgen(made):
            return self._iterate(made)
        if isinstance(made, asyncio.Task):
            return asyncio.run_coroutine_threadsafe(_wait_for(made), self._loop)
        return _Awaited(made, self._loop) if type(made).__name__ == "AsyncHandle" else made

    def _iterate(self, made: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield asyncio.run_coroutine_threadsafe(anext(made), self._loop).result()
                except StopAsyncIteration:
                    return
        finally:
            asyncio.run_coroutine_threadsafe(made.aclose(), self._loop).result()


async def _wait_for(task: asyncio.Task[Any]) -> Any:
    return await task


class awaited:  # noqa: N801
    """`with awaited("async", url) as client`: either client, used in the same way."""

    def __init__(self, kind: str, url: str, **options: Any) -> None:
        self._kind, self._url, self._options = kind, url, options

    def __enter__(self) -> Any:
        if self._kind == "sync":
            self._client = Client(self._url, **self._options)
            return self._client
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def make() -> AsyncClient:
            return AsyncClient(self._url, **self._options)

        self._wrapped = _Awaited(asyncio.run_coroutine_threadsafe(make(), self._loop).result(5), self._loop)
        return self._wrapped

    def __exit__(self, *_: object) -> None:
        if self._kind == "sync":
            self._client.close()
            return
        self._wrapped.aclose()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()
