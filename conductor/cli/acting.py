"""Commands that move runs: start, cancel, retry, fork, pause, resume. Each says what it did, who did it stands in the run's log."""

from __future__ import annotations

import contextlib
import shlex
import threading
from collections.abc import Iterator
from typing import Any

import click

from conductor.cli import exits
from conductor.cli.batching import RATE, batch_options, move_many
from conductor.cli.doors import Told
from conductor.cli.finding import Here
from conductor.cli.render import SPAN, command, note, print_json, print_text, run_argument
from conductor.cli.values import loose_json, read_json
from conductor.declare.options import check_name, check_queue
from conductor.errors import DeclarationError, RunFailed, RunFinished
from conductor.runs.words import lifts, scope_in_words
from conductor.state import RUN, RunState, terminal

__all__ = ["cancel", "fork", "pause", "resume", "retry", "start"]

_ENDED = terminal(RUN)
_TELL_AFTER = 5.0
_maybe_run = click.argument("run", required=False, metavar="[RUN]")
_wait = click.option("--wait", is_flag=True, help="Wait for the end and print the result.")
_timeout = click.option("--timeout", type=SPAN, help="With --wait: stop waiting after this time (exit code 5); the run goes on.")


@command("start")
@click.argument("workflow")
@click.argument("input", required=False, metavar="[JSON]")
@click.option("--key", help="The same key with the same input is the same run.")
@click.option("--session", help="Whom the run belongs to.")
@click.option("--queue", help="The queue of steps that name none.")
@click.option("--priority", type=click.IntRange(0, 9), help="0 is first, 9 is last.")
@click.option("--tag", "tags", multiple=True, help="A tag to find it by; may be repeated.")
@click.option("--lane", help="The lane it runs in, by name.")
@click.option("--countdown", type=SPAN, help="Begin after this time.")
@click.option("--expires", type=SPAN, help="Cancel it if it has not begun by then.")
@click.option("--deadline", type=SPAN, help="Fail it if it has not ended by then.")
@_wait
@_timeout
def start(
    here: Here, workflow: str, input: str | None, key: str | None, session: str | None, queue: str | None, priority: int | None,
    tags: tuple[str, ...], lane: str | None, countdown: float | None, expires: float | None, deadline: float | None, wait: bool,
    timeout: float | None,
) -> None:
    """Start a run. JSON is its input: a text, `@file`, or `-` for standard input."""
    given = {
        "session": session, "queue": queue, "priority": priority, "tags": list(tags) or None, "lane": lane, "countdown": countdown,
        "expires": expires, "deadline": deadline,
    }
    value = read_json(input, f"input of workflow {workflow}")
    told = here.door.start(workflow, value, key=key, options={name: one for name, one in given.items() if one is not None})
    if not told["new"] and not here.json:
        note(f"run {told['run_id']} existed already: it was started with key {key!r} and this input before")
    _answer(here, told["run_id"], told, told["run_id"], wait, timeout)


def _answer(here: Here, run_id: str, told: Told, line: str, wait: bool, timeout: float | None) -> None:
    """Say which run it is; with `wait` also what became of it."""
    if not wait:
        print_json(told) if here.json else print_text(line)
        return
    if not here.json:
        note(f"run {run_id} is accepted; waiting for its end")
    try:
        with _told_what_for(here, run_id):
            result = here.door.wait(run_id, timeout)
    except KeyboardInterrupt:
        note(f"run {run_id} goes on; only the waiting ended")
        raise
    except RunFailed as error:
        note(f"what next: {here.program} why {error.run_id}")
        raise
    print_json(told | {"state": "completed", "result": result} if here.json else result)


