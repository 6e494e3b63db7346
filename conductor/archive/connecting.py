"""Addresses and connections: which URLs are taken, how each server is spoken to, and what its errors mean.

A connection is never used by two processes: a child of a fork begins with a pool of its own and leaves its parent's alone.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from conductor.archive.troubles import translated
from conductor.errors import ArchiveNotInstalled, ArchiveRefused, ArchiveUnreachable
from conductor.locations import masked

__all__ = ["BUSY_SECONDS", "Connections"]

BUSY_SECONDS: Final = 20  # how long a writer waits for the one before it (SQLite), or for a free connection
_OLDEST_SQLITE: Final = (3, 35, 0)  # the first with RETURNING
_POSTGRES: Final = {
    "connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 30_000,
    "application_name": "conductor",
}
_FORMS: Final = "use sqlite:////absolute/path/archive.db (one host) or postgresql://user@host/database (any number)"
_inherited: list[Any] = []  # pools of the parent process: closing them here would speak on the parent's connections


class Connections:
    """The way to one server. `reading` and `writing` give a connection inside a transaction and translate what goes wrong."""

    def __init__(self, url: str) -> None:
        self.url = masked(url)
        parsed = self._parsed(url)
        self.dialect = parsed.get_backend_name()
        self.file = Path(str(parsed.database)) if self.dialect == "sqlite" else None
        self._engine = self._sqlite(parsed) if self.dialect == "sqlite" else self._postgres(parsed)
        self._pid = os.getpid()

    @property
    def one_host(self) -> bool:
        return self.dialect == "sqlite"

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self._translating(), self._own_engine().connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that has the right to write from its first statement on (SQLite cannot wait for it later)."""
        with self._translating(), self._own_engine().connect().execution_options(conductor_writes=True) as connection, connection.begin():
            yield connection

    def close(self) -> None:
        self._own_engine().dispose()

    def _own_engine(self) -> Engine:
        if self._pid != os.getpid():
            _inherited.append(self._engine.pool)
            self._engine.dispose(close=False)
            self._pid = os.getpid()
        return self._engine

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except PoolTimeout:
            remedy = "fewer threads should use it at once, or the server is slow: look at its load"
            raise ArchiveUnreachable(url=self.url, problem=f"no connection was free for {BUSY_SECONDS} s", remedy=remedy) from None
        except DBAPIError as error:
            raise translated(error, self.url, self.dialect, BUSY_SECONDS) from error
        except SQLAlchemyError as error:
            raise ArchiveRefused(url=self.url, problem=f"{type(error).__name__}: {error}", remedy="please report this") from error

    # Addresses.

    def _parsed(self, url: str) -> URL:
        try:
            parsed = make_url(url)
        except ArgumentError:
            raise ArchiveRefused(url=self.url, problem="it is not a database URL", remedy=_FORMS) from None
        if parsed.drivername in ("postgres", "postgresql", "postgresql+psycopg"):
            return parsed.set(drivername="postgresql+psycopg")
        if parsed.drivername not in ("sqlite", "sqlite+pysqlite"):
            raise ArchiveRefused(url=self.url, problem=f"{parsed.drivername} is not supported", remedy=_FORMS)
        return self._file(parsed)

    def _file(self, parsed: URL) -> URL:
        """The URL with an absolute path: processes with different working directories must meet in one file."""
        name = parsed.database or ""
        if not name or name == ":memory:" or name.startswith("file:"):
            raise ArchiveRefused(url=self.url, problem="it names no file, so nothing would outlive the process", remedy=_FORMS)
        path = Path(name).absolute()
        if not path.parent.is_dir():
            raise ArchiveRefused(url=self.url, problem=f"the directory {path.parent} does not exist", remedy="make it, or mount it")
        self.url = f"sqlite:///{path}"
        return parsed.set(drivername="sqlite+pysqlite", database=str(path))

    # Engines.

    def _sqlite(self, parsed: URL) -> Engine:
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            problem = f"this Python has SQLite {sqlite3.sqlite_version}, 3.35 is the oldest that works"
            raise ArchiveRefused(url=self.url, problem=problem, remedy="use a newer Python, or PostgreSQL")
        self._make_private(Path(str(parsed.database)))
        engine = create_engine(
            parsed, hide_parameters=True, pool_timeout=BUSY_SECONDS, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False},
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine

    def _make_private(self, path: Path) -> None:
        """A new file is readable by its owner only; one that is there keeps what its owner chose."""
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as error:
            remedy = "let this user write the file and its directory"
            raise ArchiveRefused(url=self.url, problem=f"{path}: {error.strerror}", remedy=remedy) from error

    def _postgres(self, parsed: URL) -> Engine:
        options = {name: value for name, value in _POSTGRES.items() if name not in parsed.query}
        try:
            return create_engine(
                parsed, hide_parameters=True, pool_pre_ping=True, pool_timeout=BUSY_SECONDS, pool_recycle=1800,
                connect_args={**options, "prepare_threshold": None},  # a pooler between us and the server forgets what was prepared
            )
        except ModuleNotFoundError as error:
            raise ArchiveNotInstalled(package="psycopg", extra="postgres") from error


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # `BEGIN` is ours, below: sqlite3's own comes too late and never takes the lock
    connection.execute("PRAGMA synchronous = FULL")  # a parked run's keys are deleted after the commit: it must outlive a power cut


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("conductor_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
