"""Commands that look: runs, show, why, queues, graph. None of them changes anything."""

from __future__ import annotations

import time
from typing import Any

import click
from rich.markup import escape

from conductor import codec
from conductor.cli.finding import Here
from conductor.cli.render import SPAN, command, moment, note, print_json, print_text, run_argument, short, span, stdout, styled, table
from conductor.cli.views import run_header, step_table
from conductor.errors import BadInput
from conductor.idleness import Waiter
from conductor.runs.archived import archived_row, view_archived
from conductor.runs.around import read_holds
from conductor.runs.drawing import graph_json
from conductor.runs.drawing import mermaid as drawn
from conductor.runs.finding import Found, Where, find
from conductor.runs.read import RunView, run_result, to_json, view_run, with_queues
from conductor.runs.scopes import holds_json, queues_json
from conductor.runs.why import lifts, scope_in_words
from conductor.runs.why import why as explain
from conductor.state import RunState
from conductor.store.listing import queues as list_queues
from conductor.store.reads import read_input, read_now, read_run
from conductor.store.stubs import Stub, read_stub

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
    now = read_now(here.engine.store)
    given: dict[str, Any] = {
        **texts, "status": list(states), "since": _before(now, since), "until": _before(now, until), "idle": idle,
        "idle_duration_gt": idle_longer_than, "archived": archived,
    }
    asked = {name: value for name, value in given.items() if value not in (None, "", [])}
    try:
        found = find(here.engine, Where.parse(asked), cursor=cursor, limit=limit)
    except BadInput as problem:
        raise click.BadParameter(problem.problem, param_hint=_OPTIONS.get(problem.field, f"--{problem.field.replace('_', '-')}")) from None
    if found.warning:
        note(found.warning)
    if here.json:
        print_json({"runs": found.rows, "cursor": found.cursor})
    elif archived:
        from conductor.cli.archive import print_archived

        print_archived(found)
    else:
        _print_runs(found)


def _before(now: int, seconds: float | None) -> int | None:
    """So long ago, as a time; not before there were computers."""
    return None if seconds is None else max(10**11, now - int(seconds * 1000))


def _print_runs(found: Found) -> None:
    if not found.rows:
        note("no runs" + (f"; look further with --cursor {found.cursor}" if found.cursor else ""))
        return
    stdout().print(table(("RUN", "WORKFLOW", "STATE", "STEPS", "AGE", "TOOK"), (_row(row, found.now) for row in found.rows)))
    if found.cursor:
        note(f"there may be more: --cursor {found.cursor}")


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


@command("show")
@run_argument
@click.option("--values", is_flag=True, help="Show input and result too; they may hold what not everybody should read.")
def show(here: Here, run: str, values: bool) -> None:
    """Show a run and its steps; one that has left the store is shown from the archive."""
    run_id = here.run_id(run)
    if here.engine.archive.configured and read_run(here.engine.store, run_id) is None:
        from conductor.cli.archive import show_archived

        if show_archived(here, run_id, values=values):
            return
    view = view_run(here.engine.store, run_id)
    told = _values(here, view) if values else {}
    if here.json:
        print_json(to_json(view) | told)
        return
    console = stdout()
    console.print(run_header(view, here.program))
    for name, value in told.items():
        console.print(f"[bold]{name}[/]  {escape(codec.canonical(value))}", soft_wrap=True)
    console.print(step_table(view))


def _values(here: Here, view: RunView) -> dict[str, Any]:
    """Input and result as plain JSON, whatever types the workflow gives them."""
    from pydantic_core import to_jsonable_python

    payload = read_input(here.engine.store, view.run.run_id)
    told: dict[str, Any] = {"input": codec.decode(payload) if payload else None}
    if view.run.state is RunState.COMPLETED:
        told["result"] = to_jsonable_python(run_result(here.engine, view.run.run_id, view.run.workflow, view.graph), fallback=str)
    return told


@command("why", "Say what a run waits for or why it ended, and what moves it.")
@run_argument
def why(here: Here, run: str) -> None:
    """Say in one sentence what a run waits for or why it ended, and which command would move it."""
    store = here.engine.store
    run_id = here.run_id(run)
    row = None if read_run(store, run_id) else archived_row(here.engine, run_id, with_snapshot=True)
    stub = read_stub(store, run_id)
    if stub is not None and (row is None or stub.reason):
        _print_stub(here, stub)
        return
    view = with_queues(store, view_run(store, run_id) if row is None else view_archived(here.engine, row))
    found = explain(view, here.spelling)
    if here.json:
        print_json({
            "run_id": view.run.run_id, "workflow": view.run.workflow, "state": view.run.state, "reason": view.run.reason,
            "sentence": found.sentence, "command": found.command or None,
        })
        return
    print_text(found.sentence)
    if found.command:
        print_text(f"→ {found.command}")


def _print_stub(here: Here, stub: Stub) -> None:
    """Of a parked run that cannot be shown whole, or to which something was said."""
    if stub.reason == "archive_missing":
        sentence = f"run {stub.run_id} ({stub.workflow}) was parked, and the archive does not have it: bring its row back, then resume it"
        line = f"{here.program} resume {stub.run_id}"
    else:
        sentence, line = f"run {stub.run_id} ({stub.workflow}) was parked; it is {stub.state}: {stub.reason}", ""
    if here.json:
        print_json({"run_id": stub.run_id, "workflow": stub.workflow, "state": stub.state, "reason": stub.reason, "sentence": sentence,
                    "command": line or None})
        return
    print_text(sentence)
    if line:
        print_text(f"→ {line}")


@command("queues", "Show what stands ready, what runs and what is paused.")
def queues(here: Here) -> None:
    """Show what stands ready and what runs, per queue, and what is paused."""
    store = here.engine.store
    if here.json:
        print_json({"queues": queues_json(here.engine), "holds": holds_json(here.engine)})
        return
    views, held = list_queues(store), read_holds(store)
    rows = [
        (escape(view.queue), str(view.ready), span(view.oldest_ready_ms) if view.ready else "-", str(view.running),
         f"[red]nobody has answered for {span(view.unanswered_ms)}[/]" if view.unanswered_ms > 5_000 else "")
        for view in views
    ]
    stdout().print(table(("QUEUE", "READY", "OLDEST", "RUNNING", ""), rows))
    for scope, hold in held.items():
        print_text(f"paused: {scope_in_words(scope)} ({hold.reason}) since {moment(hold.since)}; {here.program} {lifts(scope)}")


@command("graph")
@click.argument("workflow")
@click.option("--mermaid", is_flag=True, help="As a mermaid diagram, for a README.")
def graph(here: Here, workflow: str, mermaid: bool) -> None:
    """Show the steps of a workflow and what they wait for."""
    began = time.perf_counter()
    found = here.workflow(workflow).graph
    if here.json:
        print_json(graph_json(found))
        return
    if mermaid:
        print_text(drawn(found))
        return
    rows = [
        (str(node.index), escape(node.name), node.kind, escape(", ".join(found.nodes[parent].name for parent in node.parents) or "-"),
         escape(node.queue or "-"), str(node.retry.max) if node.retry else "-")
        for node in found.nodes
    ]
    stdout().print(table(("#", "STEP", "KIND", "AFTER", "QUEUE", "RETRIES"), rows))
    note(f"{workflow}: {len(found.nodes)} nodes, graph {found.hash}, frozen in {span((time.perf_counter() - began) * 1000)}")
