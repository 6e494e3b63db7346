"""A backup of a whole server, and setting it back to that: what an old dump, or a failover that lost the last writes, leaves."""

from __future__ import annotations

from typing import Any

import redis

from tests.support.server import ValkeyServer

__all__ = ["Backup", "dump", "load"]


Backup = dict[bytes, tuple[int, bytes]]


def dump(server: ValkeyServer) -> Backup:
    raw: Any = redis.Redis.from_url(server.url())
    return {key: (max(0, raw.pttl(key)), raw.dump(key)) for key in raw.scan_iter()}


def load(server: ValkeyServer, backup: Backup) -> None:
    raw: Any = redis.Redis.from_url(server.url())
    raw.flushall()
    for key, (life_ms, value) in backup.items():
        raw.restore(key, life_ms, value)
