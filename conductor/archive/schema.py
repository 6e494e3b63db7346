"""The schema of an archive that is being opened: looked at without a lock, made or brought forward under one.

Several processes may open at once: SQLite's write lock or an advisory lock of PostgreSQL lets one of them migrate, in one transaction, and
the others find it done. A killed one leaves nothing behind.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, select, text

from conductor.archive.connecting import BUSY_SECONDS, Connections
from conductor.archive.tables import facts
from conductor.errors import ArchiveTooNew

__all__ = ["newest_schema", "prepare", "schema_of"]

_VERSION_TABLE: Final = "conductor_archive_version"
_ADVISORY_LOCK: Final = 0x636F6E6475637472  # "conductr": one lock for all namespaces of a database
_one_at_a_time = threading.Lock()  # alembic keeps the migration under way in a global of the process


def newest_schema() -> str:
    """The schema that this release brings."""
    return str(ScriptDirectory.from_config(_config()).get_current_head())


def schema_of(connection: Connection) -> str:
    """The schema of the archive; empty: it is new."""
    if not inspect(connection).has_table(_VERSION_TABLE):
        return ""
    return str(connection.scalar(text(f"SELECT version_num FROM {_VERSION_TABLE}")) or "")


def prepare(connections: Connections) -> None:
    """Bring the archive to the newest schema, or accept a newer one that promises to take this release."""
    newest = newest_schema()
    if connections.file is not None:
        _write_ahead(connections.file)
    with connections.reading() as connection:
        if _is_usable(connection, newest, connections.url):
            return
    with _one_at_a_time, connections.writing() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
        if not _is_usable(connection, newest, connections.url):
            command.upgrade(_config(connection), "head")


def _is_usable(connection: Connection, newest: str, url: str) -> bool:
    found = schema_of(connection)
    if found <= newest:  # numbers of four digits
        return found == newest
    oldest = connection.scalar(select(facts.c.value).where(facts.c.name == "oldest_schema"))
    if oldest is None or oldest > newest:
        raise ArchiveTooNew(url=url, found=found, known=newest)
    return True


def _write_ahead(file: Path) -> None:
    """Readers beside a writer. It is a property of the file; while another process switches, SQLite refuses instead of waiting."""
    deadline = time.monotonic() + BUSY_SECONDS
    while time.monotonic() < deadline:
        try:
            with closing(sqlite3.connect(file, timeout=BUSY_SECONDS)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                return  # the first look says it in words that help
            time.sleep(0.05)
        except sqlite3.DatabaseError:
            return


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes.update(connection=connection, version_table=_VERSION_TABLE)
    return config
