"""Reading over all partitions: runs by filter and time, runs by the beginning of their id, queues. Payloads are never read."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from conductor.ids import home_of_name, is_run_id
from conductor.records import Graph
from conductor.state import RUN, RunState, terminal
from conductor.store.indexes import newest_first
from conductor.store.lanes import list_lanes
from conductor.store.reads import RunRecord, Source, read_graph, read_now, read_runs
from conductor.store.sifting import sift

__all__ = ["Ambiguous", "Filter", "Page", "QueueView", "find_run_by_prefix", "list_runs", "queues", "read_cursor"]

_LOOK_AT_MOST = 20_000  # runs that one page may look at; a rarer filter gets its cursor and goes on
_CHUNK = 500  # runs whose records are read in one go
_FEW = 5_000
_ENDED = terminal(RUN)
_SKEW_MS = 600_000  # an id carries its starter's clock, the index the store's


class Ambiguous(ValueError):
    """Several runs have ids that begin so."""

    def __init__(self, prefix: str, found: Sequence[str]) -> None:
        shown = ", ".join(found[:3])
        super().__init__(f"{prefix!r} is the beginning of several run ids ({shown}{', …' if len(found) > 3 else ''}); give more of it")
        self.found = tuple(found)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which runs: empty fields match all. `since` and `until` are ms of creation, both included."""

    states: frozenset[RunState] = frozenset()
    workflow: str = ""
    session: str = ""
    key: str = ""
    tag: str = ""
    since: int = 0
    until: int = 0
    lane: str = ""
    idle: bool | None = None
    idle_before: int = 0  # idle since this ms or earlier
    waiting_for: str = ""  # the name of a signal, or of the step that waits
    step: str = ""  # where the run stands, or failed
    error_kind: str = ""  # of an attempt that failed for good or will be repeated
    version: str = ""  # the beginning of the hash of its graph
    sessions: frozenset[str] | None = None  # all that whoever asks may see

    @property
    def wanted_states(self) -> frozenset[RunState]:
        """The states in which there can be a match; empty: all."""
        idle = self.idle or bool(self.idle_before)
        possible = frozenset({RunState.WAITING_SIGNAL}) if idle else frozenset(RunState) - _ENDED if self.waiting_for else frozenset()
        return (self.states & possible or possible) if self.states and possible else self.states or possible

    def matches(self, run: RunRecord) -> bool:
        return self._matches_idleness(run) and (
            (not self.states or run.state in self.states)
            and (not self.workflow or run.workflow == self.workflow)
            and (not self.session or run.session == self.session)
            and (not self.key or run.key == self.key)
            and (not self.tag or self.tag in run.tags)
            and (not self.lane or self.lane == run.lane)
            and run.graph.startswith(self.version)
            and (self.sessions is None or run.session in self.sessions)
            and run.created_at >= self.since
            and (not self.until or run.created_at <= self.until)
        )

    def sift(self, source: Source, runs: Sequence[RunRecord]) -> list[RunRecord]:
        """Those that match, also by what takes more than their records."""
        left = [run for run in runs if self.matches(run)]
        return sift(source, left, signal=self.waiting_for, step=self.step, error_kind=self.error_kind)

    def _matches_idleness(self, run: RunRecord) -> bool:
        idle = run.state is RunState.WAITING_SIGNAL
        return (self.idle is None or self.idle == idle) and (not self.idle_before or (idle and run.idle_since <= self.idle_before))


@dataclass(frozen=True, slots=True)
class Page:
    """Runs, newest first. With a `cursor` there may be more, even if this page is short."""

    runs: tuple[RunRecord, ...]
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class QueueView:
    """What stands ready and what runs, per queue, over all partitions."""

    queue: str
    ready: int
    oldest_ready_ms: int
    running: int
    unanswered_ms: int  # how long a poke has gone unanswered, 0 if none has
    limited: int = 0  # ready, and waiting for a limit


_Place = tuple[int, str]  # created ms and id: the order of every list


