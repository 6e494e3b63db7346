"""Commands that run processes: dev, bench.

`dev` owns what it starts. Its children are sessions of their own, so that Ctrl-C reaches only `dev`, which then asks each of them once to
end; a second Ctrl-C kills them. If one of them ends by itself, the others are stopped too: half a stack would only look alive.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from conductor.cli import exits
from conductor.cli.finding import Here
from conductor.cli.render import command, line_of_json, note
from conductor.embedded import EmbeddedServer
from conductor.errors import ConductorError

__all__ = ["NoBench", "bench", "dev"]

_LOOK = 0.2
_GRACE = 30.0


class NoBench(ConductorError):
    """the measurements are not installed: they are in ops/bench of the source tree; run `conductor bench` or `make bench` there"""


@command("dev", "Run an embedded server, a worker and beat until Ctrl-C.", direct=True)
@click.option("-c", "--concurrency", type=click.IntRange(1, 256), default=2, show_default=True, help="Processes of the worker.")
@click.option("-Q", "--queues", default="", help="Queues of the worker, as for celery worker.")
@click.option("-l", "--loglevel", default="INFO", show_default=True, help="Of the worker. At INFO beat is quiet.")
@click.option("--directory", type=click.Path(file_okay=False, path_type=Path), default=Path(".conductor"), show_default=True,
              help="Files of the embedded server and of beat.")
@click.option("--own-server", is_flag=True, help="Use the broker and store that the app names; start no embedded server.")
def dev(here: Here, concurrency: int, queues: str, loglevel: str, directory: Path, own_server: bool) -> None:
    """Run an embedded server, a worker and beat until Ctrl-C. What is in the store stays for the next time."""
    environment = dict(os.environ)
    with contextlib.ExitStack() as owned:
        if not own_server:
            server = owned.enter_context(EmbeddedServer(directory, announce=note))
            environment |= {"CONDUCTOR_REDIS_URL": server.url, "CELERY_BROKER_URL": server.broker_url}
            note(f"other terminals: export CONDUCTOR_REDIS_URL='{server.url}' CELERY_BROKER_URL='{server.broker_url}'")
        directory.mkdir(parents=True, exist_ok=True)
        _check_first(here, environment)
        worker = ["worker", "-E", "-c", str(concurrency), "-n", "dev@%h", "-l", loglevel, *(["-Q", queues] if queues else [])]
        quiet = "WARNING" if loglevel.upper() == "INFO" else loglevel  # else a line for each sweep it sends
        commands = {"worker": worker, "beat": ["beat", "-l", quiet, "-s", str(directory / "beat")]}
        stack = _Stack(here, environment)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: stack.ask_to_stop())
        try:
            failed = stack.run(commands)
        finally:
            stack.stop()
    if failed:
        raise click.exceptions.Exit(exits.FAILED)


def _check_first(here: Here, environment: dict[str, str]) -> None:
    """A worker of a broken project would die, or do nothing, with a screen full of text; `check` says it in a line. It is a process of its
    own, because what the user's modules start when they are imported must not live here."""
    app = ["-A", here.name] if here.name else []
    program = [sys.executable, "-c", "from conductor.cli import main; main()", *app, "check", "--json"]
    done = subprocess.run(program, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False, text=True)
    told: dict[str, Any] = json.loads(done.stdout or "{}")
    wrong = [told["broken"]["message"]] if told.get("broken") else []
    wrong += [one["error"] for one in told.get("workflows", {}).values() if one["error"]]
    for line in wrong:
        note(f"error: {line}")
    if wrong or done.returncode not in (exits.OK, exits.FOUND_WRONG):
        raise click.exceptions.Exit(done.returncode)
    if not told.get("workflows"):
        note("dev: no workflow is declared yet; put some into a module workflows.py beside the app")


class _Stack:
    """The processes of one `dev`."""

    def __init__(self, here: Here, environment: dict[str, str]) -> None:
        self._here, self._environment = here, environment
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stop = threading.Event()

    def run(self, commands: dict[str, list[str]]) -> bool:
        """Start all and wait; True if one ended by itself."""
        for name, arguments in commands.items():
            program = [sys.executable, "-m", "celery", "-A", self._here.app_name, *arguments]
            # With --json our standard output is for programs: what the children print goes beside it.
            self._processes[name] = subprocess.Popen(
                program, env=self._environment, start_new_session=True, stdin=subprocess.DEVNULL, stdout=2 if self._here.json else None)
            self._tell("started", name, self._processes[name].pid)
        while not self._stop.wait(_LOOK):
            for name, process in self._processes.items():
                if process.poll() is not None:
                    self._tell("ended by itself", name, process.pid, process.returncode)
                    return True
        return False

    def ask_to_stop(self) -> None:
        """The first time: end warmly. The second time: now."""
        if self._stop.is_set():
            for process in self._alive():
                os.killpg(process.pid, signal.SIGKILL)
        self._stop.set()

    def stop(self) -> None:
        """Beat first, so that nothing new comes; a worker may finish what it runs."""
        for process in reversed(list(self._alive())):
            process.terminate()
        deadline = time.monotonic() + _GRACE
        for name, process in self._processes.items():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            self._tell("stopped", name, process.pid, process.returncode)

    def _alive(self) -> Iterator[subprocess.Popen[bytes]]:
        return (process for process in self._processes.values() if process.poll() is None)

    def _tell(self, what: str, name: str, pid: int, code: int | None = None) -> None:
        if self._here.json:
            told = {"event": what.replace(" ", "_"), "process": name, "pid": pid} | ({} if code is None else {"exit": code})
            click.echo(line_of_json(told))
        else:
            note(f"dev: {name} {what} (process {pid}{'' if code is None else f', exit {code}'})")


@command("bench", "Measure Conductor beside plain Celery and others.", context_settings={"ignore_unknown_options": True}, direct=True)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(here: Here, arguments: tuple[str, ...]) -> None:
    """Measure Conductor beside plain Celery and others.

    Options that are not ours go to the measurements, as in `conductor bench --list`; all that follows `--` does, as in
    `conductor bench -- --help`.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if not _has_bench():
        raise NoBench
    measure: Any = importlib.import_module("ops.bench.run")
    if not here.json:
        raise click.exceptions.Exit(int(measure.main(list(arguments))))
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "bench.json"
        with contextlib.redirect_stdout(sys.stderr):  # the table is for people
            code = int(measure.main([*arguments, "--out", str(file)]))
        if file.exists():
            click.echo(file.read_text())
    raise click.exceptions.Exit(code)


def _has_bench() -> bool:
    try:
        return importlib.util.find_spec("ops.bench.run") is not None
    except ModuleNotFoundError:  # no `ops` at all
        return False
