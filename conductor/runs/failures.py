"""What failed in a run, for its last steps: step, reason, error and the items concerned. Read from records, in few round trips."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from conductor.records import Graph
from conductor.store import Store
from conductor.store.reads import error_name

__all__ = ["failures"]


def failures(store: Store, run_id: str, graph: Graph) -> Iterator[dict[str, Any]]:
    """One entry per failed step, in the order of the graph."""
    records = _records(store, run_id, graph)
    failed = [index for index, record in records.items() if record.startswith("F;")]
    if not failed:
        return
    generation = int(store.values(store.keys.run(run_id), ["g"])[0] or 1)
    reasons = _reasons(store, run_id)
    for index in failed:
        attempt = records[index].split(";")[2]
        node = graph.nodes[index]
        items = [int(item) for item in (store.values(store.keys.run(run_id, f"e{index}"), ["bad"])[0] or "").split(",") if item]
        place, number = (str(index), int(attempt)) if not items else _last_of(store, run_id, index, items[0])
        names = [error_name(place, number, one) for one in range(generation, 0, -1)]
        kept = next((text for text in store.values(store.keys.run(run_id, "err"), names) if text), "{}")
        message = str(json.loads(kept).get("message", ""))
        yield {"step": node.name, "reason": reasons.get(index, ""), "error": message, "items": items}


def _records(store: Store, run_id: str, graph: Graph) -> dict[int, str]:
    """Records of all steps, thirty-two to a read."""
    found: dict[int, str] = {}
    steps = [node.index for node in graph.steps]
    for first in range(0, len(steps), 32):
        page = steps[first : first + 32]
        texts = store.values(store.keys.shard(run_id, page[0]), [str(index) for index in page])
        found |= {index: text or "" for index, text in zip(page, texts, strict=True)}
    return found


def _reasons(store: Store, run_id: str) -> dict[int, str]:
    """Why each step failed, as the log says."""
    entries = [entry.split(";") for entry in store.log_of(run_id) if entry.startswith("f;")]
    return {int(parts[2]): parts[5] if len(parts) > 5 else "" for parts in entries if len(parts) < 5 or not parts[4]}


def _last_of(store: Store, run_id: str, index: int, item: int) -> tuple[str, int]:
    record = store.values(store.keys.items(run_id, index, item), [str(item)])[0] or ";;1"
    return f"{index}:{item}", int(record.split(";")[2])
