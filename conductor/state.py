"""The lifecycle of run, step and operation: the first file to read.

A row is a state, a cell is a fact and where it leads, the comment names the actor. Terminal states, the sources a fact is legal from,
the diagrams in README.md, the letters handed to Lua and the model of the property tests are all derived from these tables.

Races, one sentence each: the fence beats everybody; a commit that came first beats a later cancel; a cancel that came first beats every
later claim and commit; cancel beats retry; of a signal and a timeout the first script wins; of two that would close a run, the first
script closes it and the second finds it closed; once a run is being undone nothing goes forward, and no cancel, pause or deadline stops
the undoing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

__all__ = [
    "OPERATION", "RUN", "STEP", "OpState", "RunState", "StepState", "Table",
    "lifecycle_markdown", "may", "mermaid", "sources", "terminal",
]


class RunState(StrEnum):
    """Where a run stands. A reason travels beside it (`paused: code_missing`)."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING_SIGNAL = "waiting_signal"
    PAUSED = "paused"
    COMPENSATING = "compensating"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StepState(StrEnum):
    """Where a step, or an item of an `each`, stands. `letter` is how records and scripts spell it."""

    PENDING = "pending"
    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting"
    RETRY_PENDING = "retry_pending"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"

    @property
    def letter(self) -> str:
        return _LETTERS[self]

    @classmethod
    def of(cls, letter: str) -> StepState:
        return _BY_LETTER[letter]


class OpState(StrEnum):
    """Where a stand-alone operation stands; `queued` always has a `queue_reason`."""

    RUNNING = "running"
    QUEUED = "queued"
    COMPLETED = "completed"
    FAILED = "failed"
    EXHAUSTED = "exhausted"
    CANCELLED = "cancelled"


_LETTERS = {
    StepState.PENDING: "P", StepState.READY: "R", StepState.RUNNING: "X", StepState.WAITING: "W", StepState.RETRY_PENDING: "T",
    StepState.COMPLETED: "C", StepState.FAILED: "F", StepState.SKIPPED: "Z", StepState.CANCELLED: "K",
}
_BY_LETTER = {letter: state for state, letter in _LETTERS.items()}

Table = Mapping[StrEnum, Mapping[str, StrEnum]]

RUN: Table = {
    RunState.QUEUED: {
        "admitted": RunState.RUNNING,  # the script that closes another run of its lane
        "compensating": RunState.COMPENSATING,  # of a queued retry: a compensating cancel; the deadline
        "ended": RunState.FAILED,  # the due sweep: lane_busy; the deadline
        "cancelled": RunState.CANCELLED,  # a person or a program
    },
    RunState.RUNNING: {
        "queued": RunState.QUEUED,  # a delayed start that finds no place in its lane when its time comes
        "idle": RunState.WAITING_SIGNAL,  # the commit that leaves only waiters
        "paused": RunState.PAUSED,  # a person; a failure under policy `pause`; code that no worker has
        "compensating": RunState.COMPENSATING,  # a failure under policy `compensate`, a compensating cancel
        "completed": RunState.COMPLETED,  # the commit of the last step
        "ended": RunState.FAILED,  # the commit of the last running attempt after a failure; the deadline
        "cancelled": RunState.CANCELLED,
    },
    RunState.WAITING_SIGNAL: {
        "resumed": RunState.RUNNING,  # a signal, an answer, a timer
        "paused": RunState.PAUSED,
        "compensating": RunState.COMPENSATING,
        "ended": RunState.FAILED,
        "cancelled": RunState.CANCELLED,  # also the idle sweep
    },
    RunState.PAUSED: {
        "resumed": RunState.RUNNING,  # a person; a worker that brings the missing code
        "compensating": RunState.COMPENSATING,  # a compensating cancel; the failure of an attempt that was running; the deadline
        "completed": RunState.COMPLETED,  # the commit of an attempt that was running when the run was paused
        "ended": RunState.FAILED,  # the same, failing; the deadline
        "cancelled": RunState.CANCELLED,
    },
    RunState.COMPENSATING: {
        "ended": RunState.FAILED,  # the last undo after a failure
        "cancelled": RunState.CANCELLED,  # the last undo after a cancel
    },
    RunState.COMPLETED: {},
    RunState.FAILED: {
        "reopened": RunState.RUNNING,  # `retry`: a new generation, which again ends exactly once
        "requeued": RunState.QUEUED,  # the same, where its lane has no place
    },
    RunState.CANCELLED: {},
}

