"""A run as one value: everything that Redis keeps of it at one event number, to be kept elsewhere and put back.

Authority: a snapshot is a copy and decides nothing. How it becomes one moment of a run that moves stands in `copying.py`.

Entries of shared indexes are not in it, except those of `due`, whose times cannot be derived: whoever puts a run back derives the others
from its records, as `runs/mend.py` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from conductor.records import Graph

__all__ = ["Snapshot", "in_order", "parse_snapshot"]


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


def in_order(parts: list[str], kind: str) -> list[str]:
    """What a key holds, so that the same content is the same text: the server keeps no order of fields and members."""
    if kind == "set":
        return sorted(parts)
    if kind != "hash":
        return parts
    pairs = sorted(zip(parts[::2], parts[1::2], strict=True), key=lambda pair: (len(pair[0]), pair[0]))
    return [part for pair in pairs for part in pair]
