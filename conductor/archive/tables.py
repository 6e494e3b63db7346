"""The tables, as the newest migration leaves them. A test compares them with what the migrations make."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, SmallInteger, Table, Text, text
from sqlalchemy.types import TypeEngine

__all__ = ["MARK_ERROR", "MARK_STEP", "MARK_TAG", "MARK_WAITING", "METADATA", "facts", "marks", "moments", "runs"]

METADATA: Final = MetaData()
MARK_TAG, MARK_STEP, MARK_ERROR, MARK_WAITING = "tag", "step", "error", "waiting"

# Compared byte by byte on every server, whatever its locale: cursors and prefixes depend on it.
_Id: TypeEngine[str] = Text().with_variant(Text(collation="C"), "postgresql")

runs = Table(
    "conductor_archive_runs", METADATA,
    Column("namespace", Text, primary_key=True),
    Column("run_id", _Id, primary_key=True),
    Column("generation", Integer, nullable=False),
    Column("terminal", SmallInteger, nullable=False),
    Column("n", BigInteger, nullable=False),
    Column("rank", SmallInteger, nullable=False),
    Column("progress_at_ms", BigInteger, nullable=False),
    Column("digest", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("workflow", Text, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("ended_at_ms", BigInteger),
    Column("idle_since_ms", BigInteger),
    Column("delete_after_ms", BigInteger),
    Column("reason", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("session", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("error_kind", Text, nullable=False),
    Column("tags", Text, nullable=False),  # lists are JSON; what is searched of them stands in `marks`
    Column("failed_steps", Text, nullable=False),
    Column("waiting_for", Text, nullable=False),
    Column("blobs", Text, nullable=False),
    Column("format", Integer, nullable=False),
    Column("snapshot", LargeBinary, nullable=False),  # last, so that SQLite reads a row without it
    Index("conductor_archive_runs_created", "namespace", "created_at_ms", "run_id"),
    Index("conductor_archive_runs_workflow", "namespace", "workflow", "created_at_ms", "run_id"),
    Index("conductor_archive_runs_state", "namespace", "state", "created_at_ms", "run_id"),
    Index("conductor_archive_runs_session", "namespace", "session", "created_at_ms", "run_id"),
    Index("conductor_archive_runs_key", "namespace", "key", "created_at_ms", "run_id"),
    Index("conductor_archive_runs_ended", "namespace", "ended_at_ms"),
    Index("conductor_archive_runs_idle", "namespace", "idle_since_ms"),
    Index("conductor_archive_runs_delete", "namespace", "delete_after_ms"),
    Index(
        "conductor_archive_runs_open", "namespace", "run_id",
        sqlite_where=text("terminal = 0"), postgresql_where=text("terminal = 0"),
    ),
)

marks = Table(  # what a run is found by, many to one run
    "conductor_archive_marks", METADATA,
    Column("namespace", Text, primary_key=True),
    Column("what", Text, primary_key=True),
    Column("value", Text, primary_key=True),
    Column("run_id", _Id, primary_key=True),
    Index("conductor_archive_marks_run", "namespace", "run_id"),
)

moments = Table(
    "conductor_archive_moments", METADATA,
    Column("namespace", Text, primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("shipped_ms", BigInteger, nullable=False),
)

facts = Table(  # of the archive as a whole: the secret that signs cursors, the oldest schema whose releases may still write here
    "conductor_archive_facts", METADATA,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)