def list_runs(
    source: Source, wanted: Filter | None = None, *, cursor: str = "", limit: int = 50, look_at_most: int = _LOOK_AT_MOST,
) -> Page:
    """The newest runs that match, merged over all partitions. What it costs does not depend on how many runs there are."""
    chosen = wanted or Filter()
    before = read_cursor(cursor)
    partitions: Sequence[int] = range(source.partitions)
    if chosen.lane:  # all its runs live with it
        partitions = [home_of_name(f"lane:{chosen.lane}", source.partitions)]
    merged = heapq.merge(*(_places(source, number, chosen, before) for number in partitions), reverse=True)
    found: list[RunRecord] = []
    looked = 0
    last: _Place | None = None
    for batch in _chunks(merged, min(max(limit, 50), _CHUNK)):
        records = {run.run_id: run for run in read_runs(source, [run_id for _, run_id in batch]) if run is not None}
        matching = {run.run_id for run in chosen.sift(source, list(records.values()))}
        for place in batch:
            last = place
            if place[1] in matching:
                found.append(records[place[1]])
                if len(found) == limit:
                    return Page(tuple(found), f"{last[0]}-{last[1]}")
        looked += len(batch)
        if looked >= look_at_most and last is not None:
            return Page(tuple(found), f"{last[0]}-{last[1]}")
    return Page(tuple(found))


def read_cursor(cursor: str) -> _Place | None:
    """Where a list ended; None at its beginning."""
    if not cursor:
        return None
    at, _, run_id = cursor.partition("-")
    if not at.isdigit() or not is_run_id(run_id):
        raise ValueError(f"{cursor!r} is not a cursor that a list gave")
    return int(at), run_id


def _chunks(places: Iterator[_Place], size: int) -> Iterator[list[_Place]]:
    batch: list[_Place] = []
    for place in places:
        batch.append(place)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _places(source: Source, partition: int, chosen: Filter, before: _Place | None) -> Iterator[_Place]:
    """Candidates of one partition, newest first. Rare states are read from their own index, everything else by time."""
    rare = _rare(source, partition, chosen.wanted_states)
    if rare is not None:
        scores = source.client().zmscore(source.keys.of(partition, "runs"), rare) if rare else []
        found = sorted(((int(score), run_id) for run_id, score in zip(rare, scores, strict=True) if score is not None), reverse=True)
        yield from (place for place in found if before is None or place < before)
        return
    yield from newest_first(source, partition, "runs", since=chosen.since, until=chosen.until, before=before)


def _rare(source: Source, partition: int, states: frozenset[RunState]) -> list[str] | None:
    """All ids in these states if they are few, else None."""
    if not states:
        return None
    tails = sorted(f"ended:{state}" for state in states & _ENDED)
    if RunState.QUEUED in states:  # those are not active
        tails += [f"lane:{lane}:queue" for lane in list_lanes(source, partition)]
    pipe = source.client().pipeline(transaction=False)
    pipe.hlen(source.keys.of(partition, "active"))
    for tail in tails:
        pipe.zcard(source.keys.of(partition, tail))
    active, *ended = pipe.execute()
    wants_active = bool(states - _ENDED)
    if sum(ended) + (active if wants_active else 0) > _FEW:
        return None
    pipe = source.client().pipeline(transaction=False)
    if wants_active:
        pipe.hkeys(source.keys.of(partition, "active"))
    for tail in tails:
        pipe.zrange(source.keys.of(partition, tail), 0, -1)
    return [run_id for ids in pipe.execute() for run_id in ids]


def find_run_by_prefix(source: Source, prefix: str) -> str | None:
    """The only run whose id begins so; None if there is none."""
    text = prefix.strip().lower()
    if is_run_id(text):
        return text if source.client().exists(source.keys.run(text)) else None
    if len(text) < 4 or not all(sign in "0123456789abcdef-" for sign in text):
        raise ValueError(f"{prefix!r} is not the beginning of a run id; give at least 4 of its characters")
    found = _near(source, text) or _anywhere(source, text)
    if len(found) > 1:
        raise Ambiguous(prefix, found)
    return found[0] if found else None


