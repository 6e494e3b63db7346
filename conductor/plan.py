"""Pure decisions: what follows a failed attempt. No clock, no I/O; jitter is passed in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from conductor.records import Backoff, RetryPolicy

__all__ = ["Decision", "Failure", "after_failure", "backoff_ms", "batch_size"]

_ADAPTIVE = (10_000, 20_000, 45_000, 90_000, 120_000)
_BATCH_LIMIT = 10
_BATCH_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that ended in an error: its kind (transient, permanent, unknown), the names of its classes, the step's age."""

    kind: str
    names: tuple[str, ...]
    attempt: int
    age_ms: int
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """Repeat after `delay_ms`, or fail for `reason`."""

    repeat: bool
    delay_ms: int = 0
    reason: str = ""


def after_failure(policy: RetryPolicy | None, failure: Failure, jitter: float) -> Decision:
    """Without a policy transient errors get the defaults; with one, `on` adds errors, `never` takes them out and wins."""
    chosen = policy or RetryPolicy()
    if not _worth_a_repeat(chosen, failure):
        return Decision(False, reason="timed_out" if failure.timed_out else f"{failure.kind}_error")
    if failure.attempt > chosen.max:
        return Decision(False, reason="retries_exhausted")
    delay = backoff_ms(chosen, failure.attempt, jitter)
    if failure.age_ms + delay > chosen.max_age_ms:
        return Decision(False, reason="retry_age_exceeded")
    return Decision(True, delay)


def _worth_a_repeat(policy: RetryPolicy, failure: Failure) -> bool:
    if _any_of(policy.never, failure.names):
        return False
    passing = failure.kind == "transient" or (failure.kind == "unknown" and policy.unknown)
    return passing or failure.timed_out or _any_of(policy.on, failure.names)


def _any_of(listed: Iterable[str], names: tuple[str, ...]) -> bool:
    return any(name in names for name in listed)


def backoff_ms(policy: RetryPolicy, attempt: int, jitter: float) -> int:
    """The pause before the repeat that follows attempt `attempt` (from 1); `jitter` in 0…1 takes up to a tenth off."""
    match policy.backoff:
        case Backoff.NONE:
            return 0
        case Backoff.FIXED_10S:
            base = 10_000
        case Backoff.EXPONENTIAL:
            base = 10_000 * 2 ** min(attempt - 1, 20)
        case Backoff.ADAPTIVE:
            base = _ADAPTIVE[min(attempt, len(_ADAPTIVE)) - 1]
    capped = min(base, policy.cap_ms)
    return int(capped * (1 - 0.1 * jitter))


def batch_size(seconds_per_step: float) -> int:
    """How many steps to claim at once: as many as take some 20 ms, so that none waits long behind its companions."""
    if seconds_per_step <= 0:
        return 1
    return max(1, int(min(_BATCH_LIMIT, _BATCH_SECONDS / seconds_per_step)))
