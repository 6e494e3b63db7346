"""The service of a conductor of this process, on a port of its own, for as long as a test needs it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from tests.support.waiting import eventually

__all__ = ["DOORS", "by_door", "listening"]

DOORS = ["direct", "http"]
"""The two ways a command can go: parameters of a fixture that gives its shop to `by_door`."""


@contextmanager
def listening(conductor: Any) -> Iterator[str]:
    """The address at which it answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as taken:
        server = uvicorn.Server(uvicorn.Config(conductor.asgi(), log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]}, name="test-service")
        thread.start()
        try:
            eventually(lambda: server.started, 10, what="the service listens")
            yield f"http://127.0.0.1:{taken.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(15)


@contextmanager
def by_door(door: str, shop: Any) -> Iterator[Any]:
    """A shop whose commands go to its store, or over HTTP to its service."""
    if door == "direct":
        yield shop
        return
    with listening(shop.conductor) as shop.url:
        yield shop
