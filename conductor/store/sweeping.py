"""Verbs of sweeps and operators: put back what was lost, fire what is due, hold and release, and one glance that says where to look.

No sweep scans what is not due: each index is sorted by time, and `glance` reads the first entry of each in one pipelined pass.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

import redis

from conductor.ids import partition_of
from conductor.records import Poke
from conductor.store.answers import Glance, Moved, Swept
from conductor.store.door import Door

__all__ = ["SweepVerbs"]

_ENDED = ("completed", "failed", "cancelled")
_PAGE = 500
_NO_CODE = ("none",)  # a worker without workflows: Redis keeps no empty set, and a set that is not there means that the store has forgotten


class SweepVerbs(Door):
    """Each sweep of a partition is one script; it answers what it moved, why, and who to wake."""

    def expire_leases(self, partition: int, limit: int = 100, *, dry: bool = False, poison: int = 3, interval_ms: int = 0) -> Swept:
        """`interval_ms`: how far apart the sweeps are, so that the pause between two of them is not taken for an outage."""
        return self._looked(partition, self._call("expire_leases", partition, limit, int(dry), poison, interval_ms))

    def fire_due(self, partition: int, limit: int = 100) -> Swept:
        return self._looked(partition, self._call("fire_due", partition, limit, self.partitions))

    def repoke(self, partition: int, grace_ms: int = 2000) -> Swept:
        return self._swept(partition, self._call("repoke", partition, grace_ms))

    def take_back(self, partition: int, signatures: Sequence[str], *, patience_ms: int = 600_000, limit: int = 100) -> Swept:
        return self._swept(partition, self._call("take_back", partition, patience_ms, limit, len(signatures), *signatures))

    def set_aside(self, signatures: Collection[str]) -> list[Poke]:
        """Where steps of these signatures are set aside for want of code: partition and queue of each, in two round trips."""
        found = self._command("read", [("ZRANGE", self.keys.of(number, "aside"), 0, -1) for number in range(self.partitions)])
        mine = [(number, one) for number, known in enumerate(found) for one in known if one in signatures]
        lists = self._command("read", [("LRANGE", self.keys.of(number, f"aside:{one}"), 0, 99) for number, one in mine]) if mine else []
        return list(dict.fromkeys(
            Poke(number, entry.partition("\n")[0]) for (number, _), entries in zip(mine, lists, strict=True) for entry in entries))

    def drop_staged(self, partition: int, *, older_than_ms: int = 3_600_000, limit: int = 100) -> int:
        return int(self._call("drop_staged", partition, older_than_ms, limit)[1])

    def not_moved_since(self, partition: int, before: int, limit: int = 100, *, skip: int = 0) -> list[str]:
        """Active runs whose last progress is older than `before` (ms), the oldest first, without the first `skip` of them."""
        found: Any = self._read("ZRANGEBYSCORE", self.keys.of(partition, "progress"), "-inf", before, "LIMIT", skip, limit)
        return list(found)

    def looked_at(self, partition: int) -> int:
        """How many of those the last look has passed."""
        return int(self._read("HGET", self.keys.head(partition), "looked") or 0)

    def look_on(self, partition: int, skip: int) -> None:
        """The next look passes so many."""
        self._command("register", [("HSET", self.keys.head(partition), "looked", skip)])

    def mend(
        self, run_id: str, *, at_event: int, counters: tuple[int, int, int, int, int], waiting: Sequence[int], lost: Sequence[Any],
        unlisted: Sequence[int],
    ) -> Moved:
        """Put back what stands nowhere, as planned from the log at `at_event`: OK, CHANGED, ENDED or UNKNOWN."""
        partition = partition_of(run_id)
        tail = [part for one in lost for part in (one.place, one.index, "" if one.item is None else one.item)]
        word, state, queues = self._call(
            "mend_run", partition, run_id, at_event, *counters, ",".join(map(str, waiting)), len(lost), len(unlisted), *tail, *unlisted)
        return Moved(word, state, self._pokes(partition, queues))

    def _swept(self, partition: int, reply: list[Any]) -> Swept:
        _, _, queues, *causes = reply
        return Swept(len(causes), self._pokes(partition, queues), causes)

    def _looked(self, partition: int, reply: list[Any]) -> Swept:
        """Of a script that also says how many entries it met, those of ended runs included."""
        word, now, queues, looked, *causes = reply
        return replace(self._swept(partition, [word, now, queues, *causes]), looked=int(looked))

    def hold(self, scope: str, reason: str) -> Moved:
        """Nothing of the scope (`all`, `workflow:x`, `queue:x`) is claimed from now on, in any partition."""
        for partition in range(self.partitions):
            self._call("hold", partition, scope, reason)
        return Moved("OK")

    def unhold(self, scope: str) -> Moved:
        words, pokes = set(), []
        for partition in range(self.partitions):
            word = "MORE"
            while word == "MORE":
                word, queues = self._call("unhold", partition, scope)
                pokes += self._pokes(partition, queues)
                words.add(word)
        return Moved("NOT_HELD" if words == {"NOT_HELD"} else "OK", pokes=pokes)

    def due_for_purge(self, partition: int, limit: int = 100) -> list[str]:
        """Ended runs and operations whose retention is over, those whose ended first before the others."""
        found: list[tuple[float, str]] = []
        for state in _ENDED:
            key = self.keys.of(partition, f"ended:{state}")
            page: Any = self._client.zrangebyscore(key, "-inf", self._now(), start=0, num=limit, withscores=True)
            found += [(at, run_id) for run_id, at in page]
        return [run_id for _, run_id in sorted(found)[:limit]]

    def ended_by_time(self, partition: int, *, until: int | None, operations: bool) -> Iterator[list[str]]:
        """Ended runs, or operations, by pages and by when they may be deleted, those until a moment (ms) or all. Who deletes some collects
        first: places move."""
        indexes = (self._members(self.keys.of(partition, f"ended:{state}"), until) for state in _ENDED)
        ended = heapq.merge(*indexes)
        while some := [run_id for _, run_id in islice(ended, _PAGE)]:
            scores: Any = self._client.zmscore(self.keys.of(partition, "ops"), some)
            yield [run_id for run_id, score in zip(some, scores, strict=True) if (score is not None) == operations]

    def _members(self, key: str, until: int | None) -> Iterator[tuple[int, str]]:
        at = 0
        while True:
            page: Any = self._client.zrange(key, at, at + _PAGE - 1, withscores=True)
            for run_id, score in page:
                if until is not None and score > until:
                    return
                yield int(score), run_id
            if len(page) < _PAGE:
                return
            at += _PAGE

    def created_since(self, partition: int, since: int) -> Iterator[list[str]]:
        """Runs created at a moment (ms) or later, by pages, the newest first: more come while they are read."""
        key, before, page = self.keys.of(partition, "runs"), "+inf", 500
        seen: set[str] = set()
        while True:
            found: Any = self._client.zrevrangebyscore(key, before, max(0, since), start=0, num=page, withscores=True)
            fresh = [run_id for run_id, _ in found if run_id not in seen]
            if fresh:
                yield fresh
            if len(found) < page:
                return
            before = found[-1][1] if fresh else found[-1][1] - 1
            seen = {run_id for run_id, at in found if at == found[-1][1]}

    def register_code(self, code: str, signatures: Sequence[str], *, seconds: int = 3600) -> None:
        """Tell every partition what a kind of worker can run; forgotten an hour after the last worker of that kind said so."""
        commands: list[tuple[Any, ...]] = []
        for partition in range(self.partitions):
            key = self.keys.of(partition, f"code:{code}")
            commands += [("SADD", key, *(signatures or _NO_CODE)), ("EXPIRE", key, seconds)]
        self._command("register", commands)

    def register_worker(self, tag: str, name: str) -> None:
        self._command("register", [("HSET", self.keys.of(0, "workers"), tag, f"{self._now()};{name}")])

    def swept(self, name: str, at: int | None = None, *, ago_ms: int = 0) -> None:
        """Record that a sweep succeeded, so that a worker's timer knows what is overdue. One that has left something says that it was
        `ago_ms` ago, and is soon overdue again."""
        self._command("register", [("HSET", self.keys.of(0, "sweeps"), name, (self._now() if at is None else at) - ago_ms)])

    def last_sweeps(self) -> tuple[dict[str, int], int]:
        """When each sweep last succeeded, and now, in ms of the store's clock."""
        pipe = self._client.pipeline(transaction=False)
        pipe.hgetall(self.keys.of(0, "sweeps"))
        pipe.time()
        noted, (seconds, micros) = pipe.execute()
        return {name: int(ms) for name, ms in noted.items()}, int(seconds) * 1000 + int(micros) // 1000

    def _now(self) -> int:
        seconds, micros = self._read("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def glance(self, *, grace_ms: int = 2000) -> Glance:
        """One pipelined pass over all partitions."""
        queues = self._known_queues()
        pipe = self._client.pipeline(transaction=False)
        pipe.time()
        pipe.hgetall(self.keys.of(0, "sweeps"))
        for partition in range(self.partitions):
            of = self.keys.of
            for tail in ("leases", "due", "aside", "staged", "outbox", *(f"ended:{state}" for state in _ENDED)):
                pipe.zrange(of(partition, tail), 0, 0, withscores=True)
            pipe.hkeys(of(partition, "pokes"))
            for queue in queues[partition]:
                pipe.zrange(of(partition, f"ready:{queue}"), 0, 0, withscores=True)
        return _read_glance(pipe.execute(), queues, grace_ms)

    def _known_queues(self) -> list[list[str]]:
        """Queues of each partition as the last glance saw them; a new one is looked into at the next glance, a moment later."""
        if not hasattr(self, "_queues"):
            self._queues: list[list[str]] = [[] for _ in range(self.partitions)]
        return self._queues

    @contextmanager
    def lock(self, name: str, seconds: float) -> Iterator[bool]:
        """A lock that only saves double work: losing it is harmless, because every sweep is a script that many may call."""
        lock = self._client.lock(self.keys.of(0, f"lock:{name}"), timeout=seconds, blocking=False)
        held = lock.acquire()
        try:
            yield held
        finally:
            if held:
                try:
                    lock.release()
                except redis.exceptions.RedisError:
                    pass  # it lapsed, another holds it, or the server is away: it ends by itself in seconds


def _read_glance(replies: list[Any], queues: list[list[str]], grace_ms: int) -> Glance:
    (seconds, micros), last_ok = replies[0], replies[1]
    now = int(seconds) * 1000 + int(micros) // 1000
    found: dict[str, list[int]] = {name: [] for name in ("expired", "due", "unclaimed", "aside", "purgeable", "staged", "owed")}
    next_due = None
    at = 2
    for partition, known in enumerate(queues):
        leases, due, aside, staged, owed, *ended = replies[at : at + 8]
        names = replies[at + 8]
        ready = replies[at + 9 : at + 9 + len(known)]
        at += 9 + len(known)
        known[:] = names
        if due:
            next_due = int(due[0][1]) if next_due is None else min(next_due, int(due[0][1]))
        looks = {
            "expired": bool(leases) and leases[0][1] <= now, "due": bool(due) and due[0][1] <= now, "aside": bool(aside),
            "staged": bool(staged) and staged[0][1] <= now - 3_600_000, "purgeable": any(zset and zset[0][1] <= now for zset in ended),
            "owed": bool(owed), "unclaimed": any(zset and not 0 <= now - zset[0][1] % 1e13 < grace_ms for zset in ready),
        }
        for name, is_so in looks.items():
            if is_so:
                found[name].append(partition)
    return Glance(now=now, next_due=next_due, last_ok={name: int(ms) for name, ms in last_ok.items()}, **found)
