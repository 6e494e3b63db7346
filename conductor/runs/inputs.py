"""What a step's code receives: results of earlier steps, members of a list, results of an `each`, by pages where they are many.

Everything read here is immutable once its step has ended, so it may be cached and read outside scripts. What is not there, although it
must be, is no value: its run is not in the store (it was wiped, or the run was purged), and the attempt does not begin.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

from conductor import codec
from conductor.declare.code import TooLate
from conductor.declare.results import Results
from conductor.ids import partition_of
from conductor.records import Attempt, Graph, Node, NodeKind
from conductor.store import Store

__all__ = ["CHUNK", "Inputs", "staged_ref"]

CHUNK = 64  # members of a staged list in one chunk
INLINE_ITEMS = 256
INLINE_CHARS = 16_384
_KEPT = 256
_SMALL, _LARGE = 16_384, 8_388_608  # characters: of one value that need not be counted, of all others together
_NODE = 256  # what a node of a graph weighs

T = TypeVar("T")
Value = str | Results[object] | None


def staged_ref(fence: int, total: int) -> str:
    """What stands in place of a result whose list was staged: `@fence;total;chunk size`."""
    return f"@{fence};{total};{CHUNK}"


class Recent(OrderedDict[object, T]):
    """The last few values, and of large ones so many as are not too much together; dropping one costs a read, nothing else. Small ones are
    not weighed together: all that are kept are not much."""

    def __init__(self, weigh: Callable[[T], int]) -> None:
        super().__init__()
        self._weigh = weigh
        self._large: OrderedDict[object, int] = OrderedDict()
        self._total = 0

    def fetch(self, key: object, read: Callable[[], T]) -> T:
        if key not in self:
            return self.keep(key, read())
        self.move_to_end(key)
        if key in self._large:
            self._large.move_to_end(key)
        return self[key]

    def keep(self, key: object, value: T) -> T:
        """Keep a value that is at hand."""
        self._total -= self._large.pop(key, 0)
        self[key] = value
        if len(self) > _KEPT:
            self._drop(next(iter(self)))
        if (weight := self._weigh(value)) > _SMALL:
            self._large[key] = weight
            self._total += weight
            while self._total > _LARGE and len(self._large) > 1:
                self._drop(next(iter(self._large)))
        return value

    def _drop(self, key: object) -> None:
        del self[key]
        self._total -= self._large.pop(key, 0)


class Inputs:
    """Reads for one worker thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._graphs: Recent[Graph] = Recent(lambda graph: _NODE * len(graph.nodes))
        self._starts: Recent[str] = Recent(len)
        self._lists: Recent[str] = Recent(len)
        self._chunks: Recent[list[str]] = Recent(lambda members: sum(map(len, members)))

    def graph(self, held: Attempt) -> Graph:
        return self._graphs.fetch(held.graph, lambda: self._store.graph(partition_of(held.run_id), held.graph))

    def know(self, graph: Graph) -> None:
        """Spare the read of a graph that the caller has."""
        self._graphs.keep(graph.hash, graph)

    def start(self, held: Attempt) -> str:
        """The run's input, which travels only with the first claim of a run."""
        if held.input is not None:
            return self._starts.keep(held.run_id, held.input)
        return self._starts.fetch(held.run_id, lambda: self._one(self._store.keys.run(held.run_id), "i"))

    def own(self, held: Attempt) -> str:
        """What stands as the result of this very step: a signal or an agent has given it."""
        return self._result(held.run_id, held.index) or self._unless_gone(held.run_id, codec.NULL)

    def origin(self, run_id: str) -> tuple[str, str]:
        """The root and the parent of a child run; two empty words for a run that nobody called."""
        root, bound = self._store.values(self._store.keys.run(run_id), ["rt", "up"])
        return root or "", (bound or "").partition(";")[0]

    def values(self, held: Attempt, graph: Graph, node: Node, sent: Sequence[str | None]) -> list[Value]:
        """The results of the node's needs, in their order; `sent` are those that travelled with the claim, if they did."""
        complete = len(sent) == len(node.needs)
        return [
            self._value(held, graph, need, sent[position] if complete else self._result(held.run_id, need))
            if need != node.source else None
            for position, need in enumerate(node.needs)
        ]

    def item(self, held: Attempt, node: Node) -> str:
        """The member of the source list that this attempt is about."""
        assert node.source is not None
        assert held.item is not None
        source = node.source
        text = self._lists.fetch(
            (held.run_id, source), lambda: self._result(held.run_id, source) or self._unless_gone(held.run_id, codec.NULL))
        if not text.startswith("@"):
            members = self._chunks.fetch((held.run_id, source), lambda: codec.split_list(text))
            return members[held.item]
        fence, _, size = text[1:].split(";")
        chunk, offset = divmod(held.item, int(size))
        return self._chunk(held.run_id, source, fence, chunk)[offset]

    def _value(self, held: Attempt, graph: Graph, need: int, text: str | None) -> Value:
        if graph.nodes[need].kind is NodeKind.EACH and text is None:
            return self._each(held.run_id, need)
        if text is None:
            self._unless_gone(held.run_id, "")
        if text is not None and text.startswith("@"):
            return self._staged(held.run_id, need, text)
        return text

    def _each(self, run_id: str, index: int) -> Results[object] | None:
        total = self._store.values(self._store.keys.run(run_id, f"e{index}"), ["total", "done"])
        record = self._store.values(self._store.keys.shard(run_id, index), [str(index)])[0] or self._unless_gone(run_id, "")
        if record.startswith("Z"):
            return None

        def page(start: int, stop: int) -> list[str | None]:
            found: list[str | None] = []
            for first in range(start - start % 64, stop, 64):
                members = range(max(first, start), min(first + 64, stop))
                found += self._store.values(self._store.keys.items(run_id, index, first), [f"{item}r" for item in members])
            return found

        return Results(page, int(total[0] or 0), page=640)

    def _staged(self, run_id: str, index: int, text: str) -> Results[object]:
        fence, total, size = text[1:].split(";")

        def page(start: int, stop: int) -> Sequence[str | None]:
            return [*self._chunk(run_id, index, fence, start // int(size))][: stop - start]

        return Results(page, int(total), page=int(size))

    def _chunk(self, run_id: str, index: int, fence: str, number: int) -> list[str]:
        key = self._store.keys.run(run_id, f"v{index}:{fence}")
        return self._chunks.fetch((key, number), lambda: codec.split_list(self._one(key, str(number))))

    def _result(self, run_id: str, index: int) -> str | None:
        return self._store.values(self._store.keys.shard(run_id, index), [f"{index}r"])[0]

    def _one(self, key: str, field: str) -> str:
        """What must be there."""
        if (found := self._store.values(key, [field])[0]) is None:
            raise TooLate
        return found

    def _unless_gone(self, run_id: str, otherwise: T) -> T:
        """What stands for a value that is not there, as long as its run is."""
        if self._store.values(self._store.keys.run(run_id), ["st"])[0] is None:
            raise TooLate
        return otherwise
