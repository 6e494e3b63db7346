"""After a test: every key of its namespace must be one that the catalogue knows, of the type it says, and must have its owner."""

from __future__ import annotations

import re

import redis

from conductor.store.keys import Keys

__all__ = ["forget", "leaks"]

_RUN = re.compile(r"(conductor:\{[^}]*\}:)run:([0-9a-f-]{36})")


def _keys(client: redis.Redis, namespace: str) -> list[str]:
    return sorted(client.scan_iter(f"conductor:{{{namespace}:*", count=5000))


def leaks(client: redis.Redis, namespace: str, partitions: int = 256) -> list[str]:
    """Each key that nobody owns, with the reason."""
    catalogue, wrong = Keys(namespace, partitions), []
    names = _keys(client, namespace)
    pipeline = client.pipeline(transaction=False)
    for name in names:
        pipeline.type(name)
    runs: dict[str, set[str]] = {}
    for name, kind_found in zip(names, pipeline.execute(), strict=True):
        kind = catalogue.kind_of(name)
        if kind is None:
            wrong.append(f"{name}: not in the catalogue")
        elif kind_found not in (kind.type, "none"):
            wrong.append(f"{name}: is a {kind_found}, the catalogue says {kind.type}")
        if found := _RUN.match(name):
            tag, run_id = found.groups()
            known = runs.setdefault(tag, {str(one) for index in ("runs", "ops") for one in client.zrange(f"{tag}{index}", 0, -1)})
            known |= {str(one) for one in client.hkeys(f"{tag}parked")}
            if run_id not in known:
                wrong.append(f"{name}: its run is not in the index of runs")
    return wrong


def forget(client: redis.Redis, namespace: str) -> None:
    """Take the namespace away, so that a long session stays small."""
    names = _keys(client, namespace)
    for start in range(0, len(names), 500):
        client.unlink(*names[start : start + 500])
