"""The shop with capabilities, for the tests of operations, sessions and schedules on the command line."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from conductor import Ctx, Workflow
from conductor.declare import every, needs, registry
from conductor.declare.capability import capability
from conductor.declare.effects import EffectSpec, Verdict
from conductor.errors import EffectUncertain, TransientError
from conductor.operations import built_in
from conductor.sweeps.outbox import sweep_outbox
from conductor.sweeps.retries import sweep_retries
from tests.integration.shop import Order, Shop
from tests.support.leaks import forget, leaks
from tests.support.server import ValkeyServer

__all__ = ["Office", "opened"]


class Office(Shop):
    """The shop, with capabilities. `away`: what they need is not there; `verdict`: what the verifier of an effect says."""

    def declare(self) -> None:
        super().declare()
        self.away, self.verdict, self.go = False, Verdict.INDETERMINATE, threading.Event()

        @needs.need("bridge")
        def bridge() -> bool:
            return not self.away

        @capability("invoice", retry="replay", max_retries=1, needs=("bridge",))
        def invoice(number: int, note: str = "") -> str:
            """Write an invoice."""
            if self.away:
                raise TransientError("the bridge is down")
            return f"invoice {number}"

        @capability("pay", retry="verify_first", effects=[EffectSpec("booking", lambda: self.verdict)])
        def pay(amount: int) -> int:
            """Book a payment."""
            raise EffectUncertain("the connection broke")

        @capability("erase", consent=True)
        def erase() -> str:
            """Erase everything."""
            return "erased"

        @capability("slow")
        def slow(ctx: Ctx) -> str:
            """Take its time."""
            ctx.progress(3, 9, "pages")
            self.go.wait(20)
            return "done"

        books = Workflow("cli_books", input=Order)

        @books.effect
        def book(order: Order) -> int:
            if order.bad:
                raise EffectUncertain("the connection broke")
            return order.number

        @books.step
        def close(book: int) -> int:
            if self.away:
                raise TransientError("the books are locked")
            return book + 1

    def due(self) -> None:
        """Every retry that waits is due now, and is taken up."""
        store = self.engine.store
        for number in range(store.partitions):
            for member in store.client().zrange(store.keys.of(number, "due"), 0, -1):
                store.client().zadd(store.keys.of(number, "due"), {member: 1})
        sweep_retries(self.engine)
        self.drain()

    def tell(self) -> None:
        sweep_outbox(self.engine)

    def fails(self, code: int, *arguments: str) -> str:
        result = self.call(*arguments)
        assert result.exit_code == code, f"{arguments}: exit {result.exit_code}\n{result.output}"
        assert "Traceback" not in result.output
        return result.stderr


@contextmanager
def opened(valkey: ValkeyServer, namespace: str) -> Iterator[Office]:
    """An office with a registry of its own. At the end every key must be in the catalogue."""
    with registry.isolated(), needs.isolated(), every.isolated():
        for found in (built_in.notify, built_in.replay):
            registry.register_capability(found, registry.place_of_caller())
        yield Office(valkey.url(), namespace)
    strange = [line for line in leaks(valkey.client(), namespace) if "index of runs" not in line]  # operations have an index of their own
    forget(valkey.client(), namespace)
    assert strange == []
