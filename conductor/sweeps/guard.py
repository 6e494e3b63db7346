"""What all sweeps share: a lock that saves double work, the note of the last success, the report, and one way of logging.

Authority: the scripts decide, item by item; losing the lock, or two sweepers at once, is harmless. The lock is held for the script
calls only and never while a message is published: a broker that hangs must not keep other sweepers out. A sweep that dies half way has
moved each item whole or not at all; the next one goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from conductor import failpoints
from conductor.errors import ArchiveRefused, ArchiveUnreachable, StoreUnreachable
from conductor.records import Poke

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["Found", "Moves", "SweepReport", "guarded", "over_partitions", "through_partitions", "unlocked"]

_LOCK_SECONDS = 3.0  # a sweeper killed with it holds the others up so long: with the lease a step must still run again within 20 s
_NAMED_CAUSES = 20
_ONLY_POKED = " unclaimed"  # what `repoke` says of a queue

logger = logging.getLogger(__name__)


class Found(Protocol):
    """What one script call of a sweep tells."""

    @property
    def count(self) -> int: ...
    @property
    def pokes(self) -> Iterable[Poke]: ...
    @property
    def causes(self) -> Iterable[str]: ...


@dataclass(frozen=True, slots=True)
class Moves:
    """Found by a sweep that is not a script of its own."""

    count: int
    causes: tuple[str, ...]
    pokes: tuple[Poke, ...] = ()


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep did. `ran` is False where another process was already at it; each cause names a run, a step and why it was moved."""

    name: str
    count: int = 0
    pokes: int = 0
    causes: tuple[str, ...] = ()
    dry_run: bool = False
    ran: bool = True

    def to_json(self) -> dict[str, Any]:
        """The report as a task's result carries it."""
        return {**asdict(self), "causes": list(self.causes)}


def guarded(engine: Engine, name: str, work: Callable[[], Sequence[Found]], *, dry_run: bool = False) -> SweepReport:
    """Run `work` under the sweep's lock, note its success, release the lock, and only then publish the pokes it asked for."""
    failpoints.hit("sweep.begin")
    with engine.store.lock(f"sweep:{name}", _LOCK_SECONDS) as mine:
        if not mine:
            return SweepReport(name, dry_run=dry_run, ran=False)
        found = work()
        if not dry_run:
            engine.store.swept(name)
    pokes = [] if dry_run else list(dict.fromkeys(poke for one in found for poke in one.pokes))
    engine.poke(pokes)
    causes = tuple(cause for one in found for cause in one.causes)
    report = SweepReport(name, sum(one.count for one in found), len(pokes), causes, dry_run)
    _log(report)
    failpoints.hit("sweep.end")
    return report


def unlocked(engine: Engine, name: str, work: Callable[[], Iterable[Found]], *, dry_run: bool = False) -> SweepReport:
    """Run `work` that asks the archive: under no lock, because SQL may take any time. What it asks for is poked as it comes, so that nobody
    waits for the rest. Without an archive nothing is done."""
    failpoints.hit("sweep.begin")
    if not engine.archive.configured:
        return SweepReport(name, dry_run=dry_run, ran=False)
    engine.archive.open()  # one that is away or refuses us is told once, not for each partition
    found, pokes = list[Found](), 0
    for one in work():
        found.append(one)
        asked = [] if dry_run else list(dict.fromkeys(one.pokes))
        if asked:
            engine.poke(asked)
            pokes += len(asked)
    if not dry_run:
        engine.store.swept(name)
    report = SweepReport(name, sum(one.count for one in found), pokes, tuple(cause for one in found for cause in one.causes), dry_run)
    _log(report)
    failpoints.hit("sweep.end")
    return report


def over_partitions(name: str, partitions: Iterable[int], look: Callable[[int], Iterable[Found]]) -> list[Found]:
    """Look into each partition. One that holds something a script chokes on is named and never stops the others."""
    return list(through_partitions(name, partitions, look))


def through_partitions(name: str, partitions: Iterable[int], look: Callable[[int], Iterable[Found]]) -> Iterator[Found]:
    """The same, one found thing after the other."""
    for partition in partitions:
        try:
            yield from look(partition)
        except (StoreUnreachable, ArchiveUnreachable, ArchiveRefused):
            raise  # the others are behind the same server; the next sweep tries again
        except Exception:
            logger.exception("sweep %s: partition %d could not be swept; the others go on", name, partition)


def _log(report: SweepReport) -> None:
    """A sweep that did nothing is not news, nor is one that only poked again: while no worker is up each of them does."""
    poked = sum(cause.endswith(_ONLY_POKED) for cause in report.causes)
    level = logging.INFO if report.count > poked else logging.DEBUG
    if not logger.isEnabledFor(level):
        return
    named = ", ".join(report.causes[:_NAMED_CAUSES])
    more = f" and {len(report.causes) - _NAMED_CAUSES} more" if len(report.causes) > _NAMED_CAUSES else ""
    verb = "would move" if report.dry_run else "moved"
    logger.log(level, "sweep %s: %s %d, pokes %d%s%s%s", report.name, verb, report.count, report.pokes, ": " if named else "", named, more)
