"""Looking at lanes: who has a place, who waits for one, and how many are before whom. Only reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from conductor.ids import home_of_name
from conductor.records import LaneTerms
from conductor.store.reads import RunRecord, Source

__all__ = ["LaneView", "Place", "lane_counts", "lane_of", "list_lanes", "read_lane", "read_lanes", "read_place"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run stands in its lane. `position` counts from 1, 0: it is not queued; `until`: ms at which its patience ends, 0: never."""

    lane: str
    active: bool = False
    position: int = 0
    queued: int = 0
    max_active: int = 0
    timeout_ms: int = 0
    until: int = 0


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane that somebody is in. `queue` is in the order in which it is admitted."""

    name: str
    max_active: int
    max_queued: int | None
    timeout_ms: int
    fair: bool
    active: tuple[str, ...]
    queue: tuple[str, ...]
    admitting: bool = False  # the due sweep will admit more


    @classmethod
    def empty(cls, terms: LaneTerms) -> LaneView:
        """A lane as it is declared, in which nobody is."""
        return cls(terms.name, terms.max_active, terms.max_queued, terms.timeout_ms, terms.fair, (), ())


def read_place(source: Source, run: RunRecord) -> Place:
    """The place of one run, in one look."""
    of, at = source.keys.of, run.partition
    pipe = source.client().pipeline(transaction=False)
    pipe.sismember(of(at, f"lane:{run.lane}:active"), run.run_id)
    pipe.zrank(of(at, f"lane:{run.lane}:queue"), run.run_id)
    pipe.zcard(of(at, f"lane:{run.lane}:queue"))
    pipe.hmget(of(at, f"lane:{run.lane}"), ["active", "timeout"])
    pipe.zscore(of(at, "due"), f"lane:{run.run_id}")
    active, rank, queued, (most, timeout), until = pipe.execute()
    position = 0 if rank is None else int(rank) + 1
    return Place(run.lane, bool(active), position, int(queued), int(most or 0), int(timeout or 0), int(until or 0))


def lane_of(source: Source, run_id: str) -> str:
    """The lane of a run, empty if it has none."""
    return str(source.client().hget(source.keys.run(run_id), "ln") or "")


def lane_counts(source: Source, partition: int, lane: str) -> tuple[int, int]:
    """How many are active in a lane, and how many queued."""
    pipe = source.client().pipeline(transaction=False)
    pipe.scard(source.keys.of(partition, f"lane:{lane}:active"))
    pipe.zcard(source.keys.of(partition, f"lane:{lane}:queue"))
    active, queued = pipe.execute()
    return int(active), int(queued)


def read_lanes(source: Source, name: str = "") -> Iterator[LaneView]:
    """All lanes that somebody is in, by name; or the one that is named."""
    if name:
        found = [(name, home_of_name(f"lane:{name}", source.partitions))]
    else:
        found = sorted((lane, number) for number in range(source.partitions) for lane in list_lanes(source, number))
    for lane, number in found:
        if (view := read_lane(source, number, lane)) is not None:
            yield view


def list_lanes(source: Source, partition: int) -> list[str]:
    """The lanes of a partition that somebody is in."""
    return sorted(source.client().smembers(source.keys.of(partition, "lanes")))


def read_lane(source: Source, partition: int, lane: str) -> LaneView | None:
    """One lane in one moment; None if nobody is in it."""
    of = source.keys.of
    pipe = source.client().pipeline(transaction=True)
    pipe.hgetall(of(partition, f"lane:{lane}"))
    pipe.smembers(of(partition, f"lane:{lane}:active"))
    pipe.zrange(of(partition, f"lane:{lane}:queue"), 0, -1)
    pipe.zscore(of(partition, "due"), f"admit:{lane}")
    terms, active, queue, admitting = pipe.execute()
    if not terms:
        return None
    most = int(terms["queued"]) if terms.get("queued") else None
    return LaneView(
        lane, int(terms["active"]), most, int(terms["timeout"]), terms.get("fair") == "1", tuple(sorted(active)), tuple(queue),
        admitting is not None)
