"""The systems that are measured: which module drives each, in which environment, and which commands are its two worker processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["OURS", "SYSTEMS", "System"]

OURS = "conductor"

Commands = Callable[[str, int], list[list[str]]]


@dataclass(frozen=True)
class System:
    """`commands(python, processes)` are the worker processes; `beside` run as well but execute no work; `store` keeps its state."""

    name: str
    module: str
    commands: Commands
    beside: Callable[[str], list[list[str]]] = lambda python: []
    own_environment: bool = True  # the peers'; False: that of the benchmark itself
    store: str = "valkey"

    def durability(self, appendfsync: str) -> str:
        """How safe an answer is, in words, under the setting of this round."""
        match self.store:
            case "postgres":
                return f"synchronous_commit={'on' if appendfsync == 'always' else 'off'}"
            case "sqlite":
                return "SQLite's default, synchronous=full"
            case _:
                return f"appendfsync {appendfsync}"


def _celery_worker(module: str) -> Commands:
    def commands(python: str, processes: int) -> list[list[str]]:
        worker = [python, "-m", "celery", "-A", f"{module}:app", "worker", "-P", "prefork", "-l", "WARNING"]
        return [[*worker, "-c", str(processes), "-n", "bench@%h", "--without-gossip", "--without-mingle"]]

    return commands


def _beat(python: str) -> list[list[str]]:
    """The sweeps are part of what we promise, so they run while we are measured."""
    scheduler = "celery.beat:Scheduler"  # nothing on disk: our entries are plain intervals
    return [[python, "-m", "celery", "-A", "ops.bench.ours_app:app", "beat", "-l", "WARNING", "-S", scheduler, "--pidfile="]]


def _huey_consumer(python: str, processes: int) -> list[list[str]]:
    consumer = [python, "-m", "huey.bin.huey_consumer", "ops.bench.peers.huey_app.huey"]
    return [[*consumer, "-k", "process", "-w", str(processes), "-q"]]


def _dbos_processes(python: str, processes: int) -> list[list[str]]:
    return [[python, "-m", "ops.bench.peers.dbos_app"] for _ in range(processes)]


SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        System(
            OURS, "ops.bench.ours_app", _celery_worker("ops.bench.ours_app"), own_environment=False,
            beside=_beat,
        ),
        System("celery", "ops.bench.peers.celery_app", _celery_worker("ops.bench.peers.celery_app")),
        System("huey", "ops.bench.peers.huey_app", _huey_consumer),
        System("dbos-postgres", "ops.bench.peers.dbos_app", _dbos_processes, store="postgres"),
        System("dbos-sqlite", "ops.bench.peers.dbos_app", _dbos_processes, store="sqlite"),
    )
}
