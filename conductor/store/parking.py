"""Verbs that park runs and bring them back: from a snapshot, from a stub, into the indexes they belong in; and the store's epoch.

Authority: a run is restored only while nobody has it (or while its stub still stands at the event number of the snapshot); the script that
makes it visible checks that and is the last one, so a restorer that dies in between leaves nothing that anybody reads.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from redis.exceptions import ResponseError

from conductor.ids import partition_of
from conductor.records import NodeKind
from conductor.store.answers import Moved
from conductor.store.cluster_client import ClusterClient
from conductor.store.copying import Parts
from conductor.store.door import Door
from conductor.store.keys import plain_tails
from conductor.store.snapshots import Snapshot, in_order

__all__ = ["ParkingVerbs"]

_ANSWERED = (NodeKind.WAIT, NodeKind.AGENT)
_PIECE = 500  # values of one call


class ParkingVerbs(Door):
    """Restoring and recovering."""

    def mark_parking(self, run_id: str, idle_before: int) -> int:
        """The event number at which an idle run may be parked, 0 if it may not."""
        return int(self._call_bare("mark_parking", partition_of(run_id), run_id, idle_before)[1])

    def park(self, snapshot: Snapshot) -> str:
        """Leave a stub of a run that is in the archive as this snapshot: OK, CHANGED or UNKNOWN."""
        waits = ",".join(str(node.index) for node in snapshot.graph.nodes if node.kind in _ANSWERED)
        word: str = self._call_bare("park_run", partition_of(snapshot.run_id), snapshot.run_id, snapshot.n, waits, *snapshot.due)[0]
        return word

    def read_parts(self, run_id: str, after: int, tails: Mapping[str, str], due: Sequence[str]) -> Parts | None:
        """What one moment must hold of a run (see `copying.py`): its hash, parts by tail and kind, log entries after a number, times."""
        named = [part for pair in tails.items() for part in pair]
        word, entries, fields, parts, times = self._call_bare("read_parts", partition_of(run_id), run_id, after, len(tails), *named, *due)
        if word != "OK":
            return None
        found = {tail: in_order(part, kind) for (tail, kind), part in zip(tails.items(), parts, strict=True)}
        at = {member: int(float(time)) for member, time in zip(due, times, strict=True) if time}
        return Parts(entries, dict(zip(fields[::2], fields[1::2], strict=True)), found, at)

    def lose_stub(self, run_id: str, n: int) -> Moved:
        """The archive does not have this parked run: it is paused, or gone if it was cancelled, and then its lane admits the next."""
        partition = partition_of(run_id)
        word, queues = self._call_bare("lose_stub", partition, run_id, n)
        return Moved(word, pokes=self._pokes(partition, queues))

    def due_to_wake(self, partition: int, now: int, limit: int = 100) -> list[str]:
        """Parked runs that something will move, the longest due first."""
        return list(self._read("ZRANGEBYSCORE", self.keys.of(partition, "wake"), "-inf", now, "LIMIT", 0, limit))

    def restore(self, snapshot: Snapshot, *, stub: int | None = None) -> Moved:
        """Put a run back as it was: OK, or CHANGED (somebody has it, or its stub is not at event `stub`). TORN: what stands under its keys
        is of another restorer, who has died or is at work."""
        told = self._restore(snapshot, "" if stub is None else str(stub))
        if told.word == "TORN":
            self._call_bare(
                "restore_part", partition_of(snapshot.run_id), snapshot.run_id, "" if stub is None else stub, "", "none", 0,
                *self._tails(snapshot))
            told = self._restore(snapshot, "" if stub is None else str(stub))
        return told

    def _restore(self, snapshot: Snapshot, expected: str) -> Moved:
        partition = partition_of(snapshot.run_id)
        for tail, kind, offset, values in _pieces(self, snapshot):
            told = self._call_bare("restore_part", partition, snapshot.run_id, expected, tail, kind, offset, *values)
            if told[0] != "OK":
                return Moved(str(told[0]))
        graph = snapshot.graph
        lines = [part for node in graph.nodes for part in (node.index, node.descriptor())]
        fields = [part for pair in snapshot.fields.items() for part in pair]
        due = [part for pair in snapshot.due.items() for part in pair]
        kinds = self._tails(snapshot)
        sizes = [part for tail, kind in kinds.items() for part in (tail, kind, _length(snapshot.keys.get(tail, ()), kind))]
        word, state, queues = self._call_bare(
            "restore_run", partition, snapshot.run_id, expected, snapshot.doc, snapshot.fields["h"], len(graph.nodes), len(snapshot.fields),
            len(snapshot.due), len(sizes) // 3, *lines, *fields, *due, *sizes)
        return Moved(word, state, self._pokes(partition, queues))

    def _tails(self, snapshot: Snapshot) -> dict[str, str]:
        """Its keys, those that every run may have, and their kinds, but for those of a release that keeps more of a run."""
        kinds = {tail: self.keys.kind_of(self.keys.run(snapshot.run_id, tail)) for tail in (*plain_tails(), *snapshot.keys)}
        return {tail: kind.type for tail, kind in kinds.items() if kind is not None}

    def drop_run(self, run_id: str, *, generation: int, at_event: int) -> Moved:
        """Take a run away as it stands, for another copy of it to be restored: OK, CHANGED (it has moved since) or UNKNOWN."""
        partition = partition_of(run_id)
        word, queues = self._call_bare("drop_run", partition, run_id, generation, at_event)
        if word == "OK":
            self._forget_entries(run_id)
        return Moved(word, pokes=self._pokes(partition, queues))

    def recover_run(self, run_id: str, *, dry: bool = False) -> str:
        """Let the indexes say what the record says: SKIPPED (they do), RECOVERED, FINISHED or UNKNOWN."""
        word: str = self._call_bare("recover_run", partition_of(run_id), run_id, int(dry))[0]
        return word

    def _forget_entries(self, run_id: str) -> None:
        """Drop what stands of a run in the indexes of its partition. For a run that is being replaced: every index is scanned."""
        partition = partition_of(run_id)
        queues = self._read("HKEYS", self.keys.of(partition, "pokes"))
        for tail in ("due", "leases", *(f"{tail}:{queue}" for queue in queues for tail in ("ready", "limited"))):
            key = self.keys.of(partition, tail)
            found = [str(member) for member, _ in self._client.zscan_iter(key, match=f"*{run_id}*", count=1000)]
            if found:
                self._command("register", [("ZREM", key, *found)])

    def keep_key(self, run_id: str, name: str, digest: str, ms: int) -> None:
        """The key of a run that has ended and left (`workflow:key`, in a lane `workflow@lane:key`) lives so long, unless it is taken."""
        key = self.keys.of(partition_of(run_id), f"key:{name}")
        self._command("register", [("SET", key, f"{run_id};{digest}", "NX", "PX", ms)])

    def incarnation(self) -> str:
        """Which server processes hold this store, and its epoch: as long as that is the same, indexes and records have changed together.
        Empty where the server does not let us ask."""
        nodes = self._client.nodes().values() if isinstance(self._client, ClusterClient) else (self._client,)
        try:
            found: list[Any] = [node.info("server") for node in nodes]
            return ",".join(sorted(str(info["run_id"]) for info in found)) + f";{self.epoch()}"
        except (ResponseError, KeyError):
            return ""

    def recovered_in(self) -> str:
        """The incarnation that was recovered last."""
        return str(self._read("HGET", self.keys.head(0), "ri") or "")

    def set_recovered(self, incarnation: str) -> None:
        self._command("register", [("HSET", self.keys.head(0), "ri", incarnation)])

    def epoch(self) -> int:
        """How often this store was made anew or rolled back, as far as it knows; 0: it knows nothing."""
        return int(self._read("HGET", self.keys.head(0), "epoch") or 0)

    def set_epoch(self, epoch: int) -> None:
        """A store that was rolled back is another one to whoever remembers it, so it gets a new identity too."""
        changed = ("HDEL", self.keys.head(0), "id") if self.epoch() else ("HGET", self.keys.head(0), "id")
        self._command("register", [("HSET", self.keys.head(0), "epoch", epoch), changed])

    def identity(self) -> str:
        """An id of this store that changes when it was wiped, or set back to an old backup."""
        key = self.keys.head(0)
        known = self._read("HGET", key, "id")
        if known is None:
            self._command("register", [("HSETNX", key, "id", uuid.uuid4().hex[:16])])
            known = self._read("HGET", key, "id")
        return str(known)

    def shipping(self, partition: int) -> tuple[str, str, int]:
        """Where the shipper stands, from where on something is missing (empty: nothing is), and when it last looked at every run."""
        place, gap, looked = self._read("HMGET", self.keys.head(partition), "sp", "sx", "sa")
        return place or "", gap or "", int(looked or 0)

    def set_shipping(self, partition: int, *, gap: str, looked: int) -> None:
        self._command("register", [("HSET", self.keys.head(partition), "sx", gap, "sa", looked)])

    def set_shipped(self, partition: int, notice: str) -> None:
        self._command("register", [("HSET", self.keys.head(partition), "sp", notice)])


def _length(parts: Sequence[str], kind: str) -> int:
    return len(parts) // 2 if kind in ("hash", "zset") else len(parts)


def _pieces(door: Door, snapshot: Snapshot) -> Iterator[tuple[str, str, int, list[str]]]:
    """The keys of a run in pieces that one call carries; pairs stay together. Scores stand before members, as ZADD takes them."""
    for tail, parts in snapshot.keys.items():
        kind = door.keys.kind_of(door.keys.run(snapshot.run_id, tail))
        if kind is None:
            continue  # of a release that kept more of a run
        values = [part for pair in zip(parts[1::2], parts[::2], strict=True) for part in pair] if kind.type == "zset" else parts
        for offset in range(0, len(values), _PIECE):
            yield tail, kind.type, offset, values[offset : offset + _PIECE]
