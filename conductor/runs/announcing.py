"""The store, telling signals what became of runs: `run_started`, `run_waiting`, `run_completed`, `run_failed`, `run_cancelled`,
`run_paused`.

A signal fires once, in the process whose call moved the run, whoever made the call: a worker, a sweep, a handle, the command line. A
commit is not told whether it ended its run, so the tail of the log is read: the last outcome before the end is that of the commit that
brought it about. Nothing is read unless somebody listens, and a signal that cannot be told never breaks the verb.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from conductor.log import Event, parse_all
from conductor.records import Graph, NewRun, Outcome, Poke
from conductor.store import Batch, Cancelled, Moved, Started, Store, Swept, Want
from conductor.store.stubs import read_stub
from conductor.telemetry.signals import announce, anyone_listens

__all__ = ["AnnouncingStore"]

logger = logging.getLogger(__name__)

_ENDS = ("run_completed", "run_failed", "run_cancelled", "run_paused", "run_waiting")
_NEWS = ("ended", "paused", "run_idle")
_TAIL = 8  # an outcome, the end of its `each`, the end of the run
_OUTCOMES = ("completed", "skipped", "retry_scheduled", "failed", "given_back", "lost")


class AnnouncingStore(Store):
    """Every verb that may move a run as a whole, followed by what it says."""

    def start(self, run: NewRun, graph: Graph, **how: Any) -> Started:
        told = super().start(run, graph, **how)
        if told.word == "OK" and not run.queue_reason:
            announce("run_started", run.workflow, run_id=told.run_id, reason="")
            self._tell_if_idle(told.run_id)
        return told

    def commit(self, partition: int, outcomes: Sequence[tuple[Outcome, str]], want: Want) -> Batch:
        batch = super().commit(partition, outcomes, want)
        if anyone_listens(*_ENDS):
            self._tell_of_commit(outcomes, batch)
        return batch

    def cancel(
        self, run_id: str, *, reason: str, actor: str = "", terminate: bool = False, compensate: bool = False, only: int | None = None,
    ) -> Cancelled:
        told = super().cancel(run_id, reason=reason, actor=actor, terminate=terminate, compensate=compensate, only=only)
        if told.word == "OK" and told.state == "cancelled":  # one that is undone first is told of when that is over
            self._announce("run_cancelled", run_id, told.reason)
        return told

    def pause(self, run_id: str, *, reason: str, actor: str = "", only: int | None = None) -> Moved:
        told = super().pause(run_id, reason=reason, actor=actor, only=only)
        if told.word == "OK":
            self._announce("run_paused", run_id, reason)
        return told

    def resume(self, run_id: str, *, actor: str = "", only: int | None = None) -> Moved:
        told = super().resume(run_id, actor=actor, only=only)
        if told.word == "OK":
            self._tell_if_idle(run_id)
        return told

    def expire_idle(self, run_id: str, *, before: int = 0, dry: bool = False) -> tuple[str, int, list[Poke]]:
        told = super().expire_idle(run_id, before=before, dry=dry)
        if told[0] == "OK" and not dry:
            self._announce("run_cancelled", run_id, "idle_timeout")
        return told

    def fire_due(self, partition: int, limit: int = 100) -> Swept:
        return self._tell_of_sweep(super().fire_due(partition, limit), "expires:", "deadline:", "start:", "lane:")

    def take_back(self, partition: int, signatures: Sequence[str], *, patience_ms: int = 600_000, limit: int = 100) -> Swept:
        swept = super().take_back(partition, signatures, patience_ms=patience_ms, limit=limit)
        for run_id in _runs_of(swept.causes, " code_missing"):
            self._announce("run_paused", run_id, "code_missing")
        return swept

    def expire_leases(self, partition: int, limit: int = 100, *, dry: bool = False, poison: int = 3, interval_ms: int = 0) -> Swept:
        swept = super().expire_leases(partition, limit, dry=dry, poison=poison, interval_ms=interval_ms)
        if swept.count and not dry and anyone_listens(*_ENDS):
            # A failing run whose last running attempt was lost has ended by that.
            self._tell_of_tails(dict.fromkeys(_runs_of(swept.causes, " lease_expired")))
        return swept

    def _tell_of_commit(self, outcomes: Sequence[tuple[Outcome, str]], batch: Batch) -> None:
        going_on = {held.run_id for held in batch.attempts}
        fences: dict[str, set[int]] = {}
        for (outcome, _), word in zip(outcomes, batch.answers, strict=True):
            held = outcome.attempt
            if word == "OK" and held.run_id not in going_on and not held.workflow.startswith("op:"):
                fences.setdefault(held.run_id, set()).add(held.fence)
        self._tell_of_tails(fences)

    def _tell_of_sweep(self, swept: Swept, *kinds: str) -> Swept:
        if swept.count and anyone_listens(*_ENDS):
            for cause in swept.causes:
                if cause.startswith(kinds):
                    run_id = cause.partition(":")[2]
                    for event in self._tail(run_id)[-1:]:
                        self._tell(run_id, event)
        return swept

    def _tell_of_tails(self, fences: Mapping[str, set[int] | None]) -> None:
        """Of each run whose last event ends or pauses it, if the outcome before that is one of these; None stands for a lost one."""
        for run_id, mine in fences.items():
            events = self._tail(run_id)
            if events and events[-1].kind in _NEWS and _is_by(events[:-1], mine):
                self._tell(run_id, events[-1])

    def _tell_if_idle(self, run_id: str) -> None:
        if anyone_listens("run_waiting"):
            for event in self._tail(run_id)[-1:]:
                if event.kind == "run_idle":
                    self._tell(run_id, event)

    def _tail(self, run_id: str) -> list[Event]:
        try:
            entries: Any = self._client.lrange(self.keys.run(run_id, "log"), -_TAIL, -1)
            return list(parse_all(entries))
        except Exception as error:
            logger.warning("nobody is told what became of run %s: %s", run_id, error)
            return []

    def _tell(self, run_id: str, event: Event) -> None:
        said = {"paused": "paused", "cancelled": "cancelled", "run_idle": "waiting"}
        state = said.get(event.kind, event.state if event.kind == "ended" else "")
        if state:
            self._announce(f"run_{state}", run_id, event.reason)

    def _announce(self, signal: str, run_id: str, reason: str) -> None:
        if not anyone_listens(signal):
            return
        try:
            workflow = str(self._client.hget(self.keys.run(run_id), "w") or "")
            if not workflow and (stub := read_stub(self, run_id)) is not None:
                workflow = stub.workflow
        except Exception as error:
            logger.warning("nobody is told that run %s is %s: %s", run_id, signal.removeprefix("run_"), error)
            return
        if not workflow.startswith("op:"):
            announce(signal, workflow, run_id=run_id, reason=reason)


def _runs_of(causes: Iterable[str], word: str) -> Iterator[str]:
    """The runs, each once, of causes such as `run:3:17 lease_expired`."""
    return iter(dict.fromkeys(cause.removesuffix(word).partition(":")[0] for cause in causes if cause.endswith(word)))


def _is_by(events: Sequence[Event], fences: set[int] | None) -> bool:
    last = next((event for event in reversed(events) if event.kind in _OUTCOMES and event.fence), None)
    if last is None:
        return False
    if fences is None:
        return last.kind == "lost"
    first, length = last.fence, len(last.item_numbers) or 1
    return any(first <= fence < first + length for fence in fences)
