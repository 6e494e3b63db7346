"""How often an address may be wrong. Counted in this process alone: it slows guessing down, it decides nothing.

Ten failures within a minute lock an address out for a minute, each further round for twice as long, fifteen minutes at most. A token that
was in use here before keeps working meanwhile, so that nobody can lock out the others who share an address with him.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

__all__ = ["Lockout"]

_FAILURES, _WINDOW = 10, 60.0
_FIRST, _LONGEST = 60.0, 900.0
_ADDRESSES, _KNOWN = 10_000, 10_000


@dataclass(slots=True)
class _Record:
    failures: int = 0
    since: float = 0.0
    until: float = 0.0
    length: float = _FIRST


class Lockout:
    """Failures by address, those that are remembered bounded in number."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, _Record] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()

    def left(self, address: str, digest: str) -> float:
        """Seconds for which this address is locked out for a token that was not in use before."""
        record = self._records.get(address)
        if record is None or digest in self._known:
            return 0.0
        return max(0.0, record.until - time.monotonic())

    def failed(self, address: str) -> None:
        now = time.monotonic()
        record = self._records.setdefault(address, _Record(since=now))
        self._records.move_to_end(address)
        if now - record.since > _WINDOW:
            record.failures, record.since = 0, now
            record.length = _FIRST if now - record.until > _LONGEST else record.length
        record.failures += 1
        if record.failures >= _FAILURES:
            record.until, record.failures = now + record.length, 0
            record.length = min(record.length * 2, _LONGEST)
        while len(self._records) > _ADDRESSES:
            self._records.popitem(last=False)

    def passed(self, digest: str) -> None:
        """This token was right."""
        self._known[digest] = None
        self._known.move_to_end(digest)
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)
