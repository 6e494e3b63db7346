"""A stage for the tests of streams: the shop with workflows that wait or are long, and services of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel

from conductor import Workflow
from conductor.declare import registry
from tests.integration.shop import Shop
from tests.support.streaming import Served
from tests.support.waiting import eventually

__all__ = ["Serve", "Stage", "staged"]


class Approval(BaseModel):
    by: str


class Stage(Shop):
    """A shop with a workflow that waits for a word, and three long ones."""

    def declare(self) -> None:
        super().declare()
        asking: Workflow[Any] = Workflow("asking")

        @asking.step
        def begin() -> int:
            return 1

        word = asking.wait("word", Approval, after=[begin])

        @asking.step(after=[word])
        def finish(word: Approval) -> str:
            return word.by

        for name, length in (("some", 60), ("many", 150), ("endless", 800)):
            chain: Workflow[Any] = Workflow(name)
            last = None
            for number in range(length):
                last = chain.step(_count, name=f"s{number}", after=[last] if last else [])

    def begin(self, workflow: str = "asking", value: Any = None, **options: Any) -> str:
        """Start a run and work until it waits or has ended."""
        given = () if value is None else (value,)
        run_id = str(registry.declared[workflow].apply_async(*given, **options).id)
        eventually(lambda: self.drain() or self.state(run_id) != "running")
        return run_id

    def say(self, run_id: str, by: str = "ann") -> None:
        """The word that a run waits for, and work."""
        self.conductor.run(run_id).signal("word", {"by": by})
        self.drain()


def _count() -> int:
    return 1


Serve = Callable[..., tuple[Stage, Served]]


@contextmanager
def staged(url: str, namespace: str) -> Iterator[Serve]:
    """Makes stages on the server and a service of each, with the settings named."""
    with registry.isolated():
        made: list[Served] = []

        def start(other: str = "", *, auth: Any = None, send_buffer: int = 0, **settings: Any) -> tuple[Stage, Served]:
            stage = Stage(other or url, namespace, **settings)
            made.append(Served(stage.conductor, auth=auth, send_buffer=send_buffer).start())
            return stage, made[-1]

        yield start
        for one in made:
            one.close()
