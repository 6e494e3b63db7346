"""Verbs of a worker: claim, commit, heartbeat, and what an attempt leaves beside its record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from conductor.ids import partition_of
from conductor.records import Attempt, Graph, Outcome
from conductor.store.answers import Batch, Want
from conductor.store.caller import Reply
from conductor.store.cluster_client import ClusterClient
from conductor.store.door import Door

__all__ = ["AttemptVerbs", "parse_claim"]


class AttemptVerbs(Door):
    """What the holder of a fence says; everything is refused for a fence that is no longer its own."""

    def claim(self, partition: int, want: Want) -> Batch:
        reply = self._call("claim", partition, want.queue, want.limit, want.code, want.tag, 2 if want.attends else int(want.first))
        return self._batch(partition, reply)

    def ready_in(self, queue: str) -> list[int]:
        """Partitions in which something of this queue is ready, in one round trip."""
        counts = self._command("read", [("ZCARD", self.keys.of(number, f"ready:{queue}")) for number in range(self.partitions)])
        return [number for number, count in enumerate(counts) if count]

    def await_notice(self, milliseconds: int) -> None:
        """Until something moves in any partition, or so long. What moves before this listens is missed: look again afterwards."""
        if isinstance(self._client, ClusterClient):  # no node sees all partitions
            time.sleep(milliseconds / 1000)
            return
        streams = [self.keys.of(number, "notices") for number in range(self.partitions)]
        self._command("read", [("XREAD", "COUNT", 1, "BLOCK", milliseconds, "STREAMS", *streams, *"$" * self.partitions)])

    def commit(self, partition: int, outcomes: Sequence[tuple[Outcome, str]], want: Want) -> Batch:
        """Record outcomes (each with the indexes of its successors, `4,5`) and claim what comes next (`want.limit` 0: nothing)."""
        tail: list[Any] = []
        for outcome, after in outcomes:
            tail += self._outcome_args(outcome, after)
        reply = self._call("commit", partition, want.queue, want.limit, want.code, want.tag, len(outcomes), *tail)
        return self._batch(partition, reply)

    @staticmethod
    def _outcome_args(outcome: Outcome, after: str) -> tuple[Any, ...]:
        held = outcome.attempt
        note: Any = outcome.reason
        if outcome.kind == "C":
            note = "" if outcome.total < 0 else outcome.total
            note = f"{note}:{outcome.how}" if outcome.how else note
        elif outcome.kind == "T":
            note = f"{outcome.delay_ms}:{outcome.reason}"
        note = f"{note}:d" if outcome.doubt else note
        return (
            held.run_id, held.index, "" if held.item is None else held.item, held.fence, held.generation, outcome.kind.value,
            outcome.ran_ms, after, outcome.policy.value, note, outcome.payload if outcome.kind == "C" else outcome.error,
        )

    def _batch(self, partition: int, reply: Reply) -> Batch:
        word, now, queues, answers, rows = reply
        return Batch(word, int(now), self._pokes(partition, queues), answers, [parse_claim(row) for row in rows])

    def heartbeat(self, partition: int, attempts: Sequence[Attempt]) -> list[str]:
        """Renew leases; per attempt OK, CANCELLED, TERMINATE or LOST."""
        tail: list[Any] = []
        for held in attempts:
            tail += (held.run_id, held.index, "" if held.item is None else held.item, held.fence, held.generation, held.lease_ms)
        answers: list[str] = self._call("heartbeat", partition, len(attempts), *tail)[2]
        return answers

    def note(self, held: Attempt, kind: str, text: str, name: str = "") -> str:
        """Keep a checkpoint (`cp`), live progress (`live`) or the answer of a call inside it (`once`, by `name`) of a running attempt."""
        item = "" if held.item is None else held.item
        word: str = self._call_bare(
            "note", partition_of(held.run_id), held.run_id, held.index, item, held.fence, held.generation, kind, name, text)[0]
        return word

    def stage(self, held: Attempt, chunk: int, text: str) -> str:
        """Write one chunk of a long list before the commit that names it."""
        word: str = self._call_bare(
            "stage", partition_of(held.run_id), held.run_id, held.index, held.fence, held.generation, chunk, text)[0]
        return word

    def stage_undo(self, held: Attempt, chunk: int, places: Sequence[str]) -> str:
        """Write a part of the plan of what is undone: places `index[:item][q]` in the order in which they are."""
        word: str = self._call(
            "stage_undo", partition_of(held.run_id), held.run_id, held.index, held.fence, held.generation, chunk, len(places), *places)[0]
        return word

    def last_lease(self, run_id: str, *, besides: str) -> int:
        """When the last lease ends of a run, of its children and operations, and of theirs, in ms; 0 where there is none. The attempt
        `besides` is not counted. All of a family live in one partition, and its leases are as many as attempts run there."""
        leases = self.keys.of(partition_of(run_id), "leases")
        homes = {str(member): str(member).partition(":")[0] for member in self._read("ZRANGE", leases, 0, -1) if member != besides}
        above, unknown = {run_id: ""}, set(homes.values()) - {run_id}
        while unknown:
            found = self._command("read", [("HGET", self.keys.run(one), "up") for one in sorted(unknown)])
            above |= {one: (up or "").partition(";")[0] for one, up in zip(sorted(unknown), found, strict=True)}
            unknown = set(above.values()) - above.keys() - {""}

        def is_of_it(one: str) -> bool:
            while one and one != run_id:
                one = above[one]
            return one == run_id

        mine = [member for member, home in homes.items() if is_of_it(home)]
        ends: Any = self._read("ZMSCORE", leases, *mine) if mine else []
        return max((int(float(at or 0)) for at in ends), default=0)

    def checkpoint_of(self, held: Attempt) -> str | None:
        """What an earlier attempt of the same step left."""
        name = str(held.index) if held.item is None else f"{held.index}:{held.item}"
        found: Any = self._read("HGET", self.keys.run(held.run_id, "cp"), name)
        return None if found is None else str(found)

    def once_of(self, held: Attempt, name: str) -> str | None:
        """The recorded answer of a call inside this step, from this or an earlier attempt."""
        place = str(held.index) if held.item is None else f"{held.index}:{held.item}"
        found: Any = self._read("HGET", self.keys.run(held.run_id, "once"), f"{place}:{name}")
        return None if found is None else str(found)

    def values(self, key: str, fields: Sequence[str]) -> list[str | None]:
        """A page of a hash, for inputs too many or too large to travel with a claim."""
        found: Any = self._read("HMGET", key, *fields)
        return list(found)

    def log_of(self, run_id: str) -> list[str]:
        """The entries of a run's log."""
        found: Any = self._read("LRANGE", self.keys.run(run_id, "log"), 0, -1)
        return list(found)

    def graph(self, partition: int, graph_hash: str) -> Graph:
        """The graph a run keeps for life."""
        text: Any = self._read("HGET", self.keys.of(partition, f"graph:{graph_hash}"), "doc")
        if text is None:
            raise LookupError(f"graph {graph_hash} is not in the store: the last run that used it was purged")
        return Graph.from_doc(text)


def parse_claim(row: list[Any]) -> Attempt:
    """A claim as scripts tell it: its line, then deadline, session, input and results."""
    run_id, index, item, fence, generation, attempt, flags, workflow, graph, lease, waited, total, at = row[0].split(";")
    return Attempt(
        run_id=run_id, index=int(index), item=int(item) if item else None, fence=int(fence), generation=int(generation),
        attempt=int(attempt), flags=flags, workflow=workflow, graph=graph, lease_ms=int(lease), waited_ms=int(waited),
        total=int(total), at=int(at),
        deadline=int(row[1] or 0) if len(row) > 1 else 0, session=row[2] if len(row) > 2 else "", input=row[3] if len(row) > 3 else None,
        needs=tuple(row[4:]),
    )
