"""Commands that follow a run: watch, events. What they show comes from the store; leaving them does nothing to the run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from conductor.cli import exits
from conductor.cli.finding import Here
from conductor.cli.history import History
from conductor.cli.render import SPAN, command, note, print_text, run_argument, stdout
from conductor.cli.views import run_header, step_table
from conductor.errors import GetTimeout
from conductor.ids import partition_of
from conductor.runs.archived import view_anywhere
from conductor.runs.handle import Handle
from conductor.runs.read import RunView
from conductor.runs.why import why
from conductor.state import RunState
from conductor.store.notices import Follower, Unreachable

__all__ = ["events", "watch"]

_LOOK_AGAIN = 1.0
_NOT_OFTENER = 0.1


@command("events", "Print a run's history, one event a line.")
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@click.option("--after", type=click.IntRange(0), default=0, help="Only events after this number.")
def events(here: Here, run: str, follow: bool, after: int) -> None:
    """Print a run's history, one event a line; with --json one object a line."""
    run_id = here.run_id(run)
    history = History(here.engine.store, run_id)
    for event in Handle(here.engine, run_id).events(follow=follow, after=after):
        click.echo(history.line_of(event, as_json=here.json))


@command("watch")
@run_argument
@click.option("--timeout", type=SPAN, help="Stop watching after this time (exit code 5); the run goes on.")
def watch(here: Here, run: str, timeout: float | None) -> None:
    """Watch a run until it has ended; the exit code tells how."""
    run_id = here.run_id(run)
    until = None if timeout is None else time.monotonic() + timeout
    try:
        state = _watch_live(here, run_id, until) if sys.stdout.isatty() and not here.json else _watch_lines(here, run_id, until)
    except KeyboardInterrupt:
        note("the run goes on; only the watching ended")
        raise
    if state is None:
        raise GetTimeout(run_id=run_id, seconds=timeout, state=view_anywhere(here.engine, run_id).run.state)
    if not here.json:
        print_text(why(view_anywhere(here.engine, run_id), here.spelling).sentence)
    if state is not RunState.COMPLETED:
        raise click.exceptions.Exit(exits.FAILED)


def _watch_live(here: Here, run_id: str, until: float | None) -> RunState | None:
    """The picture is drawn anew when the store says that something moved, and once a second."""
    with Live(console=stdout(), auto_refresh=False) as live:
        for view in _looks(here, run_id, until, lambda: live.update(Text("the store is out of reach; trying again"), refresh=True)):
            live.update(Group(run_header(view, here.program), step_table(view)), refresh=True)
            if view.run.ended:
                return view.run.state
    return None


def _watch_lines(here: Here, run_id: str, until: float | None) -> RunState | None:
    """No terminal: events as they come."""
    after, history = 0, History(here.engine.store, run_id)
    for view in _looks(here, run_id, until, lambda: note("the store is out of reach; trying again")):
        try:
            for event in Handle(here.engine, run_id).events(after=after):
                click.echo(history.line_of(event, as_json=here.json))
                after = event.number
        except Unreachable:
            continue  # the next look waits for the store
        if view.run.ended:
            return view.run.state
    return None


def _looks(here: Here, run_id: str, until: float | None, out_of_reach: Callable[[], None]) -> Iterator[RunView]:
    """The run as it stands, each time something moved, until `until`. Where the notices stand is asked first, so that none is missed."""
    store = here.engine.store
    follower = Follower(store, run_id, partition_of(run_id))
    while True:
        try:
            follower.begin()
            yield view_anywhere(here.engine, run_id)
            left = _LOOK_AGAIN if until is None else min(_LOOK_AGAIN, until - time.monotonic())
            if left <= 0:
                return
            follower.wait(left)
            time.sleep(_NOT_OFTENER)  # a fan-out says much at once; one picture of it is enough
        except Unreachable:
            if until is not None and time.monotonic() >= until:
                raise
            out_of_reach()
            time.sleep(_LOOK_AGAIN)
