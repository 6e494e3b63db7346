"""Reading one run: record, steps, items, events, errors, results. Only reads, in pipelines, and never a payload that was not asked for.

What is read in several calls is not one moment; who needs one moment compares `RunRecord.events` before and after.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from conductor import log
from conductor.ids import is_run_id, partition_of
from conductor.records import Graph, NodeKind
from conductor.state import RUN, RunState, StepState, terminal
from conductor.store.keys import Keys

__all__ = [
    "EachRecord", "RunRecord", "Source", "StepRecord", "as_dict", "each_from_pairs", "error_name", "know_graph", "parse_step",
    "read_checkpoints",
    "read_children", "read_each", "read_errors", "read_events", "read_graph", "read_input", "read_items", "read_live", "read_now",
    "read_run", "read_runs", "read_session", "read_steps", "read_undos", "run_from_fields",
]

ITEMS_PER_KEY = 64
_ENDED = terminal(RUN)
_EACH_FIELDS = ("total", "cursor", "done", "failed", "active", "timed", "listed", "again")
_EACH_TEXTS = ("bad", "anew")


class Source(Protocol):
    """What reading needs of a store."""

    @property
    def namespace(self) -> str: ...

    @property
    def partitions(self) -> int: ...

    @property
    def keys(self) -> Keys: ...

    def client(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The run hash, typed, without its input. Times are ms on the store's clock, 0 where there is none; `events` is the log's length."""

    run_id: str
    workflow: str
    graph: str
    state: RunState
    reason: str = ""
    generation: int = 1
    queue: str = ""
    priority: int = 5
    session: str = ""
    key: str = ""
    created_at: int = 0
    ended_at: int = 0
    tags: tuple[str, ...] = ()
    deadline: int = 0
    retain_completed_ms: int = 0
    retain_failed_ms: int = 0
    phase: str = ""
    outcome: str = ""
    outcome_reason: str = ""
    hooks: str = ""
    progress_at: int = 0
    orchestrator: str = ""
    forked_from: str = ""
    reopened_at: int = 0  # by a retry, or a resume after a failure
    roots: str = ""  # of a delayed start that has not begun
    queue_reason: str = ""  # of a stand-alone operation; empty for a run
    bound_to: str = ""  # `run;generation` an operation ends with
    called_by: int | None = None  # of a child run: the step of the run it is bound to
    root: str = ""  # of a child run: the first of those above it
    undone: str = ""  # how many undos were planned; empty unless the run was, or is being, undone
    lane: str = ""
    lane_terms: str = ""
    lane_key: str = ""
    left: int = 0
    ready: int = 0
    active: int = 0
    due: int = 0
    waiters: int = 0
    agents: int = 0  # of the waiters, those that are agents
    children: int = 0
    waiting: tuple[int, ...] = ()  # the steps that wait for a time, a signal or an answer, in the order they began to
    idle_since: int = 0
    idle_timeout_ms: int = 0
    failed: int = 0
    events: int = 0

    @property
    def ended(self) -> bool:
        return self.state in _ENDED

    @property
    def partition(self) -> int:
        return partition_of(self.run_id)


# field of the hash → attribute
_RUN_FIELDS = {
    "w": "workflow", "h": "graph", "st": "state", "wy": "reason", "g": "generation", "q": "queue", "p": "priority", "s": "session",
    "k": "key", "t": "created_at", "e": "ended_at", "tg": "tags", "dl": "deadline", "rc": "retain_completed_ms",
    "rf": "retain_failed_ms", "ph": "phase", "oc": "outcome", "hk": "hooks", "pg": "progress_at", "ot": "orchestrator",
    "fk": "forked_from", "ro": "roots", "qr": "queue_reason", "up": "bound_to", "un": "undone", "ps": "called_by", "rt": "root",
    "ow": "outcome_reason", "ra": "reopened_at",
    "l": "left", "r": "ready", "a": "active", "d": "due", "o": "waiters", "f": "failed", "oa": "agents", "ch": "children",
    "wi": "waiting", "is": "idle_since", "it": "idle_timeout_ms",
    "ln": "lane", "lt": "lane_terms", "lk": "lane_key",
}
_INTEGERS = frozenset({
    "generation", "priority", "created_at", "ended_at", "deadline", "retain_completed_ms", "retain_failed_ms", "progress_at", "left",
    "ready", "active", "due", "waiters", "agents", "children", "idle_since", "idle_timeout_ms", "failed",
    "called_by", "reopened_at",
})


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step's or item's record; `left` counts predecessors that have not ended and is 0 unless it is pending."""

    state: StepState = StepState.PENDING
    fence: int = 0
    attempt: int = 0
    losses: int = 0
    ready_at: int = 0
    waited_ms: int = 0
    ran_ms: int = 0
    flags: str = ""
    left: int = 0

    @property
    def poison(self) -> bool:
        return "!" in self.flags


@dataclass(frozen=True, slots=True)
class EachRecord:
    """The counters of an `each`."""

    total: int = 0
    cursor: int = 0
    done: int = 0
    failed: int = 0
    active: int = 0
    timed: int = 0
    listed: int = 0
    again: int = 0
    bad: tuple[int, ...] = field(default=())
    anew: tuple[int, int] | None = None  # items that a reopening has yet to reach, first and last


def read_session(source: Source, run_id: str) -> str | None:
    """Whom a run belongs to; None if the store has no record of it."""
    found: list[str | None] = source.client().hmget(source.keys.run(run_id), ["st", "s"])
    state, session = found
    return None if state is None else session or ""


def read_now(source: Source) -> int:
    """The store's clock in ms."""
    seconds, micros = source.client().time()
    return int(seconds) * 1000 + int(micros) // 1000


