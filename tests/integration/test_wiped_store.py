"""A store that was wiped and recovered: what ran after the checkpoint is repeated, verified effects are not, and the gap fails no step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conductor import Ctx, Workflow
from conductor.declare import registry
from conductor.records import Attempt, Node
from conductor.runs.execute import Drainer
from conductor.runs.inputs import Inputs
from conductor.runs.recover import recover
from conductor.store import Want
from conductor.sweeps.checkpoints import lag_ms, sweep_checkpoints
from conductor.sweeps.overdue import run_overdue
from tests.integration.shop import Shop
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually


class Till(Shop):
    """A shop that charges; `charged` is the outside world, which can be asked."""

    def declare(self) -> None:
        super().declare()
        self.charged: list[str] = []
        self.flow: Workflow[Any] = Workflow("pay")

        @self.flow.effect(lease_seconds=1)
        def charge(ctx: Ctx) -> str:
            self.charged.append(ctx.key)
            return ctx.key

        @charge.verify
        def was_charged(ctx: Ctx) -> str | None:
            return ctx.key if ctx.key in self.charged else None

        self.fan: Workflow[Any] = Workflow("fan")

        @self.fan.step
        def split() -> list[int]:
            return [1, 2, 3]

        @self.fan.each(split, lease_seconds=1)
        def double(part: int) -> int:
            return 2 * part

    def copied(self) -> None:
        eventually(lambda: sweep_checkpoints(self.engine).ran and lag_ms(self.engine) == 0, 5, what="checkpoints catch up")

    def begun_elsewhere(self, run_id: str) -> None:
        """A worker that claims and is never heard of again."""
        self.engine.store.register_code("doomed", Drainer(self.engine, worker_name="w").signatures)
        partition = int(run_id[-2:], 16)
        assert self.engine.store.claim(partition, Want("celery", 1, "doomed", "tag", first=True)).attempts

    def wiped(self, server: ValkeyServer, run_id: str) -> None:
        """The store is wiped and recovered, and what comes back ends."""
        server.client().flushall()
        assert recover(self.engine).restored == 1
        self.ends(run_id)

    def ends(self, run_id: str) -> None:
        def over() -> bool:
            for partition in range(2):
                self.engine.store.client().hset(self.engine.store.keys.head(partition), mapping={"look": self.engine.store._now(), "calm": 0})
            run_overdue(self.engine)
            self.drain()
            return self.state(run_id) in ("completed", "failed")

        eventually(over, 20, what="it ends")
        assert self.state(run_id) == "completed"


@pytest.fixture
def till(own_valkey: ValkeyServer, namespace: str, tmp_path: Path) -> Iterator[Till]:
    with registry.isolated():
        yield Till(own_valkey.url(), namespace, archive_url=f"sqlite:///{tmp_path}/archive.db", heartbeat_seconds=0.3)


@pytest.mark.spec("REC-6", "EFF-2")
def test_an_effect_that_had_begun_is_verified_first(till: Till, own_valkey: ValkeyServer) -> None:
    run_id = till.flow.delay().id
    till.begun_elsewhere(run_id)
    till.copied()
    till.charged.append(f"{run_id}:charge")
    till.wiped(own_valkey, run_id)
    assert till.charged == [f"{run_id}:charge"]
    assert till.conductor.run(run_id).get(timeout=5) == f"{run_id}:charge"


@pytest.mark.spec("REC-6", "EFF-2")
def test_an_effect_that_began_after_the_checkpoint_is_verified_first(till: Till, own_valkey: ValkeyServer) -> None:
    run_id = till.flow.delay().id
    till.copied()
    till.drain()
    assert till.charged == [f"{run_id}:charge"]
    till.wiped(own_valkey, run_id)
    assert till.charged == [f"{run_id}:charge"]


@pytest.mark.spec("REC-6")
def test_what_is_read_between_wipe_and_recovery_fails_no_step(
    till: Till, own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live worker holds an item by a claim that the checkpoint knows, reads its input from the empty store, and commits when all is back."""
    run_id, read = till.fan.delay().id, Inputs.item

    def in_the_gap(self: Inputs, held: Attempt, node: Node) -> str:
        monkeypatch.undo()
        till.copied()
        own_valkey.client().flushall()
        try:
            return read(self, held, node)
        finally:
            assert recover(till.engine).restored == 1

    monkeypatch.setattr(Inputs, "item", in_the_gap)
    till.drain()
    till.ends(run_id)
    assert till.conductor.run(run_id).get(timeout=5) == [2, 4, 6]