@contextlib.contextmanager
def _told_what_for(here: Here, run_id: str) -> Iterator[None]:
    """Whoever waits for long is told once what for: a forgotten worker is the first thing that happens to a newcomer."""

    def tell() -> None:
        with contextlib.suppress(Exception):  # whatever keeps it from being told, the waiting goes on
            told = here.door.why(run_id)
            if told["state"] not in _ENDED:
                note(" → ".join(filter(None, (told["sentence"], told["command"]))))

    timer = threading.Timer(_TELL_AFTER, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@command("cancel", "Cancel a run: no step begins, no result is taken any more.")
@_maybe_run
@batch_options
@click.option("--reason", default="requested", show_default=True, help="Stands in the run's log.")
@click.option("--terminate", is_flag=True, help="Also kill the processes that run its steps now.")
@click.option("--compensate", is_flag=True, help="Undo first what it has done; it ends when that is over.")
def cancel(
    here: Here, run: str | None, where: str | None, yes: bool, rate: float, reason: str, terminate: bool, compensate: bool,
) -> None:
    """Cancel a run, or with --where many: nothing of it begins and no result is taken any more. With --compensate what it has done is
    undone, latest first."""
    if _is_batch(run, where, yes, terminate=terminate, compensate=compensate):
        _many(here, "cancel", where, yes, rate, reason)
        return
    told = here.door.cancel(here.run_id(run or ""), reason=reason, terminate=terminate, compensate=compensate)
    if told["word"] == "ENDED":
        raise RunFinished(run_id=told["run_id"], state=told["state"])
    says = "is being undone; it is cancelled when that is over" if told["state"] == RunState.COMPENSATING else "is cancelled"
    _moved(here, told, {"OK": says, "ALREADY": "was cancelled before", "COMPENSATING": "is being undone already; nothing was changed"})


@command("retry", "Run a failed run again; what completed stays.")
@_maybe_run
@batch_options
@click.option("--reason", default="requested", show_default=True, help="With --where: stands in the record of the batch.")
@_wait
@_timeout
def retry(
    here: Here, run: str | None, where: str | None, yes: bool, rate: float, reason: str, wait: bool, timeout: float | None,
) -> None:
    """Run a failed run again, or with --where many: what completed stays, the rest gets fresh budgets, keys are unchanged."""
    if _is_batch(run, where, yes, wait=wait, timeout=timeout is not None):
        _many(here, "retry", where, yes, rate, reason)
        return
    told = here.door.retry(here.run_id(run or ""))
    generation = here.door.show(told["run_id"])["generation"]
    line = f"run {told['run_id']} goes on in generation {generation}"
    _answer(here, told["run_id"], told | {"generation": generation}, line, wait, timeout)


def _is_batch(run: str | None, where: str | None, yes: bool, **options: bool) -> bool:
    """Whether many runs are meant. One of RUN and --where must be given, and none of the options that only one run takes beside --where."""
    if (run is None) == (where is None):
        raise click.UsageError("name either RUN or --where")
    for name in (name for name, given in options.items() if given and where is not None):
        raise click.UsageError(f"--{name} goes with one run, not with --where")
    if yes and where is None:
        raise click.UsageError("--yes goes with --where; one run is moved at once")
    return where is not None


def _many(here: Here, action: str, where: str | None, yes: bool, rate: float, reason: str) -> None:
    """Options that were given stand in the command that the dry run ends with."""
    given = "" if reason == "requested" else f" --reason {shlex.quote(reason)}"
    given += "" if rate == RATE else f" --rate {rate:g}"
    move_many(here, action, where or "", yes=yes, rate=rate, reason=reason, extra=given)


@command("fork", "Start a new run that keeps what a step stood on.")
@run_argument
@click.option("--from", "from_", required=True, metavar="STEP", help="The first step that runs again; what stands before it is kept.")
@click.option("--set", "changes", multiple=True, metavar="FIELD=JSON", help="Change a field of the input; may be repeated.")
@_wait
@_timeout
def fork(here: Here, run: str, from_: str, changes: tuple[str, ...], wait: bool, timeout: float | None) -> None:
    """Start a new run on today's code that keeps what a step of an old run stood on."""
    told = here.door.fork(here.run_id(run), from_=from_, changes=dict(map(_change, changes)))
    if not here.json:
        note(f"effects of {from_} and what follows it happen again, under new keys")
    _answer(here, told["run_id"], told, told["run_id"], wait, timeout)


def _change(text: str) -> tuple[str, Any]:
    """`field=value`; what is not JSON is taken as text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not FIELD=JSON", param_hint="--set")
    return name, loose_json(value, f"field {name}")


def _scope(run: str | None, all_: bool, where: str | None, named: dict[str, str | None]) -> str:
    """The scope that the options name; empty for a run, or for many. Exactly one of them must be given, and be such a name as could be
    declared."""
    given = [(kind, name) for kind, name in named.items() if name is not None]
    if len(given) + all_ + (run is not None) + (where is not None) != 1:
        raise click.UsageError(f"name one of: RUN, --where, {', '.join(f'--{kind}' for kind in named)}, --all")
    for kind, name in given:
        try:
            checked = check_queue(name, "") if kind == "queue" else check_name(name, "", kind)
        except DeclarationError as wrong:
            raise click.BadParameter(wrong.problem, param_hint=f"--{kind}") from None
        return f"{kind}:{checked}"
    return "all" if all_ else ""


@command("pause", "Stop claims of a run, a workflow, a queue or everything.")
@click.argument("run", required=False, metavar="[RUN]")
@click.option("--workflow", help="All runs of this workflow.")
@click.option("--queue", help="Everything in this queue.")
@click.option("--capability", help="Every step and operation of this capability.")
@click.option("--all", "all_", is_flag=True, help="Everything.")
@batch_options
@click.option("--reason", default="requested", show_default=True, help="Shown by `why` and in the run's log.")
def pause(
    here: Here, run: str | None, workflow: str | None, queue: str | None, capability: str | None, all_: bool, where: str | None, yes: bool,
    rate: float, reason: str,
) -> None:
    """Stop claims of a run, a workflow, a queue, a capability or everything; what runs may end, starts are still accepted. With --where
    many runs are paused one by one; what starts later is not."""
    if scope := _scope(run, all_, where, {"workflow": workflow, "queue": queue, "capability": capability}):
        _pause_scope(here, scope, reason)
        return
    if _is_batch(run, where, yes):
        _many(here, "pause", where, yes, rate, reason)
        return
    told = here.door.pause(here.run_id(run or ""), reason=reason)
    if told["word"] == "COMPENSATING":
        note(f"a run that is being undone cannot be paused; `{here.program} why` says how far it is")
    _moved(here, told, {"OK": "is paused", "ALREADY": "was paused before"})


def _pause_scope(here: Here, scope: str, reason: str) -> None:
    """Pausing again keeps the first reason, and completes a pause that was cut off between two partitions."""
    told = here.door.hold(scope, reason)
    if told["warning"]:
        note(f"warning: {told['warning']}")
    says = "paused" if told["word"] == "OK" else f"was paused before ({told['reason'] or 'no reason was given'})"
    _scope_moved(here, scope, told["word"], f"{says}; to lift it: {here.program} {lifts(scope)}")


@command("resume", "Let go on what was paused.")
@click.argument("run", required=False, metavar="[RUN]")
@click.option("--workflow", help="All runs of this workflow.")
@click.option("--queue", help="Everything in this queue.")
@click.option("--capability", help="Every step and operation of this capability.")
@click.option("--all", "all_", is_flag=True, help="What `pause --all` stopped.")
@batch_options
@click.option("--reason", default="requested", show_default=True, help="With --where: stands in the record of the batch.")
def resume(
    here: Here, run: str | None, workflow: str | None, queue: str | None, capability: str | None, all_: bool, where: str | None, yes: bool,
    rate: float, reason: str,
) -> None:
    """Let go on what was paused. Where a failed step paused the run, failed steps get fresh budgets. With --where many runs go on."""
    if scope := _scope(run, all_, where, {"workflow": workflow, "queue": queue, "capability": capability}):
        word = here.door.lift(scope)["word"]
        _scope_moved(here, scope, word, "resumed" if word == "OK" else "was not paused")
        return
    if _is_batch(run, where, yes):
        _many(here, "resume", where, yes, rate, reason)
        return
    told = here.door.resume(here.run_id(run or ""))
    holds = here.door.show(told["run_id"])["holds"]
    _moved(here, told | {"held": list(holds)}, {"OK": "goes on", "NOT_PAUSED": f"was not paused; it is {told['state']}"})
    for scope, why_held in holds.items():
        said = f"{scope_in_words(scope)} is paused ({why_held or 'no reason was given'}) and holds it"
        note(f"{said}; to lift that: {here.program} {lifts(scope)}")


def _moved(here: Here, told: Told, says: dict[str, str]) -> None:
    """An answer that changed something, or found it already so, is 0; anything else is 1."""
    if here.json:
        print_json(told)
    else:
        print_text(f"run {told['run_id']} {says.get(told['word'], told['word'].lower())}")
    if told["word"] not in says:
        raise click.exceptions.Exit(exits.FAILED)


def _scope_moved(here: Here, scope: str, word: str, says: str) -> None:
    if here.json:
        print_json({"scope": scope, "word": word})
    else:
        print_text(f"{scope_in_words(scope)}: {says}")