def _near(source: Source, text: str) -> list[str]:
    """By time: the first twelve digits of an id are the ms of its making."""
    digits = text.replace("-", "")[:12]
    low, high = int(digits.ljust(12, "0"), 16) - _SKEW_MS, int(digits.ljust(12, "f"), 16) + _SKEW_MS
    return _over_partitions(source, lambda number: iter(
        source.client().zrangebyscore(source.keys.of(number, "runs"), low, high, start=0, num=_LOOK_AT_MOST)
    ), text)


def _anywhere(source: Source, text: str) -> list[str]:
    """By looking at every id: the starter's clock was far off."""
    return _over_partitions(source, lambda number: (
        run_id for run_id, _ in source.client().zscan_iter(source.keys.of(number, "runs"), match=f"{text}*", count=1000)
    ), text)


def _over_partitions(source: Source, ids: Callable[[int], Iterator[str]], text: str) -> list[str]:
    found: list[str] = []
    for number in range(source.partitions):
        found += [run_id for run_id in ids(number) if run_id.startswith(text)]
        if len(found) > 3:
            break
    return sorted(found)


def queues(source: Source) -> list[QueueView]:
    """All queues that were ever poked, with what stands in them now."""
    now = read_now(source)
    client = source.client()
    pipe = client.pipeline(transaction=False)
    for number in range(source.partitions):
        pipe.hgetall(source.keys.of(number, "pokes"))
    markers = pipe.execute()
    running = _running(source)
    poked = {queue for found in markers for queue in found}
    names = sorted({queue.partition("!")[0] for queue in poked} | set(running))
    limited = _limited(source, sorted(queue for queue in poked if "!" in queue))
    return [replace(_queue_view(source, name, now, markers, running.get(name, 0)), limited=limited.get(name, 0)) for name in names]


def _limited(source: Source, queues: Sequence[str]) -> dict[str, int]:
    """How much stands ready under a limit, per queue."""
    found: dict[str, int] = {}
    for queue in queues:
        pipe = source.client().pipeline(transaction=False)
        for number in range(source.partitions):
            pipe.zcard(source.keys.of(number, f"ready:{queue}"))
            pipe.zcard(source.keys.of(number, f"limited:{queue}"))
        name = queue.partition("!")[0]
        found[name] = found.get(name, 0) + sum(pipe.execute())
    return found


def _queue_view(source: Source, name: str, now: int, markers: Sequence[dict[str, str]], running: int) -> QueueView:
    pipe = source.client().pipeline(transaction=False)
    for number in range(source.partitions):
        key = source.keys.of(number, f"ready:{name}")
        pipe.zcard(key)
        for priority in range(10):
            pipe.zrangebyscore(key, priority * 10**13, (priority + 1) * 10**13 - 1, start=0, num=1, withscores=True, score_cast_func=float)
    replies = pipe.execute()
    ready = sum(replies[::11])
    stamps = [int(found[0][1]) % 10**13 for at, found in enumerate(replies) if at % 11 and found]
    pokes = [int(found.get(name, 0)) for found, count in zip(markers, replies[::11], strict=True) if count]
    asked = [at for at in pokes if at]
    return QueueView(
        name, ready, max(0, now - min(stamps)) if stamps else 0, running, max(0, now - min(asked)) if asked else 0,
    )


def _running(source: Source) -> dict[str, int]:
    """Leased attempts per queue. There are never more of them than workers have slots."""
    pipe = source.client().pipeline(transaction=False)
    for number in range(source.partitions):
        pipe.zrange(source.keys.of(number, "leases"), 0, -1)
    leased = [member.split(":") for members in pipe.execute() for member in members]
    runs = {run.run_id: run for run in read_runs(source, sorted({parts[0] for parts in leased})) if run is not None and not run.ended}
    found: dict[str, int] = {}
    for run_id, index, *_ in leased:
        if run := runs.get(run_id):
            graph: Graph = read_graph(source, run.partition, run.graph)
            queue = graph.nodes[int(index)].queue or run.queue
            found[queue] = found.get(queue, 0) + 1
    return found
