"""Idleness: what a run waits for, as its record tells it. Pure functions; the scripts settle the same in `fragments/run.lua`.

A run is idle when nothing of it is ready, leased, in retry or left to a child, and at least one waiter is open, of whatever kind. An orphan
is an idle run all of whose waiters are agents: nobody but them could move it, and only it is ever cancelled for idleness.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from conductor.records import Graph, NodeKind
from conductor.state import RunState

__all__ = ["Counted", "Waiter", "active_waiters", "is_idle", "is_orphan", "orphan_until", "waits_for"]

_GOING = (RunState.RUNNING, RunState.WAITING_SIGNAL)


class Counted(Protocol):
    """What the record of a run says of itself: a run hash as it was read, or a folded log."""

    @property
    def state(self) -> RunState: ...
    @property
    def phase(self) -> str: ...
    @property
    def ready(self) -> int: ...
    @property
    def active(self) -> int: ...
    @property
    def due(self) -> int: ...
    @property
    def children(self) -> int: ...
    @property
    def waiters(self) -> int: ...
    @property
    def agents(self) -> int: ...
    @property
    def waiting(self) -> tuple[int, ...]: ...


class Orphan(Counted, Protocol):
    """What is needed to say when it may be cancelled."""

    @property
    def progress_at(self) -> int: ...
    @property
    def idle_timeout_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Waiter:
    """What a waiting step waits for: `signal` by its name, `agent`'s answer, or a `time`. `until` is ms, 0 where there is no end."""

    step: str
    kind: str
    signal: str = ""
    until: int = 0
    instructions: str = ""

    def __str__(self) -> str:
        return f"signal {self.signal}" if self.kind == "signal" else f"{self.kind} {self.step}"


_KINDS = {NodeKind.WAIT: "signal", NodeKind.AGENT: "agent", NodeKind.SLEEP: "time"}


def is_idle(run: Counted) -> bool:
    """Whether nothing but waiters is left."""
    moves = run.ready or run.active or run.due or run.children
    return run.state in _GOING and not run.phase and not moves and run.waiters > 0


def is_orphan(run: Counted) -> bool:
    """Whether an idle run waits for nothing but agents."""
    return is_idle(run) and run.agents == run.waiters


def orphan_until(run: Orphan, graph: Graph) -> int:
    """When the idle sweep may cancel an orphan, in ms: the longest that one of its agents may be waited for. 0: never, or it is none."""
    said = [graph.nodes[index].idle_ms for index in run.waiting] if is_orphan(run) else []
    lasting = [run.idle_timeout_ms if own is None else own for own in said]
    return run.progress_at + max(lasting) if lasting and all(lasting) else 0


def active_waiters(run: Counted, graph: Graph, until: Mapping[int, int] | None = None) -> tuple[Waiter, ...]:
    """The open waiters of a run that has not ended. `until` are the times at which they lapse or are over, where that was read."""
    if run.state not in (*_GOING, RunState.PAUSED):
        return ()
    return tuple(_waiter(graph, index, (until or {}).get(index, 0)) for index in run.waiting)


def _waiter(graph: Graph, index: int, until: int) -> Waiter:
    node = graph.nodes[index]
    return Waiter(node.name, _KINDS[node.kind], node.signal, until, node.instructions)


def waits_for(waiters: Iterable[Waiter], name: str) -> bool:
    """Whether one of them is for this signal, or is the step of this name."""
    return any(name in (waiter.signal, waiter.step) for waiter in waiters)
