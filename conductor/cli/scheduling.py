"""Commands on schedules: schedules list, pause, resume, drop. What ticks is judged by the store's clock, not by this machine's."""

from __future__ import annotations

import click
from rich.markup import escape

from conductor.cli.finding import Here
from conductor.cli.operating import Verbs, reach
from conductor.cli.render import moment, note, print_json, print_text, short, span, stdout, table
from conductor.operations.schedules import orphans
from conductor.operations.timetable import drop as drop_job
from conductor.operations.timetable import find_schedule, last_ticks, list_schedules, read_job, schedule_json
from conductor.operations.timetable import pause as pause_job
from conductor.operations.timetable import resume as resume_job
from conductor.store.jobs import FIRED, MISSED, SKIPPED, JobRecord

__all__ = ["schedules"]

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
        _show(here, find_schedule(here.engine, name))
        return
    found: list[JobRecord] = here.conductor.schedules()
    lost = orphans(here.engine, found)
    if here.json:
        print_json({"schedules": list_schedules(here.engine)})
    elif found:
        now = here.engine.store.job_clock()
        titles = ("SCHEDULE", "WHEN", "STARTS", "NEXT", "LAST", "FIRED", "MISSED", "SKIPPED")
        stdout().print(table(titles, (_row(one, now, one.name in lost) for one in found)))
    else:
        note("no schedules; declare one with flow.every(…), or make one with conductor.schedule(…)")


def _row(record: JobRecord, now: int, orphaned: bool) -> tuple[str, ...]:
    job = read_job(record)
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
        print_json(schedule_json(record, orphaned))
        return
    job, console = read_job(record), stdout()
    console.print(f"[bold]{escape(record.name)}[/]  {escape(f'{job.cadence}, starts {job.kind} {job.target}') if job else '?'}")
    when = "" if record.paused else f" [dim]{moment(record.next_at)}[/]"
    console.print(f"next {_next(record, here.engine.store.job_clock(), orphaned)}{when}")
    rows = ((moment(one.nominal), f"[{_STYLES[one.word]}]{one.word}[/]", escape(one.id or one.reason)) for one in last_ticks(record))
    console.print(table(("TICK", "STATE", ""), rows) if record.ticks else "it has not ticked yet")


# Moving.


@schedules.verb("pause")
@name_argument
@click.option("--reason", default="requested", show_default=True, help="Shown in the list.")
def pause(here: Here, name: str, reason: str) -> None:
    """Stop a schedule from ticking. What it has started goes on."""
    reach(here)
    _moved(here, name, pause_job(here.engine, name, reason), {"OK": "is paused", "ALREADY": "was paused before"})


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
    _moved(here, name, drop_job(here.engine, name), {"OK": "is dropped"})


def _moved(here: Here, name: str, word: str, says: dict[str, str]) -> None:
    if here.json:
        print_json({"schedule": name, "word": word})
    else:
        print_text(f"schedule {name} {says.get(word, word.lower())}")
