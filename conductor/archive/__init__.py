"""The archive: SQL behind one door. Finished runs for search and retention, parked runs, and checkpoints for the day Redis is gone.

**Authority.** Redis decides, always. The archive keeps what it is given and never moves a run on; who reads it asks Redis first. It has no
clock: every moment is passed in and comes from the store.

**One row per run.** (namespace, run_id) has one row, and of everything put under it the greatest `precedence` stays: the greater
generation, within it terminal before non-terminal, then the greater event number, then the later progress or note (consent, a checkpoint
of a step: they have no event), then finished before parked before checkpoint. It is decided in the statement that writes, so the order in
which processes put does not matter, and putting twice is putting once. Whoever deletes what he has put asks first whether it stayed.

**Races, one sentence each.**
* *A slow shipper puts an old checkpoint after the run was parked or ended*: its precedence is smaller; nothing happens.
* *A shipper puts a run that is being erased*: erasing leaves a blank row of the highest precedence for a day, so nothing comes back.
* *Retention purges a run that a retry is bringing back*: the purge locks what it chose until it is deleted; the new generation comes after.
* *Two processes open a new archive*: the schema is made in one transaction under a lock; the second finds it made.
* *A writer is killed*: a put is one transaction; a row is there with its tags and snapshot or not at all.
* *A reply is lost*: every method may be called again.

**One bad row.** Lists and recovery read row by row: one that cannot be read is named and left out, and never keeps the others.

**Failure.** What a repeat may solve is `ArchiveUnreachable` (transient); what a person must mend is `ArchiveRefused`, with the remedy.
Records of a format this release does not know are refused, never guessed.

SQLite serves processes of one host, PostgreSQL any number. SQLAlchemy is an extra, so this package is light until `Archive` is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conductor.archive.records import (
    FORMAT,
    ArchivedRun,
    ArchiveFilter,
    ArchivePage,
    Erased,
    Examination,
    Kind,
    Moment,
    Position,
)
from conductor.errors import ArchiveNotInstalled

if TYPE_CHECKING:
    from conductor.archive.door import Archive

__all__ = [
    "FORMAT", "Archive", "ArchiveFilter", "ArchivePage", "ArchivedRun", "Erased", "Examination", "Kind", "Moment",
    "Position",
]


def __getattr__(name: str) -> Any:
    """`Archive` alone needs the extra; the records must be importable where it is not installed."""
    if name != "Archive":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from conductor.archive.door import Archive
    except ModuleNotFoundError as error:
        if error.name not in ("sqlalchemy", "alembic"):
            raise
        raise ArchiveNotInstalled(package=error.name, extra="archive") from error
    return Archive
