"""The command recover: bring the store in order after a restart, a loss, or an old backup."""

from __future__ import annotations

import click

from conductor.cli import exits
from conductor.cli.finding import Here
from conductor.cli.render import command, moment, print_json, print_text
from conductor.runs.recover import recover as bring_back
from conductor.runs.words import counted

__all__ = ["recover"]


@command("recover", "Bring the store in order after a restart, a loss or an old backup.", direct=True)
@click.option("--dry-run", is_flag=True, help="Say what would be done and do nothing.")
@click.option("--restored", is_flag=True, help="The store was set back to an old backup: where the archive knows more, it is right.")
def recover(here: Here, dry_run: bool, restored: bool) -> None:
    """Rebuild the indexes of the store from its records, beside live workers, and bring back what a wiped store has lost.

    Runs come back as their last checkpoint in the archive saw them; what they did after it is done again, effects verified first.
    Exit code 6 if a run could not be recovered.
    """
    told = bring_back(here.engine, dry_run=dry_run, restored=restored)
    if here.json:
        print_json(told.to_json())
    else:
        if told.wiped:
            print_text("the store was wiped: runs come back from the archive")
        would = "would be " if dry_run else ""
        for word in ("recovered", "restored", "expired", "finished"):
            print_text(f"{counted(getattr(told, word), 'run')} {would}{word}")
        print_text(f"{counted(told.skipped, 'run')} skipped, consent kept for {told.consent_kept}, epoch {told.epoch}")
        for partition, at in told.moments.items() if told.restored else ():
            print_text(f"  partition {partition:02x}: as of {moment(at)}")
        for error in told.errors:
            print_text(f"  error: {error}")
    if told.errors:
        raise click.exceptions.Exit(exits.FOUND_WRONG)
