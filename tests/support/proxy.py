"""A broken network between a client and the server: a real TCP proxy in a thread of its own, which reads RESP and can strike.

The strike that matters most is `lose_reply`: the request is forwarded, the server executes it, its whole reply is read, and then the
client's connection is cut without one byte of that reply. What it did stands in `landed`, so that a test fails if nothing was struck.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from tests.support.resp import Request, is_push, reply_end, take_request

__all__ = ["Action", "Landed", "Match", "Rule", "ValkeyProxy", "command", "script"]

Action = Literal["lose_reply", "lose_request", "delay", "blackhole"]
Match = Callable[[Request], bool]


def command(*names: str) -> Match:
    """Requests with one of these command names; all requests if none is given."""
    wanted = {name.upper() for name in names}
    return lambda request: not wanted or request.name in wanted


def script(*shas: str) -> Match:
    """Calls of one of these scripts; of any script if none is given."""
    wanted = set(shas)
    return lambda request: bool(request.sha) and (not wanted or request.sha in wanted)


@dataclass
class Rule:
    """Strike the `nth` matching request (from 1) and the `times - 1` after it; `times=0` means all from the nth on."""

    action: Action
    match: Match
    nth: int = 1
    times: int = 1
    seconds: float = 0
    seen: int = field(default=0)

    def strikes(self, request: Request) -> bool:
        if not self.match(request):
            return False
        self.seen += 1
        return self.seen >= self.nth and (self.times == 0 or self.seen < self.nth + self.times)


@dataclass(frozen=True, slots=True)
class Landed:
    """A strike that happened: what, to which request (a script by its name, where known), on which connection, when."""

    action: str
    label: str
    connection: int
    at: float


class ValkeyProxy:
    """Listens on a port of its own. `names` maps script hashes to names, for readable records."""

    def __init__(self, target: int, names: Mapping[str, str] | None = None) -> None:
        self.target = target
        self.names = dict(names or {})
        self.port = 0
        self.landed: list[Landed] = []
        self.seen: Counter[str] = Counter()
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="valkey-proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._count = 0
        self._dark = False
        self._slow = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

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
        for link in list(self._links):
            link.cut()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # what tests do

    def add(self, rule: Rule) -> Rule:
        with self._lock:
            self._rules.append(rule)
        return rule

    def lose_reply(self, match: Match, nth: int = 1, times: int = 1) -> Rule:
        return self.add(Rule("lose_reply", match, nth, times))

    def clear(self) -> None:
        """Take all rules away; what has landed stays on record."""
        with self._lock:
            self._rules.clear()

    def cut_all(self) -> int:
        """Cut every open connection now; tells how many there were."""
        links = list(self._links)
        for link in links:
            self._loop.call_soon_threadsafe(link.cut)
            self._record("cut", "*", link.number)
        return len(links)

    def blackhole(self, on: bool = True) -> None:
        """Swallow everything in both directions, as a half-open connection does, until switched off; then those connections are cut."""
        self._dark = on
        if on:
            self._record("blackhole", "*", 0)
        else:
            self.cut_all()

    def slow(self, seconds: float) -> None:
        """Hold every reply back for this long."""
        self._slow = seconds
        if seconds:
            self._record("slow", "*", 0)

    def struck(self, action: str | None = None) -> list[Landed]:
        return [one for one in self.landed if action is None or one.action == action]

    # what connections ask

    def name(self, request: Request) -> str:
        return self.names.get(request.sha, request.label)

    def judge(self, request: Request) -> Rule | None:
        with self._lock:
            self.seen[self.name(request)] += 1
            return next((rule for rule in self._rules if rule.strikes(request)), None)

    def _record(self, action: str, label: str, connection: int) -> None:
        self.landed.append(Landed(action, label, connection, time.monotonic()))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        link = _Link(self, self._count, reader, writer)
        self._links.add(link)
        try:
            await link.carry()
        except asyncio.CancelledError:
            pass  # the proxy closes; asyncio would log the cancelled handler as an error
        finally:
            self._links.discard(link)
            link.cut()


class _Link:
    """One client's connection and its twin to the server. Replies come in the order of requests, so a queue pairs them."""

    def __init__(self, proxy: ValkeyProxy, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.proxy, self.number, self._reader, self._writer = proxy, number, reader, writer
        self._up: asyncio.StreamWriter | None = None
        self._pending: deque[tuple[Request, Rule | None]] = deque()
        self._dark = False

    def cut(self) -> None:
        for writer in (self._writer, self._up):
            if writer is not None and writer.transport is not None:
                writer.transport.abort()  # a reset, not a polite end

    async def carry(self) -> None:
        try:
            down, self._up = await asyncio.open_connection("127.0.0.1", self.proxy.target)
        except OSError:
            return  # the server is away: the client sees its connection closed
        pumps = [asyncio.create_task(self._requests()), asyncio.create_task(self._replies(down))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _requests(self) -> None:
        buffer = bytearray()
        while data := await self._reader.read(65536):
            buffer += data
            while (request := take_request(buffer)) is not None:
                rule = self.proxy.judge(request)
                if rule is not None and rule.action == "lose_request":
                    self.proxy._record("lose_request", self.proxy.name(request), self.number)
                    return
                if rule is not None and rule.action == "blackhole":
                    self.proxy._record("blackhole", self.proxy.name(request), self.number)
                    self._dark = True
                if self._dark or self.proxy._dark:
                    continue
                self._pending.append((request, rule))
                assert self._up is not None
                self._up.write(request.raw)

    async def _replies(self, down: asyncio.StreamReader) -> None:
        buffer = bytearray()
        while data := await down.read(65536):
            buffer += data
            while buffer and (end := reply_end(buffer)) > 0:
                push = is_push(buffer)
                raw = bytes(buffer[:end])
                del buffer[:end]
                if not push and not await self._answer():
                    return
                if not (self._dark or self.proxy._dark):
                    self._writer.write(raw)

    async def _answer(self) -> bool:
        """Apply the rule of the request that this reply belongs to; False if the connection is to be cut."""
        request, rule = self._pending.popleft()
        wait = self.proxy._slow
        if rule is not None and rule.action == "lose_reply":
            self.proxy._record("lose_reply", self.proxy.name(request), self.number)
            return False
        if rule is not None and rule.action == "delay":
            self.proxy._record("delay", self.proxy.name(request), self.number)
            wait += rule.seconds
        if wait:
            await asyncio.sleep(wait)
        return True
