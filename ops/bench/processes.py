"""Servers and groups of processes that belong to the benchmark: started here, ended here, by their own id."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import redis

from conductor.embedded import EmbeddedServer

__all__ = ["ROOT", "Group", "Valkey", "free_port", "scratch"]

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """A TCP port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scratch(name: str) -> Path:
    """A new directory on the project's own disk: a memory file system would make fsync free."""
    above = ROOT / ".conductor" / "bench"
    above.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=above))


class Group:
    """One command in a session of its own, with everything it forks. It can be stopped and continued as a whole."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], log: Path, **options: Any) -> None:
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            command, env={**os.environ, **env}, cwd=ROOT, stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=options.pop("stdout", self._log), stderr=self._log, start_new_session=True, **options,
        )

    def freeze(self) -> None:
        os.killpg(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def end(self, patience: float = 8.0) -> None:
        """Ask, wait, then end the whole group."""
        self._signal(signal.SIGCONT)
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                pass
        self._signal(signal.SIGKILL)
        self.process.wait(5)
        self._log.close()

    def _signal(self, which: signal.Signals) -> None:
        try:
            os.killpg(self.process.pid, which)
        except ProcessLookupError:
            pass


class Valkey:
    """A Valkey server on loopback with its append-only file on disk."""

    def __init__(self, appendfsync: Literal["always", "everysec"]) -> None:
        self._server = EmbeddedServer(scratch("valkey"), appendfsync, port=0, announce=lambda line: None)
        self._server.start()
        self.client = redis.Redis.from_url(self._server.url, decode_responses=True)
        self.client.config_set("latency-tracking-info-percentiles", "50 99 99.9 100")

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def port(self) -> int:
        assert self._server.port is not None
        return self._server.port

    def stop(self) -> None:
        self.client.close()
        self._server.stop()
        shutil.rmtree(self._server.directory, ignore_errors=True)
