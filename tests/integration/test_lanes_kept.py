"""A lane outlives what becomes of its runs' records: a parked run keeps its place and its key, and a lane comes back with a wiped store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conductor import Lane, PermanentError, Workflow
from conductor.declare import registry
from conductor.ids import partition_of
from conductor.runs.fsck import fsck
from conductor.runs.parking import park, wake
from conductor.runs.recover import recover
from conductor.runs.waiting import signal
from conductor.store.lanes import read_lane
from conductor.store.stubs import read_stub
from conductor.sweeps.checkpoints import lag_ms, sweep_checkpoints
from tests.integration.shop import Shop
from tests.support.backup import dump, load
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually


class Desk(Shop):
    """A desk for one, at which one waits for a word."""

    def declare(self) -> None:
        super().declare()
        desk: Workflow[Any] = Workflow("kept_desk", lane=Lane("kept", 1, 5))

        @desk.step
        def sit() -> int:
            return 1

        desk.wait("word", str, after=[sit])

    def enter(self, **options: Any) -> str:
        run_id: str = registry.declared["kept_desk"].apply_async(**options).id
        self.drain()
        return run_id

    def lane(self, run_id: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        view = read_lane(self.engine.store, partition_of(run_id), "kept")
        return (view.active, view.queue) if view else ((), ())

    def sound(self) -> None:
        assert [str(one) for one in fsck(self.engine)] == []

    def hurry(self, run_id: str) -> None:
        """What is due later is due now."""
        due = self.engine.store.keys.of(partition_of(run_id), "due")
        self.engine.store.client().zadd(due, {"admit:kept": 1}, xx=True)
        self.engine.store.fire_due(partition_of(run_id))


@pytest.fixture
def desk(own_valkey: ValkeyServer, namespace: str, tmp_path: Path) -> Iterator[Desk]:
    with registry.isolated():
        yield Desk(own_valkey.url(), namespace, archive_url=f"sqlite:///{tmp_path}/archive.db", step_lease_seconds=1, heartbeat_seconds=0.3)


@pytest.mark.spec("LANE-2")
def test_a_parked_run_keeps_its_place_and_its_key(desk: Desk) -> None:
    first, second = desk.enter(key="a"), desk.enter()
    assert park(desk.engine, [first], desk.engine.store._now() + 1) == [first]
    desk.sound()
    assert desk.lane(first) == ((first,), (second,))
    assert desk.enter(key="a") == first
    signal(desk.engine, first, "word", "go")
    wake(desk.engine, first)
    desk.sound()
    desk.drain()
    assert (desk.state(first), desk.lane(first)) == ("completed", ((second,), ()))
    desk.sound()


@pytest.mark.spec("LANE-2")
def test_a_parked_run_that_the_archive_has_lost_leaves_its_place_when_it_is_cancelled(desk: Desk) -> None:
    first, second = desk.enter(key="a"), desk.enter()
    assert park(desk.engine, [first], desk.engine.store._now() + 1) == [first]
    assert desk.conductor.cancel(first)["word"] == "OK"
    desk.engine.archive.open().delete([first])
    wake(desk.engine, first)
    assert read_stub(desk.engine.store, first) is None
    assert desk.lane(second) == ((second,), ())
    desk.drain()
    assert desk.state(second) == "waiting_signal"
    assert desk.enter(key="a") != first
    desk.sound()


@pytest.mark.spec("LANE-2", "REC-6")
def test_a_stub_that_had_ended_leaves_its_place(desk: Desk, own_valkey: ValkeyServer) -> None:
    first, second = desk.enter(key="a"), desk.enter()
    assert park(desk.engine, [first], desk.engine.store._now() + 1) == [first]
    backup = dump(own_valkey)
    signal(desk.engine, first, "word", "go")
    wake(desk.engine, first)
    desk.drain()
    desk.drain()
    assert (desk.state(first), desk.state(second)) == ("completed", "waiting_signal")
    eventually(lambda: sweep_checkpoints(desk.engine) is not None and lag_ms(desk.engine) == 0, 5, what="checkpoints catch up")
    load(own_valkey, backup)
    assert recover(desk.engine, restored=True).errors == []
    assert (desk.state(first), desk.lane(second)) == ("completed", ((second,), ()))
    desk.sound()


@pytest.mark.spec("LANE-2", "REC-1")
def test_a_retry_that_is_queued_with_nothing_left_but_last_steps_is_not_settled_before_it_is_admitted(desk: Desk) -> None:
    """A recovery that finds its index entries wrong leaves its last step to wait for its place."""
    ends: Workflow[Any] = Workflow("ends", lane=Lane("kept", 1, None, None))
    bad = [True]

    @ends.step
    def work() -> int:
        return 1

    @ends.on_finish
    def last() -> None:
        if bad[0]:
            raise PermanentError("no")

    run_id = ends.delay().id
    for _ in range(3):
        desk.drain()
    assert desk.state(run_id) == "failed"
    holder = desk.enter()
    bad[0] = False
    desk.ok("retry", run_id)
    assert desk.state(run_id) == "queued"
    desk.engine.store.client().hset(desk.engine.store.keys.of(partition_of(run_id), "active"), run_id, "x;x;1;;;")
    before = desk.engine.store.log_of(run_id)
    assert recover(desk.engine).recovered == 1
    assert desk.engine.store.log_of(run_id) == before
    assert desk.state(run_id) == "queued"
    assert desk.lane(run_id) == ((holder,), (run_id,))
    desk.sound()
    desk.conductor.cancel(holder)
    for _ in range(3):
        desk.drain()
    assert desk.state(run_id) == "completed"
    desk.sound()


@pytest.mark.spec("LANE-2", "REC-1")
@pytest.mark.parametrize("wiped", [True, False])
def test_a_lane_comes_back_with_its_runs(desk: Desk, own_valkey: ValkeyServer, wiped: bool) -> None:
    runs = [desk.enter() for _ in range(3)]
    client, store = desk.engine.store.client(), desk.engine.store
    if wiped:
        eventually(lambda: sweep_checkpoints(desk.engine) is not None and lag_ms(desk.engine) == 0, 5, what="checkpoints catch up")
        own_valkey.client().flushall()
    else:
        home = partition_of(runs[0])
        client.delete(*(store.keys.of(home, tail) for tail in ("lanes", "lane:kept", "lane:kept:active", "lane:kept:queue", "active")))
    told = recover(desk.engine)
    assert (told.restored, told.recovered, told.errors) == ((3, 0, []) if wiped else (0, 3, []))
    assert desk.lane(runs[0]) == ((runs[0],), (runs[1], runs[2]))
    desk.sound()
    assert recover(desk.engine).recovered == 0
    fourth = desk.enter()
    assert desk.lane(fourth)[1] == (runs[1], runs[2], fourth)
    assert desk.conductor.cancel(runs[0])["word"] == "OK"
    assert desk.lane(fourth) == ((runs[1],), (runs[2], fourth))
    desk.hurry(fourth)
    desk.drain()
    assert desk.state(runs[1]) == "waiting_signal"
    desk.sound()
