"""Commands on operations that are there: ops list, show, why, retry, cancel, status; resolve.

OP is an operation's id, the beginning of one, `last`, or a step of a run as `RUN:STEP[:ITEM]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
from rich.markup import escape

from conductor import codec
from conductor.cli.doors import Told
from conductor.cli.finding import Here
from conductor.cli.render import SPAN, command, moment, note, print_json, print_text, short, span, stdout, styled, table
from conductor.cli.values import read_json
from conductor.errors import BadInput, RunFinished
from conductor.records import QueueReason
from conductor.state import OpState

__all__ = ["Verbs", "explain", "ops", "resolve"]

_STATUSES = (*(state.value for state in OpState), *(f"queued_{reason}" for reason in QueueReason))
_ERROR_KINDS = ("transient", "permanent", "unknown", "outcome_unknown", "effect_in_doubt")
_ERROR = 100  # characters of an error in a list; `ops show` tells all of it

op_argument = click.argument("op", metavar="OP")


class Verbs(click.Group):
    """A noun with verbs. Without a verb it does the default one: `conductor ops --json` is `conductor ops list --json`. What is `direct`
    works on the store itself."""

    def __init__(self, *given: Any, default: str = "list", direct: bool = False, **options: Any) -> None:
        super().__init__(*given, **options)
        self._default, self._direct = default, direct

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # a shell asks what may stand here: the verbs
            return super().parse_args(ctx, args)
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = [self._default, *args]
        return super().parse_args(ctx, args)

    def verb(self, name: str, short_help: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
        """Add a verb; it is a command like any other."""

        def add(function: Callable[..., Any]) -> click.Command:
            made = command(name, short_help, direct=self._direct)(function)
            self.add_command(made)
            return made

        return add


def explain(told: Told, say: Callable[[str], None] = print_text) -> None:
    """Say why an operation stands where it stands, and what would move it."""
    said = told["why"]
    say(said["sentence"])
    if said["command"]:
        say(f"→ {said['command']}")


ops = Verbs(
    "ops", short_help="List operations, show, explain, retry and cancel them.",
    help="Look at operations and move them. Without a verb: list. Every verb has --json and --traceback.",
)


# Looking.


@ops.verb("list", "List operations, newest first.")
@click.option("--state", type=click.Choice(_STATUSES), help="Only operations in this state.")
@click.option("--capability", default="", help="Only operations of this capability.")
@click.option("--error-kind", type=click.Choice(_ERROR_KINDS), help="Only those whose last error was of this kind.")
@click.option("--session", default="", help="Only operations of this session.")
@click.option("--older-than", type=SPAN, default=0.0, help="Only operations older than this: 10m, 2h, 7d.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many at most.")
def listing(
    here: Here, state: str | None, capability: str, error_kind: str | None, session: str, older_than: float, limit: int,
) -> None:
    """List operations, newest first, and steps of runs that wait for a retry."""
    given = {"state": state, "capability": capability, "error_kind": error_kind, "session": session, "older_than": older_than}
    try:
        told = here.door.operations({name: value for name, value in given.items() if value}, limit=limit)
    except BadInput as refused:
        raise click.BadParameter(refused.problem, param_hint=f"--{refused.field.replace('_', '-')}") from None
    found: list[Told] = told["operations"]
    if here.json:
        print_json({"operations": found})
        return
    if not found:
        note("no operations")
        return
    names = _shown([one["operation_id"] for one in found])
    rows = (_row(one, name, told["now"]) for one, name in zip(found, names, strict=True))
    stdout().print(table(("OPERATION", "CAPABILITY", "STATE", "TRY", "NEXT", "AGE", ""), rows))
    if len(found) == limit:
        note(f"there may be more: --limit {2 * limit}")


def _shown(ids: Sequence[str]) -> list[str]:
    """Short ids; whole ones where two would look the same, as operations of one run may."""
    cut = [":".join((short(head), *rest)) for head, *rest in (op.split(":") for op in ids)]
    return [whole if cut.count(brief) > 1 else brief for whole, brief in zip(ids, cut, strict=True)]


def _row(found: Told, name: str, now: int) -> tuple[str, ...]:
    at = found.get("retry_at")
    due = "" if at is None else "now" if at <= now else f"in {span(at - now)}"
    error = found.get("error") or ""
    return (
        escape(name), escape(found["capability"]), styled(found["status"], found["reason"]),
        f"{found['attempt']}/{1 + found['max_retries']}", due, span(now - found["created_at"]),
        escape(error if len(error) <= _ERROR else f"{error[:_ERROR]}…"),
    )


@ops.verb("show", "Show an operation and its attempts.")
@op_argument
@click.option("--values", is_flag=True, help="Show parameters and result too; they may hold what not everybody should read.")
def show(here: Here, op: str, values: bool) -> None:
    """Show an operation, what it waits for or why it ended, and its attempts."""
    told = here.door.operation(here.operation_id(op), values=values)
    if here.json:
        print_json({name: value for name, value in told.items() if name != "why"} | told["why"])
        return
    console = stdout()
    console.print(_header(told))
    explain(told)
    for name in ("params", "result") if values else ():
        console.print(f"[bold]{name}[/]  {escape(codec.canonical(told.get(name)))}", soft_wrap=True)
    if told["retry_history"]:
        console.print(table(("FAILED", "KIND", "WORKER", ""), map(_attempt, told["retry_history"])))


def _header(found: Told) -> str:
    more = {
        "queued as": found["queue_reason"], "session": found["originating_session_id"], "run": found.get("run_id", ""),
        "step": found.get("step", ""),
    }
    beside = "  ".join(f"[dim]{name}[/] {escape(value)}" for name, value in more.items() if value)
    ended = f", ended {moment(found['ended_at'])}" if found.get("ended_at") else ""
    first = f"[bold]{escape(found['operation_id'])}[/]  {escape(found['capability'])}  {styled(found['status'], found['reason'])}"
    tries = f"attempt {found['attempt']} of {1 + found['max_retries']}"
    return f"{first}\nmade {moment(found['created_at'])}{ended}, {tries}\n{beside}".rstrip()


def _attempt(told: Told) -> tuple[str, ...]:
    return moment(int(told["at"] or 0)), str(told["error_kind"]), escape(str(told["worker"])), escape(f"{told['type']}: {told['error']}")


@ops.verb("why", "Say what it waits for or why it ended, and what moves it.")
@op_argument
def why_(here: Here, op: str) -> None:
    """Say in one sentence what an operation waits for or why it ended, and which command would move it."""
    told = here.door.operation(here.operation_id(op))
    if here.json:
        print_json({name: told[name] for name in ("operation_id", "capability", "state", "status", "reason")} | told["why"])
    else:
        explain(told)


@ops.verb("status", "Show the queue at a glance.")
def status(here: Here) -> None:
    """Show the queue at a glance: how many are queued and why, when the next is due, how old the oldest is."""
    told = here.door.operation_status()
    now = told.pop("now")
    if here.json:
        print_json(told)
        return
    rows = [*((f"queued_{reason}", str(count)) for reason, count in told["queued"].items()), ("running", str(told["running"]))]
    stdout().print(table(("STATE", "COUNT"), rows))
    if (due := told["next_retry_at"]) is not None:
        age = told["oldest_age_seconds"]
        print_text(f"next {'now' if due <= now else f'in {span(due - now)}'}" + ("" if age is None else f", oldest {span(age * 1000)}"))


# Moving.


@ops.verb("retry", "Replay an operation from its record.")
@op_argument
@click.option("--health-check", is_flag=True, help="Probe what the capability needs first; if it is not there, nothing is replayed.")
def retry(here: Here, op: str, health_check: bool) -> None:
    """Replay an operation from its record. What waits is due now; what failed begins anew with a fresh budget."""
    _moved(here, here.door.retry_operation(here.operation_id(op), health_check=health_check))


@ops.verb("cancel", "Cancel an operation.")
@op_argument
@click.option("--reason", default="requested", show_default=True, help="Stands in its log.")
def cancel(here: Here, op: str, reason: str) -> None:
    """Cancel an operation: it does not begin any more, and no result is taken. A step is cancelled with its run."""
    told = here.door.cancel_operation(here.operation_id(op), reason=reason)
    if told["word"] == "ENDED":
        ended = f"operation {told['operation_id']} has already ended: {told['state']}"
        raise RunFinished(ended, run_id=told["operation_id"], state=told["state"])
    _moved(here, told)


def _moved(here: Here, told: Told) -> None:
    if here.json:
        print_json(told)
    else:
        explain(here.door.operation(str(told["operation_id"])))


@command("resolve", "Say whether an effect in doubt happened.")
@click.argument("target", metavar="RUN|OP")
@click.argument("step", required=False, metavar="[STEP[:ITEM]]")
@click.option("--landed", is_flag=False, flag_value="null", metavar="[JSON]", help="It happened, and this is what it gave.")
@click.option("--absent", is_flag=True, help="It did not happen: run it again.")
def resolve(here: Here, target: str, step: str | None, landed: str | None, absent: bool) -> None:
    """Say whether an effect in doubt happened: `resolve RUN STEP` for a step, `resolve OP` for an operation. It then goes on from there."""
    if (landed is not None) == absent:
        raise click.UsageError("say one of: --landed [JSON], --absent")
    value = read_json(landed, "--landed")
    op = f"{here.run_id(target)}:{step}" if step else here.operation_id(target)
    told = here.door.resolve(op, happened=not absent, value=value)
    if not here.json:
        print_text(f"noted: the effect of {op} {'did not happen; it runs again' if absent else 'happened; it is not repeated'}")
    _moved(here, told)
