"""The stall sweep: what is due and not moving, judged from records alone.

A lease that ended is taken away (one worker loss) and its step made ready; what is ready and unclaimed past its grace is poked again; steps
set aside for want of code are taken back where this process knows their code, and runs that miss it for too long are paused.
Waiting and paused runs have neither a lease nor a ready entry, so they are never met here. After a gap since the last look the script
itself waits one lease before it takes any: a holder that could not renew because the server was away is not a lost worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from conductor.runs.execute import code_table
from conductor.sweeps.guard import Found, SweepReport, guarded, over_partitions

if TYPE_CHECKING:
    from conductor.store import Glance
    from conductor.wiring import Engine

__all__ = ["NAME", "sweep_stalled"]

NAME = "stalled"
_BATCH = 100
_ROUNDS = 50


def sweep_stalled(engine: Engine, *, dry_run: bool = False, glance: Glance | None = None, every: float = 0) -> SweepReport:
    """Take ended leases away, poke again for what nobody has claimed, take back what was set aside. `every`: seconds between sweeps."""
    apart = max(every, engine.settings.stall_sweep_seconds)

    def work() -> Sequence[Found]:
        seen = glance or engine.store.glance()
        # Every partition with a lease is looked at, also where none has ended: the script takes leases away only if the last look was a
        # moment ago, and a partition that nobody looked at would make each lost worker cost a second lease length.
        leased = seen.expired if dry_run else _leased(engine)
        found = over_partitions(NAME, leased, lambda partition: _expire(engine, partition, dry_run, apart))
        if not dry_run:
            # Leases first: what they free is ready now, and its poke comes from there; the look for unclaimed steps is by age.
            found += over_partitions(NAME, seen.unclaimed, lambda partition: [engine.store.repoke(partition)])
            found += over_partitions(NAME, seen.aside, lambda partition: _take_back(engine, partition))
        return found

    return guarded(engine, NAME, work, dry_run=dry_run)


def _leased(engine: Engine) -> list[int]:
    """The partitions in which somebody holds a lease, in one round trip."""
    store = engine.store
    pipe = store.client().pipeline(transaction=False)
    for partition in range(store.partitions):
        pipe.zcard(store.keys.of(partition, "leases"))
    return [partition for partition, leases in enumerate(pipe.execute()) if leases]


def _expire(engine: Engine, partition: int, dry_run: bool, every: float) -> Iterable[Found]:
    for _ in range(_ROUNDS):
        swept = engine.store.expire_leases(
            partition, _BATCH, dry=dry_run, poison=engine.settings.poison_losses, interval_ms=int(every * 1000))
        yield swept
        if swept.looked < _BATCH or dry_run:
            return


def _take_back(engine: Engine, partition: int) -> Iterable[Found]:
    known = sorted(code_table(engine))
    yield engine.store.take_back(partition, known, patience_ms=int(engine.settings.code_missing_minutes * 60_000), limit=_BATCH)
