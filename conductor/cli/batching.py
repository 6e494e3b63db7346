"""`--where` of retry, cancel, pause and resume: a dry run, then the same with `--yes`, with its progress on the screen.

Directly it is done in this process, and taken up by workers if that is killed; over HTTP a worker does it. Stopped by Ctrl-C it is
cancelled, because whoever presses that wants it to stop.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from conductor.cli import exits
from conductor.cli.doors import Told
from conductor.cli.finding import Here
from conductor.cli.render import note, print_json, print_text, short, span, stderr, stdout, styled, table
from conductor.errors import BadInput
from conductor.runs.words import counted

__all__ = ["RATE", "batch_options", "move_many"]

RATE = 50.0
"""Runs a second."""

F = TypeVar("F", bound=Callable[..., Any])

_DONE = {"retry": "retried", "cancel": "cancelled", "pause": "paused", "resume": "resumed"}
_LOOK_AGAIN = 0.3


def batch_options(function: F) -> F:
    """What turns a command on one run into one on many."""
    for option in reversed((
        click.option("--where", metavar="FILTERS", help="All runs of these filters: 'workflow=order status=failed since=2h'."),
        click.option("--yes", is_flag=True, help="With --where: do it. Without it, say what would be done and do nothing."),
        click.option("--rate", type=click.FloatRange(0.1, 10_000), default=RATE, show_default=True, help="With --where: runs a second."),
    )):
        function = option(function)
    return function


def move_many(here: Here, action: str, text: str, *, yes: bool, rate: float, reason: str = "", extra: str = "") -> None:
    """A dry run, or with `yes` the batch. `extra` are options that the command to go on must repeat."""
    where = _where(text, here.door.now())
    found = _told_by_option(lambda: here.door.preview(action, where))
    if not yes:
        _print_preview(here, action, text, where, found, f"{here.program} {action} --where {shlex.quote(text)}{extra} --yes")
        return
    if not found["count"] and not found["more"]:
        print_json(_nothing(action, where)) if here.json else print_text("no run matches; nothing was done")
        return
    _print_end(here, action, _done(here, action, where, reason, rate, found))


def _where(text: str, now: int) -> Told:
    """`name=value name='value with spaces'`. A name that stands twice is refused: which one counted would be a guess."""
    given: dict[str, str] = {}
    try:
        words = shlex.split(text)
    except ValueError as problem:
        raise click.BadParameter(f"{text!r}: {problem}", param_hint="--where") from None
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{word!r} is not NAME=VALUE", param_hint="--where")
        if name in given:
            raise click.BadParameter(f"{name} stands twice", param_hint="--where")
        given[name] = value
    from conductor.runs.filters import Where  # which loads what lists runs; no other command on runs needs that

    return _told_by_option(lambda: Where.parse(given, now=now).to_json())


T = TypeVar("T")


def _told_by_option(read: Callable[[], T]) -> T:
    try:
        return read()
    except BadInput as refused:
        raise click.BadParameter(f"{refused.field}: {refused.problem}", param_hint="--where") from None


def _nothing(action: str, where: Told) -> Told:
    return {
        "batch_id": None, "state": "completed", "action": action, "where": where, "done": 0, "changed": 0, "unchanged": 0,
        "failed": 0, "total": 0, "errors": [],
    }


def _print_preview(here: Here, action: str, text: str, where: Told, found: Told, command: str) -> None:
    if here.json:
        print_json({
            "dry_run": True, "action": action, "where": where, "count": found["count"], "more": found["more"],
            "examples": found["runs"], "command": command if found["count"] else None,
        })
        return
    if not found["count"]:
        print_text(f"no run matches {text!r}" + ("; many were looked at, and there are more" if found["more"] else ""))
        return
    print_text(f"{'at least ' if found['more'] else ''}{counted(found['count'], 'run')} would be {_DONE[action]}; nothing was done")
    rows = (
        (short(run["run_id"]), escape(run["workflow"]), styled(run["state"], run["reason"]), span(found["now"] - run["created_at"]))
        for run in found["runs"]
    )
    stdout().print(table(("RUN", "WORKFLOW", "STATE", "AGE"), rows))
    print_text(f"→ {command}")


def _done(here: Here, action: str, where: Told, reason: str, rate: float, found: Told) -> Told:
    """Have it done, and look on. Where workers do it, or must go on with it, they are followed."""
    batch_id = ""
    with _bar(here, None if found["more"] else found["count"]) as show:

        def heard(one: str, told: Told) -> None:
            nonlocal batch_id
            if not batch_id and not here.json:
                note(f"batch {one}; if this process ends, workers go on with it")
            batch_id = one
            show(told)

        try:
            batch_id = here.door.move_many(action, where, reason=reason, rate=rate, heard=heard)
            while (told := here.door.batch(batch_id))["state"] in ("running", "queued"):
                show(told)
                time.sleep(_LOOK_AGAIN)
        except KeyboardInterrupt:
            _stop(here, batch_id)
            raise
    return told


def _stop(here: Here, batch_id: str) -> None:
    if not batch_id:
        return
    here.door.cancel_operation(batch_id, reason="interrupted")
    told = here.door.batch(batch_id)
    note(f"batch {batch_id} is stopped after {counted(told['done'], 'run')}; the same command goes on with the others")


@contextlib.contextmanager
def _bar(here: Here, total: int | None) -> Iterator[Callable[[Told], None]]:
    """A bar on standard error, where somebody looks at it."""
    console = stderr()
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[said]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=here.json or not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=total, said="")

        def show(told: Told) -> None:
            said = f"{told['unchanged']} unchanged, {told['failed']} failed" if told["unchanged"] or told["failed"] else ""
            progress.update(task, completed=told["done"], total=told["total"], said=said)

        yield show


def _print_end(here: Here, action: str, told: Told) -> None:
    if here.json:
        print_json(told)
    else:
        words = {"changed": _DONE[action], "unchanged": "had moved on", "failed": "could not be moved"}
        parts = [f"{told[name]} {said}" for name, said in words.items() if told[name] or name == "changed"]
        ended = "" if told["state"] == "completed" else f"; the batch is {told['state']}" + (f": {told['error']}" if told["error"] else "")
        print_text(f"{counted(told['done'], 'run')}: {', '.join(parts)}{ended}")
        for error in told["errors"]:
            note(f"{error['run_id']}: {error['message']}")
    if told["failed"] or told["state"] != "completed":
        raise click.exceptions.Exit(exits.FAILED)
