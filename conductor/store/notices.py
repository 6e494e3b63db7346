"""Waiting without polling: the notice stream of a partition says which run moved. It is capped and may lose entries, so whoever waits
looks at the record again every second; a notice only makes the look come at once. Steps that follow each other within `NOTICE_MS` are
told by the first of them, so that a waiting caller costs a chain nothing; who shows steps looks again when that window is over.

Each thread keeps one connection for waiting and reuses it for every run it waits for. After a fork or a break it opens a new one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis import exceptions

from conductor.store.cluster_client import single
from conductor.store.reads import Source
from conductor.store.scripts import NOTICE_MS
from conductor.store.stubs import read_stub

__all__ = ["Follower", "Glimpse", "Notice", "Unreachable", "forget", "glimpse", "last_notice", "wait_notice"]

Unreachable = (exceptions.ConnectionError, exceptions.TimeoutError, ConnectionError, TimeoutError, OSError)
"""What reading raises while the server is away; a reader that waits goes on when it is back."""

_PAGE = 500
_WINDOW = 2 * NOTICE_MS / 1000
_HEAD = ("st", "wy", "w", "h", "g")


@dataclass(frozen=True, slots=True)
class Notice:
    """Where to read on, and whether one of the entries was about the run (`state` as of its last one)."""

    last_id: str
    met: bool = False
    state: str = ""
    event: int = 0


@dataclass(frozen=True, slots=True)
class Glimpse:
    """What a waiting caller needs to know of a run; `results` are those payloads that were asked for, by index."""

    state: str
    reason: str
    workflow: str
    graph: str
    generation: int
    results: dict[int, str | None]


class _Waiting(threading.local):
    """The connection of this thread."""

    client: Any = None
    pid: int = 0
    source: Source | None = None  # itself, not its id(): another store may come to lie at the same place


_waiting = _Waiting()


def _client(source: Source) -> Any:
    if _waiting.client is None or _waiting.pid != os.getpid() or _waiting.source is not source:
        _waiting.client = single(source.client())
        _waiting.pid, _waiting.source = os.getpid(), source
    return _waiting.client


def forget() -> None:
    """Drop this thread's connection: it broke, or its server went away."""
    client, _waiting.client = _waiting.client, None
    if client is not None:
        client.close()


def wait_notice(source: Source, partition: int, last_id: str, timeout: float, run_id: str = "") -> Notice:
    """Block until the partition says something after `last_id` (`$` or empty: from now on), or until `timeout` seconds have passed."""
    block = max(1, int(timeout * 1000))
    try:
        reply = _client(source).xread({source.keys.of(partition, "notices"): last_id or "$"}, count=_PAGE, block=block)
    except Unreachable:
        forget()
        raise
    entries = _entries(reply)
    if not entries:
        return Notice(last_id)
    mine = [said for _, said in entries if said.get("r") == run_id]
    if not mine:
        return Notice(entries[-1][0])
    return Notice(entries[-1][0], True, mine[-1].get("s", ""), int(mine[-1].get("n", 0)))


def _entries(reply: Any) -> list[tuple[str, dict[str, str]]]:
    """Entries of the one stream that was read; RESP2 answers with a list, RESP3 with a dictionary of lists in lists."""
    if not reply:
        return []
    if isinstance(reply, dict):
        found = next(iter(reply.values()))
        return [tuple(entry) for entry in (found[0] if found and isinstance(found[0], list) else found)]
    return [tuple(entry) for entry in reply[0][1]]


class Follower:
    """When to look again at a run whose steps are shown: at a notice, again when its window is over, and each second."""

    def __init__(self, source: Source, run_id: str, partition: int) -> None:
        self._source, self._run_id, self._partition = source, run_id, partition
        self._last = ""
        self._soon = time.monotonic() + _WINDOW  # a notice before our time may stand for what comes now

    def begin(self) -> None:
        """Before a look: where the notices stand, so that none is missed."""
        self._last = self._last or last_notice(self._source, self._partition)

    def wait(self, longest: float) -> None:
        """Until it is time for the next look."""
        soon = self._soon - time.monotonic()
        said = wait_notice(self._source, self._partition, self._last, min(longest, soon) if soon > 0 else longest, self._run_id)
        self._last = said.last_id
        if said.met:
            self._soon = time.monotonic() + _WINDOW


def last_notice(source: Source, partition: int) -> str:
    """Where the partition's stream stands now: who looks at a record after this and then reads on from here misses nothing."""
    found = _client(source).xrevrange(source.keys.of(partition, "notices"), count=1)
    return str(found[0][0]) if found else "0-0"


def _parked(source: Source, run_id: str) -> Glimpse | None:
    stub = read_stub(source, run_id)
    return None if stub is None else Glimpse(stub.state, stub.reason, stub.workflow, stub.graph, stub.generation, {})


def glimpse(source: Source, run_id: str, indexes: Sequence[int] = ()) -> Glimpse | None:
    """State and the named results in one round trip; None if the store does not have the run."""
    own = [index for index in indexes if index < 32]
    far = [index for index in indexes if index >= 32]
    head = [*_HEAD, *(f"{index}r" for index in own)]
    try:
        client = _client(source)
        if not far:
            replies = [client.hmget(source.keys.run(run_id), head)]
        else:
            pipe = client.pipeline(transaction=False)
            pipe.hmget(source.keys.run(run_id), head)
            for index in far:
                pipe.hmget(source.keys.shard(run_id, index), [f"{index}r"])
            replies = pipe.execute()
    except Unreachable:
        forget()
        raise
    state, reason, workflow, graph_hash, generation = replies[0][: len(_HEAD)]
    if state is None:
        return _parked(source, run_id)
    results = dict(zip(own, replies[0][len(_HEAD) :], strict=True))
    results |= {index: reply[0] for index, reply in zip(far, replies[1:], strict=True)}
    return Glimpse(state, reason or "", workflow or "", graph_hash or "", int(generation or 1), results)
