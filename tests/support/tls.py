"""TLS in front of a server that speaks none: a certificate made for the test, and a proxy that ends the encryption."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

__all__ = ["Certificate", "TlsFront", "certificate"]


@dataclass(frozen=True)
class Certificate:
    """It is its own authority: who trusts the file trusts the server."""

    file: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(self.file, self.key)
        return made


def certificate(directory: Path, name: str = "localhost") -> Certificate:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    made = Certificate(directory / f"{name}.pem", directory / f"{name}.key")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext",
         f"subjectAltName=DNS:{name}", "-out", str(made.file), "-keyout", str(made.key)],
        check=True, capture_output=True, timeout=60,
    )
    return made


class TlsFront:
    """Listens on a port of its own while it is entered, and hands on what comes to `target`."""

    def __init__(self, target: int, certificate: Certificate) -> None:
        self.target, self.certificate, self.port, self.met = target, certificate, 0, 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tls-front", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.certificate.context())
        self.port = server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.met += 1
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        await asyncio.gather(_pipe(reader, back), _pipe(there, writer), return_exceptions=True)


async def _pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65_536):
            sink.write(data)
            await sink.drain()
    finally:
        sink.close()
