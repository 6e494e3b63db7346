"""Exit codes, in one place. They are part of the interface: scripts may rely on them.

| code | meaning |
|---|---|
| 0 | done; for `watch` and `--wait`: the run completed |
| 1 | refused or failed; for `watch` and `--wait`: the run failed or was cancelled |
| 2 | wrong usage: an unknown option, an ambiguous id, no app |
| 3 | not found: no such run, step, signal, workflow, operation, capability, message, schedule or token, or it has been purged |
| 4 | the store, or the service, cannot be reached |
| 5 | the time to wait is over; the run goes on |
| 6 | `fsck`, `check`, `doctor`, or the check before `dev`, looked and found something wrong |
| 7 | `call`: it failed for now and is queued for a retry; this is not success |
| 130 | interrupted (Ctrl-C) |
"""

from __future__ import annotations

from conductor.client.errors import ConductorUnreachable, Unrecoverable
from conductor.errors import (
    ConductorError,
    GetTimeout,
    ResultExpired,
    StoreUnreachable,
    UnknownCapability,
    UnknownLane,
    UnknownLimit,
    UnknownMessage,
    UnknownOperation,
    UnknownRun,
    UnknownSchedule,
    UnknownSession,
    UnknownSignal,
    UnknownStep,
    UnknownToken,
    UnknownWorkflow,
)

__all__ = ["FAILED", "FOUND_WRONG", "INTERRUPTED", "NOT_FOUND", "OK", "QUEUED", "TIMED_OUT", "UNREACHABLE", "USAGE", "code_of"]

OK, FAILED, USAGE, NOT_FOUND, UNREACHABLE, TIMED_OUT, FOUND_WRONG, QUEUED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 7, 130

_CODES: dict[type[ConductorError], int] = {
    UnknownRun: NOT_FOUND, UnknownStep: NOT_FOUND, UnknownWorkflow: NOT_FOUND, ResultExpired: NOT_FOUND, StoreUnreachable: UNREACHABLE,
    GetTimeout: TIMED_OUT, UnknownOperation: NOT_FOUND, UnknownCapability: NOT_FOUND, UnknownMessage: NOT_FOUND, UnknownSchedule: NOT_FOUND,
    UnknownSignal: NOT_FOUND, UnknownLane: NOT_FOUND, UnknownLimit: NOT_FOUND, UnknownToken: NOT_FOUND, UnknownSession: NOT_FOUND,
    ConductorUnreachable: UNREACHABLE, Unrecoverable: UNREACHABLE,
}


def code_of(error: ConductorError) -> int:
    """The exit code that an error means."""
    if getattr(error, "refusal", "") == "unknown_route":  # a name with a slash in it, which nothing has
        return NOT_FOUND
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), FAILED)
