"""A run as one value: everything that Redis keeps of it at one event number, to be kept elsewhere and put back.

Authority: a snapshot is a copy and decides nothing. It is one moment only if the run's log had the same length before and after it was
read; a run that moves meanwhile is read again, and after some tries not at all (the next round comes).

Entries of shared indexes are not in it, except those of `due`, whose times cannot be derived: whoever puts a run back derives the others
from its records, as `runs/mend.py` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from conductor.ids import partition_of
from conductor.records import Graph, NodeKind
from conductor.store.keys import Keys, plain_tails
from conductor.store.reads import ITEMS_PER_KEY, RunRecord, Source, read_graph, read_run

__all__ = ["Snapshot", "parse_snapshot", "read_snapshot"]

_TRIES = 3
_PAGE = 200  # keys of one round trip
_PLAIN = ("log", *(tail for tail in plain_tails() if tail != "log"))  # the log tells whether the others are of one moment
_READ = {"hash": "HGETALL", "list": "LRANGE", "set": "SMEMBERS", "zset": "ZRANGE"}
_MORE: Mapping[str, tuple[Any, ...]] = {"list": (0, -1), "zset": (0, -1, "WITHSCORES")}
_TIMED = ("start", "lane", "expires", "deadline", "unbound", "anew")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`fields` is the run hash; `keys` what stands under each of its other keys, by the tail of its name: lists, or pairs one after the
    other; `due` its entries in the due index; `doc` its graph."""

    run_id: str
    n: int
    fields: dict[str, str]
    keys: dict[str, list[str]]
    due: dict[str, int]
    doc: str

    @property
    def graph(self) -> Graph:
        return Graph.from_doc(self.doc)

    def to_bytes(self) -> bytes:
        told = {"n": self.n, "run": self.fields, "keys": self.keys, "due": self.due, "graph": self.doc}
        return json.dumps(told, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode("utf-8", "surrogatepass")

    def payloads(self) -> Iterator[str]:
        """Every stored text that may be a payload."""
        yield from self.fields.values()
        for values in self.keys.values():
            yield from values


def parse_snapshot(run_id: str, data: bytes) -> Snapshot:
    """What `to_bytes` wrote. ValueError, KeyError or TypeError if it is something else."""
    told = json.loads(data.decode("utf-8", "surrogatepass"))
    fields = {str(name): str(value) for name, value in told["run"].items()}
    keys = {str(tail): [str(part) for part in parts] for tail, parts in told["keys"].items()}
    due = {str(member): int(at) for member, at in told["due"].items()}
    if not fields.get("st") or not fields.get("h") or len(keys.get("log", ())) != int(told["n"]):
        raise ValueError("the run, its graph or its log is not whole")
    return Snapshot(run_id, int(told["n"]), fields, keys, due, str(told["graph"]))


def read_snapshot(source: Source, run_id: str) -> Snapshot | None:
    """Everything of a run; None if the store does not have it, or if it would not hold still."""
    for _ in range(_TRIES):
        run = read_run(source, run_id)
        if run is None:
            return None
        found = _read(source, run)
        if found is not None:
            return found
    return None


def _read(source: Source, run: RunRecord) -> Snapshot | None:
    graph = read_graph(source, run.partition, run.graph)
    tails = _tails(source, run, graph)
    kinds = [_kind(source.keys, run.run_id, tail) for tail in tails]
    found: list[Any] = []
    for at in range(0, len(tails), _PAGE):
        pipe = source.client().pipeline(transaction=True)  # each page is one moment; the log tells whether all are the same
        for tail, kind in zip(tails[at : at + _PAGE], kinds[at : at + _PAGE], strict=True):
            pipe.execute_command(_READ[kind], source.keys.run(run.run_id, tail), *_MORE.get(kind, ()))
        found += pipe.execute()
    client = source.client()
    fields: dict[str, str] = client.hgetall(source.keys.run(run.run_id))
    due = _due(source, run, graph)
    if not fields or client.llen(source.keys.run(run.run_id, "log")) != run.events or len(found[0]) != run.events:
        return None
    keys = {tail: _flat(content) for tail, content in zip(tails, found, strict=True) if content}
    return Snapshot(run.run_id, run.events, fields, keys, due, graph.doc)


def _kind(keys: Keys, run_id: str, tail: str) -> str:
    kind = keys.kind_of(keys.run(run_id, tail))
    assert kind is not None, tail
    return kind.type


def _flat(content: Any) -> list[str]:
    """Pairs one after the other, as HSET and ZADD take them."""
    if isinstance(content, dict):
        return [str(part) for pair in content.items() for part in pair]
    if content and isinstance(content, list) and isinstance(content[0], (list, tuple)):
        return [_text(part) for pair in content for part in pair]
    return [_text(part) for part in (sorted(content) if isinstance(content, set) else content)]


def _text(part: Any) -> str:
    return str(int(part)) if isinstance(part, float) else str(part)


def _tails(source: Source, run: RunRecord, graph: Graph) -> list[str]:
    """The names of everything a run may have, the log first: as `purge_run.lua` derives them."""
    tails = [*_PLAIN, *(f"s{number}" for number in range(1, (len(graph.nodes) - 1) // 32 + 1))]
    for node in graph.nodes:
        if node.kind is not NodeKind.EACH:
            continue
        index = node.index
        total = int(source.client().hget(source.keys.run(run.run_id, f"e{index}"), "total") or 0)
        tails += [f"e{index}", f"e{index}:again", *(f"e{index}:{number}" for number in range((max(0, total - 1)) // ITEMS_PER_KEY + 1))]
        assert node.source is not None
        stored = source.client().hget(source.keys.shard(run.run_id, node.source), f"{node.source}r") or ""
        if stored.startswith("@"):
            tails.append(f"v{node.source}:{stored[1:].partition(';')[0]}")
    return list(dict.fromkeys(tails))


def _due(source: Source, run: RunRecord, graph: Graph) -> dict[str, int]:
    """Its entries in the due index: those of the run, and those of steps and items that wait for their time."""
    if run.ended:
        return {}
    members = [f"{kind}:{run.run_id}" for kind in _TIMED]
    for kind in ("retry", "timer", "lapse"):
        members += [f"{kind}:{run.run_id}:{node.index}" for node in graph.nodes]
    key = source.keys.of(partition_of(run.run_id), "due")
    found: dict[str, int] = {}
    for at in range(0, len(members), 1000):
        page = members[at : at + 1000]
        scores = source.client().zmscore(key, page)
        found |= {member: int(score) for member, score in zip(page, scores, strict=True) if score is not None}
    return found