def read_run(source: Source, run_id: str) -> RunRecord | None:
    """One run, or None if the store does not have it."""
    return next(iter(read_runs(source, [run_id]))) if is_run_id(run_id) else None


def read_runs(source: Source, run_ids: Sequence[str]) -> list[RunRecord | None]:
    """Many runs in one round trip, in the order asked."""
    pipe = source.client().pipeline(transaction=False)
    for run_id in run_ids:
        pipe.hmget(source.keys.run(run_id), list(_RUN_FIELDS))
        pipe.llen(source.keys.run(run_id, "log"))
    replies = pipe.execute()
    return [_run_from(run_id, replies[2 * at], replies[2 * at + 1]) for at, run_id in enumerate(run_ids)]


def run_from_fields(run_id: str, fields: Mapping[str, str], events: int) -> RunRecord:
    """A run from its whole hash."""
    found = _run_from(run_id, [fields.get(name) for name in _RUN_FIELDS], events)
    if found is None:
        raise ValueError(f"run {run_id} has no state")
    return found


def _run_from(run_id: str, values: Sequence[str | None], events: int) -> RunRecord | None:
    found: dict[str, Any] = {}
    for name, value in zip(_RUN_FIELDS.values(), values, strict=True):
        if value is not None and value != "":
            found[name] = int(value) if name in _INTEGERS else value
    if "state" not in found:
        return None
    found["state"] = RunState(found["state"])
    found["waiting"] = tuple(map(int, filter(None, found.get("waiting", "").split(","))))
    found["tags"] = tuple(filter(None, found.get("tags", "").split(",")))
    return RunRecord(run_id=run_id, events=int(events), **found)


def parse_step(text: str | None, parents: int = 0) -> StepRecord:
    """A stored record. A step without one has not been touched: it waits for all its parents."""
    if text is None:
        return StepRecord(left=parents)
    if text.startswith("P;"):
        _, left, flags = text.split(";", 2)
        return StepRecord(left=int(left), flags=flags)
    state, *numbers, flags = text.split(";", 7)
    fence, attempt, losses, ready_at, waited, ran = (int(number or 0) for number in numbers)
    return StepRecord(StepState.of(state), fence, attempt, losses, ready_at, waited, ran, flags)


def read_steps(source: Source, run_id: str, graph: Graph, indexes: Iterable[int] | None = None) -> dict[int, StepRecord]:
    """Records of all steps, last steps included, or of those named; results are not read."""
    wanted = range(len(graph.nodes)) if indexes is None else indexes
    by_key: dict[str, list[int]] = {}
    for index in wanted:
        by_key.setdefault(source.keys.shard(run_id, index), []).append(index)
    pipe = source.client().pipeline(transaction=False)
    for shard, members in by_key.items():
        pipe.hmget(shard, [str(index) for index in members])
    found: dict[int, StepRecord] = {}
    for members, values in zip(by_key.values(), pipe.execute(), strict=True):
        found |= {index: parse_step(text, len(graph.nodes[index].parents)) for index, text in zip(members, values, strict=True)}
    return found


def read_each(source: Source, run_id: str, graph: Graph) -> dict[int, EachRecord]:
    """The counters of all `each` steps."""
    indexes = [node.index for node in graph.nodes if node.kind is NodeKind.EACH]
    pipe = source.client().pipeline(transaction=False)
    for index in indexes:
        pipe.hmget(source.keys.run(run_id, f"e{index}"), [*_EACH_FIELDS, *_EACH_TEXTS])
    return {index: _each_from(*values) for index, values in zip(indexes, pipe.execute(), strict=True)}


def each_from_pairs(fields: Mapping[str, str]) -> EachRecord:
    """The counters of an `each` from its whole hash."""
    return _each_from(*(fields.get(name) for name in (*_EACH_FIELDS, *_EACH_TEXTS)))


def _each_from(*values: str | None) -> EachRecord:
    total, cursor, done, failed, active, timed, listed, again = (int(value or 0) for value in values[:-2])
    bad = tuple(int(item) for item in (values[-2] or "").split(",") if item)
    first, _, last = (values[-1] or "").partition("-")
    anew = (int(first), int(last)) if last else None
    return EachRecord(total, cursor, done, failed, active, timed, listed, again, bad, anew)


def read_children(source: Source, run_id: str, graph: Graph) -> dict[int, str]:
    """The runs that steps have called, by step; the last one of each."""
    calls = [node.index for node in graph.nodes if node.kind is NodeKind.CALL]
    pipe = source.client().pipeline(transaction=False)
    for index in calls:
        pipe.hget(source.keys.shard(run_id, index), f"{index}c")
    return {index: child for index, child in zip(calls, pipe.execute() if calls else (), strict=True) if child}


