"""A shop whose capabilities change a world outside, for the tests of operations: an engine, and a worker in the test's own thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conductor import Workflow
from conductor.declare import registry
from conductor.declare.capability import Capability, capability
from conductor.declare.effects import EffectSpec, Verdict
from conductor.declare.starting import start_options
from conductor.operations import listing, read
from conductor.operations.start import start_operation
from conductor.records import QueueReason
from conductor.runs.execute import Drainer
from conductor.runs.fsck import fsck
from conductor.runs.handle import Handle
from conductor.runs.start import start
from conductor.settings import Settings
from conductor.store import Store
from conductor.wiring import Engine

__all__ = ["Cashier", "failing", "run_of"]


class Cashier:
    """An engine, a worker in this thread, and a world outside that capabilities change."""

    def __init__(self, store: Store) -> None:
        self.store = store
        settings = Settings(namespace=store.namespace, partitions=1)
        self.engine = Engine(settings, store, registry.declared, lambda pokes: None, "q", registry.capabilities)
        self.calls: list[str] = []
        self.landed: set[str] = set()
        self.blind = False

    def verdict(self, name: str) -> Verdict:
        if self.blind:
            raise OSError("nobody can look")
        return Verdict.VERIFIED if name in self.landed else Verdict.ABSENT

    def effect(self, retry: str, error: Callable[[], Exception | None], *, lands: bool = False, **options: Any) -> Capability[..., Any]:
        """A capability `pay` whose call lands or not, and then raises what `error` gives."""

        @capability("pay", retry=retry, backoff="none", effects=(EffectSpec("booking", self.verdict),), **options)
        def pay(name: str) -> str:
            self.calls.append(name)
            found = error()
            if lands or found is None:
                self.landed.add(name)
            if found is not None:
                raise found
            return f"paid {name}"

        return pay

    def work(self, rounds: int = 3, queue: str = "q") -> None:
        """Let a worker drain, and the due sweep fire."""
        for _ in range(rounds):
            Drainer(self.engine, worker_name="w").drain(0, queue)
            self.store.fire_due(0)

    def lose(self, operation_id: str) -> None:
        """The holder is gone: its lease ends, and the sweep comes."""
        client: Any = self.store.client()
        client.zadd(self.store.keys.of(0, "leases"), {f"{operation_id}:0": 1000}, xx=True)
        client.hset(self.store.keys.head(0), mapping={"look": self.store._now(), "calm": 0})
        self.store.expire_leases(0)

    def hold(self, capability: Capability[..., Any], reason: QueueReason = QueueReason.RETRY, **params: Any) -> str:
        """Start it as a caller that dies right after its claim."""
        told = start_operation(self.engine, capability, capability.encode(params), reason=reason, tag="gone")
        assert told.held is not None
        return told.run_id

    def the_operation(self) -> read.Operation:
        """The only stand-alone operation there is."""
        (found,) = listing.list_operations(self.engine, steps=False)
        return read.find(self.engine, found.operation_id)

    def clean(self) -> None:
        assert fsck(self.engine) == []


def failing(times: int, error: Callable[[], Exception]) -> Callable[[], Exception | None]:
    """Gives an error so many times, and then none."""
    left = iter([error] * times)
    return lambda: made() if (made := next(left, None)) is not None else None


def run_of(shop: Cashier, flow: Workflow[Any]) -> Handle:
    """A run that was just accepted."""
    accepted = start(shop.engine, flow, payload=flow.encode_input(), options=start_options(flow.name))
    return Handle(shop.engine, accepted.run_id)
