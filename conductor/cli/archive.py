"""Commands on the archive: archive status, sweep. How archived runs are listed and shown is in `reading.py`."""

from __future__ import annotations

from dataclasses import asdict

import click

from conductor.cli import exits
from conductor.cli.finding import Here
from conductor.cli.operating import Verbs
from conductor.cli.render import print_json, print_text, span
from conductor.errors import NoArchive
from conductor.runs.words import counted
from conductor.sweeps.checkpoints import lag_ms

__all__ = ["archive"]

archive = Verbs(
    "archive", short_help="Look at the archive, and move runs to it now.",
    help="Look at the archive of finished and parked runs. Without a verb: status. `runs --archived` lists it, `show` shows a run of it. "
    "Every verb has --json and --traceback.",
    default="status", direct=True,
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
