"""A test bed: one system, running for real — its server, its worker processes and a driver that is its client."""

from __future__ import annotations

import json
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

from ops.bench.environment import peers_python
from ops.bench.postgres import Postgres
from ops.bench.processes import ROOT, Group, Valkey, free_port, scratch
from ops.bench.systems import System
from ops.bench.works import Work, chain, one

__all__ = ["Bed", "BedFailed"]

Found = TypeVar("Found")


class BedFailed(Exception):
    """A system did not start, did not answer in time, or answered wrongly."""


class Bed:
    """Started with `start()`, ended with `stop()`. `once` keeps what several rows read from one measurement."""

    def __init__(
        self, system: System, appendfsync: Literal["always", "everysec"], *, processes: int = 2, delay_ms: float = 0.0,
        env: dict[str, str] | None = None,
    ) -> None:
        self.system, self.appendfsync, self.processes = system, appendfsync, processes
        self._delay_ms, self._extra = delay_ms, env or {}
        self._memory: dict[str, Any] = {}
        self._groups: list[Group] = []
        self._workers: list[Group] = []
        self.server: Valkey | Postgres | None = None
        self.directory: Path = Path()
        self._failed = False

    def start(self) -> None:
        self.directory = scratch(self.system.name)
        url = self._serve()
        python = peers_python(lambda text: print(text, file=sys.stderr)) if self.system.own_environment else sys.executable
        env = {"BENCH_URL": url, "PYTHONPATH": str(ROOT), **self._extra}
        log = self.directory / "log"
        self._driver = Group(
            [python, "-m", "ops.bench.driver", self.system.module], env=env, log=log,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        )
        self._groups.append(self._driver)
        if self.system.store != "valkey":
            self.ask("settle")  # it makes the tables: several processes must not do so at once
        self._workers = [Group(command, env=env, log=log) for command in self.system.commands(python, self.processes)]
        self._groups += self._workers + [Group(command, env=env, log=log) for command in self.system.beside(python)]
        self._warm()

    def _serve(self) -> str:
        match self.system.store:
            case "sqlite":
                return f"sqlite:///{self.directory / 'bench.sqlite'}"
            case "postgres":
                self.server = Postgres(durable=self.appendfsync == "always")
                return self.server.url
        self.server = Valkey(self.appendfsync)
        if not self._delay_ms:
            return self.server.url
        port = free_port()
        command = [sys.executable, "-m", "ops.bench.proxy", str(port), str(self.server.port), str(self._delay_ms)]
        self._groups.append(Group(command, env={}, log=self.directory / "log"))
        return self.server.url.replace(f":{self.server.port}/", f":{port}/")

    def _warm(self) -> None:
        """The first answers: workers are up, connections are open, code is loaded."""
        self.ask("series", work=one.doc(), count=5, timeout=90)
        self.ask("burst", work=one.doc(), count=50)
        self.ask("series", work=chain(3).doc(), count=3)

    def stop(self) -> None:
        """End everything; the log stays only where something went wrong."""
        for group in reversed(self._groups):
            group.end()
        if self.server is not None:
            self.server.stop()
        if not self._failed:
            shutil.rmtree(self.directory, ignore_errors=True)

    def rest(self) -> None:
        """Stand still while another system is measured: some peers poll even when idle."""
        for group in self._groups:
            group.freeze()

    def wake(self) -> None:
        for group in self._groups:
            group.thaw()

    def ask(self, do: str, patience: float = 900.0, **options: Any) -> dict[str, Any]:
        """One request to the driver."""
        process = self._driver.process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"do": do, **options}).encode() + b"\n")
        ready, _, _ = select.select([process.stdout], [], [], patience)
        line = process.stdout.readline() if ready else b""
        if not line:
            self._failed = True
            raise BedFailed(f"{self.system.name}: the driver did not answer {do}; see {self.directory / 'log'}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            self._failed = True
            with (self.directory / "log").open("a") as log:
                log.write(answer["trace"])
            raise BedFailed(f"{self.system.name}: {answer['error']}")
        return answer

    def series(self, work: Work, count: int, **options: Any) -> list[float]:
        seconds: list[float] = self.ask("series", work=work.doc(), count=count, **options)["seconds"]
        return seconds

    def answers(self, work: Work, count: int) -> list[float]:
        """What a work that measures itself found."""
        found: list[float] = self.ask("series", work=work.doc(), count=count, timeout=600)["answers"]
        return found

    def burst(self, work: Work, count: int) -> float:
        return float(self.ask("burst", work=work.doc(), count=count)["seconds"])

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """All worker processes stand still: work is accepted but not begun."""
        for group in self._workers:
            group.freeze()
        try:
            yield
        finally:
            for group in self._workers:
                group.thaw()

    def drained(self, count: int, work: Work = one) -> tuple[float, float]:
        """Accept with workers standing still, then let them go: seconds to accept, seconds to drain."""
        with self.frozen():
            accepted = self.ask("accept", work=work.doc(), count=count)
        began = time.monotonic()
        ended = float(self.ask("settle")["ended"])
        self.ask("verify")
        return float(accepted["seconds"]), ended - began

    def sustained(self, count: int) -> float:
        """Accept while workers drain: seconds from the first start to the last end."""
        accepted = self.ask("accept", work=one.doc(), count=count)
        ended = float(self.ask("settle")["ended"])
        self.ask("verify")
        return ended - float(accepted["began"])

    def once(self, name: str, measure: Callable[[], Found]) -> Found:
        """Measure under this name the first time, remember after."""
        if name not in self._memory:
            self._memory[name] = measure()
        found: Found = self._memory[name]
        return found
