"""Commands on the archive: archive status, sweep; and how archived runs are listed and shown."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
from rich.markup import escape

from conductor import codec
from conductor.archive import ArchivedRun
from conductor.cli import exits
from conductor.cli.finding import Here
from conductor.cli.operating import Verbs
from conductor.cli.render import moment, note, print_json, print_text, short, span, stdout, styled, table
from conductor.cli.views import run_header, step_table
from conductor.errors import NoArchive
from conductor.runs.archived import archived_row, archived_values, view_archived
from conductor.runs.finding import Found
from conductor.runs.read import counted, run_result, to_json
from conductor.state import RunState
from conductor.sweeps.checkpoints import lag_ms

__all__ = ["archive", "print_archived", "show_archived"]

archive = Verbs(
    "archive", short_help="Look at the archive, and move runs to it now.",
    help="Look at the archive of finished and parked runs. Without a verb: status. `runs --archived` lists it, `show` shows a run of it. "
    "Every verb has --json and --traceback.",
    default="status",
)


@archive.verb("status")
def status(here: Here) -> None:
    """Say where the archive is, what it holds and how far checkpoints lag behind. Exit code 6 if something is wrong."""
    if not here.engine.archive.configured:
        raise NoArchive
    found = here.engine.archive.open().examine()
    moments = here.engine.archive.open().moments() if not found.problem else ()
    lag = lag_ms(here.engine) if moments else None
    if here.json:
        print_json({**asdict(found), "rows": dict(found.rows), "checkpoint_lag_ms": lag})
    else:
        print_text(f"{found.url}: " + (f"{found.dialect} {found.server}, schema {found.schema}" if found.reachable else found.problem))
        for kind, count in found.rows:
            print_text(f"  {counted(count, 'run')} {kind}")
        if lag is not None:
            print_text(f"  checkpoints are {span(lag)} behind")
    if found.problem:
        raise click.exceptions.Exit(exits.FOUND_WRONG)


@archive.verb("sweep")
@click.option("--dry-run", is_flag=True, help="Say what would be moved and move nothing.")
def sweep(here: Here, dry_run: bool) -> None:
    """Move to the archive now what is past its retention in the store."""
    from conductor.sweeps.archiving import sweep_archive

    if not here.engine.archive.configured:
        raise NoArchive
    report = sweep_archive(here.engine, dry_run=dry_run)
    if here.json:
        print_json(report.to_json())
        return
    print_text(f"{counted(report.count, 'run')} {'would be moved or deleted' if dry_run else 'moved or deleted'}")
    for cause in report.causes:
        print_text(f"  {cause}")


def print_archived(found: Found) -> None:
    """`runs --archived`: the newest runs of the archive that match."""
    if not found.rows:
        note("no archived runs")
        return
    stdout().print(table(("RUN", "WORKFLOW", "STATE", "WHY", "AGE", "KEPT UNTIL"), (_row(row, found.now) for row in found.rows)))
    if found.cursor:
        note(f"there may be more: --cursor {found.cursor}")


def _row(row: dict[str, Any], now: int) -> tuple[str, ...]:
    why = ", ".join(filter(None, (row["error_kind"], *row["failed_steps"], *(f"waits for {name}" for name in row["waiting_for"]))))
    kept = moment(row["kept_until"]) if row["kept_until"] else row["archived"]
    state, age = styled(row["state"], row["reason"]), span(now - row["created_at"])
    return short(row["run_id"]), escape(row["workflow"]), state, escape(why), age, kept


def show_archived(here: Here, run_id: str, *, values: bool) -> bool:
    """`show` of a run that the store does not have; False if the archive has none either."""
    row = archived_row(here.engine, run_id, with_snapshot=True)
    if row is None:
        return False
    view, told = view_archived(here.engine, row), _values(here, row) if values else {}
    if here.json:
        print_json(to_json(view) | {"archived": str(row.kind), "kept_until": row.delete_after_ms} | told)
        return True
    console = stdout()
    console.print(run_header(view, here.program))
    until = f" until {moment(row.delete_after_ms)}" if row.delete_after_ms else ""
    console.print(f"[dim]in the archive ({row.kind}){escape(until)}[/]")
    for name, value in told.items():
        console.print(f"[bold]{name}[/]  {escape(codec.canonical(value))}", soft_wrap=True)
    console.print(step_table(view))
    return True


def _values(here: Here, row: ArchivedRun) -> dict[str, Any]:
    from pydantic_core import to_jsonable_python

    payload, leaves = archived_values(row)
    told: dict[str, Any] = {"input": codec.decode(payload) if payload else None}
    graph = view_archived(here.engine, row).graph
    if row.state is RunState.COMPLETED and len(leaves) == len(graph.leaves):
        told["result"] = to_jsonable_python(run_result(here.engine, row.run_id, row.workflow, graph, leaves), fallback=str)
    return told
