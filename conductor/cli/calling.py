"""Commands that make operations: call, submit; and what can be called: capabilities.

Exit codes of `call`: 0 completed, 1 failed or cancelled, 5 the time to wait is over, 7 queued for a retry, which is not success.
"""

from __future__ import annotations

import time
from typing import Any

import click
from rich.markup import escape

from conductor.cli import exits
from conductor.cli.finding import Here
from conductor.cli.operating import explain, reach
from conductor.cli.render import SPAN, command, note, print_json, print_text, stdout, table
from conductor.cli.values import read_json
from conductor.declare.capability import Capability
from conductor.operations.answers import Answer, Completed, QueuedForRetry, TimedOut
from conductor.operations.call import wait_for
from conductor.operations.offering import disabled_now, offer
from conductor.operations.why import look

__all__ = ["QUEUED", "call", "capabilities", "submit"]

QUEUED = 7
"""Exit code: it failed for now and is repeated by itself. Neither success nor the end."""

_QUIET, _LOOK_AGAIN = 1.0, 1.0  # seconds without a word, then seconds between two looks
_session = click.option("--session", default="", help="Who asks: its grants count, its inbox is told.")
_key = click.option("--key", default="", help="The same key with the same parameters is the same operation.")


@command("call", "Run a capability on a worker, and print its result.")
@click.argument("capability")
@click.argument("params", required=False, metavar="[JSON]")
@_session
@_key
@click.option("--timeout", type=SPAN, default=60.0, show_default="60s", help="Stop waiting after this time (exit code 5); it goes on.")
def call(here: Here, capability: str, params: str | None, session: str, key: str, timeout: float) -> None:
    """Run a capability on a worker, wait, and print its result. JSON is its parameters: a text, `@file`, or `-` for standard input.

    Exit codes: 0 completed, 1 failed or cancelled, 5 the time to wait is over and the outcome unknown, 7 queued for a retry: it failed
    for now and is repeated by itself, which is not success.
    """
    here.need_code()
    given = read_json(params, f"parameters of capability {capability}")
    reach(here)
    until = time.monotonic() + timeout
    op = here.conductor.begin(capability, given, session=session, key=key)
    answer: Answer | None = None
    try:
        answer = wait_for(here.engine, op, min(timeout, _QUIET))
        if isinstance(answer, TimedOut) and timeout > _QUIET:
            answer = _awaited(here, op, until)
    finally:
        if answer is None or isinstance(answer, TimedOut):
            here.conductor.leave(op)  # its session finds the end in its inbox
    _answered(here, answer)


def _awaited(here: Here, op: str, until: float) -> Answer:
    """Wait on, and say where it stands each time that changes."""
    told = f"operation {op} is accepted; waiting for its end"
    if not here.json:
        note(told)
    try:
        while True:
            if not here.json and (line := _standing(here, op)) != told:
                note(told := line)
            left = until - time.monotonic()
            answer = wait_for(here.engine, op, max(0.0, min(left, _LOOK_AGAIN)))
            if not isinstance(answer, TimedOut) or left <= _LOOK_AGAIN:
                return answer
    except KeyboardInterrupt:
        note(f"operation {op} goes on; only the waiting ended: conductor ops show {op}")
        raise


def _standing(here: Here, op: str) -> str:
    """Where it stands, without anything that changes by itself, such as a duration."""
    found, view = look(here.engine, op)
    told = view.steps[0].progress
    total, said = f" of {told['total']}" if told.get("total") else "", f" {told['note']}" if told.get("note") else ""
    progress = f": {told.get('done', 0)}{total}{said}" if told else ""
    return f"it is running on {found.holder}{progress}" if found.holder else f"it is {found.state}, on queue {view.steps[0].queue}"