STEP: Table = {
    StepState.PENDING: {
        "unblocked": StepState.READY,  # start, or the commit of the last predecessor; of an undo, the end of the one before it
        "awaits": StepState.WAITING,  # the same, for a sleep, a wait for a signal, an agent's answer
        "cancelled": StepState.CANCELLED,  # derived: the run ended
    },
    StepState.READY: {
        "claimed": StepState.RUNNING,  # a worker
        "cancelled": StepState.CANCELLED,
        "reset": StepState.PENDING,  # retry of the run
    },
    StepState.RUNNING: {
        "completed": StepState.COMPLETED,  # the holder of the fence
        "skipped": StepState.SKIPPED,  # the same: `when` said no, all predecessors skipped, one failed
        "failed": StepState.FAILED,
        "retry_scheduled": StepState.RETRY_PENDING,
        "called": StepState.WAITING,  # the same: it has started a child run
        "given_back": StepState.READY,  # the holder: shutdown, not begun in time
        "lost": StepState.READY,  # the stall sweep: the lease ended
        "cancelled": StepState.CANCELLED,
        "reset": StepState.PENDING,
    },
    StepState.WAITING: {
        "due": StepState.READY,  # the due sweep: its time, or the end of its patience; the end of the child it waits for
        "answered": StepState.READY,  # a signal, an agent's answer
        "cancelled": StepState.CANCELLED,
        "reset": StepState.PENDING,
    },
    StepState.RETRY_PENDING: {
        "due": StepState.READY,
        "cancelled": StepState.CANCELLED,
        "reset": StepState.PENDING,
    },
    StepState.COMPLETED: {},
    StepState.FAILED: {
        "reset": StepState.PENDING,
    },
    StepState.SKIPPED: {
        "reset": StepState.PENDING,  # only what was skipped because something upstream failed
    },
    StepState.CANCELLED: {
        "reset": StepState.PENDING,
    },
}

OPERATION: Table = {
    OpState.QUEUED: {
        "claimed": OpState.RUNNING,  # a worker
        "cancelled": OpState.CANCELLED,
    },
    OpState.RUNNING: {
        "completed": OpState.COMPLETED,  # the holder of the fence
        "failed": OpState.FAILED,
        "requeued": OpState.QUEUED,  # a transient failure, or the sweep after a lost worker
        "exhausted": OpState.EXHAUSTED,
        "cancelled": OpState.CANCELLED,
    },
    OpState.COMPLETED: {},
    OpState.FAILED: {"requeued": OpState.QUEUED},  # a person's retry
    OpState.EXHAUSTED: {"requeued": OpState.QUEUED},
    OpState.CANCELLED: {"requeued": OpState.QUEUED},  # the next life of the run that called it, which asks for it again
}

# A reset or a reopening is a new life, so it does not make a state less final.
_NEW_LIFE = frozenset({"reset", "reopened", "requeued"})


def terminal(table: Table) -> frozenset[StrEnum]:
    """States nothing leaves, except into a new life by a person's hand."""
    return frozenset(state for state, row in table.items() if set(row) <= _NEW_LIFE)


def sources(table: Table, fact: str) -> frozenset[StrEnum]:
    """The states from which `fact` is legal."""
    return frozenset(state for state, row in table.items() if fact in row)


def may(table: Table, state: StrEnum, fact: str) -> StrEnum | None:
    """Where `fact` leads from `state`; None where it is not legal."""
    return table[state].get(fact)


def mermaid(table: Table) -> str:
    """The table as a mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {next(iter(table))}"]
    for state, row in table.items():
        lines += [f"    {state} --> {target}: {fact}" for fact, target in row.items()]
    lines += [f"    {state} --> [*]" for state in table if state in terminal(table)]
    return "\n".join(lines)


def lifecycle_markdown() -> str:
    """What stands between the lifecycle markers of README.md; a test compares them."""
    parts = []
    for title, table in (("Run", RUN), ("Step and item", STEP), ("Operation", OPERATION)):
        parts.append(f"### {title}\n\n```mermaid\n{mermaid(table)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(lifecycle_markdown())
