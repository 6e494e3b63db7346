"""A session's inbox: an ordered list of messages that stay until they are acknowledged.

Delivery is at least once with a stable id: whoever delivers may die and repeat, and the id makes the second time a no-op; whoever reads may
die before it acknowledges, and then reads the message again. Messages nobody acknowledges go after 30 days, or behind 10,000 newer ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from conductor import codec
from conductor.codec import check_text
from conductor.declare.durations import Duration, in_ms
from conductor.errors import BadInput
from conductor.store.sessions import InboxEntry, SessionVerbs

__all__ = ["Message", "acknowledge", "deliver", "read", "wait"]

_KIND = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `kind` is a word such as `retry_success`, `retry_exhausted`, `retry_failed`, `deferred_success`,
    `deferred_exhausted`, `deferred_failed`, `scheduled_success`, `scheduled_failed` or `run_cancelled` (then `operation_id` is the run's);
    `at` is in ms of the store's clock; `cursor` is where a reader goes on."""

    id: str
    kind: str
    operation_id: str
    at: int
    body: dict[str, Any]
    cursor: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The message as others see it."""
        return asdict(self)


def deliver(
    store: SessionVerbs, session: str, *, id: str, kind: str, operation_id: str, body: Mapping[str, Any], limit: int = codec.LIMIT,
) -> bool:
    """Put a message into the inbox. False if it was there before: a repetition shows nothing twice, also after it was acknowledged."""
    if not _KIND.match(kind):
        raise BadInput(what=f"message {id}", field="kind", problem=f"{kind!r} is not a word of small letters and underscores")
    if operation_id:
        check_text(operation_id, "operation id", 512)
    payload = codec.encode(dict(body), limit=limit, what=f"message {id}")
    return store.deliver(session, id, kind=kind, operation_id=operation_id, body=payload).word == "OK"


def read(store: SessionVerbs, session: str, after: str = "", limit: int = 100) -> list[Message]:
    """What is not acknowledged, oldest first. The `cursor` of the last one reads on."""
    return [_message(entry) for entry in store.inbox(session, after, limit)]


def wait(store: SessionVerbs, session: str, after: str = "", timeout: Duration = 30) -> list[Message]:
    """Like `read`, but if there is nothing yet, block until there is, or until `timeout` has passed."""
    try:
        seconds = in_ms(timeout, least=timedelta(0)) / 1000
    except ValueError as error:
        raise BadInput(what="inbox", field="timeout", problem=str(error)) from None
    return [_message(entry) for entry in store.inbox_wait(session, after, seconds)]


def acknowledge(store: SessionVerbs, session: str, message_id: str) -> bool:
    """The message was dealt with and is not shown again; a second time is harmless. False if the inbox never had it."""
    return store.acknowledge(session, message_id) == "OK"


def _message(entry: InboxEntry) -> Message:
    return Message(entry.message_id, entry.kind, entry.operation_id, entry.at, codec.decode(entry.body), entry.cursor)
