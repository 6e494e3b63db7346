"""Commands that move a run that waits: signal, advance."""

from __future__ import annotations

from typing import Any

import click

from conductor.cli.finding import Here
from conductor.cli.render import command, print_json, print_text
from conductor.cli.values import read_json

__all__ = ["advance", "signal"]

_key = click.option("--key", help="RUN is a workflow, and this the key of its run.")


@command("signal", "Send a signal to a run that waits for it, or will.")
@click.argument("run", metavar="RUN")
@click.argument("name")
@click.argument("value", required=False, metavar="[JSON]")
@_key
@click.option("--id", "signal_id", default="", help="The same id again is no news; without it each call is a signal of its own.")
def signal(here: Here, run: str, name: str, value: str | None, key: str | None, signal_id: str) -> None:
    """Send a signal. JSON is its value: a text, `@file`, or `-` for standard input."""
    given = read_json(value, f"signal {name}")
    told = here.door.signal(run if key is not None else here.run_id(run), name, given, key=key, id=signal_id)
    _answer(here, told, {
        "taken": f"goes on with {told['step']}", "kept": f"keeps signal {name} for the first wait of that name",
        "repeated": f"had signal {told['id'] if signal_id else name} before",
    })


@command("advance", "Answer for an agent that a run waits for.")
@click.argument("run", metavar="RUN")
@click.argument("step")
@click.argument("result", required=False, metavar="[JSON]")
@_key
def advance(here: Here, run: str, step: str, result: str | None, key: str | None) -> None:
    """Answer for an agent step. JSON is its result: a text, `@file`, or `-` for standard input. The first answer wins."""
    given = read_json(result, f"answer for step {step}")
    told = here.door.advance(run if key is not None else here.run_id(run), step, given, key=key)
    _answer(here, told, {"taken": f"goes on with {step}", "repeated": f"had this answer for {step} before"})


def _answer(here: Here, told: dict[str, Any], says: dict[str, str]) -> None:
    print_json(told) if here.json else print_text(f"run {told['run_id']} {says[told['word']]}")
