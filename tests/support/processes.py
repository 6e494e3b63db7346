"""Real processes for tests: `celery worker`, `celery beat`, or any Python module, with logs in files, struck by signals, ended by pid."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support.server import die_with_parent
from tests.support.waiting import eventually

__all__ = ["APP", "Process", "Processes", "children_of", "descendants_of", "shifted"]

ROOT = Path(__file__).resolve().parents[2]
APP = "tests.support.app"
_CLOCK = Path(__file__).resolve().parent / "shifted_clock"
_numbers = itertools.count(1)


def _parents() -> dict[int, int]:
    """Every process and its parent, read from /proc. The command name may hold spaces and brackets, so the last `)` counts."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it ended while we looked
        if state != "Z":
            found[int(entry.name)] = int(parent)
    return found


def children_of(pid: int) -> list[int]:
    return sorted(child for child, parent in _parents().items() if parent == pid)


def descendants_of(pid: int) -> list[int]:
    parents, found = _parents(), [pid]
    for one in found:
        found.extend(child for child, parent in parents.items() if parent == one)
    return found[1:]


def shifted(seconds: float) -> dict[str, str]:
    """Environment of a process whose wall clock is wrong by `seconds`."""
    return {"TEST_CLOCK_SHIFT": str(seconds), "PYTHONPATH": os.pathsep.join([str(_CLOCK), str(ROOT)])}


class Process:
    """One process started by a test, and its log."""

    def __init__(self, name: str, arguments: list[str], log: Path, env: Mapping[str, str], ready: str = "") -> None:
        self.name, self.log, self._ready = name, log, ready
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **env}
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                arguments, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )
        self.pid = self._popen.pid

    def wait_ready(self, timeout: float = 30) -> Process:
        eventually(self._is_ready, timeout, what=f"{self.name} says {self._ready!r}", forgive=())
        return self

    def _is_ready(self) -> bool:
        if not self.alive:
            raise AssertionError(f"{self.name} ended with {self._popen.returncode}: {self.text()[-3000:]}")
        return self._ready in self.text()

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    @property
    def returncode(self) -> int | None:
        return self._popen.poll()

    @property
    def children(self) -> list[int]:
        """The pool's processes, for a prefork worker."""
        return children_of(self.pid)

    def signal(self, number: int) -> None:
        if self.alive:
            self._popen.send_signal(number)

    def signal_children(self, number: int) -> list[int]:
        """Signal the pool's processes only; tells which were struck."""
        struck = []
        for child in self.children:
            try:
                os.kill(child, number)
                struck.append(child)
            except ProcessLookupError:
                continue
        return struck

    def stop_whole(self) -> None:
        """SIGSTOP parent and children: a host that stands still."""
        for pid in (self.pid, *descendants_of(self.pid)):
            os.kill(pid, signal.SIGSTOP)

    def continue_whole(self) -> None:
        for pid in (self.pid, *descendants_of(self.pid)):
            os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL the parent. Its pool dies with it (the kernel sends children of a prefork pool the parent's death)."""
        self.signal(signal.SIGKILL)
        self._popen.wait(10)

    def kill_whole(self) -> None:
        """SIGKILL parent and every descendant: a host that lost power."""
        family = [self.pid, *descendants_of(self.pid)]
        for pid in family:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._popen.wait(10)

    def terminate(self, timeout: float = 30) -> int:
        """SIGTERM and wait for the end; tells the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def wait(self, timeout: float = 30) -> int:
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {timeout} s: {self.text()[-3000:]}") from None


class Processes:
    """All that one test started. `close` ends each by its pid, children included."""

    def __init__(self, directory: Path, env: Mapping[str, str], app: str = APP) -> None:
        self.directory, self.env, self.app = directory, dict(env), app
        self.started: list[Process] = []

    def worker(
        self, *options: str, name: str = "", concurrency: int = 2, pool: str = "prefork", queues: Iterable[str] = (),
        env: Mapping[str, str] | None = None, wait: bool = True,
    ) -> Process:
        """A real worker: prefork with two processes unless said otherwise, under a host name of its own."""
        name = name or f"w{next(_numbers)}"
        arguments = ["worker", "-n", f"{name}@test", "-P", pool, "-c", str(concurrency), "-l", "INFO", *options]
        if queues:
            arguments += ["-Q", ",".join(queues)]
        return self._celery(name, arguments, env, "ready.", wait)

    def beat(self, *options: str, name: str = "", env: Mapping[str, str] | None = None, wait: bool = True) -> Process:
        name = name or f"beat{next(_numbers)}"
        schedule = self.directory / f"{name}.schedule"
        return self._celery(name, ["beat", "-l", "INFO", "-s", str(schedule), "--pidfile", "", *options], env, "beat: Starting", wait)

    def _celery(self, name: str, arguments: list[str], env: Mapping[str, str] | None, ready: str, wait: bool) -> Process:
        return self.python(name, ["-m", "celery", "-A", self.app, *arguments], env, ready, wait)

    def python(
        self, name: str, arguments: list[str], env: Mapping[str, str] | None = None, ready: str = "", wait: bool = False
    ) -> Process:
        """`python …` as a process of the test."""
        process = Process(name, [sys.executable, *arguments], self.directory / f"{name}.log", {**self.env, **(env or {})}, ready)
        self.started.append(process)
        return process.wait_ready() if wait and ready else process

    def close(self) -> None:
        for process in self.started:
            if process.alive:
                process.continue_whole()
                process.kill_whole()
        self.started.clear()

    def logs(self) -> str:
        """The end of each log, for a failing test."""
        return "\n".join(f"--- {process.name}\n{process.text()[-4000:]}" for process in self.started)
