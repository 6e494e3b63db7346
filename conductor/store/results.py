"""Reading result payloads: of a step, of all items of an `each` by pages, of a long list that was staged in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conductor import codec
from conductor.records import Graph, NodeKind
from conductor.store.reads import ITEMS_PER_KEY, Source

__all__ = ["item_results", "read_result", "read_results", "staged_list"]

_PAGE_KEYS = 16


def read_results(source: Source, run_id: str, graph: Graph, indexes: Sequence[int]) -> dict[int, str | None]:
    """The payloads of several steps, None where a step has no result (it was skipped, or has not ended)."""
    plain = [index for index in indexes if graph.nodes[index].kind is not NodeKind.EACH]
    pipe = source.client().pipeline(transaction=False)
    for index in plain:
        pipe.hget(source.keys.shard(run_id, index), f"{index}r")
    found: dict[int, str | None] = dict(zip(plain, pipe.execute(), strict=True))
    for index in indexes:
        found[index] = read_result(source, run_id, graph, index, found.get(index))
    return {index: found[index] for index in indexes}


def read_result(source: Source, run_id: str, graph: Graph, index: int, stored: str | None) -> str | None:
    """The payload that a stored field stands for: itself, a staged list, or the results of all items in order."""
    if graph.nodes[index].kind is NodeKind.EACH:
        total = source.client().hget(source.keys.run(run_id, f"e{index}"), "total")
        if stored is None and total is not None:
            return codec.join_list(payload for page in item_results(source, run_id, index, int(total)) for payload in page)
    if stored is not None and stored.startswith("@"):
        return codec.join_list(staged_list(source, run_id, index, stored))
    return stored


def item_results(source: Source, run_id: str, index: int, total: int, first: int = 0) -> Iterator[list[str | None]]:
    """Results of items from `first` on, in input order, by pages; None for a skipped or failed item."""
    start = first
    while start < total:
        stop = min(total, (start // ITEMS_PER_KEY + _PAGE_KEYS) * ITEMS_PER_KEY)
        pipe = source.client().pipeline(transaction=False)
        for begin in range(start // ITEMS_PER_KEY * ITEMS_PER_KEY, stop, ITEMS_PER_KEY):
            members = range(max(begin, start), min(begin + ITEMS_PER_KEY, stop))
            pipe.hmget(source.keys.items(run_id, index, begin), [f"{item}r" for item in members])
        yield [payload for values in pipe.execute() for payload in values]
        start = stop


def staged_list(source: Source, run_id: str, index: int, stored: str) -> Iterator[str]:
    """The members of a list that stands in chunks under the fence its result names (`@<fence>…`)."""
    fence = "".join(_digits(stored[1:]))
    key = source.keys.run(run_id, f"v{index}:{fence}")
    for chunk in range(source.client().hlen(key)):
        payload = source.client().hget(key, str(chunk))
        if payload is None:
            raise LookupError(f"chunk {chunk} of the list of step {index} of run {run_id} is missing")
        yield from codec.split_list(payload)


def _digits(text: str) -> Iterator[str]:
    for sign in text:
        if not sign.isdigit():
            return
        yield sign
