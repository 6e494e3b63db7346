"""Which sweeps are overdue, and running them: the timer of every worker and the `sweeper` call share this.

A dead beat therefore stops nothing. Many workers share the work without an election: each looks at the notes of the last success, which is
one read; who first finds a sweep overdue runs it under its lock and notes it, so that the others find it done. A sweep that asks the
archive has no lock, but a turn: whoever begins it says so for some seconds, whether SQL answers or not, and the others leave it to him.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from conductor.sweeps import archiving, checkpoints, idle, outbox, parked, retention, retries, schedules, stalled, stuck
from conductor.sweeps.guard import SweepReport

if TYPE_CHECKING:
    from conductor.settings import Settings
    from conductor.wiring import Engine

__all__ = ["SLOW", "SWEEPS", "intervals", "overdue", "run_overdue", "run_slow", "run_sweeper"]

Sweep = Callable[..., SweepReport]
SWEEPS: Mapping[str, Sweep] = {
    retries.NAME: retries.sweep_retries, stalled.NAME: stalled.sweep_stalled, retention.NAME: retention.sweep_retention,
    schedules.NAME: schedules.sweep_schedules, outbox.NAME: outbox.sweep_outbox, stuck.NAME: stuck.sweep_stuck,
    parked.NAME: parked.sweep_parked, archiving.NAME: archiving.sweep_archive, checkpoints.NAME: checkpoints.sweep_checkpoints,
    idle.NAME: idle.sweep_idle,
}
SLOW = frozenset({parked.NAME, archiving.NAME, checkpoints.NAME})
"""Sweeps that ask the archive: they have a thread of their own, because SQL may take any time and a due retry may not."""

_TURN_SECONDS = 10.0  # then a database that hangs keeps the others out no more

logger = logging.getLogger(__name__)


def intervals(settings: Settings) -> dict[str, float]:
    """Seconds between two runs of each sweep; those of the archive only where there is one."""
    every = {
        retries.NAME: settings.due_sweep_seconds,
        stalled.NAME: settings.stall_sweep_seconds,
        retention.NAME: settings.retention_sweep_seconds,
        schedules.NAME: settings.schedule_sweep_seconds,
        outbox.NAME: settings.outbox_sweep_seconds,
        stuck.NAME: settings.stuck_sweep_seconds,
        archiving.NAME: settings.archive_sweep_seconds,
        checkpoints.NAME: settings.checkpoint_seconds,
        parked.NAME: settings.parked_sweep_seconds,
        idle.NAME: settings.sweep_interval_minutes * 60,
    }
    return {name: seconds for name, seconds in every.items() if settings.archive_url or name not in SLOW}


def overdue(last_ok: Mapping[str, int], now: int, every: Mapping[str, float]) -> list[str]:
    """The sweeps whose last success is longer ago than their interval. A note from the future (the clock was set back) counts as none."""
    return [name for name, seconds in every.items() if not 0 <= now - last_ok.get(name, 0) < seconds * 1000]


def run_overdue(engine: Engine) -> list[SweepReport]:
    """One cheap look, and if something is overdue a glance at where, then the sweeps."""
    names = [name for name in overdue(*_last_successes(engine), intervals(engine.settings)) if name not in SLOW]
    if not names:
        return []
    glance = engine.store.glance()
    return [SWEEPS[name](engine, glance=glance) for name in names]


def run_slow(engine: Engine) -> list[SweepReport]:
    """The overdue sweeps among those that ask the archive."""
    if not engine.archive.configured:
        return []
    reports = []
    for name in _slow_and_overdue(engine):
        with engine.store.lock(f"turn:{name}", _TURN_SECONDS) as mine:
            if mine and name in _slow_and_overdue(engine):  # another may have come to its end meanwhile
                reports.append(SWEEPS[name](engine))
    return reports


def _slow_and_overdue(engine: Engine) -> list[str]:
    return [name for name in overdue(*_last_successes(engine), intervals(engine.settings)) if name in SLOW]


def _last_successes(engine: Engine) -> tuple[dict[str, int], int]:
    """The notes of all sweeps and the store's clock in ms, in one round trip: what every worker asks twice a second must be cheap."""
    pipe = engine.store.client().pipeline(transaction=False)
    pipe.hgetall(engine.store.keys.of(0, "sweeps"))
    pipe.time()
    notes, (seconds, micros) = pipe.execute()
    return {name: int(ms) for name, ms in notes.items()}, int(seconds) * 1000 + int(micros) // 1000


def run_sweeper(
    engine: Engine, *, interval: float = 300, stale_after: float = 600, once: bool = False, dry_run: bool = False,
    stop: threading.Event | None = None,
    tell: Callable[[SweepReport], None] = lambda report: None,
) -> list[SweepReport]:
    """Run every sweep each `interval` seconds until `stop` is set; `once` runs them one time and returns their reports."""
    stop = stop or threading.Event()
    engine.store.glance()  # the first one only learns which queues there are
    while True:
        # One round alone has no interval: a long time since the last look is a gap, in which holders may only have been cut off.
        more = {stalled.NAME: {"every": 0 if once else interval}, stuck.NAME: {"stale_after": stale_after}}
        wanted = [name for name in SWEEPS if engine.archive.configured or name not in SLOW]
        reports = [SWEEPS[name](engine, dry_run=dry_run, **more.get(name, {})) for name in wanted]
        for report in reports:
            tell(report)
        if once or stop.wait(interval):
            return reports
