"""A broken network in front of anything that speaks TCP: it cuts, stalls, half-opens. It reads nothing of what goes through.

`cut` resets every connection. `stall` holds everything back until it is let go again. `half_open` drops what comes from the server and never
tells the client: the connection stands, and nothing will ever come of it. Strikes are counted, so that a test fails if nothing was struck.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Self

__all__ = ["TcpProxy"]


class TcpProxy:
    """Listens on a port of its own while it is entered; `target` may go and come back."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.struck: Counter[str] = Counter()
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._flowing = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    @property
    def open(self) -> int:
        return len(self._links)

    # what tests do

    def cut(self) -> int:
        """Reset every connection now; tells how many there were."""
        return int(self._run(self._strike("cut")))

    def half_open(self) -> int:
        """From now on nothing comes back through the connections that stand; new ones are whole."""
        return int(self._run(self._strike("half_open")))

    def stall(self, on: bool = True) -> None:
        """Hold everything back, until switched off."""
        self._run(self._stall(on))

    # how it is done

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        self._flowing.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=1024)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _stall(self, on: bool) -> None:
        if on:
            self._flowing.clear()
            self.struck["stalled"] += len(self._links)
        else:
            self._flowing.set()

    async def _strike(self, how: str) -> int:
        links = list(self._links)
        for link in links:
            if how == "cut":
                link.cut()
            else:
                link.mute = True
        self.struck[how] += len(links)
        return len(links)

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        self._links.add(link)
        try:
            down, link.up = await asyncio.open_connection("127.0.0.1", self.target)
            await self._carry(link, reader, down)
        except (OSError, asyncio.CancelledError):
            pass  # the server is away, or the proxy closes
        finally:
            self._links.discard(link)
            link.cut()

    async def _carry(self, link: _Link, reader: asyncio.StreamReader, down: asyncio.StreamReader) -> None:
        assert link.up is not None
        pumps = [asyncio.create_task(self._pump(reader, link.up, link)), asyncio.create_task(self._pump(down, link.writer, link))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            if link.mute and not pumps[0].done():
                await pumps[0]  # the server is gone, and the client is not told
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, link: _Link) -> None:
        while data := await source.read(65536):
            await self._flowing.wait()
            if link.mute:
                continue
            sink.write(data)
            await sink.drain()


class _Link:
    """One client's connection and its twin to the server."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.up: asyncio.StreamWriter | None = None
        self.mute = False

    def cut(self) -> None:
        for writer in (self.writer, self.up):
            if writer is not None:
                writer.transport.abort()  # a reset, not a polite end
