"""A witness outside the store: what step bodies really did, written to files that no store fault can touch.

`note` appends one line per fact with O_APPEND and fsync; lines of several processes never mix because each is one small write.
`effect` stands for an outside system that honours idempotency keys: the first call under a key leaves it there, later ones find it.
Times are the host's monotonic clock, which all its processes share and no shifted wall clock moves.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

__all__ = ["Ledger", "Line"]


@dataclass(frozen=True, slots=True)
class Line:
    """One fact: `fact` is `begin`, `end`, `repeat` (an effect already there) or whatever a test notes."""

    fact: str
    key: str
    attempt: int
    pid: int
    at: float


class Ledger:
    """One directory: `lines` and, per effect key, one file under `effects/`."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        (self.directory / "effects").mkdir(parents=True, exist_ok=True)
        self._file = self.directory / "lines"

    def note(self, fact: str, key: str, attempt: int = 0) -> float:
        """Append a line, synced before this returns, so that a fact is on disk before the process can be killed after it."""
        at = time.monotonic()
        line = f"{fact} {quote(key, safe=':-')} {attempt} {os.getpid()} {at:.6f}\n"
        file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line.encode())
            os.fsync(file)
        finally:
            os.close(file)
        return at

    def effect(self, key: str, attempt: int = 0) -> bool:
        """Leave the effect `key` unless it is there; True if this call left it."""
        try:
            file = os.open(self._effect(key), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            self.note("repeat", key, attempt)
            return False
        os.close(file)
        return True

    def has_effect(self, key: str) -> bool:
        return self._effect(key).exists()

    def _effect(self, key: str) -> Path:
        return self.directory / "effects" / quote(key, safe=":-")

    def effects(self) -> set[str]:
        """The keys under which an effect is present; a set, because the file system keeps each name once."""
        return {name.name for name in (self.directory / "effects").iterdir()}

    def lines(self, fact: str | None = None) -> list[Line]:
        return [line for line in self._read() if fact is None or line.fact == fact]

    def _read(self) -> Iterator[Line]:
        if not self._file.exists():
            return
        for text in self._file.read_text().splitlines():
            fact, key, attempt, pid, at = text.split(" ")
            yield Line(fact, key, int(attempt), int(pid), float(at))

    def begun(self) -> Counter[str]:
        """How often the body under each key began."""
        return Counter(line.key for line in self._read() if line.fact == "begin")

    def open(self) -> list[Line]:
        """Bodies that began and have not ended, by process: those in the middle of which something may be killed."""
        running: dict[tuple[str, int], Line] = {}
        for line in self._read():
            if line.fact == "begin":
                running[line.key, line.pid] = line
            elif line.fact == "end":
                running.pop((line.key, line.pid), None)
        return list(running.values())
