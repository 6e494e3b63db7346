"""Commands on operations that are there: ops list, show, why, retry, cancel, status; resolve.

OP is an operation's id, the beginning of one, `last`, or a step of a run as `RUN:STEP[:ITEM]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
from rich.markup import escape

from conductor import codec
from conductor.cli.acting import actor
from conductor.cli.finding import _NEWEST, Here
from conductor.cli.render import SPAN, command, moment, note, print_json, print_text, short, span, stdout, styled, table
from conductor.cli.values import read_json
from conductor.errors import RunFinished, UnknownOperation
from conductor.operations.acting import refuse_over
from conductor.operations.read import ERROR_KINDS, STATUSES, Operation, OpFilter
from conductor.operations.why import look, why
from conductor.runs.read import RunView
from conductor.store.listing import Ambiguous, find_run_by_prefix
from conductor.store.operations import operations_by_time
from conductor.store.reads import read_now

__all__ = ["Verbs", "explain", "operation_id", "ops", "reach", "resolve"]


_ERROR = 100  # characters of an error in a list; `ops show` tells all of it

op_argument = click.argument("op", metavar="OP")


class Verbs(click.Group):
    """A noun with verbs. Without a verb it does the default one: `conductor ops --json` is `conductor ops list --json`."""

    def __init__(self, *given: Any, default: str = "list", **options: Any) -> None:
        super().__init__(*given, **options)
        self._default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = [self._default, *args]
        return super().parse_args(ctx, args)

    def verb(self, name: str, short_help: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
        """Add a verb; it is a command like any other."""

        def add(function: Callable[..., Any]) -> click.Command:
            made = command(name, short_help)(function)
            self.add_command(made)
            return made

        return add


def reach(here: Here) -> None:
    """A store that is away is told at once; the verbs themselves would be patient, as a worker must be."""
    here.engine.store.client().ping()


def operation_id(here: Here, text: str) -> str:
    """The operation that an id, the beginning of one, `last`, or `RUN:STEP[:ITEM]` names."""
    named, colon, place = text.strip().partition(":")
    if colon:
        return f"{here.run_id(named)}:{place}"
    store = here.engine.store
    found = next(operations_by_time(store), [])[:1] if named == _NEWEST else _beginning(here, named.lower())
    if len(found) > 1:
        raise click.BadParameter(str(Ambiguous(text, found)).replace("run ids", "operation ids"), param_hint="OP")
    if found:
        return found[0]
    if named != _NEWEST and (run_id := find_run_by_prefix(store, named)):
        raise click.BadParameter(f"{run_id} is a run; name a step of it: {short(run_id)}:STEP", param_hint="OP")
    raise UnknownOperation(operation_id=text, namespace=store.namespace)


def _beginning(here: Here, text: str) -> list[str]:
    """Every id is looked at: that of an operation which a step or a schedule has started tells another time than that of its making."""
    if len(text) < 4 or not all(sign in "0123456789abcdef-" for sign in text):
        raise click.BadParameter(f"{text!r} is not the beginning of an operation id; give at least 4 of its characters", param_hint="OP")
    store, found = here.engine.store, set[str]()
    for number in range(store.partitions):
        found |= {op for op, _ in store.client().zscan_iter(store.keys.of(number, "ops"), match=f"{text}*", count=1000)}
    return sorted(found)


def explain(here: Here, found: Operation, view: RunView, say: Callable[[str], None] = print_text) -> None:
    """Say why it stands where it stands, and what would move it."""
    said = why(found, view, here.spelling)
    say(said.sentence)
    if said.command:
        say(f"→ {said.command}")


def _said(here: Here, found: Operation, view: RunView) -> dict[str, Any]:
    said = why(found, view, here.spelling)
    return {"sentence": said.sentence, "command": said.command or None}


ops = Verbs(
    "ops", short_help="List operations, show, explain, retry and cancel them.",
    help="Look at operations and move them. Without a verb: list. Every verb has --json and --traceback.",
)


# Looking.


@ops.verb("list", "List operations, newest first.")
@click.option("--state", type=click.Choice(STATUSES), help="Only operations in this state.")
@click.option("--capability", default="", help="Only operations of this capability.")
@click.option("--error-kind", type=click.Choice(ERROR_KINDS), help="Only those whose last error was of this kind.")
@click.option("--session", default="", help="Only operations of this session.")
@click.option("--older-than", type=SPAN, default=0.0, help="Only operations older than this: 10m, 2h, 7d.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many at most.")
def listing(
    here: Here, state: str | None, capability: str, error_kind: str | None, session: str, older_than: float, limit: int,
) -> None:
    """List operations, newest first, and steps of runs that wait for a retry."""
    wanted = OpFilter(state or "", capability, error_kind or "", session, int(older_than * 1000))
    found: list[Operation] = here.conductor.operations(wanted, limit=limit, patient=True)
    if here.json:
        print_json({"operations": [one.to_json() for one in found]})
        return
    if not found:
        note("no operations")
        return
    now, names = read_now(here.engine.store), _shown([one.operation_id for one in found])
    rows = (_row(one, name, now) for one, name in zip(found, names, strict=True))
    stdout().print(table(("OPERATION", "CAPABILITY", "STATE", "TRY", "NEXT", "AGE", ""), rows))
    if len(found) == limit:
        note(f"there may be more: --limit {2 * limit}")


def _shown(ids: Sequence[str]) -> list[str]:
    """Short ids; whole ones where two would look the same, as operations of one run may."""
    cut = [":".join((short(head), *rest)) for head, *rest in (op.split(":") for op in ids)]
    return [whole if cut.count(brief) > 1 else brief for whole, brief in zip(ids, cut, strict=True)]


def _row(found: Operation, name: str, now: int) -> tuple[str, ...]:
    due = "" if found.retry_at is None else "now" if found.retry_at <= now else f"in {span(found.retry_at - now)}"
    error = found.error or ""
    return (
        escape(name), escape(found.capability), styled(found.status, found.reason), f"{found.attempt}/{1 + found.max_retries}", due,
        span(now - found.created_at), escape(error if len(error) <= _ERROR else f"{error[:_ERROR]}…"),
    )


@ops.verb("show", "Show an operation and its attempts.")
@op_argument
@click.option("--values", is_flag=True, help="Show parameters and result too; they may hold what not everybody should read.")
def show(here: Here, op: str, values: bool) -> None:
    """Show an operation, what it waits for or why it ended, and its attempts."""
    found, view = look(here.engine, operation_id(here, op))
    shown = ("params", "result") if values else ()
    if here.json:
        plain = {name: value for name, value in found.to_json().items() if name in shown or name not in ("params", "result")}
        print_json(plain | _said(here, found, view))
        return
    console = stdout()
    console.print(_header(found))
    explain(here, found, view)
    for name in shown:
        console.print(f"[bold]{name}[/]  {escape(codec.canonical(getattr(found, name)))}", soft_wrap=True)
    if found.retry_history:
        console.print(table(("FAILED", "KIND", "WORKER", ""), (_attempt(one) for one in found.retry_history)))


def _header(found: Operation) -> str:
    more = {"queued as": found.queue_reason, "session": found.originating_session_id, "run": found.run_id or "", "step": found.step or ""}
    beside = "  ".join(f"[dim]{name}[/] {escape(value)}" for name, value in more.items() if value)
    ended = f", ended {moment(found.ended_at)}" if found.ended_at else ""
    first = f"[bold]{escape(found.operation_id)}[/]  {escape(found.capability)}  {styled(found.status, found.reason)}"
    return f"{first}\nmade {moment(found.created_at)}{ended}, attempt {found.attempt} of {1 + found.max_retries}\n{beside}".rstrip()


def _attempt(told: dict[str, Any]) -> tuple[str, ...]:
    return moment(int(told["at"] or 0)), str(told["error_kind"]), escape(str(told["worker"])), escape(f"{told['type']}: {told['error']}")


@ops.verb("why", "Say what it waits for or why it ended, and what moves it.")
@op_argument
def why_(here: Here, op: str) -> None:
    """Say in one sentence what an operation waits for or why it ended, and which command would move it."""
    found, view = look(here.engine, operation_id(here, op))
    if here.json:
        told = {name: getattr(found, name) for name in ("operation_id", "capability", "state", "status", "reason")}
        print_json(told | _said(here, found, view))
    else:
        explain(here, found, view)


@ops.verb("status", "Show the queue at a glance.")
def status(here: Here) -> None:
    """Show the queue at a glance: how many are queued and why, when the next is due, how old the oldest is."""
    told = here.conductor.operation_status()
    if here.json:
        print_json(told)
        return
    rows = [*((f"queued_{reason}", str(count)) for reason, count in told["queued"].items()), ("running", str(told["running"]))]
    stdout().print(table(("STATE", "COUNT"), rows))
    now, due = read_now(here.engine.store), told["next_retry_at"]
    if due is not None:
        age = told["oldest_age_seconds"]
        print_text(f"next {'now' if due <= now else f'in {span(due - now)}'}" + ("" if age is None else f", oldest {span(age * 1000)}"))


# Moving.


@ops.verb("retry", "Replay an operation from its record.")
@op_argument
@click.option("--health-check", is_flag=True, help="Probe what the capability needs first; if it is not there, nothing is replayed.")
def retry(here: Here, op: str, health_check: bool) -> None:
    """Replay an operation from its record. What waits is due now; what failed begins anew with a fresh budget."""
    found, _ = look(here.engine, operation_id(here, op))
    refuse_over(found)
    _moved(here, here.conductor.retry_operation(found.operation_id, health_check=health_check, actor=actor()).to_json())


@ops.verb("cancel", "Cancel an operation.")
@op_argument
@click.option("--reason", default="requested", show_default=True, help="Stands in its log.")
def cancel(here: Here, op: str, reason: str) -> None:
    """Cancel an operation: it does not begin any more, and no result is taken. A step is cancelled with its run."""
    told = here.conductor.cancel_operation(operation_id(here, op), reason=reason, actor=actor())
    if told["word"] == "ENDED":
        ended = f"operation {told['operation_id']} has already ended: {told['state']}"
        raise RunFinished(ended, run_id=told["operation_id"], state=told["state"])
    _moved(here, told)


def _moved(here: Here, told: dict[str, Any]) -> None:
    if here.json:
        print_json(told)
    else:
        explain(here, *look(here.engine, str(told["operation_id"])))


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
    op = f"{here.run_id(target)}:{step}" if step else operation_id(here, target)
    answer = here.conductor.resolve(op, happened=not absent, value=value, actor=actor())
    if not here.json:
        print_text(f"noted: the effect of {op} {'did not happen; it runs again' if absent else 'happened; it is not repeated'}")
    _moved(here, answer.to_json())
