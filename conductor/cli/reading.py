"""Commands that look: runs, show, why, queues, graph. None of them changes anything."""

from __future__ import annotations

from typing import Any

import click
from rich.markup import escape

from conductor import codec
from conductor.cli.doors import Told
from conductor.cli.finding import Here
from conductor.cli.render import SPAN, command, moment, note, print_json, print_text, run_argument, short, span, stdout, styled, table
from conductor.cli.views import run_header, step_table
from conductor.errors import BadInput
from conductor.idleness import Waiter
from conductor.runs.drawing import flowchart
from conductor.runs.words import lifts, scope_in_words
from conductor.state import RunState

__all__ = ["graph", "queues", "runs", "show", "why"]

_STATES = [state.value for state in RunState]
_OPTIONS = {"idle_duration_gt": "--idle-longer-than", "status": "--state"}


@command("runs")
@click.option("--state", "states", multiple=True, type=click.Choice(_STATES), help="Only runs in this state; may be repeated.")
@click.option("--workflow", default="", help="Only runs of this workflow.")
@click.option("--session", default="", help="Only runs of this session.")
@click.option("--key", default="", help="Only the runs of this idempotency key.")
@click.option("--tag", default="", help="Only runs with this tag.")
@click.option("--step", default="", help="Only runs that stand at this step, or failed at it.")
@click.option("--error-kind", default="", metavar="KIND", help="Only runs that met such an error: transient, permanent, …, or its class.")
@click.option("--version", default="", metavar="HASH", help="Only runs of this graph; the beginning of its hash will do.")
@click.option("--lane", default="", help="Only runs of this lane.")
@click.option("--since", type=SPAN, help="Only runs younger than this: 10m, 2h, 7d.")
@click.option("--until", type=SPAN, help="Only runs older than this.")
@click.option("--idle/--not-idle", default=None, help="Only runs that wait, or only the others.")
@click.option("--idle-longer-than", type=SPAN, help="Only runs that have waited for longer than this.")
@click.option("--waiting-for", default="", metavar="NAME", help="Only runs that wait for this signal, or in the step of this name.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many at most.")
@click.option("--cursor", default="", help="Go on where the last list ended.")
@click.option("--archived", is_flag=True, help="The runs of the archive instead of those of the store.")
def runs(
    here: Here, /, states: tuple[str, ...], since: float | None, until: float | None, idle: bool | None, idle_longer_than: float | None,
    limit: int, cursor: str, archived: bool, **texts: str,
) -> None:
    """List runs, newest first."""
    now = here.door.now() if since is not None or until is not None else 0
    given: dict[str, Any] = {
        **texts, "status": list(states), "since": _before(now, since), "until": _before(now, until), "idle": idle,
        "idle_duration_gt": idle_longer_than, "archived": archived or None,
    }
    asked = {name: value for name, value in given.items() if value not in (None, "", [])}
    try:
        found = here.door.runs(asked, cursor=cursor, limit=limit)
    except BadInput as problem:
        raise click.BadParameter(problem.problem, param_hint=_OPTIONS.get(problem.field, f"--{problem.field.replace('_', '-')}")) from None
    if found["warning"]:
        note(found["warning"])
    if here.json:
        print_json({"runs": found["runs"], "cursor": found["cursor"]})
    elif archived:
        _print_archived(found)
    else:
        _print_runs(found)


def _before(now: int, seconds: float | None) -> int | None:
    """So long ago, as a time; not before there were computers."""
    return None if seconds is None else max(10**11, now - int(seconds * 1000))


def _print_runs(found: Told) -> None:
    if not found["runs"]:
        note("no runs" + (f"; look further with --cursor {found['cursor']}" if found["cursor"] else ""))
        return
    stdout().print(table(("RUN", "WORKFLOW", "STATE", "STEPS", "AGE", "TOOK"), (_row(row, found["now"]) for row in found["runs"])))
    if found["cursor"]:
        note(f"there may be more: --cursor {found['cursor']}")


