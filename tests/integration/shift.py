"""A shift of workers in this process: workflows on a store, real drainers, and what comes between a call and its reply."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from conductor import Workflow, codec
from conductor.errors import StoreUnreachable
from conductor.ids import new_run_id
from conductor.records import NewRun
from conductor.runs import holding
from conductor.runs.execute import Drainer
from conductor.settings import Settings
from conductor.store import Store
from conductor.wiring import Engine

__all__ = ["TOO_LONG", "Shift", "fan_out", "step"]

TOO_LONG = holding.BEGIN_WITHIN + 0.05  # a reply that takes so long is as old as none


class Shift:
    """Workflows on a store, the workers that drain them, and what comes between a call and its reply."""

    def __init__(self, store: Store, *flows: Workflow[Any], **settings: Any) -> None:
        self.store: Any = store
        whole = Settings(namespace=store.namespace, partitions=store.partitions, drain_seconds=60, **settings)
        self.engine = Engine(whole, store, {flow.name: flow for flow in flows}, lambda pokes: None, "q")

    def worker(self, **options: Any) -> Drainer:
        return Drainer(self.engine, worker_name="w1", **options)

    def quick_worker(self, flow: Workflow[Any]) -> Drainer:
        """One that has found its steps to be short, and therefore claims several at once."""
        drainer, _ = self.worker(), self.start(flow)
        drainer.drain(0, "q")
        drainer._average = 0.001
        return drainer

    def start(self, flow: Workflow[Any], partition: int = 0, **options: Any) -> str:
        run_id = new_run_id(self.store.partitions, partition)
        assert self.store.start(NewRun(run_id, flow.name, codec.NULL, "q", **options), flow.graph).word == "OK"
        return run_id

    def state(self, run_id: str) -> str:
        return str(self.store.client().hget(self.store.keys.run(run_id), "st"))

    def moves(self, run_id: str, codes: str) -> list[str]:
        """The indexes of the steps that these events of the log are about."""
        return [entry.split(";")[2] for entry in self.store.log_of(run_id) if entry[0] in codes]

    def before_reply(self, verb: str, then: Callable[..., Any]) -> None:
        real = getattr(self.store, verb)

        def call(*asked: Any) -> Any:
            told = real(*asked)
            then(told, *asked)
            return told

        setattr(self.store, verb, call)

    def away_once(self, verb: str) -> list[tuple[Any, ...]]:
        """The next such call finds the store away. Gives what was asked then."""
        real, refused = getattr(self.store, verb), list[tuple[Any, ...]]()

        def call(*asked: Any) -> Any:
            setattr(self.store, verb, real)
            refused.append(asked)
            raise StoreUnreachable(url="redis://away", problem="away for a moment")

        setattr(self.store, verb, call)
        return refused

    def cancel_slowly(self, run_id: str) -> None:
        """The cancel is acknowledged long before the worker hears what it has asked for."""
        self.store.cancel(run_id, reason="x")
        time.sleep(TOO_LONG)


def step(name: str, run: Callable[[], Any], **options: Any) -> Workflow[Any]:
    flow = Workflow(name)

    @flow.step(**options)
    def only() -> int:
        run()
        return 1

    return flow


def fan_out(name: str, length: int, run: Callable[[int], Any] = int, **options: Any) -> Workflow[Any]:
    flow = Workflow(name)

    @flow.step
    def numbers() -> list[int]:
        return list(range(length))

    @flow.each(numbers, **options)
    def members(number: int) -> int:
        run(number)
        return number

    return flow
