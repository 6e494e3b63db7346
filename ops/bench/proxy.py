"""One millisecond of network before Redis: a TCP proxy that hands each reply on late. `python -m ops.bench.proxy PORT TARGET MS`.

The whole delay is on the way back, so that a round trip costs it once. Standard library only.
"""

from __future__ import annotations

import asyncio
import selectors
import sys

__all__ = ["main"]


class Proxy:
    """Copies both ways; what comes from the server waits first, in order."""

    def __init__(self, target: int, seconds: float) -> None:
        self._target, self._seconds = target, seconds

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
        await asyncio.gather(self._ahead(reader, up_writer), self._back(up_reader, writer), return_exceptions=True)

    async def _ahead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(1 << 16):
            loop.call_later(self._seconds, writer.write, data)
        loop.call_later(self._seconds, writer.close)


async def serve(port: int, target: int, seconds: float) -> None:
    server = await asyncio.start_server(Proxy(target, seconds).serve, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


def main() -> None:
    port, target, milliseconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    # epoll rounds its waiting up to whole milliseconds; select does not.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    loop.run_until_complete(serve(port, target, milliseconds / 1000))


if __name__ == "__main__":
    main()
