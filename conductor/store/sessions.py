"""Verbs on sessions: what is delivered to their inbox, what they granted, and which endings have yet to be told.

Authority: everything of a session lives in the partition of its name. A message is known by its id and a grant by its own, so every verb
here may be repeated after a lost reply. A place in an inbox (`<number>-0`) only grows and is given once, so it serves as a cursor.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote, unquote

from conductor.codec import check_session, check_text
from conductor.errors import BadInput, StoreUnreachable
from conductor.ids import home_of_name
from conductor.store.door import Door
from conductor.store.notices import Unreachable, _client, _entries, forget

__all__ = ["Delivered", "GrantEntry", "GrantMode", "InboxEntry", "SessionVerbs", "in_key"]

GrantMode = Literal["once", "until", "always"]

MESSAGES: Final = 10_000
"""An inbox keeps about so many messages; the oldest go first."""
USES: Final = 100
"""So many uses of one capability may be granted ahead; whoever needs more grants for a time."""
_KEEP_MS: Final = 30 * 86_400_000  # messages nobody acknowledged, and the ids by which repetitions are known
_SESSION, _ID = 256, 512
_PAGE = 1000
_SLICE = 1.0  # seconds; shorter than the socket's own limit, which would take a long wait for a dead server
_CURSOR = re.compile(r"[0-9]{1,16}-[0-9]{1,16}\Z")


@dataclass(frozen=True, slots=True)
class Delivered:
    """OK, or KNOWN if this message was delivered before; then its place."""

    word: str
    cursor: str


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """A message that is not acknowledged; `at` is when it was delivered, in ms of the store's clock, `body` a payload."""

    cursor: str
    message_id: str
    kind: str
    operation_id: str
    at: int
    body: str


@dataclass(frozen=True, slots=True)
class GrantEntry:
    """A grant that can still be used; `until` (ms) is 0 unless it is for a time, `grant_id` is empty unless it is for one use."""

    capability: str
    mode: GrantMode
    granted_at: int
    granted_by: str
    until: int = 0
    grant_id: str = ""


def in_key(name: str) -> str:
    """A name as it stands inside a key or before a colon: one spelling per name, never with a colon, so no name reaches another's key."""
    return quote(name, safe="@")


