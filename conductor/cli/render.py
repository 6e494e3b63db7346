"""What people and programs see: tables on a terminal, JSON where it was asked for. Notes and progress go to standard error."""

from __future__ import annotations

import functools
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click
from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from conductor.cli.finding import Here, note
from conductor.runs.words import moment as moment_at

__all__ = [
    "SPAN", "command", "line_of_json", "moment", "note", "print_json", "print_text", "run_argument", "short", "span", "stderr", "stdout",
    "styled", "table",
]

P = ParamSpec("P")
R = TypeVar("R")

_WIDE = 200  # a pipe has no width; cutting what a program reads would be worse than a long line
_SHORT = 18  # milliseconds and the first random bits of an id
_STYLES = {
    "completed": "green", "ok": "green", "running": "cyan", "ready": "blue", "retry_pending": "yellow", "waiting": "blue",
    "paused": "yellow", "compensating": "yellow", "warn": "yellow", "failed": "red", "cancelled": "magenta", "skipped": "dim",
    "pending": "dim", "unknown": "magenta",
}
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}


def stdout() -> Console:
    return Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)


def stderr() -> Console:
    return Console(stderr=True, highlight=False)


def command(
    name: str, short_help: str | None = None, *, context_settings: dict[str, Any] | None = None, direct: bool = False,
) -> Callable[[Callable[Concatenate[Here, P], R]], click.Command]:
    """A command of ours: it gets `Here` first and has `--json`, `--url` and `--traceback`. `short_help` stands in the list of commands,
    uncut; without it the first sentence of the documentation does. What is `direct` works on the store itself and refuses `--url`."""

    def make(function: Callable[Concatenate[Here, P], R]) -> click.Command:
        @click.pass_obj
        @functools.wraps(function)
        def call(here: Here, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if direct:
                here.need_store(f"`{click.get_current_context().command_path}`")
            return function(here, *args, **kwargs)

        short = short_help or _first_sentence(function.__doc__)
        made = click.command(name, short_help=short, context_settings=context_settings)(call)
        made.params += [_flag("json", "Answer in JSON."), _address(direct), _flag("traceback", "Show where an error came from.")]
        return made

    return make


def _first_sentence(text: str | None) -> str:
    """Whole, where click would cut it."""
    paragraph = " ".join((text or "").strip().split("\n\n", 1)[0].split())
    return re.split(r"(?<=\.)\s", paragraph, maxsplit=1)[0]


def _flag(name: str, text: str) -> click.Option:
    def set_flag(ctx: click.Context, option: click.Parameter, value: bool) -> None:
        if value:
            setattr(ctx.obj, name, True)

    return click.Option([f"--{name}"], is_flag=True, expose_value=False, callback=set_flag, help=text)


def _address(direct: bool) -> click.Option:
    """May stand behind the command, as in front of it."""

    def point(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.obj.point_at(value, given=True)

    return click.Option(
        ["--url"], metavar="URL", expose_value=False, callback=point, hidden=direct, help="Ask the service there instead of the store.")


run_argument = click.argument("run", metavar="RUN")


if TYPE_CHECKING:
    _Duration = click.ParamType[float]
else:
    _Duration = click.ParamType  # older releases of click have no type arguments


class _Span(_Duration):
    """A duration such as 90, 90s, 10m, 2h or 7d; in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).strip().lower())
        if not found or (found[2] and found[2] not in _UNITS):
            self.fail(f"{value!r} is no duration; write 90s, 10m, 2h or 7d", param, ctx)
        return float(found[1]) * _UNITS[found[2] or "s"]


SPAN = _Span()


def line_of_json(value: Any) -> str:
    """One line, for what comes bit by bit."""
    return json.dumps(to_jsonable_python(value, fallback=str), ensure_ascii=False)


def print_json(value: Any) -> None:
    click.echo(json.dumps(to_jsonable_python(value, fallback=str), ensure_ascii=False, indent=2))


def print_text(text: str) -> None:
    """Text as it is: no markup is read from what users wrote."""
    stdout().print(text, markup=False, soft_wrap=True)


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A plain table; cells are markup."""
    made = Table(box=None, header_style="bold", pad_edge=False)
    for title in titles:
        made.add_column(title, no_wrap=title in ("RUN", "STATE", "AGE"), overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def styled(word: str, reason: str = "") -> str:
    style = _STYLES.get(word, "default")
    return f"[{style}]{escape(word)}[/]" + (f" [dim]({escape(reason)})[/]" if reason else "")


def short(run_id: str) -> str:
    """The beginning of an id that will do to name the run."""
    return run_id[:_SHORT]


def span(ms: float) -> str:
    """A duration for people."""
    seconds = max(0.0, ms) / 1000
    if seconds < 10:
        return f"{seconds:.3f}s" if seconds < 1 else f"{seconds:.1f}s"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def moment(ms: int) -> str:
    """A time of the store's clock, with its date if it is not today."""
    return moment_at(ms, int(time.time() * 1000)) if ms else "-"
