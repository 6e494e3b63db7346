"""Publishing pokes: "look into this queue of this partition". A poke carries names only and may be lost, doubled or late.

Publishing never fails its caller: what a poke announces already stands in the ready index, and the stall sweep pokes again. So an
unreachable broker costs a log line a minute and some seconds of delay, never a run. Each thread of each process has a connection of
its own: kombu's connections are not made for sharing, and one inherited over fork would mix two processes' bytes on one socket. Every
socket has a timeout, because a publish on a half-open connection would otherwise wait for ever.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from celery import Celery
from kombu import Connection, Producer, Queue

from conductor import failpoints
from conductor.errors import redact
from conductor.records import Poke

__all__ = ["EXECUTE", "Pokes", "open_connection"]

EXECUTE = "conductor.execute"
_SOCKET_SECONDS = 2.0
_REST_SECONDS = 1.0  # after a failure nothing is tried for so long: a drain must not wait for a dead broker at every step
_COMPLAIN_SECONDS = 60.0

logger = logging.getLogger(__name__)


@dataclass
class _Line:
    """One thread's way to the broker."""

    pid: int
    connection: Connection
    producer: Producer


def open_connection(app: Celery) -> Connection:
    """A lazy connection with time limits on its socket, whatever the transport calls them; what the user has set stands."""
    plain = app.connection_for_write()
    limits: dict[str, float] = {}
    if plain.transport.driver_type == "redis":
        limits = {"socket_timeout": _SOCKET_SECONDS, "socket_connect_timeout": _SOCKET_SECONDS}
    elif plain.transport.driver_type == "amqp":
        limits = {"read_timeout": _SOCKET_SECONDS, "write_timeout": _SOCKET_SECONDS}
    # kombu would try for ever, first after two seconds; each of several broker addresses is tried once.
    limits |= {"max_retries": max(1, len(plain.alt)), "interval_start": 0.1, "interval_step": 0.1}
    given = app.conf.broker_transport_options or {}
    connection: Connection = app.connection_for_write(
        connect_timeout=_SOCKET_SECONDS, transport_options={**limits, **{name: given[name] for name in limits if given.get(name)}}
    )
    return connection


class Pokes:
    """The publisher of one app and namespace: `pokes([Poke(3, "celery")])`. Safe in every thread and after fork."""

    def __init__(self, app: Celery, namespace: str) -> None:
        self._app = app
        self._namespace = namespace
        self._local = threading.local()
        self._bodies: dict[tuple[int, str], tuple[str, str]] = {}
        self._rest_until = 0.0
        self._complained_at = -_COMPLAIN_SECONDS
        self._kept_open: list[_Line] = []
        self.failures = 0

    def __call__(self, pokes: Iterable[Poke], to: Queue | None = None) -> None:
        """Publish each poke once; duplicates within one call are sent once. `to` is a queue in place of the poke's own."""
        for poke in dict.fromkeys(pokes):
            if time.monotonic() < self._rest_until:
                self.failures += 1
                continue
            try:
                self._publish(poke, to)
            except Exception as error:
                self._failed(poke, error)

    def _publish(self, poke: Poke, to: Queue | None) -> None:
        """Try twice: the connection may be a stale one from before a restart of the broker, and a doubled poke does no harm."""
        failpoints.hit("poke.before")
        try:
            self._send(self._line(), poke, to)
        except Exception as error:
            if not self._is_broken(error):
                raise
            self._drop()
            self._send(self._line(), poke, to)
        failpoints.hit("poke.sent")

    def _send(self, line: _Line, poke: Poke, to: Queue | None) -> None:
        queue = to or self._app.amqp.queues[poke.queue.partition("!")[0]]  # what stands behind it names a limit
        body, shown = self._body(poke)
        task_id = str(uuid.uuid4())
        direct = getattr(queue.exchange, "type", "direct") == "direct"
        line.producer.publish(
            body, content_type="application/json", content_encoding="utf-8",
            exchange="" if direct else queue.exchange, routing_key=queue.name if direct else queue.routing_key,
            declare=[queue], retry=False, delivery_mode=1, priority=self._app.conf.task_default_priority or 0,
            headers=self._headers(task_id, shown), correlation_id=task_id, reply_to="",
        )

    def _body(self, poke: Poke) -> tuple[str, str]:
        known = self._bodies.get((poke.partition, poke.queue))
        if known is None:
            arguments = [self._namespace, poke.partition, poke.queue]
            body = json.dumps([arguments, {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
            known = self._bodies[poke.partition, poke.queue] = body, repr(tuple(arguments))
        return known

    @staticmethod
    def _headers(task_id: str, shown: str) -> dict[str, Any]:
        return {
            "lang": "py", "task": EXECUTE, "id": task_id, "root_id": task_id, "parent_id": None, "group": None, "shadow": None, "eta": None,
            "expires": None, "retries": 0, "timelimit": [None, None], "argsrepr": shown, "kwargsrepr": "{}", "origin": "conductor",
            "ignore_result": True, "replaced_task_nesting": 0, "stamped_headers": None, "stamps": {},
        }

    def _line(self) -> _Line:
        line: _Line | None = getattr(self._local, "line", None)
        if line is not None and line.pid == os.getpid():
            return line
        if line is not None:
            self._kept_open.append(line)  # the parent's: closing it here would say goodbye on the parent's socket
        connection = open_connection(self._app)
        line = self._local.line = _Line(os.getpid(), connection, Producer(connection, auto_declare=False))
        return line

    def _drop(self) -> None:
        line: _Line | None = getattr(self._local, "line", None)
        self._local.line = None
        if line is not None and line.pid == os.getpid():
            try:
                line.connection.collect(socket_timeout=_SOCKET_SECONDS)
            except Exception:
                logger.debug("a broken broker connection could not be closed", exc_info=True)

    def _is_broken(self, error: Exception) -> bool:
        transport = self._line().connection
        return isinstance(error, (*transport.connection_errors, *transport.channel_errors, OSError))

    def _failed(self, poke: Poke, error: Exception) -> None:
        self.failures += 1
        self._drop()
        now = time.monotonic()
        self._rest_until = now + _REST_SECONDS
        if now - self._complained_at < _COMPLAIN_SECONDS:
            return
        self._complained_at = now
        why = redact(f"{type(error).__name__}: {error}")
        if isinstance(error, KeyError):
            why = f"queue {poke.queue!r} is not in task_queues, and task_create_missing_queues is off; declare it"
        logger.warning("no poke for queue %s, partition %d: %s; nothing is lost, a sweep repeats it", poke.queue, poke.partition, why)
