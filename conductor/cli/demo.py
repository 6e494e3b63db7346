"""`conductor demo`: a real server, real workers, a real SIGKILL, and an outside ledger that testifies."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from conductor.cli import exits
from conductor.cli.finding import Here
from conductor.cli.render import command, print_json
from conductor.embedded import EmbeddedServer
from conductor.runs.fsck import fsck
from conductor.store.reads import read_each, read_graph, read_run

__all__ = ["demo"]

_APP = "conductor.broker.demo_app"
_PATIENCE = 110.0


@command("demo", "Kill a worker in the middle; prove that nothing is missing.", direct=True)
@click.option("--parcels", type=click.IntRange(1, 100_000), default=120, show_default=True, help="How many items the fan-out has.")
@click.option("--seconds", type=click.FloatRange(0, 60), default=0.15, show_default=True, help="How long each item takes.")
@click.option("--keep", is_flag=True, help="Keep the directory with ledger and logs.")
def demo(here: Here, parcels: int, seconds: float, keep: bool) -> None:
    """Run a fan-out on two workers, kill one with SIGKILL in the middle, and prove that nothing is missing or doubled."""
    console = Console(stderr=here.json)  # with --json the story is told beside the answer
    directory = Path(tempfile.mkdtemp(prefix="conductor-demo-"))
    wanted = keep
    try:
        (directory / "effects").mkdir()
        with EmbeddedServer(directory / "server", announce=lambda line: console.print(f"[dim]{line}[/dim]")) as server:
            stage = _Stage(console, directory, server)
            try:
                ok = stage.play(parcels, seconds)
            finally:
                stage.stop()
        wanted = keep or not ok  # what was not proved can be looked at
    finally:
        if not wanted:
            shutil.rmtree(directory, ignore_errors=True)
    console.print(f"[dim]ledger and logs: {directory}[/dim]" if wanted else "[dim]everything stopped[/dim]")
    if here.json:
        print_json({"ok": ok, **stage.told, "directory": str(directory) if wanted else None})
    raise click.exceptions.Exit(exits.OK if ok else exits.FAILED)


class _Stage:
    """The play in acts: set up, run, kill, prove. `told` is what a program is answered."""

    def __init__(self, console: Console, directory: Path, server: EmbeddedServer) -> None:
        self._console, self._directory = console, directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self.told: dict[str, Any] = {}
        os.environ.update(
            CONDUCTOR_REDIS_URL=server.url, CONDUCTOR_DEMO_BROKER=server.broker_url, CONDUCTOR_DEMO_LEDGER=str(directory))

    def play(self, parcels: int, seconds: float) -> bool:
        app: Any = importlib.import_module(_APP)
        workers = [self._celery("worker", "-c", "2", "-n", f"demo{number}@%h", "--loglevel", "WARNING") for number in (1, 2)]
        self._celery("beat", "--schedule", str(self._directory / "beat"), "--loglevel", "WARNING")
        self._console.print("[bold]two workers of two processes and a beat are starting[/bold]")
        run = app.flow.delay(app.Order(parcels=parcels, seconds=seconds))
        self.told |= {"run_id": run.id, "parcels": parcels}
        self._console.print(f"run [bold]{run.id}[/bold] is accepted: accept → pack × {parcels} → ship → invoice")
        self._follow(app.conductor.engine, run, parcels, workers[0])
        try:
            result = run.get(timeout=_PATIENCE)
        except Exception as error:  # the demo tells what a user would see
            self._console.print(f"[red]the run did not end well: {error}[/red]")
            self.told["error"] = str(error)
            return False
        self._console.print(f"the run is [green]completed[/green]: {result!r}")
        return self._prove(app.conductor.engine, run, parcels)

    def stop(self) -> None:
        for process in self._processes:
            _stop(process)

    def _celery(self, *arguments: str) -> subprocess.Popen[bytes]:
        log = (self._directory / f"{arguments[0]}{len(self._processes)}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", _APP, *arguments], stdout=log, stderr=log, cwd=self._directory, start_new_session=True)
        self._processes.append(process)
        return process

    def _follow(self, engine: Any, run: Any, parcels: int, victim: subprocess.Popen[bytes]) -> None:
        columns = (TextColumn("packed"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"), TimeElapsedColumn())
        give_up = time.monotonic() + _PATIENCE
        killed = False
        with Progress(*columns, console=self._console) as bar:
            shown = bar.add_task("packed", total=parcels)
            while time.monotonic() < give_up and run.status == "running":
                if not killed and victim.poll() is not None:
                    bar.console.print(f"[red]a worker ended by itself:[/red]\n{self._last_words()}")
                    return
                done = _packed(engine, run.id)
                bar.update(shown, completed=done)
                if not killed and done >= parcels // 3:
                    killed = True
                    os.killpg(victim.pid, signal.SIGKILL)
                    bar.console.print(f"[red]kill -9[/red] of worker demo1 and its processes, {done} of {parcels} packed")
                time.sleep(0.1)
            bar.update(shown, completed=_packed(engine, run.id))

    def _last_words(self) -> str:
        return (self._directory / "worker0.log").read_text()[-2000:]

    def _prove(self, engine: Any, run: Any, parcels: int) -> bool:
        ran = Counter(line.split()[0] for line in (self._directory / "bodies").read_text().splitlines())
        effects = [file.read_text() for file in (self._directory / "effects").iterdir()]
        expected = {f"{run.id}:{step}" for step in ("accept", "ship", "invoice")} | {f"{run.id}:pack:{item}" for item in range(parcels)}
        commits = _commits(run)
        twice = [name for name, count in commits.items() if count != 1]
        repeats = {key: count for key, count in ran.items() if count > 1}
        differences = list(fsck(engine))
        checks = {
            f"{len(commits)} of {len(expected)} steps committed, {len(twice)} of them more than once": (
                len(commits) == len(expected) and not twice),
            f"{len(effects)} of {len(expected)} effects in the outside ledger, each once": sorted(effects) == sorted(expected),
            f"fsck: {len(differences)} differences": not differences,
        }
        self.told |= {
            "steps": len(expected), "committed": len(commits), "committed_twice": len(twice), "effects": len(effects),
            "ran_again": len(repeats), "differences": len(differences),
        }
        self._console.print(f"bodies that ran again after the kill, under the same key: {len(repeats)}")
        for key, count in sorted(repeats.items()):
            self._console.print(f"  [dim]{key} ran {count} times, committed once[/dim]")
        for sentence, holds in checks.items():
            self._console.print(f"{'[green]proved[/green]' if holds else '[red]FAILED[/red]'}  {sentence}")
        return all(checks.values())


def _packed(engine: Any, run_id: str) -> int:
    record = read_run(engine.store, run_id)
    if record is None:
        return 0
    graph = read_graph(engine.store, record.partition, record.graph)
    return sum(each.done for each in read_each(engine.store, run_id, graph).values())


def _commits(run: Any) -> Counter[str]:
    """How often each step and item was committed, from the run's own history; the end of an `each` as a whole is not a commit of a body."""
    found: Counter[str] = Counter()
    for event in run.events():
        if event.kind != "completed" or not event.fence:
            continue
        found.update([f"{event.index}:{item}" for item in event.item_numbers] or [str(event.index)])
    return found


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process group that we started; the killed one is only reaped."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