def _row(row: dict[str, Any], now: int) -> tuple[str, ...]:
    # What a cancel left undone is neither left to do nor running.
    words = ("failed",) if row["ended_at"] else ("left", "running", "failed")
    parts = [f"{count} {word}" for word in words if (count := row["running" if word == "running" else f"steps_{word}"])]
    if row["starts_at"]:
        parts.append(f"starts at {moment(row['starts_at'])}")
    if waiters := [str(Waiter(**one)) for one in row["active_waiters"]]:
        more = f" and {len(waiters) - 2} more" if len(waiters) > 2 else ""
        since = f" for {span(row['idle_ms'])}" if row["idle_ms"] is not None else ""
        parts.append(escape(f"waits for {', '.join(waiters[:2])}{more}{since}"))
    parts += [f"[yellow]held: {escape(scope_in_words(scope))}[/]" for scope in row["held"]]
    state, took = styled(row["state"], row["reason"]), "-" if row["starts_at"] else span(row["duration_ms"])
    return short(row["run_id"]), escape(row["workflow"]), state, ", ".join(parts), span(now - row["created_at"]), took


def _print_archived(found: Told) -> None:
    """`--archived`: the newest runs of the archive that match."""
    if not found["runs"]:
        note("no archived runs")
        return
    rows = (_archived_row(row, found["now"]) for row in found["runs"])
    stdout().print(table(("RUN", "WORKFLOW", "STATE", "WHY", "AGE", "KEPT UNTIL"), rows))
    if found["cursor"]:
        note(f"there may be more: --cursor {found['cursor']}")


def _archived_row(row: dict[str, Any], now: int) -> tuple[str, ...]:
    why = ", ".join(filter(None, (row["error_kind"], *row["failed_steps"], *(f"waits for {name}" for name in row["waiting_for"]))))
    kept = moment(row["kept_until"]) if row["kept_until"] else row["archived"]
    state, age = styled(row["state"], row["reason"]), span(now - row["created_at"])
    return short(row["run_id"]), escape(row["workflow"]), state, escape(why), age, kept


@command("show")
@run_argument
@click.option("--values", is_flag=True, help="Show input and result too; they may hold what not everybody should read.")
def show(here: Here, run: str, values: bool) -> None:
    """Show a run and its steps; one that has left the store is shown from the archive."""
    told = here.door.show(here.run_id(run), values=values)
    if here.json:
        print_json(told)
        return
    console = stdout()
    console.print(run_header(told, here.program))
    for name in ("input", "result"):
        if name in told:
            console.print(f"[bold]{name}[/]  {escape(codec.canonical(told[name]))}", soft_wrap=True)
    if "values_error" in told:
        note(f"its values cannot be read: {told['values_error']}")
    console.print(step_table(told))


@command("why", "Say what a run waits for or why it ended, and what moves it.")
@run_argument
def why(here: Here, run: str) -> None:
    """Say in one sentence what a run waits for or why it ended, and which command would move it."""
    told = here.door.why(here.run_id(run))
    if here.json:
        print_json(told)
        return
    print_text(told["sentence"])
    if told["command"]:
        print_text(f"→ {told['command']}")


@command("queues", "Show what stands ready, what runs and what is paused.")
def queues(here: Here) -> None:
    """Show what stands ready and what runs, per queue, and what is paused."""
    told = here.door.queues()
    if here.json:
        print_json(told)
        return
    rows = [
        (escape(one["queue"]), str(one["ready"]), span(one["oldest_ready_ms"]) if one["ready"] else "-", str(one["running"]),
         f"[red]nobody has answered for {span(one['unanswered_ms'])}[/]" if one["unanswered_ms"] > 5_000 else "")
        for one in told["queues"]
    ]
    stdout().print(table(("QUEUE", "READY", "OLDEST", "RUNNING", ""), rows))
    for scope, hold in told["holds"].items():
        print_text(f"paused: {scope_in_words(scope)} ({hold['reason']}) since {moment(hold['since'])}; {here.program} {lifts(scope)}")


@command("graph")
@click.argument("workflow")
@click.option("--mermaid", is_flag=True, help="As a mermaid diagram, for a README.")
def graph(here: Here, workflow: str, mermaid: bool) -> None:
    """Show the steps of a workflow and what they wait for."""
    told = here.door.graph(workflow)
    if here.json:
        print_json(told)
        return
    if mermaid:
        print_text(flowchart(told))
        return
    rows = [
        (str(node["index"]), escape(node["name"]), node["kind"], escape(", ".join(node["after"]) or "-"), escape(node["queue"] or "-"),
         "-" if node["retries"] is None else str(node["retries"]))
        for node in told["nodes"]
    ]
    stdout().print(table(("#", "STEP", "KIND", "AFTER", "QUEUE", "RETRIES"), rows))
    note(f"{workflow}: {len(told['nodes'])} nodes, graph {told['hash']}")
