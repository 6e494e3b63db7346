"""A real cluster of three nodes on loopback, each a master of a third of the slots, without replicas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis import exceptions
from redis.crc import key_slot

from tests.support.server import ValkeyServer, free_port
from tests.support.waiting import eventually

__all__ = ["ValkeyCluster"]

_THIRDS = ((0, 5460), (5461, 10922), (10923, 16383))


class ValkeyCluster:
    """`nodes` in the order of their slots at first."""

    def __init__(self) -> None:
        self.nodes = [self._node() for _ in _THIRDS]

    @staticmethod
    def _node() -> ValkeyServer:
        return ValkeyServer(**{"cluster-enabled": "yes", "cluster-port": str(free_port()), "cluster-node-timeout": "2000"})

    def start(self) -> ValkeyCluster:
        for node, (first, last) in zip(self.nodes, _THIRDS, strict=True):
            node.start()
            self.ask(node, "ADDSLOTSRANGE", first, last)
        for number, node in enumerate(self.nodes, 1):
            self.ask(node, "SET-CONFIG-EPOCH", number)
        for other in self.nodes[1:]:
            self.ask(self.nodes[0], "MEET", "127.0.0.1", other.port, other.options["cluster-port"])
        self.settled()
        return self

    def settled(self) -> None:
        """Wait until every node says that all is well and knows the two others."""
        eventually(lambda: all(self._is_well(node) for node in self.nodes), 15, what="every node of the cluster is well")

    def _is_well(self, node: ValkeyServer) -> bool:
        try:
            info: Any = node.client().execute_command("CLUSTER INFO")
            return info["cluster_state"] == "ok" and len(self.ask(node, "SLOTS")) >= len(_THIRDS)
        except exceptions.RedisError:
            return False

    def ask(self, node: ValkeyServer, *command: Any) -> Any:
        return node.client().execute_command("CLUSTER", *command)

    @property
    def url(self) -> str:
        """One node that is not there, and one that is: the others are found."""
        return f"redis+cluster://127.0.0.1:1,127.0.0.1:{self.nodes[1].port}"

    def node_of(self, key: str) -> ValkeyServer:
        slot = key_slot(key.encode())
        owner = next(one for one in self.ask(self.nodes[0], "SLOTS") if int(one[0]) <= slot <= int(one[1]))
        return next(node for node in self.nodes if node.port == int(owner[2][1]))

    def begin_move(self, key: str, to: ValkeyServer) -> None:
        """The slot of this key is on its way: from now on its old node sends on whoever asks for a key it has not."""
        here, slot = self.node_of(key), key_slot(key.encode())
        self.ask(to, "SETSLOT", slot, "IMPORTING", self.ask(here, "MYID"))
        self.ask(here, "SETSLOT", slot, "MIGRATING", self.ask(to, "MYID"))

    def move_keys(self, key: str, to: ValkeyServer, most: int = 10_000) -> int:
        here = self.node_of(key)
        keys: list[str] = self.ask(here, "GETKEYSINSLOT", key_slot(key.encode()), most)
        if keys:
            here.client().execute_command("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def end_move(self, key: str, to: ValkeyServer) -> None:
        name = self.ask(to, "MYID")
        for node in (to, *(node for node in self.nodes if node is not to)):
            self.ask(node, "SETSLOT", key_slot(key.encode()), "NODE", name)

    @contextmanager
    def replica_of(self, master: ValkeyServer) -> Iterator[ValkeyServer]:
        """One more node that copies this one. At the end the master has its slots again and the replica is forgotten."""
        replica = self._node().start()
        self.ask(replica, "MEET", "127.0.0.1", self.nodes[0].port, self.nodes[0].options["cluster-port"])
        name = self.ask(master, "MYID")
        eventually(lambda: self._replicates(replica, name), 15, what="the replica has joined", forgive=(exceptions.RedisError,))
        eventually(lambda: replica.info("replication").get("master_link_status") == "up", 15, what="the replica has everything")
        eventually(lambda: all(self._knows(node, replica.port) for node in self.nodes), 15, what="every node knows the replica")
        try:
            yield replica
        finally:
            if replica.info("replication")["role"] == "master":
                eventually(lambda: master.info("replication").get("master_link_status") == "up", 15, what="the old master has everything")
                self.fail_over(master)
            gone = self.ask(replica, "MYID")
            replica.stop()
            for node in self.nodes:
                self.ask(node, "FORGET", gone)

    def _replicates(self, replica: ValkeyServer, name: str) -> bool:
        self.ask(replica, "REPLICATE", name)
        return True

    def _knows(self, node: ValkeyServer, port: int) -> bool:
        return any(int(other[1]) == port for one in self.ask(node, "SLOTS") for other in one[3:])

    def fail_over(self, replica: ValkeyServer) -> None:
        """The replica takes its master's place, and all know it."""
        self.ask(replica, "FAILOVER")
        eventually(lambda: all(self._has_slots(node, replica.port) for node in self.nodes), 15, what="the replica has taken over")

    def _has_slots(self, node: ValkeyServer, port: int) -> bool:
        return any(int(one[2][1]) == port for one in self.ask(node, "SLOTS"))

    def move_at_once(self, key: str, to: ValkeyServer) -> None:
        """As Valkey does it by itself since 9.0: the slot with all its keys changes hands in one moment."""
        slot = key_slot(key.encode())
        self.ask(self.node_of(key), "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.ask(to, "MYID"))
        eventually(lambda: self.node_of(key) is to, 10, what="the slot has changed hands")

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()
