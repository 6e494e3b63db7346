"""A PostgreSQL server for the peer that is usually run on one. Where this machine has no server programs, the rows say so."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from pathlib import Path

from ops.bench.processes import Group, free_port, scratch

__all__ = ["Postgres", "postgres_programs"]


def postgres_programs() -> Path | None:
    """The directory with `initdb` and `postgres`, or None."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "postgres").exists() and (place / "initdb").exists()), None)


class Postgres:
    """`durable` decides whether an answer waits for the disk; without it up to 0.6 s may be lost, which is the like of `everysec`."""

    def __init__(self, durable: bool) -> None:
        programs = postgres_programs()
        if programs is None:
            raise RuntimeError("no PostgreSQL server programs on this machine")
        self.directory, self.port = scratch("postgres"), free_port()
        # PostgreSQL refuses to run as root.
        user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        shutil.chown(self.directory, user=user)
        data = str(self.directory / "data")
        subprocess.run(
            [str(programs / "initdb"), "-D", data, "-U", "bench", "-A", "trust", "--no-sync"], user=user, check=True,
            cwd=self.directory, stdout=subprocess.DEVNULL,
        )
        command = [str(programs / "postgres"), "-D", data, "-p", str(self.port), "-k", "", "-c", "listen_addresses=127.0.0.1"]
        command += ["-c", f"synchronous_commit={'on' if durable else 'off'}", "-c", "max_connections=200"]
        self._group = Group(command, env={}, log=self.directory / "server.log", user=user)
        self._await(programs)

    @property
    def url(self) -> str:
        return f"postgresql://bench@127.0.0.1:{self.port}/bench"

    def stop(self) -> None:
        self._group.end()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _await(self, programs: Path) -> None:
        make = [str(programs / "createdb"), "-h", "127.0.0.1", "-p", str(self.port), "-U", "bench", "bench"]
        until = time.monotonic() + 20
        while subprocess.run(make, check=False, stderr=subprocess.DEVNULL).returncode:
            if time.monotonic() > until:
                raise RuntimeError(f"PostgreSQL did not start; see {self.directory / 'server.log'}")
            time.sleep(0.1)
