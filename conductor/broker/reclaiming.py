"""What others set aside for want of code, and this worker has: a poke to itself.

In a fleet where few have the code an ordinary poke mostly reaches somebody else. So each worker looks for itself, outside the shared sweep,
and sends the poke to its own private queue; the claim that follows takes the step back and claims it in one script. It pokes for nothing
from a queue that it does not consume, and for nothing while its pool is full. A poke that is lost is sent again at the next look.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from conductor.runs.execute import code_table

if TYPE_CHECKING:
    from conductor.broker.conductor import Conductor
    from conductor.broker.watchdog import Watchdog

__all__ = ["Reclaiming"]


class Reclaiming:
    """Asked in each round of the worker's timer; looks every few seconds."""

    def __init__(self, worker: Any, conductor: Conductor, watchdog: Watchdog) -> None:
        self._worker, self._conductor, self._watchdog = worker, conductor, watchdog
        self._looked_at = 0.0

    def look(self) -> None:
        """Poke this worker for every place where a step waits that it has the code of."""
        if time.monotonic() - self._looked_at < self._conductor.settings.stall_sweep_seconds or self._watchdog.saturated():
            return
        self._looked_at = time.monotonic()
        engine = self._conductor.engine
        consumed = self._worker.app.amqp.queues.consume_from
        known = code_table(engine).keys()
        found = [poke for poke in engine.store.set_aside(known) if poke.queue.partition("!")[0] in consumed]
        # Nothing is claimed from under a limit without a permit, so what waits there stands ready first.
        for partition in {poke.partition for poke in found if "!" in poke.queue}:
            engine.store.take_back(partition, sorted(known))
        self._conductor.pokes(found, to=self._watchdog.queue)
