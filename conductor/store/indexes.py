"""Reading indexes by pages, and asking where the entries of one run stand. For lists and recounting: no run needs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from conductor.idleness import is_orphan
from conductor.state import RunState
from conductor.store.cluster_client import ClusterClient
from conductor.store.reads import RunRecord, Source

__all__ = [
    "Places", "hash_pages", "key_pages", "list_members", "newest_first", "oldest_first", "record_ids", "record_places", "run_places",
    "scores", "zset_pages",
]

_PAGE = 500
_LISTED = 200


def zset_pages(source: Source, partition: int, tail: str) -> Iterator[list[tuple[str, int]]]:
    """All members of a sorted set with their scores. A member may be met twice, none that stays is missed."""
    yield from _scan(lambda cursor: source.client().zscan(source.keys.of(partition, tail), cursor, count=_PAGE), lambda page: [
        (member, int(score)) for member, score in page
    ])


def newest_first(
    source: Source, partition: int, tail: str, *, since: int = 0, until: int = 0, before: tuple[int, str] | None = None,
) -> Iterator[tuple[int, str]]:
    """Score and member of a sorted set, from the top or from below a place in it. A page begins where the last one ended; what shares its
    ms is met again and passed over."""
    key, low = source.keys.of(partition, tail), since or "-inf"
    high: int | str = min(before[0], until or before[0]) if before else (until or "+inf")
    offset = 0
    while True:
        page = source.client().zrevrangebyscore(key, high, low, start=offset, num=_LISTED, withscores=True)
        for member, score in page:
            place = (int(score), member)
            if before is None or place < before:
                yield place
        if len(page) < _LISTED:
            return
        end = int(page[-1][1])
        # Going on by score keeps each page as cheap as the first; by offset only inside one ms that fills a page.
        offset = offset + _LISTED if end == high else sum(1 for _, score in page if int(score) == end)
        high = end


def oldest_first(source: Source, partition: int, tail: str, *, after: tuple[int, str] | None = None) -> Iterator[tuple[int, str]]:
    """The same from the bottom, or from above a place."""
    key, low, offset = source.keys.of(partition, tail), after[0] if after else 0, 0
    while True:
        page = source.client().zrangebyscore(key, low, "+inf", start=offset, num=_LISTED, withscores=True)
        for member, score in page:
            place = (int(score), member)
            if after is None or place > after:
                yield place
        if len(page) < _LISTED:
            return
        end = int(page[-1][1])
        offset = offset + _LISTED if end == low else sum(1 for _, score in page if int(score) == end)
        low = end


def hash_pages(source: Source, partition: int, tail: str) -> Iterator[list[tuple[str, str]]]:
    """All fields of a hash with their values."""
    yield from _scan(
        lambda cursor: source.client().hscan(source.keys.of(partition, tail), cursor, count=_PAGE), lambda page: list(page.items())
    )


def key_pages(source: Source, partition: int) -> Iterator[list[str]]:
    """All keys of a partition, without its tag."""
    tag = source.keys.tag(partition)
    yield from _scan(
        lambda cursor: source.client().scan(cursor, match=f"{_literal(tag)}*", count=1000), lambda page: [key[len(tag) :] for key in page]
    )


def record_ids(source: Source) -> Iterator[list[str]]:
    """The ids of all runs and operations that have a record, from the keys themselves; one may be met twice."""
    pattern, client = f"conductor:{{{_literal(source.namespace)}:??}}:run:{'?' * 36}", source.client()
    for node in client.nodes().values() if isinstance(client, ClusterClient) else (client,):
        yield from _scan(partial(node.scan, match=pattern, count=1000), lambda page: [key[-36:] for key in page])


def _literal(text: str) -> str:
    return "".join(f"\\{sign}" if sign in "*?[]\\" else sign for sign in text)


def _scan(step: Any, read: Any) -> Iterator[list[Any]]:
    cursor = 0
    while True:
        cursor, page = step(cursor)
        if page:
            yield read(page)
        if not int(cursor):
            return


def list_members(source: Source, key: str) -> list[str]:
    found: list[str] = source.client().lrange(key, 0, -1)
    return found


def scores(source: Source, partition: int, tail: str, members: Sequence[str]) -> list[int | None]:
    """Scores of some members, None where one is not in the set."""
    found: list[int | None] = []
    for at in range(0, len(members), _PAGE):
        page = source.client().zmscore(source.keys.of(partition, tail), members[at : at + _PAGE])
        found += [None if score is None else int(score) for score in page]
    return found


@dataclass(frozen=True, slots=True)
class Places:
    """Whether a run stands in the indexes that its record says it is in, and whether it carries consent."""

    fits: bool
    has_consent: bool


def record_places(source: Source, runs: Sequence[RunRecord]) -> list[Places]:
    """Where several runs stand, in one round trip."""
    pipe = source.client().pipeline(transaction=False)
    for run in runs:
        operation, of = bool(run.queue_reason), source.keys.of
        pipe.hexists(of(run.partition, "ops:open" if operation else "active"), run.run_id)
        pipe.zscore(of(run.partition, "ops" if operation else "runs"), run.run_id)
        pipe.zscore(of(run.partition, f"ended:{run.state}"), run.run_id)
        pipe.zscore(of(run.partition, "orphans:due"), run.run_id)
        pipe.hexists(source.keys.run(run.run_id), "bl")
        pipe.sismember(of(run.partition, f"lane:{run.lane}:active"), run.run_id)
        pipe.zscore(of(run.partition, f"lane:{run.lane}:queue"), run.run_id)
    found, replies = [], pipe.execute() if runs else []
    for at, run in enumerate(runs):
        active, listed, over, orphan, consent, has_place, queued = replies[7 * at : 7 * at + 7]
        if run.ended:
            right = over is not None and not active
        elif run.state is RunState.QUEUED:
            right = queued is not None and not active
        else:
            placed = has_place or not run.lane or run.roots or run.state is RunState.COMPENSATING
            right = bool(active and placed) and (orphan is not None or not is_orphan(run))
        found.append(Places(right and listed is not None, bool(consent)))
    return found


def run_places(source: Source, run: RunRecord) -> dict[str, Any]:
    """Where the run itself stands: its active line, progress (an operation: whether it is queued), creation, the three indexes of ended
    runs, its key and that key's life."""
    of = source.keys.of
    pipe = source.client().pipeline(transaction=False)
    operation = bool(run.queue_reason)
    pipe.hget(of(run.partition, "ops:open" if operation else "active"), run.run_id)
    pipe.zscore(of(run.partition, f"queued:{run.queue_reason}" if operation else "progress"), run.run_id)
    pipe.zscore(of(run.partition, "ops" if operation else "runs"), run.run_id)
    for state in ("completed", "failed", "cancelled"):
        pipe.zscore(of(run.partition, f"ended:{state}"), run.run_id)
    pipe.get(of(run.partition, f"key:{run.workflow}{f'@{run.lane}' if run.lane else ''}:{run.key}"))
    pipe.hget(of(run.partition, "graphs"), run.graph)
    pipe.zscore(of(run.partition, "due"), f"start:{run.run_id}")
    pipe.zscore(of(run.partition, "orphans"), run.run_id)
    pipe.zscore(of(run.partition, "orphans:due"), run.run_id)
    names = ("active", "progress", "runs", "completed", "failed", "cancelled", "key", "graphs", "start", "orphans", "orphans:due")
    return dict(zip(names, pipe.execute(), strict=True))
