"""Copying a run while others move it: the copy is one moment of it, however large it is and however busy.

Authority: the log. What grows with the items of a run (their records, step records past the first 32, errors) is read at leisure, page by
page; then one call reads everything else as it stands, and what the log has told since the first page. Each event names what it touched:
if that was not read in the same call, it is asked for again with those parts among the others. So no call is long, and the window in
which the run may move on is that of one round trip, not of the whole.

An event that says too little for that (a reopening, a list of a new length) begins the copy anew. A run that never lets itself be read is
`Restless`: whoever copies must not take it for copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from conductor import log
from conductor.records import Graph, NodeKind
from conductor.state import RUN, StepState, terminal
from conductor.store.keys import plain_tails
from conductor.store.reads import ITEMS_PER_KEY, RunRecord, Source, read_graph, read_run, read_steps
from conductor.store.snapshots import Snapshot, in_order

__all__ = ["CopySource", "Parts", "Restless", "read_snapshot"]

_ENDED = frozenset(str(state) for state in terminal(RUN))
_TRIES, _ROUNDS = 3, 30
_PAGE = 100  # keys of one round trip
_ENTRIES = 10_000  # log entries of one
_TIMED = ("start", "lane", "expires", "deadline", "unbound", "anew")
_STEP_TIMED = ("retry", "timer", "lapse")
_SMALL = tuple(tail for tail in plain_tails() if tail not in ("log", "err"))
_READ = {"hash": "HGETALL", "list": "LRANGE", "set": "SMEMBERS", "zset": "ZRANGE"}
_MORE: Mapping[str, tuple[Any, ...]] = {"list": (0, -1), "zset": (0, -1, "WITHSCORES")}
_WHOLE = frozenset({"started", "queued", "admitted", "reopened", "compensating"})  # they touch steps that they do not name
_NOTHING = frozenset({
    "run_idle", "run_resumed", "paused", "resumed", "cancelled", "ended", "deadline_passed", "clock_stepped_back", "signal_kept",
    "set_aside", "taken_back",
})
_NO_ERRORS = frozenset({"claimed", "due", "answered", "called", "undoing", "items_reopened", "finishing"})


class Restless(Exception):
    """A run moved all the while it was being copied."""


class Parts(NamedTuple):
    """What one call has read: log entries, the run hash, parts by tail, times by member of the due index."""

    entries: list[str]
    fields: dict[str, str]
    parts: dict[str, list[str]]
    due: dict[str, int]


class CopySource(Source, Protocol):
    """What copying needs of a store."""

    def read_parts(self, run_id: str, after: int, tails: Mapping[str, str], due: Sequence[str]) -> Parts | None: ...


def read_snapshot(source: CopySource, run_id: str) -> Snapshot | None:
    """Everything of a run at one moment; None if the store does not have it. Raises `Restless`."""
    for _ in range(_TRIES):
        run = read_run(source, run_id)
        if run is None:
            return None
        found = _Copy(source, run).taken()
        if found is not None:
            return found
    raise Restless(run_id)


@dataclass
class _Touched:
    """Steps and parts that events are about."""

    steps: set[int] = field(default_factory=set)
    tails: set[str] = field(default_factory=set)

    def __le__(self, other: _Touched) -> bool:
        return self.steps <= other.steps and self.tails <= other.tails

    def add(self, other: _Touched) -> None:
        self.steps |= other.steps
        self.tails |= other.tails


class _Copy:
    """One try to copy a run."""

    def __init__(self, source: CopySource, run: RunRecord) -> None:
        self._source, self._run = source, run
        self._graph: Graph = read_graph(source, run.partition, run.graph)
        self._eaches = [node for node in self._graph.nodes if node.kind is NodeKind.EACH]

    def taken(self) -> Snapshot | None:
        """None: it must be read anew."""
        entries, base = self._entries(), self._base()
        if len(entries) != self._run.events:
            return None
        read = _Touched(self._timed_steps())
        for _ in range(_ROUNDS):
            told = self._source.read_parts(self._run.run_id, len(entries), self._wanted(read, base), self._due(read))
            met = None if told is None else self._met(told.entries, len(entries))
            if told is None or met is None or not met.tails <= base.keys():
                return None
            if met <= read:
                keys = {"log": [*entries, *told.entries], **base, **told.parts}
                due = {} if told.fields["st"] in _ENDED else told.due  # entries that are left behind are of no use to anybody
                return Snapshot(
                    self._run.run_id, len(keys["log"]), told.fields, {tail: part for tail, part in keys.items() if part}, due,
                    self._graph.doc)
            read.add(met)
            read.tails |= self._near(told, base) if met.tails else set()
        return None

    # Read at leisure.

    def _entries(self) -> list[str]:
        key, found = self._source.keys.run(self._run.run_id, "log"), list[str]()
        while len(found) < self._run.events:
            page: Any = self._source.client().lrange(key, len(found), min(len(found) + _ENTRIES, self._run.events) - 1)
            if not page:
                break
            found += page
        return found

    def _base(self) -> dict[str, list[str]]:
        """The parts that may be large."""
        tails = ["err", *(f"s{number}" for number in range(1, (len(self._graph.nodes) - 1) // 32 + 1)), *self._item_tails()]
        found: dict[str, list[str]] = {}
        for at in range(0, len(tails), _PAGE):
            some = tails[at : at + _PAGE]
            pipe = self._source.client().pipeline(transaction=False)
            for tail in some:
                kind = self._kind(tail)
                pipe.execute_command(_READ[kind], self._source.keys.run(self._run.run_id, tail), *_MORE.get(kind, ()))
            found |= {tail: _flat(content, self._kind(tail)) for tail, content in zip(some, pipe.execute(), strict=True)}
        return found

    def _item_tails(self) -> list[str]:
        """Pages of items, and lists that were staged for them."""
        pipe = self._source.client().pipeline(transaction=False)
        for node in self._eaches:
            assert node.source is not None
            pipe.hget(self._source.keys.run(self._run.run_id, f"e{node.index}"), "total")
            pipe.hget(self._source.keys.shard(self._run.run_id, node.source), f"{node.source}r")
        replies = pipe.execute() if self._eaches else []
        found: list[str] = []
        for node, total, stored in zip(self._eaches, replies[::2], replies[1::2], strict=True):
            found += [_page_of(node.index, item) for item in range(0, max(1, int(total or 0)), ITEMS_PER_KEY)]
            if (stored or "").startswith("@"):
                found.append(f"v{node.source}:{stored[1:].partition(';')[0]}")
        return list(dict.fromkeys(found))

    def _timed_steps(self) -> set[int]:
        """Steps that may have a time in the due index."""
        steps = read_steps(self._source, self._run.run_id, self._graph)
        return {index for index, record in steps.items() if record.state in (StepState.WAITING, StepState.RETRY_PENDING)}

    # Read in one moment.

    def _wanted(self, read: _Touched, base: Mapping[str, list[str]]) -> dict[str, str]:
        tails = [*_SMALL, *(f"e{node.index}{more}" for node in self._eaches for more in ("", ":again"))]
        tails += [f"s{index // 32}" for index in sorted(read.steps) if index >= 32]
        tails += sorted(tail for tail in read.tails if tail in base)
        return {tail: self._kind(tail) for tail in tails}

    def _due(self, read: _Touched) -> list[str]:
        places = [f"{self._run.run_id}:{index}" for index in sorted(read.steps)]
        return [*(f"{kind}:{self._run.run_id}" for kind in _TIMED), *(f"{kind}:{place}" for place in places for kind in _STEP_TIMED)]

    def _near(self, told: Parts, base: Mapping[str, list[str]]) -> set[str]:
        """Pages that are likely to be touched next: those behind the cursors."""
        found = set()
        for node in self._eaches:
            counters = told.parts.get(f"e{node.index}", [])
            cursor = int(dict(zip(counters[::2], counters[1::2], strict=True)).get("cursor", 0))
            found |= {_page_of(node.index, cursor), _page_of(node.index, cursor + ITEMS_PER_KEY)}
        return found & set(base)

    def _kind(self, tail: str) -> str:
        kind = self._source.keys.kind_of(self._source.keys.run(self._run.run_id, tail))
        assert kind is not None, tail
        return kind.type

    # What events have touched.

    def _met(self, entries: Iterable[str], after: int) -> _Touched | None:
        """None: they do not say enough."""
        found = _Touched()
        try:
            for event in log.parse_all(entries, after):
                if event.kind in _NOTHING:
                    continue
                if event.kind in _WHOLE or event.index is None or event.total is not None:
                    return None
                found.add(self._touched(event))
        except log.UnreadableEntry:
            return None  # of a newer release
        return found

    def _touched(self, event: log.Event) -> _Touched:
        assert event.index is not None
        node = self._graph.nodes[event.index]
        found = _Touched({event.index, *self._graph.successors[event.index]})
        if event.items is not None:
            each = node.undoes if node.kind is NodeKind.UNDO else node.index
            assert each is not None
            found.tails |= {_page_of(each, item) for item in (*range(event.items[0], event.items[1], ITEMS_PER_KEY), event.items[1])}
        if event.kind not in _NO_ERRORS and (event.kind != "completed" or event.how):
            found.tails.add("err")
        return found


def _page_of(each: int, item: int) -> str:
    return f"e{each}:{item // ITEMS_PER_KEY}"


def _flat(content: Any, kind: str) -> list[str]:
    """Pairs one after the other, as HSET and ZADD take them."""
    if isinstance(content, dict):
        content = [part for pair in content.items() for part in pair]
    elif content and isinstance(content[0], (list, tuple)):
        content = [part for pair in content for part in pair]
    return in_order([str(int(part)) if isinstance(part, float) else str(part) for part in content], kind)
