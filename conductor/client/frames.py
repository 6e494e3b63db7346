"""Server-sent events, parsed from bytes as they come. Sans-IO.

httpx2 has an `EventSource`, which swallows comments. A heartbeat is a comment, and a follower must see it: a stream in which nothing
happens and a half-open connection differ in nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["LIMIT", "Frame", "Frames", "TooLong"]

LIMIT = 8 * 1024 * 1024


class TooLong(ValueError):
    """an event of the stream has more bytes than any event has"""


@dataclass(frozen=True, slots=True)
class Frame:
    """One event, or with `beat` a comment."""

    event: str = "message"
    data: str = ""
    id: str = ""
    beat: bool = False


@dataclass
class Frames:
    """Feed it bytes, take what is complete. Half an event at the end of a cut stream is never given out."""

    limit: int = LIMIT
    _rest: bytes = b""
    _size: int = 0
    _event: str = ""
    _data: list[str] = field(default_factory=list)
    _id: str = ""

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that this chunk completes."""
        text = self._rest + chunk
        held = b"\r" if text.endswith(b"\r") else b""  # the other half of \r\n may be in the next chunk
        lines = text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop() + held
        found = [frame for line in lines if (frame := self._line(line)) is not None]
        if self._size + len(self._rest) > self.limit:
            raise TooLong(f"more than {self.limit} bytes")
        return found

    def _line(self, line: bytes) -> Frame | None:
        if not line:
            return self._dispatch()
        if line.startswith(b":"):
            return Frame(beat=True)
        self._size += len(line)
        name, _, value = line.decode(errors="replace").partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value
        return None

    def _dispatch(self) -> Frame | None:
        frame = Frame(self._event or "message", "\n".join(self._data), self._id) if self._data else None
        self._event, self._data, self._size = "", [], 0
        return frame
