"""The door to Redis: connections, callers, scripts. Verbs stand in `runs.py`, `attempts.py` and `sweeping.py`; `Store` is all of them.

Connections that change state do not retry by themselves (see `caller.py`). A caller belongs to one thread of one process; after a fork
the child makes its own, because two processes under one number would read each other's answers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from conductor.codec import OFFLOAD_ABOVE, offload
from conductor.locations import kind_of
from conductor.locations import masked as masked_all
from conductor.records import LEASE_MS, Graph, Poke
from conductor.store.caller import Caller, Reply
from conductor.store.cluster import Nodes
from conductor.store.cluster_caller import ClusterCaller
from conductor.store.cluster_client import ClusterClient
from conductor.store.keys import Keys
from conductor.store.scripts import load
from conductor.store.sentinels import connect_by_sentinels

__all__ = ["Door", "connect", "masked"]


def masked(url: str) -> str:
    """The URL without its password."""
    if ";" in url or kind_of(url) == "cluster":  # several servers, each with its own
        return masked_all(url)
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")))


def connect(url: str, *, socket_timeout: float = 5.0) -> redis.Redis:
    """A client that never retries by itself. `redis+socket://` is what kombu calls a unix socket."""
    if kind_of(url) == "cluster":
        return ClusterClient(Nodes(
            url, decode_responses=True, socket_timeout=socket_timeout, socket_connect_timeout=socket_timeout, socket_keepalive=True,
            retry=Retry(NoBackoff(), 0), retry_on_error=[]))
    if kind_of(url) == "sentinel":
        return connect_by_sentinels(
            url, decode_responses=True, socket_timeout=socket_timeout, socket_connect_timeout=socket_timeout, socket_keepalive=True,
            retry=Retry(NoBackoff(), 0), retry_on_error=[])
    url = url.replace("redis+socket://", "unix://", 1).replace("?virtual_host=", "?db=")
    options: dict[str, Any] = {} if url.startswith("unix:") else {"socket_keepalive": True}
    return redis.Redis.from_url(
        url, decode_responses=True, socket_timeout=socket_timeout, socket_connect_timeout=socket_timeout,
        retry=Retry(NoBackoff(), 0), retry_on_error=[], **options,
    )


class Door:
    """Callers and scripts of one namespace, on one server or on the nodes of a cluster."""

    def __init__(self, client: redis.Redis, *, namespace: str, partitions: int, patience_seconds: float = 30.0, url: str = "") -> None:
        self.namespace = namespace
        self.partitions = partitions
        self.keys = Keys(namespace, partitions)
        self.url = masked(url)
        self._client = client
        self._patience = patience_seconds
        self._mine = threading.local()
        self.offload_above = OFFLOAD_ABOVE  # bytes; a larger value goes to the blob store, where this process has one
        self.lease_ms = LEASE_MS  # of steps that name none, in runs that this process starts
        self._graphs: dict[int, tuple[Graph, Graph]] = {}  # as declared → with that lease
        self.admit: Callable[[], None] = lambda: None  # asked before a start; raises where no work may be accepted

    def give_up_after(self, seconds: float) -> None:
        """How long a change waits for a server that is away; a thread that has made one keeps its patience."""
        self._patience = seconds

    def offloaded(self, run_id: str, what: str, payload: str) -> str:
        """The payload, or a reference to it in the blob store if it is large; the blob is durable when this returns."""
        return offload(payload, f"{self.namespace}/{run_id}/{what}", self.offload_above)

    def client(self) -> redis.Redis:
        """For reading only."""
        return self._client

    def _caller(self) -> Caller:
        held: tuple[int, Caller] | None = getattr(self._mine, "caller", None)
        if held is None or held[0] != os.getpid():
            held = (os.getpid(), self._new_caller())
            self._mine.caller = held
        return held[1]

    def _new_caller(self) -> Caller:
        if isinstance(self._client, ClusterClient):
            return ClusterCaller(self._client.topology, patience_seconds=self._patience, url=self.url)
        return Caller(self._client.connection_pool, patience_seconds=self._patience, url=self.url)

    def _call(self, name: str, partition: int, *args: Any) -> Reply:
        return self._caller().call(load(name), self.keys.head(partition), *args)

    def _call_bare(self, name: str, partition: int, *args: Any) -> Reply:
        return self._caller().call_bare(load(name), self.keys.head(partition), *args)

    def _pokes(self, partition: int, queues: str) -> list[Poke]:
        return [Poke(partition, queue) for queue in queues.split(",") if queue]

    def _read(self, *command: Any) -> Any:
        """A read that waits for the server as a change does: a worker in the middle of a step must not fail because a connection broke."""
        return self._caller().command("read", command)[0]

    def _command(self, name: str, commands: Iterable[tuple[Any, ...]]) -> list[Any]:
        return self._caller().command(name, *commands)
