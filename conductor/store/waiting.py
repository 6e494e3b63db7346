"""Verbs on what waits: a signal, an agent's answer, and the end of an orphan whose patience is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conductor.ids import home_of_start, partition_of
from conductor.records import Poke
from conductor.state import StepState
from conductor.store.door import Door
from conductor.store.runs import said

__all__ = ["EARLY_SIGNALS", "Answered", "WaitVerbs"]

EARLY_SIGNALS = 100
"""How many signals that nothing waits for yet are kept for one run."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The word, the run's state after it, the step it concerns (or None), and who to wake."""

    word: str
    state: str = ""
    index: int | None = None
    step_state: StepState | None = None
    pokes: list[Poke] = field(default_factory=list)


class WaitVerbs(Door):
    """Each is idempotent by its own ids: the id of a signal, the body of an answer, the end of a run."""

    def signal(self, run_id: str, *, name: str, signal_id: str, payload: str, waits: Sequence[int]) -> Answered:
        """OK (a step took it), KEPT (for the first wait that opens), ALREADY (this id came before), OVER, FULL, ENDED or UNKNOWN."""
        partition = partition_of(run_id)
        word, state, index, queues = self._call_bare(
            "signal", partition, run_id, name, signal_id, payload, ",".join(map(str, waits)), EARLY_SIGNALS)
        return Answered(word, state, int(index) if index else None, pokes=self._pokes(partition, queues))

    def advance(self, run_id: str, index: int, *, digest: str, payload: str, actor: str = "") -> Answered:
        """OK, SAME (this body was the answer), TAKEN (another was), NOT_WAITING, ENDED or UNKNOWN."""
        partition = partition_of(run_id)
        word, state, step, queues = self._call_bare("advance", partition, run_id, index, digest, payload, said(actor, "actor"))
        return Answered(word, state, index, StepState.of(step) if step else None, self._pokes(partition, queues))

    def expire_idle(self, run_id: str, *, before: int = 0, dry: bool = False) -> tuple[str, int, list[Poke]]:
        """Cancel an orphan whose patience is over, or that has not progressed since `before` (ms): OK, PARKED (it has to be brought
        back first), MOVED, ENDED or UNKNOWN, when it progressed last, and who is to be woken: what its lane admits now, its parent."""
        partition = partition_of(run_id)
        word, _, at, queues = self._call_bare("expire_idle", partition, run_id, before or "", int(dry))
        return word, int(at or 0), self._pokes(partition, queues)

    def orphans(self, *, before: int = 0, limit: int = 100, skip: Mapping[int, int] | None = None) -> list[list[str]]:
        """Orphans that are due, by partition, the longest idle first but for the first `skip` of one: by what they say themselves, or
        without progress since `before`. One round trip, however many runs are active."""
        behind = skip or {}
        tail, most = ("orphans", before) if before else ("orphans:due", self._milliseconds())
        return self._command("read", [
            ("ZRANGEBYSCORE", self.keys.of(number, tail), "-inf", most, "LIMIT", behind.get(number, 0), limit)
            for number in range(self.partitions)
        ])

    def run_of_key(self, workflow: str, key: str, lane: str = "") -> str:
        """The run that has this key, in this lane; empty if there is none."""
        home = home_of_start(workflow, key, lane, self.partitions) or 0
        found: Any = self._read("GET", self.keys.of(home, f"key:{workflow}{f'@{lane}' if lane else ''}:{key}"))
        return str(found or "").partition(";")[0]

    def _milliseconds(self) -> int:
        seconds, micros = self._read("TIME")
        return int(seconds) * 1000 + int(micros) // 1000
