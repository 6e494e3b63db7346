"""A caller on a Cluster: one connection per node, and for each call the node of its partition.

Authority is as in `caller.py`: the numbers and answers stand in the partition and move with its slot, so after any answer that was lost,
any `MOVED` and any failover the same call goes out again under the same number, to whichever node has the slot then.

While a slot is moved key by key, some of a partition's keys are here and some there. A script finds its keys itself: it would take those
that are elsewhere for missing (a run lost, a key given twice), or fail at the first new key that it writes, half done. So on a cluster
every script also names a key that never exists. A node refuses to run it (`ASK`, `TRYAGAIN`) for as long as the slot is on its way, and we
do not follow but wait; when the move is over the next repetition finds the slot whole. A plain command has one key and follows it.
"""

from __future__ import annotations

from typing import Any

from redis import exceptions

from conductor.store.caller import Caller, all_replies
from conductor.store.cluster import Address, Nodes, key_in, moved_to

__all__ = ["ClusterCaller"]

_NEVER = ":never"


class ClusterCaller(Caller):
    """Sends each call to the node that has its partition."""

    def __init__(self, nodes: Nodes, *, patience_seconds: float, url: str) -> None:
        super().__init__(nodes.any_pool(), patience_seconds=patience_seconds, url=url)
        self._nodes = nodes
        self._connections: dict[Address, Any] = {}

    def _connected(self, key: str) -> Any:
        return self._at(self._nodes.of(key))

    def _at(self, address: Address) -> Any:
        if address not in self._connections:
            self._connections[address] = self._connect(self._nodes.pool(address))
        return self._connections[address]

    def _keys_of(self, head: str) -> tuple[Any, ...]:
        return 2, head, head[: head.index("}") + 1] + _NEVER

    def _passes(self, error: exceptions.ResponseError) -> bool:
        if isinstance(error, exceptions.AskError):  # MOVED is one too
            self._nodes.forget(moved_to(error) if isinstance(error, exceptions.MovedError) else None)
            return True
        return super()._passes(error)

    def _lost(self) -> None:
        """Every connection goes, for others may have answers that nobody read; and the node may have been replaced."""
        self.close()
        self._nodes.forget()

    def _pipeline(self, commands: tuple[tuple[Any, ...], ...]) -> list[Any]:
        """All nodes get their part before the first is waited for."""
        places = [self._nodes.of(key_in(command)) for command in commands]
        for address in dict.fromkeys(places):
            connection = self._at(address)
            mine = [command for command, place in zip(commands, places, strict=True) if place == address]
            connection.send_packed_command(connection.pack_commands(mine))
        answers = {address: iter(all_replies(self._at(address), places.count(address))) for address in dict.fromkeys(places)}
        replies = [next(answers[place]) for place in places]
        return [self._settled(command, reply) for command, reply in zip(commands, replies, strict=True)]

    def _settled(self, command: tuple[Any, ...], reply: Any) -> Any:
        if type(reply) is exceptions.AskError:
            connection = self._at(moved_to(reply))
            connection.send_packed_command(connection.pack_commands([("ASKING",), command]))
            reply = all_replies(connection, 2)[1]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self) -> None:
        """Drop the connections; the next call opens new ones."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.disconnect()
