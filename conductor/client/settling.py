"""What both clients decide in the same way: how they connect, how a following begins, what is still pending after it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from conductor.client import calls
from conductor.client.asking import Conversation, Manners, answer, ask
from conductor.client.following import Following
from conductor.client.pending import Ledger, NoAnswer, Pending, Resolved, StillRunning
from conductor.client.reading import Reply
from conductor.client.results import Code, Result
from conductor.errors import BadInput, LaneFull

__all__ = ["Followed", "cancel_word", "connection", "fresh", "refused_start", "reported", "settled", "stopping"]


class Followed(Protocol):
    """A handle, of either client."""

    id: str
    epoch: str
    last_event: int


def connection(url: str, token: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """How to connect. The token goes into a header and nowhere else; redirects are not followed, so it is never carried elsewhere."""
    from httpx2 import Limits

    if not url.startswith(("http://", "https://")):
        raise BadInput(what="Client", field="url", problem=f"{url!r} does not begin with http:// or https://")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    headers |= {"User-Agent": f"conductor-client python/{sys.version_info[0]}.{sys.version_info[1]}", **(more.get("headers") or {})}
    # Each stream holds a connection, and there may be as many as there are runs.
    return {"limits": Limits(max_connections=None, max_keepalive_connections=20), **more, "base_url": url, "headers": headers}


def fresh(handle: Followed, manners: Manners, events: bool, after: int | None, timeout: float | None, now: float) -> Following:
    """A machine that follows this run from where its handle is."""
    if timeout is not None and not 0 <= timeout < float("inf"):
        raise BadInput(what="following", field="timeout", problem=f"{timeout!r} is not a number of seconds")
    return Following(
        handle.id, random=manners.random, epoch=handle.epoch, after=handle.last_event if after is None else after, events=events,
        until=None if timeout is None else now + timeout, timeout=timeout or 0, budget=manners.budget, backoff=manners.backoff,
        url=manners.url,
    )


def reported(ledger: Ledger, handle: Followed, said: object) -> None:
    """What is pending after this event or result: a run is, until its end or its absence was told."""
    if isinstance(said, Result) and (said.ended or said.code in (Code.RUN_NOT_FOUND, Code.CONDUCTOR_RESTARTED)):
        ledger.told(handle.id)
    else:
        ledger.know(handle.id, handle.epoch, handle.last_event)


def settled(ledger: Ledger, one: Pending, found: Resolved) -> Resolved:
    """A resolved run is pending again if nobody knows its end yet."""
    if isinstance(found, (StillRunning, NoAnswer)):
        ledger.know(one.run_id, one.epoch, one.last_event)
    else:
        ledger.told(one.run_id)
    return found


def refused_start(full: LaneFull, url: str) -> Result:
    """A start that a full lane refused, as a result."""
    return Result(Code.LANE_FULL, "", "failed", reason="lane_full", problem=str(full), url=url, refused=full)


def stopping(run_id: str, reason: str, within: float, manners: Manners) -> Conversation[Reply]:
    """Cancel a run nobody waits for any more, as well as can be done in this time."""
    return ask(calls.cancel(run_id, reason, False, False, within), replace(manners, backoff=replace(manners.backoff, call_total=within)))


def cancel_word(reply: Reply) -> str:
    """What the service said to a cancel."""
    told = answer(reply)
    return str(told.get("word") if isinstance(told, Mapping) else told)
