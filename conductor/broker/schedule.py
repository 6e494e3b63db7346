"""The beat entries: names and intervals from settings, nothing else. Beat only pokes sweeps; a dead or doubled beat is harmless."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conductor.sweeps.overdue import intervals

if TYPE_CHECKING:
    from conductor.settings import Settings

__all__ = ["beat_entries"]

# The workers' own timers look far more often than this; beat is for the day when none of them does.
_AT_LEAST = {"retries": 5.0, "schedules": 5.0, "outbox": 5.0, "parked": 5.0, "checkpoints": 5.0}
_EXPIRES_SECONDS = 60.0  # what waited longer for a worker would only repeat what a later one does


def beat_entries(settings: Settings) -> dict[str, dict[str, Any]]:
    """One entry per sweep, under our own names, sent to the sweeps' own queue."""
    every = {name: max(seconds, _AT_LEAST.get(name, 0)) for name, seconds in intervals(settings).items()}
    return {
        f"conductor.sweep_{name}": {
            "task": f"conductor.sweep_{name}", "schedule": seconds,
            "options": {"queue": settings.sweeps_queue, "expires": max(_EXPIRES_SECONDS, 2 * seconds), "ignore_result": True},
        }
        for name, seconds in every.items()
    }
