"""Commands that make operations: call, submit; and what can be called: capabilities.

Exit codes of `call`: 0 completed, 1 failed or cancelled, 5 the time to wait is over, 7 queued for a retry, which is not success.
"""

from __future__ import annotations

import time
from typing import Any

import click
from rich.markup import escape

from conductor.cli import exits
from conductor.cli.doors import Asked, Told
from conductor.cli.finding import Here
from conductor.cli.operating import explain
from conductor.cli.render import SPAN, command, note, print_json, print_text, stdout, table
from conductor.cli.values import read_json

__all__ = ["QUEUED", "call", "capabilities", "submit"]

QUEUED = exits.QUEUED
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
    given = read_json(params, f"parameters of capability {capability}")
    until = time.monotonic() + timeout
    ask = here.door.call(capability, given, session=session, key=key)
    told: Told | None = None
    try:
        told = ask(min(timeout, _QUIET))
        if told["status"] == "timeout" and timeout > _QUIET:
            told = _awaited(here, ask, told["operation_id"], until)
    finally:
        if told is None or told["status"] == "timeout":
            ask.leave()  # its session finds the end in its inbox
    _answered(here, told)


def _awaited(here: Here, ask: Asked, op: str, until: float) -> Told:
    """Wait on, and say where it stands each time that changes."""
    said = f"operation {op} is accepted; waiting for its end"
    if not here.json:
        note(said)
    try:
        while True:
            if not here.json and (line := _standing(here, op)) != said:
                note(said := line)
            left = until - time.monotonic()
            told = ask(max(0.0, min(left, _LOOK_AGAIN)))
            if told["status"] != "timeout" or left <= _LOOK_AGAIN:
                return told
    except KeyboardInterrupt:
        note(f"operation {op} goes on; only the waiting ended: {here.program} ops show {op}")
        raise


def _standing(here: Here, op: str) -> str:
    """Where it stands, without anything that changes by itself, such as a duration."""
    found = here.door.operation(op)
    told = found.get("progress") or {}
    total, said = f" of {told['total']}" if told.get("total") else "", f" {told['note']}" if told.get("note") else ""
    progress = f": {told.get('done', 0)}{total}{said}" if told else ""
    return f"it is running on {found['holder']}{progress}" if found["holder"] else f"it is {found['state']}, on queue {found['queue']}"


def _answered(here: Here, told: Told) -> None:
    """Print the answer, and end with the code it means. What is not the result is for the person, not for the pipe."""
    if here.json:
        print_json(told)
    elif told["status"] == "ok":
        for line in filter(None, (
            told.get("warning"), told.get("registry_auto_recovered") and "what it needs was away and has come back",
        )):
            note(f"note: {line}")
        print_json(told.get("result"))
    else:
        explain(here.door.operation(told["operation_id"]), say=note)
        for line in filter(None, (told.get("retry_hint"), told.get("hint") if told["status"] == "timeout" else None)):
            note(line)
    if told["status"] != "ok":
        raise click.exceptions.Exit({"timeout": exits.TIMED_OUT, "queued": QUEUED}.get(told["status"], exits.FAILED))


@command("submit", "Queue a capability for a worker.")
@click.argument("capability")
@click.argument("params", required=False, metavar="[JSON]")
@_session
@_key
def submit(here: Here, capability: str, params: str | None, session: str, key: str) -> None:
    """Queue a capability for a worker and print the operation's id at once. JSON as for `call`."""
    given = read_json(params, f"parameters of capability {capability}")
    told = here.door.submit(capability, given, session=session, key=key)
    print_json(told) if here.json else print_text(told["operation_id"])


@command("capabilities", "List, search and describe capabilities.")
@click.argument("words", nargs=-1, metavar="[WORDS | NAME]")
def capabilities(here: Here, words: tuple[str, ...]) -> None:
    """List capabilities whose name or documentation has all WORDS; the NAME of one shows its parameters. What they need is probed now."""
    found = here.door.capabilities(" ".join(words))
    if len(words) == 1 and (named := next((one for one in found if one["name"] == words[0]), None)):
        _show(here, named)
    elif here.json:
        print_json({"capabilities": found})
    elif not found:
        note("no capabilities" + (f" with {' '.join(words)}; conductor capabilities lists all" if words else ""))
    else:
        stdout().print(table(("NAME", "RETRY", "EFFECTS", "NEEDS", ""), map(_row, found)))


def _row(found: Told) -> tuple[str, ...]:
    marks = "needs consent · " if found["consent"] else ""
    told = f"[red]disabled: {escape(found['disabled'])}[/]" if found["disabled"] else f"{marks}{escape(found['doc'].partition(chr(10))[0])}"
    return escape(found["name"]), found["retry"], escape(", ".join(found["effects"])), escape(", ".join(found["needs"])), told


def _show(here: Here, told: Told) -> None:
    if here.json:
        print_json(told)
        return
    console = stdout()
    console.print(f"[bold]{escape(told['name'])}[/]  {escape(told['doc'])}")
    if told["disabled"]:
        console.print(f"[red]disabled: {escape(told['disabled'])}[/]")
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