def _answered(here: Here, answer: Answer) -> None:
    """Print the answer, and end with the code it means. What is not the result is for the person, not for the pipe."""
    if here.json:
        print_json(answer.to_json())
    elif isinstance(answer, Completed):
        for line in filter(None, (answer.warning, answer.registry_auto_recovered and "what it needs was away and has come back")):
            note(f"note: {line}")
        print_json(answer.result)
    else:
        explain(here, *look(here.engine, answer.operation_id), say=note)
        if isinstance(answer, QueuedForRetry):
            note(answer.retry_hint)
        elif isinstance(answer, TimedOut):
            note(answer.hint)
    if not answer.ok:
        raise click.exceptions.Exit(_code(answer))


def _code(answer: Answer) -> int:
    return {"timeout": exits.TIMED_OUT, "queued": QUEUED}.get(answer.status, exits.FAILED)


@command("submit", "Queue a capability for a worker.")
@click.argument("capability")
@click.argument("params", required=False, metavar="[JSON]")
@_session
@_key
def submit(here: Here, capability: str, params: str | None, session: str, key: str) -> None:
    """Queue a capability for a worker and print the operation's id at once. JSON as for `call`."""
    here.need_code()
    given = read_json(params, f"parameters of capability {capability}")
    reach(here)
    answer = here.conductor.submit(capability, given, session=session, key=key)
    print_json(answer.to_json()) if here.json else print_text(answer.operation_id)


@command("capabilities", "List, search and describe capabilities.")
@click.argument("words", nargs=-1, metavar="[WORDS | NAME]")
def capabilities(here: Here, words: tuple[str, ...]) -> None:
    """List capabilities whose name or documentation has all WORDS; the NAME of one shows its parameters. What they need is probed now."""
    _ = here.engine  # imports the modules that declare them
    found: list[Capability[..., Any]] = here.conductor.capabilities(" ".join(words))
    if len(words) == 1 and (named := next((one for one in found if one.name == words[0]), None)):
        _show(here, named, disabled_now(here.engine, [named]).get(named.name, ""))
        return
    disabled = disabled_now(here.engine, found)
    if here.json:
        print_json({"capabilities": [offer(one, disabled.get(one.name, "")) for one in found]})
    elif not found:
        note("no capabilities" + (f" with {' '.join(words)}; conductor capabilities lists all" if words else ""))
    else:
        stdout().print(table(("NAME", "RETRY", "EFFECTS", "NEEDS", ""), (_row(one, disabled.get(one.name, "")) for one in found)))


def _row(found: Capability[..., Any], reason: str) -> tuple[str, ...]:
    chosen = found.options
    doc = (found.fn.__doc__ or "").strip().partition("\n")[0]
    marks = "needs consent · " if chosen.consent else ""
    told = f"[red]disabled: {escape(reason)}[/]" if reason else f"{marks}{escape(doc)}"
    effects = ", ".join(effect.name for effect in chosen.effects)
    return escape(found.name), chosen.retry, escape(effects), escape(", ".join(chosen.needs)), told


def _show(here: Here, found: Capability[..., Any], reason: str) -> None:
    told = offer(found, reason)
    if here.json:
        print_json(told)
        return
    console = stdout()
    console.print(f"[bold]{escape(found.name)}[/]  {escape(told['doc'])}")
    if reason:
        console.print(f"[red]disabled: {escape(reason)}[/]")
    keep = ("retry", "max_retries", "effects", "needs", "consent", "idempotent", "lease_seconds")
    console.print("  ".join(f"[dim]{name}[/] {escape(_plain(told[name]))}" for name in keep))
    schema, required = told["params"], told["params"].get("required", [])
    rows = [
        (escape(name), escape(_type(part)), "required" if name in required else escape(_plain(part.get("default"))),
         escape(str(part.get("description", ""))))
        for name, part in schema.get("properties", {}).items()
    ]
    console.print(table(("PARAMETER", "TYPE", "DEFAULT", ""), rows) if rows else "it takes no parameters")


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) or "-" if isinstance(value, list) else "-" if value is None else str(value)


def _type(part: dict[str, Any]) -> str:
    """The JSON type of a parameter, as short as it can be said."""
    if several := part.get("anyOf"):
        return " | ".join(map(_type, several))
    return str(part.get("type") or str(part.get("$ref", "any")).rpartition("/")[2])
