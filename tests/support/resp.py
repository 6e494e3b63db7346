"""Just enough of the RESP protocol to know where a request or a reply ends and what a request asks for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

__all__ = ["Request", "is_push", "reply_end", "take_request"]


@dataclass(frozen=True, slots=True)
class Request:
    """One command of a client. `label` is its name; for a script it is `NAME:sha`, whether it came as EVAL or as EVALSHA."""

    name: str
    args: tuple[bytes, ...]
    raw: bytes

    @property
    def sha(self) -> str:
        if self.name in ("EVALSHA", "EVALSHA_RO") and self.args:
            return self.args[0].decode().lower()
        if self.name in ("EVAL", "EVAL_RO") and self.args:
            return hashlib.sha1(self.args[0], usedforsecurity=False).hexdigest()
        return ""

    @property
    def label(self) -> str:
        return f"SCRIPT:{self.sha}" if self.sha else self.name


def _line_end(buffer: bytes | bytearray, start: int) -> int:
    """The position after the line that begins at `start`, or -1 if it is not all there."""
    found = buffer.find(b"\r\n", start)
    return -1 if found < 0 else found + 2


def take_request(buffer: bytearray) -> Request | None:
    """Remove one whole request from the front of `buffer`; None if it is not complete yet."""
    end = _line_end(buffer, 0)
    if end < 0:
        return None
    if buffer[:1] != b"*":
        words = bytes(buffer[: end - 2]).split()
        return _cut(buffer, end, words)
    count = int(buffer[1 : end - 2])
    words = []
    for _ in range(count):
        head = _line_end(buffer, end)
        if head < 0:
            return None
        size = int(buffer[end + 1 : head - 2])
        end = head + size + 2
        if len(buffer) < end:
            return None
        words.append(bytes(buffer[head : head + size]))
    return _cut(buffer, end, words)


def _cut(buffer: bytearray, end: int, words: list[bytes]) -> Request:
    raw = bytes(buffer[:end])
    del buffer[:end]
    name = words[0].decode(errors="replace").upper() if words else ""
    return Request(name, tuple(words[1:]), raw)


def is_push(buffer: bytearray) -> bool:
    """Whether what comes next is an out-of-band message of RESP 3, which answers no request."""
    return buffer[:1] == b">"


def reply_end(buffer: bytes | bytearray, start: int = 0) -> int:
    """The position after the reply that begins at `start`, or -1 if it is not all there."""
    end = _line_end(buffer, start)
    if end < 0:
        return -1
    kind = buffer[start : start + 1]
    if kind in b"+-:_#,(":
        return end
    size = int(buffer[start + 1 : end - 2])
    if kind in b"$=!":
        after = end if size < 0 else end + size + 2
        return after if after <= len(buffer) else -1
    for _ in range(max(0, size) * (2 if kind in b"%|" else 1) + (1 if kind == b"|" else 0)):
        end = reply_end(buffer, end)
        if end < 0:
            return -1
    return end
