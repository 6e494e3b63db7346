"""Opening an archive: the schema makes itself, a newer one is judged, and what cannot be used says why and what to do."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from conductor.archive import Archive, connecting
from conductor.archive.tables import METADATA
from conductor.errors import ArchiveNotInstalled, ArchiveRefused, ArchiveTooNew, ArchiveUnreachable
from tests.support.archived import finished
from tests.support.postgres import PostgresServer


def test_the_migrations_make_the_tables_that_the_code_uses(archive: Archive) -> None:
    with archive._connections.reading() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "conductor_archive_version", "compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_opening_again_changes_nothing(archive: Archive, archive_url: str) -> None:
    run = finished()
    archive.put([run])
    cursor = archive.cursor_after(run)
    with Archive.open(archive_url, "shop") as again:
        assert again.get(run.run_id, with_snapshot=True) == run
        assert again.search(cursor=cursor).runs == ()  # every process takes the cursors of the others


@pytest.mark.spec("BAD-1")
def test_a_newer_schema_is_refused_unless_it_takes_this_release(archive: Archive, archive_url: str) -> None:
    with archive._connections.writing() as connection:
        connection.execute(text("UPDATE conductor_archive_version SET version_num = '0002'"))
    with Archive.open(archive_url, "shop") as beside:  # an addition of the next release
        assert beside.put([finished()]) == 1
        assert beside.examine().schema == "0002"
    with archive._connections.writing() as connection:
        connection.execute(text("UPDATE conductor_archive_facts SET value = '0002' WHERE name = 'oldest_schema'"))
    with pytest.raises(ArchiveTooNew, match=r"schema 0002, which this release \(schema 0001\) cannot work with; upgrade"):
        Archive.open(archive_url, "shop")


@pytest.mark.spec("ERR-2")
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "it is not a database URL"),
        ("archive.db", "it is not a database URL"),
        ("mysql://u:hunter2@h/db", "mysql is not supported"),
        ("postgresql+asyncpg://u:hunter2@h/db", "not supported"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:////no/such/directory/archive.db", "the directory /no/such/directory does not exist; make it"),
    ],
)
def test_an_address_that_cannot_work_is_refused_with_the_remedy(url: str, words: str) -> None:
    with pytest.raises(ArchiveRefused, match=words) as caught:
        Archive.open(url, "shop")
    assert "hunter2" not in str(caught.value)
    assert caught.value.error_kind == "permanent"


@pytest.mark.spec("ERR-2")
def test_a_server_that_does_not_answer_is_named_without_its_password() -> None:
    with pytest.raises(ArchiveUnreachable) as caught:
        Archive.open("postgresql://ada:hunter2@127.0.0.1:1/archive?connect_timeout=2", "shop")
    assert "postgresql://***@127.0.0.1:1/archive" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert caught.value.error_kind == "transient"


@pytest.mark.spec("ERR-2")
def test_a_missing_database_or_right_is_for_a_person_to_mend(postgres: PostgresServer) -> None:
    with pytest.raises(ArchiveRefused, match=r"does not exist; create the role and the database"):
        Archive.open(postgres.url("nowhere"), "shop")
    url = postgres.database()
    with Archive.open(url, "shop") as owner, owner._connections.writing() as connection:
        connection.execute(text("DROP ROLE IF EXISTS guest"))
        connection.execute(text("CREATE ROLE guest LOGIN"))
    with pytest.raises(ArchiveRefused, match=r"permission denied .*; grant this user"):
        Archive.open(url.replace("tester:unasked", "guest"), "shop")


@pytest.mark.spec("ERR-2")
def test_a_file_that_is_no_archive_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, not a database\n" * 100)
    with pytest.raises(ArchiveRefused, match="file is not a database; the file belongs to something else"):
        Archive.open(f"sqlite:///{path}", "shop")
    assert path.read_text().startswith("these are my notes")


@pytest.mark.spec("ERR-2")
def test_a_file_that_is_held_for_too_long_is_transient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "BUSY_SECONDS", 0.2)
    with Archive.open(f"sqlite:///{tmp_path}/archive.db", "shop") as archive:
        holder = sqlite3.connect(tmp_path / "archive.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(ArchiveUnreachable, match="another process has held it"):
            archive.put([finished()])
        assert archive.count() == 0  # readers do not wait for it
        holder.execute("ROLLBACK")
        holder.close()
        assert archive.put([finished()]) == 1


def test_a_new_file_is_private_and_safe_against_a_power_cut(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        archive = Archive.open(f"sqlite:///{tmp_path}/archive.db", "shop")
        archive.put([finished()])
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}
    with archive._connections.reading() as connection:
        asked = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")]
    assert asked == ["wal", 2]
    archive.close()


def test_a_relative_path_is_one_file_wherever_a_process_goes_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Archive.open("sqlite:///archive.db", "shop") as archive:
        monkeypatch.chdir("/")
        archive.put([finished()])
        assert archive.url == f"sqlite:///{tmp_path}/archive.db"
    assert (tmp_path / "archive.db").exists()


def test_records_need_no_sql_library_and_its_absence_is_told() -> None:
    code = (
        "import sys\n"
        "for name in ('sqlalchemy', 'alembic', 'psycopg'): sys.modules[name] = None\n"
        "import conductor.archive as archive\n"
        "from conductor.archive import ArchivedRun, ArchiveFilter, Kind\n"
        "from conductor.errors import ArchiveNotInstalled\n"
        "try: archive.Archive\n"
        "except ArchiveNotInstalled as error: print(error)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert told.stdout == (
        "the archive needs sqlalchemy, which is not installed here; install it with: pip install 'celery-conductor[archive]'\n"
    )


def test_postgresql_without_its_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ArchiveNotInstalled, match=r"celery-conductor\[postgres\]"):
        Archive.open("postgresql://h/db", "shop")
