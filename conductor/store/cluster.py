"""A Redis or Valkey Cluster: which node has which slot, as far as this process knows.

Written `redis+cluster://:password@one:7000,two:7000` (`rediss+cluster` for TLS): a few nodes to ask first, credentials and options for all.
Authority: the nodes. Our table is only a guess of where to knock: a wrong one costs an answer `MOVED`, upon which the nodes are asked
again, as they are after a lost connection (its node may have been replaced). The table is replaced whole and never changed, and a
forgotten one is asked for by whoever needs it next, so threads share it without a lock.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import redis
from redis import exceptions
from redis.connection import parse_url
from redis.crc import key_slot

__all__ = ["LOST", "Address", "Nodes", "key_in", "moved_to"]

LOST = (exceptions.ConnectionError, exceptions.TimeoutError, ConnectionError, TimeoutError, OSError)
_KEY = "conductor:{"


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class _Table(NamedTuple):
    """The master of each slot, and the masters that a replica may replace at any time."""

    slots: tuple[Address | None, ...]
    replaceable: frozenset[Address]


def key_in(command: Iterable[Any]) -> str:
    """The key of a command: its first argument with the tag of a partition, since ours never have a value before it. A pattern of one
    partition's keys counts as one. Empty: a question to any node."""
    return next((part for part in command if isinstance(part, str) and part.startswith(_KEY) and "}" in part), "")


def moved_to(error: exceptions.AskError) -> Address:
    """The node that an answer MOVED or ASK names."""
    return Address(str(error.host), int(error.port))


class Nodes:
    """`options` are those of every connection."""

    def __init__(self, url: str, **options: Any) -> None:
        self._seeds, self._options = _parsed(url, options)
        self._pools: dict[Address, redis.ConnectionPool] = {}
        self._table: _Table | None = None
        self._first: Address | None = None

    def of(self, key: str) -> Address:
        """The node of a key's slot. Without a key it is that of slot 0, so that there is one clock as long as that node is there."""
        slot = _slot_of(key[: key.index("}") + 1]) if key else 0
        table = self._table or self._ask()
        if (found := table.slots[slot]) is None:
            self.forget()
            raise exceptions.ConnectionError(f"no node of the cluster has slot {slot}")
        return found

    def masters(self) -> Mapping[Address, bool]:
        """All nodes that have slots, in their order, and whether a replica may replace each."""
        table = self._table or self._ask()
        return {address: address in table.replaceable for address in dict.fromkeys(table.slots) if address is not None}

    def forget(self, first: Address | None = None) -> None:
        """The table proved wrong: the next one who needs it asks, `first` the node that ought to know."""
        self._table, self._first = None, first

    def pool(self, address: Address) -> redis.ConnectionPool:
        """Connections to one node."""
        if (known := self._pools.get(address)) is not None:
            return known
        made = redis.ConnectionPool(host=address.host, port=address.port, **self._options)
        return self._pools.setdefault(address, made)

    def any_pool(self) -> redis.ConnectionPool:
        """Of some node, for what only wants to know how connections are made."""
        return self.pool(self._seeds[0])

    def _ask(self) -> _Table:
        """By chance, not always the same: a node that is cut off from the others goes on telling what was."""
        places = list(dict.fromkeys([*self._pools, *self._seeds]))
        random.shuffle(places)
        last: Exception = exceptions.ConnectionError("no node of the cluster has slots")
        for address in dict.fromkeys([self._first, *places] if self._first else places):
            try:
                node: Any = redis.Redis(connection_pool=self.pool(address))
                reply: Any = node.execute_command("CLUSTER", "SLOTS")
            except LOST as error:
                last = error
                continue
            if reply:
                self._table, self._first = _table_from(reply, address), None
                return self._table
        raise last


def _parsed(url: str, options: dict[str, Any]) -> tuple[list[Address], dict[str, Any]]:
    """The nodes to ask first, and what every connection is made with."""
    scheme, _, rest = url.strip().replace(";", ",").partition("://")
    credentials, at, tail = rest.rpartition("@")
    ends = [tail.index(sign) for sign in "/?" if sign in tail]
    hosts, more = (tail[: min(ends)], tail[min(ends) :]) if ends else (tail, "")
    kind = "rediss" if scheme.startswith("rediss") else "redis"
    found: list[Address] = []
    known: dict[str, Any] = {}
    read: Any = parse_url
    for host in filter(None, (part.strip() for part in hosts.split(","))):
        one = f"{kind}://{credentials}{at}{host}{more}"
        known = dict(read(one))
        found.append(Address(known.pop("host", None) or "localhost", known.pop("port", None) or urlsplit(one).port or 6379))
    known.pop("db", None)
    return found, {**options, **known}


def _table_from(reply: Any, asked: Address) -> _Table:
    """A node that does not know its own name means the one under which it was asked."""
    slots: list[Address | None] = [None] * 16_384
    replaceable = set()
    for first, last, master, *replicas in reply:
        host = master[0]
        address = Address(asked.host if host in (None, "", "?") else str(host), int(master[1]))
        slots[int(first) : int(last) + 1] = [address] * (int(last) - int(first) + 1)
        if replicas:
            replaceable.add(address)
    return _Table(tuple(slots), frozenset(replaceable))


@lru_cache(maxsize=4096)
def _slot_of(tag: str) -> int:
    return key_slot(tag.encode())
