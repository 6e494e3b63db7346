"""Named places where a test may break the process. Off unless `CONDUCTOR_FAILPOINTS` is set; then they cost one dictionary look-up.

The variable is a list like `commit.sent=kill@3;claim.sent=lost@1`: at the third passing of `commit.sent` the process kills itself with
SIGKILL; at the first passing of `claim.sent` the connection is cut after the server has executed the call, so that the reply is lost.
`CONDUCTOR_FAILPOINTS_LEDGER` names a file into which each fault writes a line before it strikes, so that a test can tell a fault that
landed from one that was never reached; with `@*` in place of a number every passing is only counted there.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field

__all__ = ["CALLS", "NAMES", "ReplyLost", "hit"]

# Every call that changes the store has two places: before it is sent, and after the server has executed it.
CALLS = (
    "start_run", "claim", "commit", "heartbeat", "expire_leases", "fire_due", "repoke", "take_back", "cancel_run", "pause_run",
    "resume_run", "hold", "unhold", "reopen_run", "reopen_items", "purge_run", "stage", "stage_undo", "note", "drop_staged", "register",
    "mend_run", "hasten", "renew", "leave_call", "resolve", "blanket", "deliver", "acknowledge", "told", "grant", "revoke", "use_grant",
    "put_job", "seen_job", "tick_job", "pause_job", "drop_job", "read_parts", "restore_part", "restore_run", "recover_run", "mark_parking",
    "park_run", "lose_stub", "drop_run", "signal", "advance", "expire_idle", "ask", "permit", "take", "keep_permit", "set_limit",
)
NAMES = frozenset(
    {f"{call}.{place}" for call in CALLS for place in ("before", "sent")}
    | {"poke.before", "poke.sent", "body.before", "body.after", "drain.begin", "drain.end", "sweep.begin", "sweep.end", "give_back.before"}
)


class ReplyLost(ConnectionError):
    """the reply of an executed call was lost on purpose by a failpoint"""


@dataclass
class _Armed:
    action: str
    at: int  # 0: every passing is counted, nothing breaks
    passed: int = field(default=0)


def _parse(text: str) -> dict[str, _Armed]:
    armed = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        name, _, what = part.partition("=")
        action, _, at = what.partition("@")
        if name not in NAMES or action not in ("kill", "lost", "count"):
            raise ValueError(f"CONDUCTOR_FAILPOINTS: {part!r} is not <name>=kill|lost|count@<n>; names: {', '.join(sorted(NAMES))}")
        armed[name] = _Armed(action, 0 if at in ("*", "") else int(at))
    return armed


_armed = _parse(os.environ.get("CONDUCTOR_FAILPOINTS", ""))


def hit(name: str) -> None:
    """Pass the place `name`; strikes if it is armed for this passing."""
    if not _armed or (point := _armed.get(name)) is None:
        return
    point.passed += 1
    if point.at and point.passed != point.at:
        return
    _note(name, point)
    if not point.at or point.action == "count":
        return
    if point.action == "lost":
        raise ReplyLost(name)
    os.kill(os.getpid(), signal.SIGKILL)


def _note(name: str, point: _Armed) -> None:
    """Write before striking: a line in the ledger is the proof that the fault landed."""
    ledger = os.environ.get("CONDUCTOR_FAILPOINTS_LEDGER")
    if ledger:
        file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"{name} {point.action} {point.passed} {os.getpid()}\n".encode())
            os.fsync(file)
        finally:
            os.close(file)
