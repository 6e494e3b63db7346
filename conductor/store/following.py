"""What a process reads that shows many runs live to many readers: the notices of a partition, arrivals in inboxes, one page of a log with
the state it belongs to, and marks by which a change is seen that nobody told of. Only reads.

Notices may be missing: the stream is capped, and a server that lost its last writes counts again from an earlier place. Both are seen
here and told as a `gap`; who follows then looks at everything once more. So nothing is ever waited for that has already happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conductor.ids import home_of_name
from conductor.store.notices import _PAGE, _client, _entries, last_notice
from conductor.store.reads import Source
from conductor.store.sessions import in_key

__all__ = [
    "Head", "LogPage", "News", "inbox_home", "marks", "newest_arrivals", "place_of", "read_arrivals", "read_heads", "read_log", "read_news",
]

_STATE = ("st", "g")
_HEAD = (*_STATE, "wy", "w", "s", "qr")


@dataclass(frozen=True, slots=True)
class News:
    """Where to read on; the runs that moved as (run, event number, state); whether something may be missing in between."""

    place: str
    told: tuple[tuple[str, int, str], ...] = ()
    gap: bool = False


def read_news(source: Source, partition: int, place: str, timeout: float) -> News:
    """Block until the partition says something after `place`, `timeout` seconds at most. Without a place: where its stream stands now, and
    that is a gap, because whoever looked before has seen nothing of what came since."""
    if not place:
        return News(last_notice(source, partition), gap=True)
    key = source.keys.of(partition, "notices")
    entries = _entries(_client(source).xread({key: place}, count=_PAGE, block=max(1, int(timeout * 1000))))
    if not entries:
        stands = last_notice(source, partition)
        back = _order(stands) < _order(place)  # the server came back without its last writes, or was wiped
        return News(stands if back else place, gap=back)
    told = tuple((said["r"], int(said.get("n", 0)), said.get("s", "")) for _, said in entries if "r" in said)
    # A full page: the stream keeps little more than that, so what came before it may have been cut off.
    return News(entries[-1][0], told, gap=len(entries) >= _PAGE)


def _order(place: str) -> tuple[int, int]:
    ms, _, number = place.partition("-")
    return int(ms or 0), int(number or 0)


def inbox_home(source: Source, session: str) -> int:
    """The partition in which a session's inbox is."""
    return home_of_name(session, source.partitions)


def read_arrivals(source: Source, partition: int, places: Mapping[str, str], timeout: float) -> list[str]:
    """Block until one of several inboxes of a partition has a message behind its place, `timeout` seconds at most; tells which have."""
    keys = {source.keys.of(partition, f"inbox:{in_key(session)}"): session for session in places}
    wanted = {key: places[session] for key, session in keys.items()}
    # One message each: it wakes who reads the inbox, and may be large.
    reply: Any = _client(source).xread(wanted, count=1, block=max(1, int(timeout * 1000)))
    return [keys[key] for key, entries in _streams(reply) if entries]


def newest_arrivals(source: Source, sessions: Iterable[str]) -> dict[str, str]:
    """For each of several sessions the place of the last message its inbox was given, acknowledged or not."""
    asked = list(sessions)
    pipe = _client(source).pipeline(transaction=False)
    for session in asked:
        pipe.zrevrange(_ids(source, session), 0, 0, withscores=True)
    replies = pipe.execute() if asked else []
    return {session: f"{int(found[0][1])}-0" if found else "0-0" for session, found in zip(asked, replies, strict=True)}


def place_of(source: Source, session: str, message_id: str) -> str:
    """The place that a message has, or had, in an inbox; empty if the inbox was never given it, or has forgotten."""
    found = source.client().zscore(_ids(source, session), message_id)
    return "" if found is None else f"{int(found)}-0"


def _ids(source: Source, session: str) -> str:
    return source.keys.of(inbox_home(source, session), f"inbox:{in_key(session)}:ids")


def _streams(reply: Any) -> Iterator[tuple[str, Any]]:
    """The streams of an answer; RESP2 answers with a list, RESP3 with a dictionary of lists in lists."""
    if isinstance(reply, dict):
        for key, found in reply.items():
            yield key, found[0] if found and isinstance(found[0], list) else found
        return
    yield from reply or ()


@dataclass(frozen=True, slots=True)
class LogPage:
    """Entries of a log, how long it is, and how its run stood. `settled`: state and generation were the same before and after the
    entries were read, so that of an ended run nothing can come behind the last of them in this generation."""

    state: str
    reason: str
    generation: int
    graph: str
    session: str
    total: int
    entries: tuple[str, ...]
    settled: bool


def read_log(source: Source, run_id: str, after: int, limit: int) -> LogPage | None:
    """One page of a run's log in one round trip; None if the store does not have the run."""
    key, log = source.keys.run(run_id), source.keys.run(run_id, "log")
    pipe = source.client().pipeline(transaction=False)
    pipe.hmget(key, [*_STATE, "wy", "h", "s"])
    pipe.lrange(log, after, after + limit - 1)
    pipe.llen(log)
    pipe.hmget(key, list(_STATE))
    before, entries, total, behind = pipe.execute()
    state, generation, reason, graph, session = before
    if state is None:
        return None
    return LogPage(state, reason or "", int(generation or 1), graph or "", session or "", int(total), tuple(entries), before[:2] == behind)


@dataclass(frozen=True, slots=True)
class Head:
    """What a list of all that happens tells of a run."""

    run_id: str
    state: str
    generation: int
    reason: str
    workflow: str
    session: str
    events: int


def read_heads(source: Source, run_ids: Sequence[str]) -> list[Head]:
    """Several runs in one round trip; operations, and what the store does not have, are left out."""
    pipe = source.client().pipeline(transaction=False)
    for run_id in run_ids:
        pipe.hmget(source.keys.run(run_id), list(_HEAD))
        pipe.llen(source.keys.run(run_id, "log"))
    replies = pipe.execute() if run_ids else []
    found = []
    for at, run_id in enumerate(run_ids):
        state, generation, reason, workflow, session, operation = replies[2 * at]
        if state is not None and not operation:
            found.append(Head(run_id, state, int(generation or 1), reason or "", workflow or "", session or "", int(replies[2 * at + 1])))
    return found


def marks(source: Source, run_ids: Sequence[str], sessions: Sequence[str]) -> list[Any]:
    """For each run and then each session a value that differs if something has happened to it."""
    pipe = source.client().pipeline(transaction=False)
    for run_id in run_ids:
        pipe.llen(source.keys.run(run_id, "log"))
        pipe.hmget(source.keys.run(run_id), list(_STATE))
    for session in sessions:
        pipe.zrevrange(_ids(source, session), 0, 0, withscores=True)
    replies = pipe.execute() if run_ids or sessions else []
    cut = 2 * len(run_ids)
    return [(replies[at], tuple(replies[at + 1])) for at in range(0, cut, 2)] + [str(found) for found in replies[cut:]]
