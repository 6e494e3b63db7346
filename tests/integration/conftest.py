"""Archives for tests: on SQLite and on a real PostgreSQL, each test with a database of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conductor.archive import Archive
from tests.support.postgres import NoPostgres, PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server shared by the tests of one process; they are skipped, with the reason, where none can be started."""
    server = PostgresServer()
    try:
        server.start()
    except NoPostgres as reason:
        server.stop()
        pytest.skip(str(reason))
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def archive_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/archive.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()


@pytest.fixture
def archive(archive_url: str) -> Iterator[Archive]:
    with Archive.open(archive_url, "shop") as opened:
        yield opened
