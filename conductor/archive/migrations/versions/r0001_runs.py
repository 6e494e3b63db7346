"""Runs, what they are found by, shipped moments, facts of the archive."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_Id = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_RUNS = "conductor_archive_runs"


def upgrade() -> None:
    _runs()
    _run_indexes()
    op.create_table(
        "conductor_archive_marks",
        sa.Column("namespace", sa.Text, primary_key=True),
        sa.Column("what", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, primary_key=True),
        sa.Column("run_id", _Id, primary_key=True),
    )
    op.create_index("conductor_archive_marks_run", "conductor_archive_marks", ["namespace", "run_id"])
    op.create_table(
        "conductor_archive_moments",
        sa.Column("namespace", sa.Text, primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("shipped_ms", sa.BigInteger, nullable=False),
    )
    facts = op.create_table(
        "conductor_archive_facts",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.bulk_insert(facts, [{"name": "oldest_schema", "value": revision}, {"name": "cursor_secret", "value": secrets.token_hex(32)}])


def _runs() -> None:
    numbers = [sa.Column(name, sa.BigInteger, nullable=False) for name in ("progress_at_ms", "digest")]
    texts = [sa.Column(name, sa.Text, nullable=False) for name in (
        "reason", "key", "session", "version", "error_kind", "tags", "failed_steps", "waiting_for", "blobs",
    )]  # fmt: skip
    op.create_table(
        _RUNS,
        sa.Column("namespace", sa.Text, primary_key=True),
        sa.Column("run_id", _Id, primary_key=True),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("terminal", sa.SmallInteger, nullable=False),
        sa.Column("n", sa.BigInteger, nullable=False),
        sa.Column("rank", sa.SmallInteger, nullable=False),
        *numbers,
        *(sa.Column(name, sa.Text, nullable=False) for name in ("kind", "state", "workflow")),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.BigInteger) for name in ("ended_at_ms", "idle_since_ms", "delete_after_ms")),
        *texts,
        sa.Column("format", sa.Integer, nullable=False),
        sa.Column("snapshot", sa.LargeBinary, nullable=False),
    )


def _run_indexes() -> None:
    for name in ("workflow", "state", "session", "key"):
        op.create_index(f"{_RUNS}_{name}", _RUNS, ["namespace", name, "created_at_ms", "run_id"])
    op.create_index(f"{_RUNS}_created", _RUNS, ["namespace", "created_at_ms", "run_id"])
    for name, column in (("ended", "ended_at_ms"), ("idle", "idle_since_ms"), ("delete", "delete_after_ms")):
        op.create_index(f"{_RUNS}_{name}", _RUNS, ["namespace", column])
    still_open = sa.text("terminal = 0")
    op.create_index(f"{_RUNS}_open", _RUNS, ["namespace", "run_id"], sqlite_where=still_open, postgresql_where=still_open)


def downgrade() -> None:
    raise NotImplementedError("the archive is not taken back: releases before this one had none")
