"""Commands on schedules: schedules list, pause, resume, drop. What ticks is judged by the store's clock, not by this machine's."""

from __future__ import annotations

from typing import Any

import click
from rich.markup import escape

from conductor.cli.finding import Here
from conductor.cli.operating import Verbs, reach
from conductor.cli.render import moment, note, print_json, print_text, short, span, stdout, table
from conductor.declare import every
from conductor.errors import BadInput, ConductorError, UnknownSchedule
from conductor.operations.schedules import Job, job_of, orphans
from conductor.operations.schedules import resume as resume_job
from conductor.store.jobs import FIRED, MISSED, SKIPPED, JobRecord, Tick

__all__ = ["schedules"]

_TICKS = 10
_STYLES = {FIRED: "green", MISSED: "yellow", SKIPPED: "dim"}

name_argument = click.argument("name")
schedules = Verbs(
    "schedules", short_help="List schedules, pause and resume them.",
    help="Look at schedules and move them. Without a verb: list. Every verb has --json and --traceback.",
)


@schedules.verb("list")
@click.argument("name", required=False, metavar="[NAME]")
def listing(here: Here, name: str | None) -> None:
    """List schedules with their next and last tick; with a NAME show the last ticks of one."""
    reach(here)
    if name is not None:
        _show(here, _known(here, name))
        return
    found: list[JobRecord] = here.conductor.schedules()
    lost = orphans(here.engine, found)
    if here.json:
        print_json({"schedules": [_told(_known(here, one.name), one.name in lost) for one in found]})
    elif found:
        now = here.engine.store.job_clock()
        titles = ("SCHEDULE", "WHEN", "STARTS", "NEXT", "LAST", "FIRED", "MISSED", "SKIPPED")
        stdout().print(table(titles, (_row(one, now, one.name in lost) for one in found)))
    else:
        note("no schedules; declare one with flow.every(…), or make one with conductor.schedule(…)")


def _known(here: Here, name: str) -> JobRecord:
    found = here.engine.store.job(name)
    if found is None:
        raise _unknown(here, name)
    return found


def _unknown(here: Here, name: str) -> UnknownSchedule:
    return UnknownSchedule(name=name, known=", ".join(one.name for one in here.conductor.schedules()) or "none")


def _job(record: JobRecord) -> Job | None:
    """What it says; None if a newer release wrote it, which must not hide the others."""
    try:
        return job_of(record)
    except (ValueError, ConductorError):
        return None


def _told(record: JobRecord, orphaned: bool) -> dict[str, Any]:
    job = _job(record)
    what = {"when": str(job.cadence), "kind": job.kind, "target": job.target, "overlap": job.overlap, "source": job.source} if job else {}
    return {
        "name": record.name, **what, "readable": job is not None, "orphaned": orphaned,
        "next_at": None if record.paused else record.next_at,
        "paused_at": record.paused_at or None, "paused_reason": record.paused_reason or None, "last_at": record.last_at or None,
        "last_id": record.last_id or None, "fired": record.fired, "missed": record.missed, "skipped": record.skipped,
        "ticks": [{"at": tick.nominal, "word": tick.word, "id": tick.id or None, "reason": tick.reason or None} for tick in _last(record)],
    }


def _last(record: JobRecord) -> list[Tick]:
    """The latest first."""
    return list(record.ticks[::-1][:_TICKS])


def _row(record: JobRecord, now: int, orphaned: bool) -> tuple[str, ...]:
    job = _job(record)
    when, target = (str(job.cadence), f"{job.kind} {job.target}") if job else ("?", "written by a newer release")
    return (
        escape(record.name), escape(when), escape(target), _next(record, now, orphaned),
        f"{moment(record.last_at)} {short(record.last_id)}" if record.last_id else "-",
        str(record.fired), str(record.missed), str(record.skipped),
    )


def _next(record: JobRecord, now: int, orphaned: bool) -> str:
    if orphaned:
        return "[yellow]orphaned[/] [dim](no worker declares it: drop it)[/]"
    if record.paused:
        return f"[yellow]paused[/] [dim]({escape(record.paused_reason or 'no reason was given')})[/]"
    return f"in {span(record.next_at - now)}" if record.next_at > now else "now"


def _show(here: Here, record: JobRecord) -> None:
    orphaned = record.name in orphans(here.engine, [record])
    if here.json:
        print_json(_told(record, orphaned))
        return
    job, console = _job(record), stdout()
    console.print(f"[bold]{escape(record.name)}[/]  {escape(f'{job.cadence}, starts {job.kind} {job.target}') if job else '?'}")
    when = "" if record.paused else f" [dim]{moment(record.next_at)}[/]"
    console.print(f"next {_next(record, here.engine.store.job_clock(), orphaned)}{when}")
    rows = ((moment(one.nominal), f"[{_STYLES[one.word]}]{one.word}[/]", escape(one.id or one.reason)) for one in _last(record))
    console.print(table(("TICK", "STATE", ""), rows) if record.ticks else "it has not ticked yet")


# Moving.


@schedules.verb("pause")
@name_argument
@click.option("--reason", default="requested", show_default=True, help="Shown in the list.")
def pause(here: Here, name: str, reason: str) -> None:
    """Stop a schedule from ticking. What it has started goes on."""
    reach(here)
    _moved(here, name, here.engine.store.pause_job(name, reason=reason), {"OK": "is paused", "ALREADY": "was paused before"})


@schedules.verb("resume")
@name_argument
def resume(here: Here, name: str) -> None:
    """Let a paused schedule tick again, at its next tick from now; what it passed over is not made up for."""
    reach(here)
    _moved(here, name, resume_job(here.engine, name), {"OK": "ticks again", "ALREADY": "was not paused"})


@schedules.verb("drop")
@name_argument
def drop(here: Here, name: str) -> None:
    """Take a schedule out of the store. What it has started goes on."""
    reach(here)  # which also imports the modules that declare schedules
    if name in every.declared:
        problem = f"it is declared in code, so a worker would write it again; delete it there, or: conductor schedules pause {name}"
        raise BadInput(what=f"drop of schedule {name}", field="name", problem=problem)
    _moved(here, name, here.engine.store.drop_job(name), {"OK": "is dropped"})


def _moved(here: Here, name: str, word: str, says: dict[str, str]) -> None:
    if word == "UNKNOWN":
        raise _unknown(here, name)
    if here.json:
        print_json({"schedule": name, "word": word})
    else:
        print_text(f"schedule {name} {says.get(word, word.lower())}")