class SessionVerbs(Door):
    """What is done for and by whoever asked."""

    def deliver(self, session: str, message_id: str, *, kind: str, operation_id: str, body: str) -> Delivered:
        """Put a message (`body` is a payload) into the inbox; a second time under the same id changes nothing."""
        home, name = self._home(session)
        check_text(message_id, "message id", _ID)
        word, cursor = self._call_bare("deliver", home, name, message_id, kind, operation_id, body, MESSAGES, _KEEP_MS)
        return Delivered(word, cursor)

    def acknowledge(self, session: str, message_id: str) -> str:
        """OK (also when it was acknowledged before) or UNKNOWN."""
        home, name = self._home(session)
        return str(self._call_bare("acknowledge", home, name, check_text(message_id, "message id", _ID))[0])

    def grant(self, session: str, capability: str, mode: GrantMode, *, grant_id: str, length_ms: int = 0, by: str = "") -> str:
        """OK, KNOWN (this grant id was counted before) or FULL. `until` lasts `length_ms` from the store's now; the last word counts."""
        home, name = self._home(check_session(session))
        if by:
            check_text(by, "by", _SESSION)
        given = in_key(check_text(grant_id, "grant id", 128))
        return str(self._call_bare("grant", home, name, _capability(capability), mode, given, length_ms, by, USES, _KEEP_MS)[0])

    def revoke(self, session: str, capability: str = "") -> str:
        """Take back every grant of one capability, or of all."""
        home, name = self._home(session)
        return str(self._call_bare("revoke", home, name, _capability(capability) if capability else "")[0])

    def use_grant(self, session: str, capability: str, op_id: str) -> str:
        """OK or REQUIRED. A once-grant is consumed by the first op that asks, for all its attempts; one for a time passes them all too."""
        home, name = self._home(session)
        return str(self._call_bare("use_grant", home, name, _capability(capability), check_text(op_id, "op id", _ID), _KEEP_MS)[0])

    def inbox(self, session: str, after: str = "", limit: int = 100) -> list[InboxEntry]:
        """Messages that are not acknowledged, oldest first, after the place `after`."""
        key = self._inbox_key(session)
        if not 1 <= limit <= _PAGE:
            raise BadInput(what="inbox", field="limit", problem=f"{limit} is outside 1 to {_PAGE}")
        found: Any = self._client.xrange(key, f"({after}" if _cursor(after) else "-", "+", count=limit)
        return _messages(found)

    def inbox_wait(self, session: str, after: str, timeout: float) -> list[InboxEntry]:
        """Block until there are messages after the place `after`, at most `timeout` seconds; a server that restarts ends no wait."""
        key, start, end = self._inbox_key(session), _cursor(after) or "0-0", time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            try:
                found = self._new(key, start, max(0.001, min(left, _SLICE)))
            except Unreachable as error:
                forget()
                if left <= 0:
                    raise StoreUnreachable(url=self.url, problem=f"{type(error).__name__}: {error}") from error
                time.sleep(min(0.2, left))
                continue
            if found or left <= 0:
                return found

    def _new(self, key: str, start: str, seconds: float) -> list[InboxEntry]:
        reply = _client(self).xread({key: start}, count=_PAGE, block=max(1, int(seconds * 1000)))
        return _messages(_entries(reply))

    def grants(self, session: str) -> list[GrantEntry]:
        """Everything that can still be used, by capability."""
        home, name = self._home(session)
        pipe = self._client.pipeline(transaction=False)
        pipe.time()
        pipe.hgetall(self.keys.of(home, f"grants:{name}"))
        (seconds, _), fields = pipe.execute()
        found = [entry for field, value in fields.items() for entry in _granted(field, value)]
        usable = [entry for entry in found if entry.mode != "until" or entry.until > int(seconds) * 1000]
        return sorted(usable, key=lambda entry: (entry.capability, entry.granted_at))

    def erase_session(self, session: str) -> None:
        """Inbox and grants of a session are gone; deleting them twice is deleting them once."""
        home, name = self._home(session)
        keys = [self.keys.of(home, tail) for tail in (f"inbox:{name}", f"inbox:{name}:ids", f"grants:{name}")]
        self._command("register", [("UNLINK", *keys)])

    def outbox(self, partition: int, limit: int = 100) -> list[str]:
        """Endings that have yet to be told, oldest first."""
        return list(self._read("ZRANGE", self.keys.of(partition, "outbox"), 0, limit - 1)) if limit > 0 else []

    def tell_later(self, partition: int, member: str) -> None:
        """Put an ending that could not be told behind all others."""
        self._command("told", [("ZADD", self.keys.of(partition, "outbox"), "XX", int(self._read("TIME")[0]) * 1000 + 999, member)])

    def told(self, partition: int, member: str) -> None:
        """This ending was told: every message it leads to stands where it belongs."""
        self._command("told", [("ZREM", self.keys.of(partition, "outbox"), member)])

    def _home(self, session: str) -> tuple[int, str]:
        """Partition of a session, and its name inside keys."""
        check_text(session, "session", _SESSION)
        return home_of_name(session, self.partitions), in_key(session)

    def _inbox_key(self, session: str) -> str:
        home, name = self._home(session)
        return self.keys.of(home, f"inbox:{name}")


def _capability(name: str) -> str:
    return in_key(check_text(name, "capability", 128))


def _cursor(after: str) -> str:
    if after and not _CURSOR.match(after):
        raise BadInput(what="inbox", field="after", problem="it is no place that an inbox has given")
    return after


def _messages(entries: Iterable[tuple[str, dict[str, str]]]) -> list[InboxEntry]:
    return [InboxEntry(place, said["m"], said["k"], said["o"], int(said["t"]), said["b"]) for place, said in entries]


def _granted(field: str, value: str) -> list[GrantEntry]:
    kind, _, rest = field.partition(":")
    if kind == "grant":
        until, at, by = value.split(";", 2)
        return [GrantEntry(unquote(rest), "until" if int(until) else "always", int(at), by, int(until))]
    if kind == "once":
        lines = [line.split(";", 2) for line in value.split("\n") if line]
        return [GrantEntry(unquote(rest), "once", int(at), by, grant_id=unquote(given)) for given, at, by in lines]
    return []
