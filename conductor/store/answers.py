"""What the store answers: words and ids, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field

from conductor.records import Attempt, Poke

__all__ = ["Batch", "Cancelled", "Glance", "Moved", "Started", "Swept", "Want"]


@dataclass(frozen=True, slots=True)
class Started:
    """OK, EXISTS (the same run was accepted before), CONFLICT (another body under this key), RUN_ENDED (the run it is bound to) or
    LANE_FULL (`lane`: how many are active in it, how many queued)."""

    word: str
    run_id: str
    pokes: list[Poke]
    notice: str  # the id in the partition's notice stream from which a follower reads on
    held: Attempt | None = None  # what the caller claimed with the start
    lane: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Want:
    """What a worker would do next: up to `limit` steps of `queue`, of the code it has."""

    queue: str
    limit: int
    code: str
    tag: str
    first: bool = False  # the first look of a drain answers the poke
    attends: bool = False  # and promises to look again, see `runs/lingering.py`


@dataclass(frozen=True, slots=True)
class Batch:
    """The answers to the outcomes sent, and the attempts given."""

    word: str
    now: int
    pokes: list[Poke]
    answers: list[str]
    attempts: list[Attempt]


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep of one partition put back, each with its cause."""

    count: int
    pokes: list[Poke]
    causes: list[str] = field(default_factory=list)
    looked: int = 0  # entries met, those of ended runs included: a full page means that there may be more


@dataclass(frozen=True, slots=True)
class Cancelled:
    """OK, ALREADY, COMPENSATING (it is being undone, and this changes nothing), PARKED (it must be woken to be undone), ENDED or
    UNKNOWN; then what the record says."""

    word: str
    state: str
    reason: str
    at: int
    pokes: list[Poke] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Moved:
    """The word of a move, the state after it, and who to wake."""

    word: str
    state: str = ""
    pokes: list[Poke] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Glance:
    """One pipelined look over all partitions: where something is due, and when each sweep last succeeded, in ms."""

    now: int
    expired: list[int]  # partitions with a lease that ended
    due: list[int]  # partitions with a timer or retry due
    unclaimed: list[int]  # partitions with something ready past its grace
    aside: list[int]  # partitions with steps set aside for want of code
    purgeable: list[int]
    staged: list[int]
    owed: list[int]  # partitions with an ending that has yet to be told
    next_due: int | None
    last_ok: dict[str, int]
