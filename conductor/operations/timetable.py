"""Schedules as people see and move them: the list, one with its last ticks, pause, resume, drop. What ticks is judged in `schedules.py`.

Authority: the stored job. What code declares cannot be dropped while a worker declares it: it would write it again. Pausing and resuming
twice is doing it once, and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from conductor.codec import check_text
from conductor.declare import every
from conductor.errors import BadInput, ConductorError, UnknownSchedule, redact
from conductor.operations.schedules import Job, job_of, orphans
from conductor.operations.schedules import resume as resume_job
from conductor.store.jobs import JobRecord, Tick

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["drop", "find_schedule", "last_ticks", "list_schedules", "pause", "read_job", "resume", "schedule_json", "session_of"]

Sees = Callable[[str], bool]
"""Whether what belongs to a session exists for whoever asks."""
_TICKS = 10
_REASON = 1024


def _everything(_session: str) -> bool:
    return True


def list_schedules(engine: Engine, sees: Sees = _everything) -> list[dict[str, Any]]:
    """All schedules with their next and last ticks, by name. One that is dropped meanwhile is left out."""
    found = engine.store.jobs()
    lost = orphans(engine, found)
    whole = (engine.store.job(one.name) for one in found if sees(session_of(one)))
    return [schedule_json(one, one.name in lost) for one in whole if one is not None]


def find_schedule(engine: Engine, name: str, sees: Sees = _everything) -> JobRecord:
    """One schedule with its last ticks, or UnknownSchedule, which names those the caller sees."""
    found = engine.store.job(name)
    if found is None or not sees(session_of(found)):
        raise _unknown(engine, name, sees)
    return found


def _unknown(engine: Engine, name: str, sees: Sees = _everything) -> UnknownSchedule:
    known = (one.name for one in engine.store.jobs() if sees(session_of(one)))
    return UnknownSchedule(name=name, known=", ".join(known) or "none")


def read_job(record: JobRecord) -> Job | None:
    """What it says; None if a newer release wrote it, which must not hide the others."""
    try:
        return job_of(record)
    except (ValueError, ConductorError):
        return None


def session_of(record: JobRecord) -> str:
    """For whom it starts what it starts; empty if for nobody, or if this release cannot read it."""
    job = read_job(record)
    return str(job.options.get("session") or "") if job else ""


def last_ticks(record: JobRecord) -> list[Tick]:
    """The latest first."""
    return list(record.ticks[::-1][:_TICKS])


def schedule_json(record: JobRecord, orphaned: bool) -> dict[str, Any]:
    job = read_job(record)
    what = {"when": str(job.cadence), "kind": job.kind, "target": job.target, "overlap": job.overlap, "source": job.source} if job else {}
    return {
        "name": record.name, **what, "readable": job is not None, "orphaned": orphaned,
        "next_at": None if record.paused else record.next_at,
        "paused_at": record.paused_at or None, "paused_reason": record.paused_reason or None, "last_at": record.last_at or None,
        "last_id": record.last_id or None, "fired": record.fired, "missed": record.missed, "skipped": record.skipped,
        "ticks": [
            {"at": tick.nominal, "word": tick.word, "id": tick.id or None, "reason": tick.reason or None} for tick in last_ticks(record)
        ],
    }


def pause(engine: Engine, name: str, reason: str = "requested") -> str:
    """Stop it from ticking; what it has started goes on. OK or ALREADY."""
    said = redact(check_text(reason, "reason", _REASON)) if reason else ""
    return _moved(engine, name, engine.store.pause_job(name, reason=said))


def resume(engine: Engine, name: str) -> str:
    """Let it tick again, at its next tick from now; what it passed over is not made up for. OK or ALREADY."""
    return _moved(engine, name, resume_job(engine, name))


def drop(engine: Engine, name: str) -> str:
    """Take it out of the store; what it has started goes on. OK."""
    if name in every.declared:
        problem = f"it is declared in code, so a worker would write it again; delete it there, or: conductor schedules pause {name}"
        raise BadInput(what=f"drop of schedule {name}", field="name", problem=problem)
    return _moved(engine, name, engine.store.drop_job(name))


def _moved(engine: Engine, name: str, word: str) -> str:
    if word == "UNKNOWN":
        raise _unknown(engine, name)
    return word
