"""A small shop for the tests of the command line: an app with two workflows, the command line on it, and a worker in a thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from celery import Celery
from click.testing import CliRunner, Result
from pydantic import BaseModel

from conductor import Conductor, Workflow
from conductor.cli import group
from conductor.runs.execute import Drainer

__all__ = ["DIRECT", "Order", "Shop"]

DIRECT = frozenset({"archive", "bench", "check", "demo", "dev", "doctor", "fsck", "purge", "recover", "serve", "sweeper", "tokens"})
"""Commands that work on the store itself."""


class Order(BaseModel):
    """`bad` decides whether charging it fails."""

    number: int
    bad: bool = False
    note: str = ""


class Shop:
    """An app with two workflows, the command line on it, and a worker when one is asked for. With a `url` commands go to the service there,
    but for those that work on the store itself."""

    url = ""

    def __init__(self, redis_url: str, namespace: str, **settings: Any) -> None:
        self.app = Celery("shop", broker="memory://", set_as_current=False)
        self.conductor = Conductor(self.app, autodiscover=False, redis_url=redis_url, namespace=namespace, partitions=2, **settings)
        self.mended = False
        self.declare()

    def declare(self) -> None:
        orders = Workflow("cli_orders", input=Order)

        @orders.step
        def price(order: Order) -> int:
            return order.number * 2

        @orders.step
        def charge(price: int, order: Order) -> int:
            if order.bad and not self.mended:
                raise ValueError("card refused")
            return price + 1

        naps = Workflow("cli_naps")

        @naps.step
        def begin() -> None: ...

        rest = naps.sleep(3600, name="rest", after=[begin])

        @naps.step(after=[rest])
        def wake() -> None: ...

    @property
    def engine(self) -> Any:
        return self.conductor.engine

    def call(self, *arguments: str, input: str | None = None) -> Result:
        if self.url and not DIRECT.intersection(arguments[:2]):
            return CliRunner(env={"CONDUCTOR_URL": self.url}).invoke(group, list(arguments), input=input)
        return CliRunner().invoke(group, list(arguments), obj=SimpleNamespace(app=self.app), input=input)

    def ok(self, *arguments: str) -> str:
        result = self.call(*arguments)
        assert result.exit_code == 0, f"{arguments}: exit {result.exit_code}\n{result.output}\n{result.stderr}"
        return result.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def start(self, workflow: str = "cli_orders", value: Any = None) -> str:
        given = [json.dumps(value or {"number": 3})] if workflow == "cli_orders" else []
        return str(self.json("start", workflow, *given)["run_id"])

    def state(self, run_id: str) -> str:
        return str(self.conductor.run(run_id).status)

    def drain(self) -> None:
        """What a worker does when it is poked, once for each partition."""
        drainer = Drainer(self.engine, worker_name="w1")
        for partition in range(self.engine.store.partitions):
            drainer.drain(partition, self.engine.default_queue)

    @contextmanager
    def working(self) -> Iterator[None]:
        stop = threading.Event()

        def work() -> None:
            while not stop.wait(0.02):
                self.drain()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