def read_items(source: Source, run_id: str, index: int, total: int, page: int = 16) -> Iterator[dict[int, StepRecord]]:
    """Records of the items that were ever claimed, by pages of `page` keys; results are not read."""
    for first in range(0, total, ITEMS_PER_KEY * page):
        pipe = source.client().pipeline(transaction=False)
        starts = range(first, min(total, first + ITEMS_PER_KEY * page), ITEMS_PER_KEY)
        for start in starts:
            pipe.hmget(source.keys.items(run_id, index, start), [str(item) for item in range(start, min(total, start + ITEMS_PER_KEY))])
        found: dict[int, StepRecord] = {}
        for start, values in zip(starts, pipe.execute(), strict=True):
            found |= {start + place: parse_step(text) for place, text in enumerate(values) if text is not None}
        yield found


def read_undos(source: Source, run_id: str, graph: Graph) -> dict[tuple[int, int], StepRecord]:
    """Records of what undoes items, by the index of the undo and the item; each stands beside its item's."""
    found: dict[tuple[int, int], StepRecord] = {}
    undone = {node.undoes: node.index for node in graph.nodes if node.undoes is not None and graph.nodes[node.undoes].kind is NodeKind.EACH}
    cursors = {index: each.cursor for index, each in read_each(source, run_id, graph).items()} if undone else {}
    for each, index in undone.items():
        for first in range(0, cursors[each], ITEMS_PER_KEY * 16):
            pipe = source.client().pipeline(transaction=False)
            starts = range(first, min(cursors[each], first + ITEMS_PER_KEY * 16), ITEMS_PER_KEY)
            for start in starts:
                pipe.hmget(source.keys.items(run_id, each, start), [f"{start + place}u" for place in range(ITEMS_PER_KEY)])
            for start, values in zip(starts, pipe.execute(), strict=True):
                found |= {(index, start + place): parse_step(text) for place, text in enumerate(values) if text is not None}
    return found


def read_events(source: Source, run_id: str, after: int = 0, limit: int = 1000) -> list[log.Event]:
    """Events with numbers after `after`, at most `limit`."""
    entries = source.client().lrange(source.keys.run(run_id, "log"), after, after + limit - 1)
    return list(log.parse_all(entries, after))


class _Graphs:
    """Graphs never change under their hash, so whatever was read once is right for ever."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Graph] = OrderedDict()

    def get(self, name: str) -> Graph | None:
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
            return self._kept.get(name)

    def keep(self, name: str, graph: Graph) -> None:
        with self._lock:
            self._kept[name] = graph
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)


_graphs = _Graphs(256)


def read_graph(source: Source, partition: int, graph_hash: str) -> Graph:
    """The graph that a run keeps for life."""
    if (known := _graphs.get(graph_hash)) is not None:
        return known
    doc = source.client().hget(source.keys.of(partition, f"graph:{graph_hash}"), "doc")
    if doc is None:
        raise LookupError(f"graph {graph_hash} is missing in partition {partition:02x} of namespace {source.namespace}")
    graph = Graph.from_doc(doc)
    _graphs.keep(graph_hash, graph)
    return graph


def know_graph(graph: Graph) -> None:
    """Spare the read of a graph that this process has declared."""
    if _graphs.get(graph.hash) is None:
        _graphs.keep(graph.hash, graph)


def read_input(source: Source, run_id: str) -> str | None:
    """The payload of a run's input."""
    found: str | None = source.client().hget(source.keys.run(run_id), "i")
    return found


def error_name(place: str, attempt: int, generation: int) -> str:
    """Under which name the error of an attempt of `index[:item]` is kept; each generation counts its attempts anew."""
    return f"{place}:{attempt}@{generation}" if generation > 1 else f"{place}:{attempt}"


def read_errors(source: Source, run_id: str) -> dict[str, dict[str, Any]]:
    """What went wrong, as `index[:item]:attempt` → type, message, traceback, worker, times."""
    return _json_hash(source, source.keys.run(run_id, "err"))


def read_live(source: Source, run_id: str) -> dict[str, dict[str, Any]]:
    """The progress that running steps told last, as `index[:item]` → done, total, note."""
    return _json_hash(source, source.keys.run(run_id, "live"))


def read_checkpoints(source: Source, run_id: str) -> list[str]:
    """Which steps and items have saved a checkpoint, as `index[:item]`."""
    return sorted(source.client().hkeys(source.keys.run(run_id, "cp")))


def _json_hash(source: Source, key: str) -> dict[str, dict[str, Any]]:
    found: Mapping[str, str] = source.client().hgetall(key)
    return {name: as_dict(text) for name, text in found.items()}


def as_dict(text: str) -> dict[str, Any]:
    """A record that cannot be read is shown as it stands: one odd entry must not hide the others."""
    try:
        value = json.loads(text)
    except ValueError:
        return {"message": text}
    return value if isinstance(value, dict) else {"message": text}
