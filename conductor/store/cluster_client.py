"""Reading from a Cluster with the interface of one server: a command goes to the node of its key, a pipeline is split by node.

What it sends may be sent twice: a read, or a write that says the same again. Scripts that change runs go by `cluster_caller.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis
from redis import exceptions
from redis.client import Pipeline

from conductor.store.cluster import LOST, Address, Nodes, key_in, moved_to

__all__ = ["ClusterClient", "NodeClient", "single"]

_HOPS = 5
_Command = tuple[tuple[Any, ...], dict[str, Any]]


class NodeClient(redis.Redis):
    """One node. Behind one that `fails_over` a replica is ready, which may lack the last writes."""

    fails_over = False


class ClusterClient(redis.Redis):
    """A client of all nodes. With `one_connection` it keeps one per node, for a thread that waits."""

    def __init__(self, topology: Nodes, *, one_connection: bool = False) -> None:
        super().__init__(connection_pool=topology.any_pool())
        self.topology = topology
        self._one_connection = one_connection
        self._clients: dict[Address, Any] = {}  # NodeClient, whose methods have no types

    def nodes(self) -> dict[str, Any]:
        """A client of each node that has slots, by its address."""
        found = {}
        for address, fails_over in self.topology.masters().items():
            found[str(address)] = node = self._at(address)
            node.fails_over = fails_over
        return found

    def alone(self) -> ClusterClient:
        return ClusterClient(self.topology, one_connection=True)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        if args[0] == "SCRIPT LOAD":  # of a lock: it names no key, and is needed where the lock is
            return [node.execute_command(*args, **options) for node in self.nodes().values()].pop()
        key = key_in(args)
        if args[0] == "SCAN" and not key:
            raise ValueError("on a cluster only the keys of one partition can be scanned")
        for _ in range(_HOPS):
            address = self.topology.of(key)
            try:
                return self._at(address).execute_command(*args, **options)
            except exceptions.MovedError as error:
                self.topology.forget(moved_to(error))
            except exceptions.AskError as error:
                return self._ask_there(moved_to(error), args, options)
            except LOST:
                self.topology.forget()
                if self.topology.of(key) == address:
                    raise
        raise exceptions.ConnectionError(f"the nodes of the cluster do not agree who has {key}")

    def _ask_there(self, address: Address, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """A key that has gone ahead of its slot. `ASKING` holds for the next command only."""
        pipe = self._at(address).pipeline(transaction=False)
        pipe.execute_command("ASKING")
        pipe.execute_command(*args, **options)
        return pipe.execute()[1]

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        if transaction:
            raise ValueError("a transaction cannot span the nodes of a cluster")
        return _Split(self)

    def run(self, commands: Sequence[_Command], *, raise_on_error: bool) -> list[Any]:
        """The answers in the order of the commands. What a node sends elsewhere is asked once more, alone."""
        replies: list[Any] = [None] * len(commands)
        places: dict[Address, list[int]] = {}
        for at, (args, _) in enumerate(commands):
            places.setdefault(self.topology.of(key_in(args)), []).append(at)
        for address, here in places.items():
            for at, reply in zip(here, self._run_at(address, [commands[at] for at in here]), strict=True):
                again = isinstance(reply, exceptions.AskError)  # MOVED is one too
                replies[at] = self.execute_command(*commands[at][0], **commands[at][1]) if again else reply
        if raise_on_error and (wrong := next((reply for reply in replies if isinstance(reply, Exception)), None)):
            raise wrong
        return replies

    def _run_at(self, address: Address, commands: Sequence[_Command]) -> list[Any]:
        pipe = self._at(address).pipeline(transaction=False)
        for args, options in commands:
            pipe.execute_command(*args, **options)
        try:
            return list(pipe.execute(raise_on_error=False))
        except LOST:
            self.topology.forget()
            return [self.execute_command(*args, **options) for args, options in commands]

    def _at(self, address: Address) -> Any:
        if (known := self._clients.get(address)) is not None:
            return known
        made = NodeClient(connection_pool=self.topology.pool(address), single_connection_client=self._one_connection)
        return self._clients.setdefault(address, made)

    def close(self) -> None:
        for client in list(getattr(self, "_clients", {}).values()):
            client.close()
        super().close()


class _Split(Pipeline):
    """Collects commands as any pipeline does."""

    def __init__(self, cluster: ClusterClient) -> None:
        super().__init__(cluster.connection_pool, cluster.response_callbacks, False, None)
        self._cluster = cluster

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        commands: list[_Command] = [(tuple(args), dict(options)) for args, options in self.command_stack]
        self.reset()
        return self._cluster.run(commands, raise_on_error=raise_on_error)


def single(shared: Any) -> Any:
    """A client of the same place with a connection of its own (on a cluster: one per node), which spares the pool's bookkeeping."""
    if isinstance(shared, ClusterClient):
        return shared.alone()
    return type(shared)(connection_pool=shared.connection_pool, single_connection_client=True)
