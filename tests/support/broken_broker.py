"""A broker that doubles or loses messages. It stands where kombu puts a message into Redis, so real workers meet real copies.

Each process that shall break calls `install`; the test application does so where `TEST_BROKER_COPIES` or `TEST_BROKER_LOSS` is set.
Every strike is noted in the ledger, so that a test can tell that it happened.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

from kombu.transport.redis import Channel

from tests.support.ledger import Ledger

__all__ = ["broken", "install", "install_from_environment"]


def broken(copies: int = 1, loss: float = 0.0) -> dict[str, str]:
    """Environment of a process whose messages are put `copies` times, and lost with the probability `loss`."""
    return {"TEST_BROKER_COPIES": str(copies), "TEST_BROKER_LOSS": str(loss)}


def install(copies: int, loss: float, ledger: Ledger, seed: int = 0) -> Callable[[], None]:
    """Break what this process publishes from now on; call what is returned to mend it."""
    whole = Channel._put
    choose = random.Random(seed or os.getpid())

    def put(channel: Any, queue: str, message: Any, **options: Any) -> Any:
        if ".pidbox" in queue or queue.startswith("celeryev"):
            return whole(channel, queue, message, **options)
        if choose.random() < loss:
            ledger.note("message_lost", queue)
            return None
        for _ in range(copies - 1):
            whole(channel, queue, message, **options)
        if copies > 1:
            ledger.note("message_copied", queue, copies)
        return whole(channel, queue, message, **options)

    def mend() -> None:
        Channel._put = whole

    Channel._put = put
    return mend


def install_from_environment(ledger: Ledger) -> None:
    copies, loss = int(os.environ.get("TEST_BROKER_COPIES", "1")), float(os.environ.get("TEST_BROKER_LOSS", "0"))
    if copies > 1 or loss > 0:
        install(copies, loss, ledger)
