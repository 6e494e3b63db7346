"""Stubs: what the store has of a parked run. Lines of `parked`, written by `park_run.lua` and read here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from conductor.ids import partition_of
from conductor.state import RunState
from conductor.store.indexes import hash_pages
from conductor.store.reads import RunRecord, Source

__all__ = ["Stub", "parse_stub", "read_stub", "read_stubs", "stub_pages"]

_PARTS = 17


@dataclass(frozen=True, slots=True)
class Stub:
    """A parked run: `n` is its event number in the archive, `waiting` the steps whose waiters are open. A state other than waiting was
    said to it while it was parked."""

    run_id: str
    n: int
    generation: int
    graph: str
    state: RunState
    reason: str
    actor: str
    ended_at: int
    created_at: int
    idle_since: int
    waiting: tuple[int, ...]
    has_consent: bool
    lane: str
    workflow: str
    key: str

    def as_run(self) -> RunRecord:
        """Its record, as far as the stub knows it."""
        return RunRecord(
            run_id=self.run_id, workflow=self.workflow, graph=self.graph, state=self.state, reason=self.reason, generation=self.generation,
            key=self.key, lane=self.lane, idle_since=self.idle_since, waiting=self.waiting, waiters=len(self.waiting),
            created_at=self.created_at, ended_at=self.ended_at, events=self.n,
        )


def parse_stub(run_id: str, line: str) -> Stub:
    """What a line of `parked` says."""
    n, generation, graph, state, reason, actor, ended, created, idle, waiting, _, _, _, blanket, lane, workflow, key = line.split(
        ";", _PARTS - 1)
    return Stub(
        run_id, int(n), int(generation), graph, RunState(state) if state else RunState.WAITING_SIGNAL, reason, actor, int(ended or 0),
        int(created or 0), int(idle or 0), tuple(int(index) for index in waiting.split(",") if index), blanket == "1", lane,
        workflow, key,
    )


def read_stub(source: Source, run_id: str) -> Stub | None:
    """The stub of a run, None if it is not parked."""
    line = source.client().hget(source.keys.of(partition_of(run_id), "parked"), run_id)
    return None if line is None else parse_stub(run_id, line)


def read_stubs(source: Source, run_ids: list[str]) -> dict[str, Stub]:
    """The stubs of those of several runs that are parked, in one round trip."""
    pipe = source.client().pipeline(transaction=False)
    for run_id in run_ids:
        pipe.hget(source.keys.of(partition_of(run_id), "parked"), run_id)
    lines = pipe.execute() if run_ids else []
    return {run_id: parse_stub(run_id, line) for run_id, line in zip(run_ids, lines, strict=True) if line is not None}


def stub_pages(source: Source, partition: int) -> Iterator[list[Stub]]:
    """All parked runs of a partition, by pages."""
    for page in hash_pages(source, partition, "parked"):
        yield [parse_stub(run_id, line) for run_id, line in page]
