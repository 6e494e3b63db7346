"""Schedules: what is due is started once per tick, however many processes look.

Authority: the store's clock and the job's next tick. A sweep first starts what is due under an id derived from job and nominal time, then
moves the job on by compare-and-set on the old tick. Two sweeps start the same id, and so does one that comes after another has died in
between. A process's own memory here only saves work and log lines.

Trust: what an earlier tick started is looked for before it is called missed, because a sweep may have died before it could say so. A
sweep that is held up between reading a job and starting its tick until another has judged a later one may still start its own: it is then
noted as fired, late. No tick is ever started twice.

What code declares is started by processes whose code declares it, and each of them says now and then that it does. So a schedule that is
deleted from the code stops with the last old worker; it is then an orphan, kept with its ticks until a worker declares it again or a
person drops it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from conductor import codec
from conductor.declare import every
from conductor.declare.every import Job
from conductor.declare.operation import PREFIX
from conductor.declare.shapes import Misfit, refuse, shape_of
from conductor.declare.starting import start_options
from conductor.errors import BadInput, ConductorError, DeclarationError, KeyConflict, StoreUnreachable, ValueTooLarge, redact
from conductor.ids import derived_id, home_of_key, home_of_start
from conductor.operations.start import start_operation
from conductor.records import QueueReason
from conductor.runs.start import start
from conductor.state import RUN, RunState, terminal
from conductor.store.jobs import FIRED, MISSED, SKIPPED, JobRecord, Tick

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["Job", "declare_all", "define", "due", "fire_due", "job_of", "orphans", "resume"]

_BATCH, _ROUNDS = 100, 50
_SAY_EVERY, _ORPHANED_MS = 30.0, 120_000
_KEPT = 100  # ticks looked back at: as many as the record keeps
_ENDED = terminal(RUN)
# Told by the start itself, and the same for every process: the tick is left out. Whatever else goes wrong may be this process alone.
_UNFIT = (BadInput, KeyConflict, ValueTooLarge)

_written: dict[tuple[str, str, str], Job] = {}
_declared_at: dict[tuple[str, str, str], float] = {}  # monotonic seconds
_said: dict[tuple[str, str], str] = {}

logger = logging.getLogger(__name__)


# Defining.


def define(engine: Engine, job: Job) -> str:
    """Write a job: CREATED, CHANGED or SAME. A name that code has declared is not for callers, nor the other way round."""
    start_options(job.target, **job.options)  # checked now, not at the first tick
    store, held = engine.store, engine.store.job(job.name)
    if held is not None and (owner := job_of(held).source) != job.source:
        raise DeclarationError(where=f"schedule {job.name}", problem=f"the name belongs to a schedule that was {owner}; take another name")
    word = store.put_job(
        job.name, definition=job.definition(), cadence=job.cadence.to_json(), payload=_payload(job, held),
        following=job.cadence.next_after(store.job_clock()),
    )
    if word != "SAME":
        logger.info("schedule %s %s: %s, starts %s %s", job.name, word.lower(), job.cadence, job.kind, job.target)
    return word


def _payload(job: Job, held: JobRecord | None) -> str:
    """In the format that is written now, which a codec registered after the declaration may have changed. Equal text of that format stays
    as it stands: an encrypting codec spells it anew each time, and every start of a worker would look like a change."""
    text = codec.unpack(job.payload)
    fresh = codec.pack(text)
    if held is None or held.payload.partition(":")[0] != fresh.partition(":")[0]:
        return fresh
    return held.payload if codec.unpack(held.payload) == text else fresh


def declare_all(engine: Engine) -> list[str]:
    """Write what this process has declared, and name what was new or changed. Unchanged it costs one read.

    Each declaration is written once per process, so that in a rolling update the processes started last win and old ones do not write
    theirs back. One that has vanished (a wiped server) is written again.
    """
    jobs, store = list(every.declared.values()), engine.store
    changed = []
    for job, known in zip(jobs, store.known_jobs(job.name for job in jobs), strict=True):
        mark = (store.url, store.namespace, job.name)
        if known and _written.get(mark) == job:
            continue
        try:
            if define(engine, job) != "SAME":
                changed.append(job.name)
        except StoreUnreachable:
            raise
        except (ConductorError, ValueError) as error:
            _say(engine, job.name, "declaring", f"{error}")
        _written[mark] = job
    _say_declared(engine, [job.name for job in jobs])
    return changed


def _say_declared(engine: Engine, names: list[str]) -> None:
    store, now = engine.store, time.monotonic()
    for name in names:
        mark = (store.url, store.namespace, name)
        if now - _declared_at.get(mark, -_SAY_EVERY) >= _SAY_EVERY and store.seen_job(name) == "OK":
            _declared_at[mark] = now


def orphans(engine: Engine, records: Iterable[JobRecord]) -> set[str]:
    """Declared schedules that no worker declares any more, by name. While no worker is there at all, nobody can say so."""
    last_ok = engine.store.last_sweeps()[0].get("schedules", 0)
    return {
        record.name for record in records
        if '"source":"declared"' in record.definition and last_ok - max(record.seen_at, record.created_at) > _ORPHANED_MS
    }


def job_of(record: JobRecord) -> Job:
    """A stored job, read; ValueError or DeclarationError if this release cannot."""
    return Job.read(record.name, record.definition, record.cadence, record.payload)


def resume(engine: Engine, name: str) -> str:
    """Let a paused job tick again, at its next tick from now: OK, ALREADY or UNKNOWN."""
    record = engine.store.job(name)
    if record is None:
        return "UNKNOWN"
    return engine.store.resume_job(name, following=job_of(record).cadence.next_after(engine.store.job_clock()))


# Firing.


def due(engine: Engine, partition: int) -> list[str]:
    """What a sweep would judge now, each with the tick it waits at."""
    store = engine.store
    return [f"{record.name} {_text(record.next_at)} due" for record in store.due_jobs(partition, store.job_clock(), _BATCH)]


def fire_due(engine: Engine, partition: int) -> list[str]:
    """Start what is due in a partition; each cause names a job, a tick and what became of it. No job stops another."""
    store, causes, left = engine.store, list[str](), 0
    for _ in range(_ROUNDS):
        now = store.job_clock()
        page = store.due_jobs(partition, now, _BATCH, skip=left)
        for record in page:
            told = _fire(engine, partition, record, now)
            causes += told or []
            left += told is None  # it stays due: the next page begins after it
        if len(page) < _BATCH:
            break
    return causes


def _fire(engine: Engine, partition: int, record: JobRecord, now: int) -> list[str] | None:
    """Judge the ticks of one job; None if it was left alone for another process or a later sweep."""
    try:
        job = job_of(record)
        # The promised tick counts even if the cadence has changed since; others only from when this cadence holds.
        later = job.cadence.ticks_between(max(record.next_at, record.since), now, _KEPT)
        *earlier, nominal = [record.next_at, *later][-_KEPT:]
        begun, going = _before(engine, partition, job, record, earlier)
        last = _judge(engine, partition, job, going, nominal)
        if last is None:
            return None
        ticks = [Tick(tick, FIRED, begun[tick]) if tick in begun else Tick(tick, MISSED) for tick in earlier] + [last]
        word = engine.store.tick_job(job.name, expected=record.next_at, following=job.cadence.next_after(now), ticks=ticks)
    except StoreUnreachable:
        raise
    except Exception as error:
        kind = type(error).__name__
        _say(engine, record.name, kind, f"it could not be started and is tried again: {kind}: {error}", exc_info=True)
        return None
    _said.pop((engine.store.namespace, record.name), None)
    return _causes(record.name, ticks) if word == "OK" else []


def _before(engine: Engine, partition: int, job: Job, record: JobRecord, earlier: list[int]) -> tuple[dict[int, str], str]:
    """What earlier ticks have started: ids by tick, of a sweep that died before it could say so; and one that still goes on, in words."""
    ids = {tick: _id(engine, partition, job, tick) for tick in earlier}
    names = [*filter(None, [record.last_id]), *ids.values()]
    states = dict(zip(names, engine.store.states_of(names), strict=True))
    going = (f"{name} is {state}" for name, state in states.items() if state and RunState(state) not in _ENDED)
    return {tick: name for tick, name in ids.items() if states[name]}, next(going, "")


def _causes(name: str, ticks: list[Tick]) -> list[str]:
    missed, last = sum(tick.word == MISSED for tick in ticks), ticks[-1]
    told = [f"{name} missed {missed} ticks"] if missed else []
    return [*told, f"{name} {_text(last.nominal)} {last.word} {last.id or last.reason}"]


def _judge(engine: Engine, partition: int, job: Job, going: str, nominal: int) -> Tick | None:
    """Start the tick, or say why not; None if this process does not know what to start. `going` is what an earlier tick started."""
    target: Any = engine.workflows.get(job.target) if job.kind == "run" else engine.capabilities.get(job.target)
    if job.source == "declared" and job.name not in every.declared:
        _say(engine, job.name, "declared", "this process does not declare it; one that does will start it")
        return None
    if target is None:
        what = "workflow" if job.kind == "run" else "capability"
        _say(engine, job.name, "target", f"this process does not know {what} {job.target}; one that does will start it")
        return None
    if job.overlap == "skip" and going:
        return Tick(nominal, SKIPPED, reason=f"overlap: {going}")
    try:
        begin = _start_run if job.kind == "run" else _start_operation
        return Tick(nominal, FIRED, begin(engine, job, target, nominal, _id(engine, partition, job, nominal)))
    except _UNFIT as error:
        logger.warning("schedule %s: the tick of %s was skipped: %s", job.name, _text(nominal), error)
        return Tick(nominal, SKIPPED, reason=str(error)[:500])


def _start_run(engine: Engine, job: Job, flow: Any, nominal: int, run_id: str) -> str:
    shape = shape_of(type(None) if flow.input_type is None else flow.input_type, flow.name)
    _check(shape, job.payload, f"input of workflow {flow.name}")
    options = start_options(flow.name, **job.options_at(_text(nominal)))
    return start(engine, flow, payload=job.payload, options=options, run_id=run_id).run_id


def _start_operation(engine: Engine, job: Job, capability: Any, nominal: int, op_id: str) -> str:
    _check(capability.shape, job.payload, f"parameters of capability {capability.name}")
    options = job.options_at(_text(nominal))
    return start_operation(engine, capability, job.payload, reason=QueueReason.SCHEDULED, op_id=op_id, **options).run_id


def _check(shape: Any, payload: str, what: str) -> None:
    try:
        shape.read(payload)
    except Misfit as misfit:
        raise refuse(misfit, f"stored {what}") from None


def _id(engine: Engine, partition: int, job: Job, nominal: int) -> str:
    """The same for everybody who judges this tick. A run with a key lives where its key does, one in a lane where its lane does."""
    if (flow := engine.workflows.get(job.target)) and job.kind == "run" and flow.lane is not None:
        home = home_of_start(flow.name, "", flow.lane.name, engine.store.partitions)
        return derived_id(f"{job.name}\0{nominal}", nominal, partition if home is None else home)
    key, stored_as = job.options_at(_text(nominal)).get("key"), job.target if job.kind == "run" else f"{PREFIX}{job.target}"
    home = home_of_key(stored_as, key, engine.store.partitions) if key else partition
    return derived_id(f"{job.name}\0{nominal}", nominal, home)


def _text(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _say(engine: Engine, name: str, about: str, problem: str, *, exc_info: bool = False) -> None:
    """Once until it changes or passes: a sweep that comes twice a second must not fill the log."""
    mark = (engine.store.namespace, name)
    if _said.get(mark) != about:
        _said[mark] = about
        logger.warning("schedule %s: %s", name, redact(problem), exc_info=exc_info)
