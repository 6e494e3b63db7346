"""The worker's own timer: a thread of the parent process that runs overdue sweeps and fires due retries on time, beat or no beat.

It is not on the worker's event loop, which a slow server would stop for as long as a call takes. It begins after the pool has forked
its first children; a child forked later inherits a copy of this thread's memory but not the thread, and builds its own engine, so a
lock held here at that moment holds nobody up there. Each round waits a little more or less than the interval, so that many workers
spread themselves out and whoever comes first does the work for all.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from conductor.errors import ConductorError, StoreUnreachable, redact
from conductor.store.notices import Unreachable
from conductor.sweeps.overdue import run_overdue

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["Timer"]

_COMPLAIN_SECONDS = 60.0
_LONGEST_REST = 5.0

logger = logging.getLogger(__name__)


class Timer:
    """Runs `each_round` and the overdue sweeps until it is stopped."""

    def __init__(
        self, engine: Callable[[], Engine], interval: float, each_round: Callable[[], None],
        sweep: Callable[[Engine], object] = run_overdue, name: str = "timer",
    ) -> None:
        self._engine = engine
        self._interval = interval
        self._each_round, self._sweep = each_round, sweep
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"conductor-{name}", daemon=True)
        self._complained_at = -_COMPLAIN_SECONDS

    def start(self) -> None:
        self._thread.start()

    def stop(self, wait_seconds: float = 2.0) -> None:
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(wait_seconds)

    def _run(self) -> None:
        rest = self._interval
        while not self._stop.wait(rest * random.uniform(0.8, 1.2)):
            try:
                self._each_round()
                self._sweep(self._engine())
                rest = self._interval
            except (ConductorError, *Unreachable) as error:
                rest = min(max(rest, self._interval) * 2, _LONGEST_REST)
                self._complain(error)
            except Exception:
                logger.exception("the worker's timer met an unexpected error; it goes on")

    def _complain(self, error: BaseException) -> None:
        if time.monotonic() - self._complained_at < _COMPLAIN_SECONDS:
            return
        self._complained_at = time.monotonic()
        what = "store" if isinstance(error, (StoreUnreachable, *Unreachable)) else "archive"
        logger.warning("sweeps wait for the %s: %s", what, redact(f"{type(error).__name__}: {error}"))
