"""What Prometheus reads. Labels are names that code declares (queues, sweeps, states, routes), never an id or a text of a user.

Read from the store at a scrape, at most every two seconds for all who scrape. While the store is away `conductor_store_up` is 0 and what it
would say is left out: a number that nobody has read must not look like one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from conductor import __version__
from conductor.errors import ConductorError
from conductor.runs.around import read_holds
from conductor.runs.counting import count_runs
from conductor.runs.parking import why_not_parking
from conductor.runs.scopes import KINDS
from conductor.store.listing import queues
from conductor.store.notices import Unreachable
from conductor.sweeps.checkpoints import lag_ms

if TYPE_CHECKING:
    from conductor.service.recording import Recorder
    from conductor.wiring import Engine

__all__ = ["CONTENT_TYPE", "Metrics"]

_FRESH = 2.0


class Metrics:
    """A registry of our own: what the process of a user's application exports stays apart."""

    def __init__(self, engine: Engine, recorder: Recorder) -> None:
        self._engine = engine
        self._recorder = recorder
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._lock = threading.Lock()
        self._text, self._at = b"", float("-inf")

    def render(self) -> bytes:
        with self._lock:
            if time.monotonic() - self._at >= _FRESH:
                self._text, self._at = generate_latest(self._registry), time.monotonic()
            return self._text

    def collect(self) -> Iterator[Metric]:
        """What the registry asks for at a scrape; at its own registration, too, which `describe` spares the store."""
        yield _gauge("conductor_build_info", "The release of this service.", ("version",), {(__version__,): 1})
        yield from self._requests()
        try:
            found = [*self._queues(), *self._holds(), *self._runs(), *self._sweeps()]
        except (*Unreachable, ConductorError):
            found = []
        yield _gauge("conductor_store_up", "Whether the store answered this scrape.", (), {(): int(bool(found))})
        yield from found

    def describe(self) -> list[Metric]:
        return []

    def _requests(self) -> Iterator[Metric]:
        labels = ("method", "route", "status")
        count = CounterMetricFamily("conductor_http_requests", "Requests answered, by route as declared.", labels=labels)
        spent = CounterMetricFamily("conductor_http_request_seconds", "Seconds spent on them.", labels=labels)
        for (method, route, status), (number, seconds) in sorted(self._recorder.counts.copy().items()):
            count.add_metric((method, route, str(status)), number)
            spent.add_metric((method, route, str(status)), seconds)
        return iter((count, spent))

    def _queues(self) -> Iterator[Metric]:
        found = queues(self._engine.store)
        ready = {(queue.queue,): queue.ready + queue.limited for queue in found}
        yield _gauge("conductor_ready_steps", "Steps that stand ready and are not claimed.", ("queue",), ready)
        oldest = {(queue.queue,): queue.oldest_ready_ms / 1000 for queue in found}
        yield _gauge("conductor_oldest_ready_seconds", "How long the oldest of them has stood.", ("queue",), oldest)
        yield _gauge("conductor_running_steps", "Attempts under a lease.", ("queue",), {(queue.queue,): queue.running for queue in found})
        unanswered = {(queue.queue,): queue.unanswered_ms / 1000 for queue in found}
        yield _gauge("conductor_unanswered_poke_seconds", "How long nobody has answered a poke.", ("queue",), unanswered)

    def _holds(self) -> Iterator[Metric]:
        """By kind only: what is paused is named by whoever pauses it, and a name may be misspelt."""
        kinds = [scope.partition(":")[0] for scope in read_holds(self._engine.store)]
        paused = {(kind,): kinds.count(kind) for kind in KINDS}
        yield _gauge("conductor_holds", "What is paused: everything, workflows, queues, capabilities.", ("kind",), paused)

    def _runs(self) -> Iterator[Metric]:
        store = self._engine.store
        counts = {(state,): number for state, number in count_runs(store).items()}
        yield _gauge("conductor_runs", "Runs in the store, by state; parked ones apart.", ("state",), counts)
        parks = int(not why_not_parking(self._engine))
        yield _gauge("conductor_parking", "Whether runs that are idle for long leave memory for the archive.", (), {(): parks})
        if self._engine.archive.configured:
            lag = lag_ms(self._engine) / 1000
            yield _gauge("conductor_checkpoint_lag_seconds", "Age of the oldest change that the archive does not have.", (), {(): lag})

    def _sweeps(self) -> Iterator[Metric]:
        noted, now = self._engine.store.last_sweeps()
        ages = {(name,): max(0, now - at) / 1000 for name, at in sorted(noted.items())}
        yield _gauge("conductor_sweep_age_seconds", "Since a sweep last succeeded.", ("sweep",), ages)


def _gauge(name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for place, value in sorted(values.items()):
        family.add_metric(place, value)
    return family
