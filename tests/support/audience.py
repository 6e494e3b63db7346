"""Many readers of streams in a process of their own: some read all they get, the others never read a byte.

The process takes orders line by line (`open READING MUTE run,run,…`, `report`) and answers each with one line of JSON. What was read is
judged when it is asked for: each event once and in order, and the end.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import subprocess
import sys
import time
from typing import Any

from tests.support.server import die_with_parent

__all__ = ["Audience"]

_ID = re.compile(rb"^id: (\d+)\nevent: (\w+)$", re.MULTILINE)


class Audience:
    """The test's side."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.audience", str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509
        )

    def open(self, reading: int, mute: int, runs: list[str]) -> Any:
        """Readers spread over the runs, all of whose streams have begun when this returns."""
        return self._order(f"open {reading} {mute} {','.join(runs)}")

    def report(self) -> Any:
        """When every reader that reads has met the end; then all are closed."""
        return self._order("report")

    def _order(self, line: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the audience has died of {line!r}"
        return json.loads(answer)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class _Hall:
    """The process's side."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._selector = selectors.DefaultSelector()
        self._read: dict[socket.socket, bytearray] = {}
        self._mute: list[socket.socket] = []

    def open(self, reading: int, mute: int, runs: list[str]) -> dict[str, Any]:
        for number in range(reading + mute):
            one = socket.socket()
            if number % 2 < mute / max(1, reading + mute) * 2 and len(self._mute) < mute:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                self._mute.append(one)
            else:
                self._read[one] = bytearray()
            one.connect(("127.0.0.1", self._port))
            path = f"/v1/runs/{runs[number % len(runs)]}/events"
            one.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
        for one in self._read:
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ)
        self._pump(lambda: all(b"event: started" in text for text in self._read.values()), 60)
        return {"reading": len(self._read), "mute": len(self._mute)}

    def step(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            one: Any = key.fileobj
            try:
                got = one.recv(262_144)
            except OSError:
                got = b""
            if got:
                self._read[one] += got
            else:
                self._selector.unregister(one)

    def _pump(self, done: Any, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not done() and time.monotonic() < end:
            self.step(0.05)

    def report(self) -> dict[str, Any]:
        self._pump(lambda: all(b"event: end\n" in text[-2000:] for text in self._read.values()), 60)
        told = [_judge(bytes(text)) for text in self._read.values()]
        for one in (*self._read, *self._mute):
            one.close()
        sizes = sum(len(text) for text in self._read.values())
        self._selector.close()
        self.__init__(self._port)  # type: ignore[misc]
        return {"whole": sum(not wrong for wrong in told), "wrong": [wrong for wrong in told if wrong][:5], "bytes": sizes}


def _judge(text: bytes) -> str:
    head, _, body = text.partition(b"\r\n\r\n")
    if b" 200 " not in head[:20]:
        return repr(head[:200])
    stream = _unchunked(body)
    numbers = [int(number) for number, _ in _ID.findall(stream)]
    if numbers != list(range(1, len(numbers) + 1)):
        return f"{len(numbers)} events, not in order: {numbers[:20]}"
    return "" if b"event: end\n" in stream else f"no end after {len(numbers)} events: {stream[-200:]!r}"


def _unchunked(body: bytes) -> bytes:
    parts, at = [], 0
    while at < len(body):
        stop = body.find(b"\r\n", at)
        size = int(body[at:stop] or b"0", 16) if stop > 0 else 0
        if not size:
            break
        parts.append(body[stop + 2 : stop + 2 + size])
        at = stop + 2 + size + 2
    return b"".join(parts)


def main(port: int) -> None:
    hall = _Hall(port)
    orders = selectors.DefaultSelector()
    orders.register(sys.stdin, selectors.EVENT_READ)
    while True:
        if not orders.select(0.0 if hall._read else None):
            hall.step(0.05)
            continue
        line = sys.stdin.readline().split()
        if not line:
            return
        answer = hall.open(int(line[1]), int(line[2]), line[3].split(",")) if line[0] == "open" else hall.report()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
