"""Verbs that park runs and bring them back: from a snapshot, from a stub, into the indexes they belong in; and the store's epoch.

Authority: a run is restored only while nobody has it (or while its stub still stands at the event number of the snapshot); the script that
makes it visible checks that and is the last one, so a restorer that dies in between leaves nothing that anybody reads.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from conductor.ids import partition_of
from conductor.records import NodeKind
from conductor.store.answers import Moved
from conductor.store.door import Door
from conductor.store.snapshots import Snapshot

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

    def lose_stub(self, run_id: str, n: int) -> Moved:
        """The archive does not have this parked run: it is paused, or gone if it was cancelled, and then its lane admits the next."""
        partition = partition_of(run_id)
        word, queues = self._call_bare("lose_stub", partition, run_id, n)
        return Moved(word, pokes=self._pokes(partition, queues))

    def due_to_wake(self, partition: int, now: int, limit: int = 100) -> list[str]:
        """Parked runs that something will move, the longest due first."""
        return list(self._read("ZRANGEBYSCORE", self.keys.of(partition, "wake"), "-inf", now, "LIMIT", 0, limit))

    def restore(self, snapshot: Snapshot, *, from_stub: bool = False) -> Moved:
        """Put a run back as it was: OK, CHANGED (somebody has it, or its stub has moved) or TORN (its log is not whole)."""
        partition, expected = partition_of(snapshot.run_id), str(snapshot.n) if from_stub else ""
        for tail, kind, offset, values in _pieces(self, snapshot):
            told = self._call_bare("restore_part", partition, snapshot.run_id, expected, tail, kind, offset, *values)
            if told[0] != "OK":
                return Moved(str(told[0]))
        graph = snapshot.graph
        lines = [part for node in graph.nodes for part in (node.index, node.descriptor())]
        fields = [part for pair in snapshot.fields.items() for part in pair]
        due = [part for pair in snapshot.due.items() for part in pair]
        word, state, queues = self._call_bare(
            "restore_run", partition, snapshot.run_id, expected, snapshot.n, snapshot.doc, snapshot.fields["h"], len(graph.nodes),
            len(snapshot.fields), len(snapshot.due), *lines, *fields, *due)
        return Moved(word, state, self._pokes(partition, queues))

    def drop_parts(self, snapshot: Snapshot) -> None:
        """Take away the log that another restorer left of a run that nobody sees. Its other parts are written over."""
        self._call_bare("restore_part", partition_of(snapshot.run_id), snapshot.run_id, str(snapshot.n), "log", "none", 0)

    def recover_run(self, run_id: str, *, dry: bool = False) -> str:
        """Let the indexes say what the record says: SKIPPED (they do), RECOVERED, FINISHED or UNKNOWN."""
        word: str = self._call_bare("recover_run", partition_of(run_id), run_id, int(dry))[0]
        return word

    def forget_entries(self, run_id: str) -> None:
        """Drop what stands of a run in the indexes of its partition. For a run that is being replaced: every index is scanned."""
        partition = partition_of(run_id)
        queues = self._read("HKEYS", self.keys.of(partition, "pokes"))
        for tail in ("due", "leases", *(f"{tail}:{queue}" for queue in queues for tail in ("ready", "limited"))):
            key = self.keys.of(partition, tail)
            found = [str(member) for member, _ in self._client.zscan_iter(key, match=f"*{run_id}*", count=1000)]
            if found:
                self._command("register", [("ZREM", key, *found)])

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

    def shipped(self, partition: int) -> str:
        """Where in the partition's notices the shipper of checkpoints stands; empty if nothing was shipped."""
        return str(self._read("HGET", self.keys.head(partition), "sp") or "")

    def shipping(self, partition: int) -> tuple[bool, int]:
        """Whether notices were missed, and when every run was looked at last."""
        missed, looked = self._read("HMGET", self.keys.head(partition), "sx", "sa")
        return bool(missed), int(looked or 0)

    def set_shipping(self, partition: int, *, missed: bool, looked: int) -> None:
        self._command("register", [("HSET", self.keys.head(partition), "sx", "1" if missed else "", "sa", looked)])

    def set_shipped(self, partition: int, notice: str) -> None:
        self._command("register", [("HSET", self.keys.head(partition), "sp", notice)])


def _pieces(door: Door, snapshot: Snapshot) -> Iterator[tuple[str, str, int, list[str]]]:
    """The keys of a run in pieces that one call carries; pairs stay together. Scores stand before members, as ZADD takes them."""
    for tail, parts in snapshot.keys.items():
        kind = door.keys.kind_of(door.keys.run(snapshot.run_id, tail))
        if kind is None:
            continue  # of a release that kept more of a run
        values = [part for pair in zip(parts[1::2], parts[::2], strict=True) for part in pair] if kind.type == "zset" else parts
        for offset in range(0, len(values), _PIECE):
            yield tail, kind.type, offset, values[offset : offset + _PIECE]
