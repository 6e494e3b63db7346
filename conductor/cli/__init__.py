"""The command line: `conductor …`, `celery-conductor …`, and `celery -A app conductor …`. Exit codes are in `exits.py`.

Celery loads this package whenever `celery` is called, so a command's module is imported only when the command is.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from click.core import ParameterSource

from conductor import __version__
from conductor.cli import exits
from conductor.cli.address import TOKEN, URL
from conductor.cli.finding import Here
from conductor.errors import ConductorError, StoreUnreachable, redact

__all__ = ["group", "main"]

_MODULES = {
    "running": ("dev", "bench"), "demo": ("demo",), "acting": ("start", "cancel", "retry", "fork", "pause", "resume"),
    "answering": ("signal", "advance"),
    "reading": ("runs", "show", "why", "queues", "graph"), "following": ("watch", "events"),
    "keeping": ("sweeper", "purge"), "checking": ("fsck", "check", "doctor"), "calling": ("call", "submit", "capabilities"),
    "operating": ("ops", "resolve"), "sessions": ("inbox", "grant", "revoke"), "scheduling": ("schedules",),
    "archive": ("archive",), "recovering": ("recover",), "gates": ("lanes", "limits"), "serving": ("serve", "tokens"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}
_JSON = "conductor.json"


class _Commands(click.Group):
    """Commands that are imported when they are called, and errors that are one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(name for name, module in _HOME.items() if importlib.util.find_spec(f"{__name__}.{module}"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        found: click.Command = getattr(importlib.import_module(f"{__name__}.{_HOME[cmd_name]}"), cmd_name)
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Wrong usage is found before the options of a command are read, so whether the answer is to be JSON is seen here.
        ctx.meta[_JSON] = "--json" in (args[: args.index("--")] if "--" in args else args)
        with _usage_told(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            if near := difflib.get_close_matches(args[0], self.list_commands(ctx), n=3):
                raise click.UsageError(f"{error.message.rstrip('.')}; did you mean {' or '.join(near)}?", ctx) from None
            raise

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _usage_told(ctx):
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            raise click.exceptions.Exit(exits.INTERRUPTED) from None
        except Exception as error:
            here: Here = ctx.obj if isinstance(ctx.obj, Here) else Here()  # none yet: the command itself was refused
            here.json = here.json or ctx.meta[_JSON]
            if here.traceback:
                traceback.print_exc()
            raise click.exceptions.Exit(_tell(error, here)) from None


@contextmanager
def _usage_told(ctx: click.Context) -> Iterator[None]:
    """Wrong usage, as JSON where that was asked for; else click tells it."""
    try:
        yield
    except click.ClickException as error:
        if not ctx.meta.get(_JSON):
            raise
        _tell_json("usage" if isinstance(error, click.UsageError) else "failed", error.format_message(), error.exit_code)
        raise click.exceptions.Exit(error.exit_code) from None


def _tell(error: Exception, here: Here) -> int:
    """Say in one line what went wrong; the exit code it means."""
    if isinstance(error, ConductorError) and not isinstance(error, StoreUnreachable):
        word, text, code = getattr(error, "refusal", "") or error.code, _with_token(error, here), exits.code_of(error)
    elif isinstance(error, StoreUnreachable) or (not here.url and isinstance(error, _unreachable_kinds())):
        word, text, code = "store_unreachable", str(error) if here.url else _unreachable(error, here), exits.UNREACHABLE
    else:
        text = f"unexpected {type(error).__name__}: {redact(str(error))} (--traceback shows where)"
        word, code = "unexpected", exits.FAILED
    line = " ".join(text.split())
    if here.json:
        _tell_json(word, line, code)
    else:
        click.echo(f"{click.style('error:', fg='red')} {line}", err=True)
    return code


def _unreachable_kinds() -> tuple[type[Exception], ...]:
    from conductor.store.notices import Unreachable

    return Unreachable


def _tell_json(word: str, line: str, code: int) -> None:
    from conductor.cli.render import line_of_json

    click.echo(line_of_json({"error": {"code": word, "message": line, "exit": code}}), err=True)


def _with_token(error: ConductorError, here: Here) -> str:
    """What was said; who was not let in is told where the token is taken from."""
    said = str(error)
    if here.url and error.code in ("unauthenticated", "forbidden"):
        return f"{said.rstrip('.')}; the token is taken from the variable {TOKEN}" + (", which is not set" * (not os.environ.get(TOKEN)))
    return said


def _unreachable(error: Exception, here: Here) -> str:
    """Which server, and what to do about which setting."""
    from conductor.runs.doctor import remedy_for_url

    problem = redact(str(error.problem if isinstance(error, StoreUnreachable) else error)).rstrip(".")
    if here.store is None:
        return f"the store cannot be reached: {problem}; start it, or set conductor_redis_url"
    url, settings = here.store
    return f"the store {url} cannot be reached: {problem}; {remedy_for_url(settings)}"


_EXITS = (
    "Exit codes: 0 done, 1 refused or failed, 2 usage, 3 not found, 4 store or service unreachable, 5 waited too long, 6 something is "
    "wrong, 7 queued for a retry, 130 interrupted."
)


@click.group(name="conductor", cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXITS)
@click.option("-A", "--app", envvar=["CELERY_APP", "APP"], metavar="APP",
              help="The Celery app, as for celery -A (default: workers, if it lies in this directory).")
@click.option("--url", envvar=URL, metavar="URL", help="Ask the service there instead; it needs no app. The token is taken from "
              f"{TOKEN}. May also stand behind the command.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON; may also stand behind the command.")
@click.option("--traceback", is_flag=True, help="Show where an error came from.")
@click.version_option(__version__, prog_name="conductor")
@click.pass_context
def group(ctx: click.Context, app: str | None, url: str | None, as_json: bool, traceback: bool) -> None:
    """Durable workflow runs on Celery and Redis.

    RUN is a run's id, the beginning of one, or `last`. Every command has --json.
    """
    above = ctx.obj  # as a plugin: Celery's own context, which has found the app
    asked = ctx
    if app is None and ctx.parent is not None and isinstance(ctx.parent.params.get("app"), str):
        asked, app = ctx.parent, ctx.parent.params["app"]
    given = f" -A {shlex.quote(app)}" if app and asked.get_parameter_source("app") is ParameterSource.COMMANDLINE else ""
    name = ctx.info_name or "conductor"
    program = f"{name}{given}" if ctx.parent is None else f"celery{given} {name}"
    here = ctx.obj = Here(app, getattr(above, "app", None), program=program, app_given=_typed(ctx))
    here.json, here.traceback = as_json, traceback
    ctx.call_on_close(here.close)
    if url:
        here.point_at(url, given=ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE)


def _typed(ctx: click.Context) -> bool:
    """Whether somebody typed an app, here or to Celery, which always has one; who calls us from Python gives theirs as the context."""
    if ctx.parent is None and getattr(ctx.find_root().obj, "app", None) is not None:
        return True
    return any(one is not None and one.get_parameter_source("app") is ParameterSource.COMMANDLINE for one in (ctx, ctx.parent))


def main() -> None:
    """The scripts `conductor` and `celery-conductor`."""
    program = os.path.basename(sys.argv[0]) if sys.argv else "conductor"
    group(prog_name=program if program in ("conductor", "celery-conductor") else "conductor")
