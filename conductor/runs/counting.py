"""How many runs are in which state, without reading any of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from conductor.state import RUN, RunState, terminal
from conductor.store.reads import Source

__all__ = ["count_runs"]

_FEW = 50_000  # of one partition: more are not told apart, because that would cost the server what runs need
_LIVE = tuple(state for state in RunState if state not in terminal(RUN))


def count_runs(source: Source) -> dict[str, int]:
    """Runs in the store by state, parked ones as `parked`; where there are too many to look at, those that live as `active`."""
    of, pipe = source.keys.of, source.client().pipeline(transaction=False)
    for partition in range(source.partitions):
        pipe.hlen(of(partition, "active"))
        pipe.hlen(of(partition, "parked"))
        for state in terminal(RUN):
            pipe.zcard(of(partition, f"ended:{state}"))
    replies, width = pipe.execute(), 2 + len(terminal(RUN))
    counts: Counter[str] = Counter(dict.fromkeys((*_LIVE, *terminal(RUN), "parked", "active"), 0))
    for partition in range(source.partitions):
        active, parked, *ended = replies[partition * width : (partition + 1) * width]
        counts["parked"] += parked
        counts.update(dict(zip(terminal(RUN), ended, strict=True)))
        counts.update(_told_apart(source, partition) if active <= _FEW else {"active": active})
    return dict(counts)


def _told_apart(source: Source, partition: int) -> Counter[str]:
    lines: Any = source.client().hvals(source.keys.of(partition, "active"))
    return Counter(line.partition(";")[0] for line in lines)
