"""Commands on schedules: schedules list, pause, resume, drop. What ticks is judged by the store's clock, not by this machine's."""

from __future__ import annotations

import click
from rich.markup import escape

from conductor.cli.doors import Told
from conductor.cli.finding import Here
from conductor.cli.operating import Verbs
from conductor.cli.render import moment, note, print_json, print_text, short, span, stdout, table

__all__ = ["schedules"]

_STYLES = {"fired": "green", "missed": "yellow", "skipped": "dim"}

name_argument = click.argument("name")
schedules = Verbs(
    "schedules", short_help="List schedules, pause and resume them.",
    help="Look at schedules and move them. Without a verb: list. Every verb has --json and --traceback.",
)


@schedules.verb("list")
@click.argument("name", required=False, metavar="[NAME]")
def listing(here: Here, name: str | None) -> None:
    """List schedules with their next and last tick; with a NAME show the last ticks of one."""
    if name is not None:
        _show(here, here.door.schedule(name))
        return
    told = here.door.schedules()
    found: list[Told] = told["schedules"]
    if here.json:
        print_json({"schedules": found})
    elif found:
        titles = ("SCHEDULE", "WHEN", "STARTS", "NEXT", "LAST", "FIRED", "MISSED", "SKIPPED")
        stdout().print(table(titles, (_row(one, told["now"]) for one in found)))
    else:
        note("no schedules; declare one with flow.every(…), or make one with conductor.schedule(…)")


def _row(one: Told, now: int) -> tuple[str, ...]:
    when, target = (one["when"], f"{one['kind']} {one['target']}") if one["readable"] else ("?", "written by a newer release")
    return (
        escape(one["name"]), escape(when), escape(target), _next(one, now),
        f"{moment(one['last_at'])} {short(one['last_id'])}" if one["last_id"] else "-",
        str(one["fired"]), str(one["missed"]), str(one["skipped"]),
    )


def _next(one: Told, now: int) -> str:
    if one["orphaned"]:
        return "[yellow]orphaned[/] [dim](no worker declares it: drop it)[/]"
    if one["next_at"] is None:
        return f"[yellow]paused[/] [dim]({escape(one['paused_reason'] or 'no reason was given')})[/]"
    return f"in {span(one['next_at'] - now)}" if one["next_at"] > now else "now"


def _show(here: Here, one: Told) -> None:
    if here.json:
        print_json(one)
        return
    console = stdout()
    what = escape(f"{one['when']}, starts {one['kind']} {one['target']}") if one["readable"] else "?"
    console.print(f"[bold]{escape(one['name'])}[/]  {what}")
    when = "" if one["next_at"] is None else f" [dim]{moment(one['next_at'])}[/]"
    console.print(f"next {_next(one, here.door.schedules()['now'])}{when}")
    console.print(table(("TICK", "STATE", ""), map(_tick, one["ticks"])) if one["ticks"] else "it has not ticked yet")


def _tick(tick: Told) -> tuple[str, ...]:
    style = _STYLES.get(tick["word"], "default")
    return moment(tick["at"]), f"[{style}]{tick['word']}[/]", escape(tick["id"] or tick["reason"] or "")


# Moving.


@schedules.verb("pause")
@name_argument
@click.option("--reason", default="requested", show_default=True, help="Shown in the list.")
def pause(here: Here, name: str, reason: str) -> None:
    """Stop a schedule from ticking. What it has started goes on."""
    _moved(here, name, here.door.pause_schedule(name, reason), {"OK": "is paused", "ALREADY": "was paused before"})


@schedules.verb("resume")
@name_argument
def resume(here: Here, name: str) -> None:
    """Let a paused schedule tick again, at its next tick from now; what it passed over is not made up for."""
    _moved(here, name, here.door.resume_schedule(name), {"OK": "ticks again", "ALREADY": "was not paused"})


@schedules.verb("drop")
@name_argument
def drop(here: Here, name: str) -> None:
    """Take a schedule out of the store. What it has started goes on."""
    _moved(here, name, here.door.drop_schedule(name), {"OK": "is dropped"})


def _moved(here: Here, name: str, word: str, says: dict[str, str]) -> None:
    if here.json:
        print_json({"schedule": name, "word": word})
    else:
        print_text(f"schedule {name} {says.get(word, word.lower())}")
