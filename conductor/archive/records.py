"""What goes into the archive and what comes out. No I/O, no clock; times are ms on the store's clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from conductor.state import RUN, RunState, terminal

__all__ = ["FORMAT", "READABLE", "ArchiveFilter", "ArchivePage", "ArchivedRun", "Erased", "Examination", "Kind", "Moment", "Position"]

FORMAT: Final = 1  # of snapshots written by this release
READABLE: Final = frozenset({1})

_ENDED: Final = frozenset(str(state) for state in terminal(RUN))


class Kind(StrEnum):
    """Why a run is in the archive."""

    FINISHED = "finished"  # it ended; the row outlives it in Redis
    PARKED = "parked"  # it is idle; Redis has only a stub of it
    CHECKPOINT = "checkpoint"  # it lives in Redis; the row is for the day Redis is gone

    @property
    def rank(self) -> int:
        """At one event number the row that others rely on more stays."""
        return {Kind.CHECKPOINT: 0, Kind.PARKED: 1, Kind.FINISHED: 2}[self]


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """One run at one event number `n`. `snapshot` is opaque to the archive; None where it was not asked for."""

    namespace: str
    run_id: str
    generation: int
    n: int
    kind: Kind
    state: RunState
    workflow: str
    created_at_ms: int
    progress_at_ms: int = 0  # or ms of what was noted of it since without an event
    ended_at_ms: int | None = None
    idle_since_ms: int | None = None
    delete_after_ms: int | None = None  # None: not before it is put again or deleted
    reason: str = ""
    key: str = ""
    session: str = ""
    version: str = ""  # hash of the graph it started with
    error_kind: str = ""
    tags: tuple[str, ...] = ()
    failed_steps: tuple[str, ...] = ()
    waiting_for: tuple[str, ...] = ()  # names of its open waiters
    blobs: tuple[str, ...] = ()  # names of the blobs that die with it
    format: int = FORMAT
    snapshot: bytes | None = None

    @property
    def is_terminal(self) -> bool:
        return self.state in _ENDED

    @property
    def moved_at_ms(self) -> int:
        """Its last progress: what was noted of an idle run since is none."""
        return min(self.progress_at_ms, self.idle_since_ms) if self.idle_since_ms else self.progress_at_ms


@dataclass(frozen=True, slots=True)
class ArchiveFilter:
    """Which runs are wanted; every condition that is set must hold. `since` is inclusive, `until` is not."""

    run_id_prefix: str = ""
    workflow: str = ""
    states: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    key: str = ""
    session: str = ""
    sessions: tuple[str, ...] | None = None  # all that whoever asks may see
    tag: str = ""
    version: str = ""  # the beginning of it
    step: str = ""  # one of the failed steps
    error_kind: str = ""
    waiting_for: str = ""
    created_since_ms: int | None = None
    created_until_ms: int | None = None
    ended_since_ms: int | None = None
    ended_until_ms: int | None = None
    idle: bool | None = None
    idle_longer_than_ms: int | None = None
    now_ms: int | None = None  # the store's now, needed with `idle_longer_than_ms`


@dataclass(frozen=True, slots=True)
class ArchivePage:
    """Some of the wanted runs, newest first. `cursor` brings the next ones; None: there are none."""

    runs: tuple[ArchivedRun, ...]
    cursor: str | None
    unreadable: tuple[str, ...] = ()  # rows among them that this release cannot read, by run id


@dataclass(frozen=True, slots=True)
class Position:
    """Where the archive stands with a run: a row of a smaller position is older, or of a history that was lost."""

    generation: int
    terminal: bool
    n: int
    noted_ms: int = 0  # the later of its progress and of what was noted without an event
    kind: str = ""
    erased: bool = False

    @property
    def order(self) -> tuple[int, int, int]:
        return self.generation, int(self.terminal), self.n


@dataclass(frozen=True, slots=True)
class Erased:
    """A run that is no longer in the archive, and the blobs that its deletion leaves to the caller."""

    run_id: str
    blobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Moment:
    """Up to when the checkpoints of one partition were shipped, and in which epoch of the store."""

    partition: int
    epoch: int
    shipped_ms: int


@dataclass(frozen=True, slots=True)
class Examination:
    """What `doctor` tells of an archive. With a `problem` the rest is what was known before."""

    url: str  # credentials masked
    dialect: str
    reachable: bool
    one_host: bool  # SQLite: only processes of one host share it, so runs can be parked only there
    server: str = ""
    schema: str = ""
    newest_schema: str = ""
    rows: tuple[tuple[Kind, int], ...] = ()
    problem: str = ""
