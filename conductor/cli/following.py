"""Commands that follow a run: watch, events. Leaving them does nothing to the run."""

from __future__ import annotations

import sys

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from conductor.cli import exits
from conductor.cli.doors import Told
from conductor.cli.finding import Here
from conductor.cli.history import History
from conductor.cli.render import SPAN, command, note, print_text, run_argument, stdout
from conductor.cli.views import run_header, step_table
from conductor.errors import GetTimeout
from conductor.state import RUN, RunState, terminal

__all__ = ["events", "watch"]

_ENDED = terminal(RUN)
_AWAY = "the store is out of reach; trying again"


@command("events", "Print a run's history, one event a line.")
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@click.option("--after", type=click.IntRange(0), default=0, help="Only events after this number.")
def events(here: Here, run: str, follow: bool, after: int) -> None:
    """Print a run's history, one event a line; with --json one object a line."""
    run_id = here.run_id(run)
    history = History(here.door.show(run_id))
    for event in here.door.events(run_id, after=after, follow=follow):
        click.echo(history.line_of(event, as_json=here.json))


@command("watch")
@run_argument
@click.option("--timeout", type=SPAN, help="Stop watching after this time (exit code 5); the run goes on.")
def watch(here: Here, run: str, timeout: float | None) -> None:
    """Watch a run until it has ended; the exit code tells how."""
    run_id = here.run_id(run)
    try:
        told = _watch_live(here, run_id, timeout) if sys.stdout.isatty() and not here.json else _watch_lines(here, run_id, timeout)
    except KeyboardInterrupt:
        note("the run goes on; only the watching ended")
        raise
    if not here.json:
        print_text(told["why"]["sentence"])
    if told["state"] != RunState.COMPLETED:
        raise click.exceptions.Exit(exits.FAILED)


def _watch_live(here: Here, run_id: str, timeout: float | None) -> Told:
    """The picture is drawn anew when something moved, and once a second."""
    told: Told = {"state": "unknown"}
    with Live(console=stdout(), auto_refresh=False) as live:
        for told in here.door.looks(run_id, timeout=timeout, away=lambda: live.update(Text(_AWAY), refresh=True)):
            live.update(Group(run_header(told, here.program), step_table(told)), refresh=True)
            if told["state"] in _ENDED:
                return told
    raise GetTimeout(run_id=run_id, seconds=timeout, state=told["state"])


def _watch_lines(here: Here, run_id: str, timeout: float | None) -> Told:
    """No terminal: events as they come."""
    history = History(here.door.show(run_id))
    for event in here.door.events(run_id, follow=True, timeout=timeout, away=lambda: note(_AWAY)):
        click.echo(history.line_of(event, as_json=here.json))
    return here.door.show(run_id)
