"""A lane under many submitters while its workers are killed: never more than its places, no place leaked, order kept, positions true."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from conductor import Lane, Workflow
from conductor.declare.starting import start_options
from conductor.ids import home_of_name
from conductor.runs.fsck import fsck
from conductor.runs.start import start
from conductor.store.lanes import read_lane, read_place
from conductor.store.reads import read_run
from tests.faults.gangs import FORK, PARTITIONS, Gang, engine_of
from tests.support.server import ValkeyServer

_PLACES = 5
_SAMPLE = """
local lane, runs = KEYS[1], {}
local active, queue = redis.call('SMEMBERS', lane .. ':active'), redis.call('ZRANGE', lane .. ':queue', 0, -1)
for _, list in ipairs({active, queue}) do
  for _, id in ipairs(list) do runs[#runs + 1] = redis.call('HGET', KEYS[2] .. id, 'st') end
end
return {active, queue, runs, redis.call('HKEYS', KEYS[3])}
"""


def _submit(url: str, namespace: str, flow: Workflow[Any], many: int, ledger: Path, barrier: Any) -> None:
    """Many submitters in one process, each with a connection of its own; all of all processes begin at once."""
    engine = engine_of(url, namespace, flow)
    together = threading.Barrier(many + 1)

    def one() -> None:
        together.wait()
        told = start(engine, flow, payload=flow.encode_input(), options=start_options("laned"))
        with ledger.open("a") as book:
            book.write(f"{told.run_id}\n")

    threads = [threading.Thread(target=one) for _ in range(many)]
    for thread in threads:
        thread.start()
    barrier.wait()
    together.wait()
    for thread in threads:
        thread.join()


class Watcher:
    """Looks at a lane, each time in one script, and holds what it sees now against what it saw before."""

    def __init__(self, store: Any, home: int) -> None:
        self._store, self._home = store, home
        of = store.keys.of
        self._keys = [of(home, "lane:five"), of(home, "run:"), of(home, "active")]
        self._rng = random.Random(11)
        self.queue: list[str] = []
        self.longest = self.most = self.asked = 0

    def look(self) -> list[str]:
        active, queue, states, listed = self._store.client().eval(_SAMPLE, len(self._keys), *self._keys)
        assert len(active) <= _PLACES, f"{len(active)} have a place"
        assert set(listed) == set(active), "who has a place is not who is active"
        assert not {"queued", "completed", None} & set(states[: len(active)]), f"a place is leaked: {states}"
        assert set(states[len(active):]) <= {"queued"}
        assert not queue or len(active) == _PLACES, "somebody waits while a place is free"
        stayed = [run_id for run_id in self.queue if run_id in set(queue)]
        assert stayed == self.queue[len(self.queue) - len(stayed):], "somebody was admitted before his turn"
        assert stayed == queue[: len(stayed)], "somebody came to stand before those who had come before him"
        self.queue = queue
        self.longest, self.most = max(self.longest, len(queue)), max(self.most, len(active))
        return list(queue)

    def ask_a_position(self) -> None:
        """What a queued run is told lies between where it stood before and where it stands after the question."""
        if not (before := self.look()):
            return
        run_id = self._rng.choice(before)
        run = read_run(self._store, run_id)
        assert run is not None
        told = read_place(self._store, run)
        after = self.look()
        at_least = after.index(run_id) + 1 if run_id in after else 0
        assert at_least <= told.position <= before.index(run_id) + 1
        self.asked += 1


@pytest.mark.spec("LANE-1", "LANE-2")
@pytest.mark.parametrize(("processes", "each"), [
    (4, 10), pytest.param(20, 25, marks=[pytest.mark.faults, pytest.mark.timeout(400)]),
])
def test_a_lane_of_five_holds_under_many_submitters_while_workers_are_killed(
    valkey: ValkeyServer, namespace: str, tmp_path: Path, processes: int, each: int
) -> None:
    """Submitters come while workers work, and all at once; more slots than places, so that it is the lane that holds them back."""
    flow: Workflow[Any] = Workflow("laned", lane=Lane("five", _PLACES, None, None))
    flow.add(lambda: time.sleep(0.05), name="work", lease_seconds=1)
    engine = engine_of(valkey.url(), namespace, flow)
    store, home, many = engine.store, home_of_name("lane:five", PARTITIONS), processes * each
    ledger, barrier = tmp_path / "accepted", FORK.Barrier(processes)
    gang = Gang(4, valkey.url(), namespace, flow, [[(home, "celery")]] * 2)
    submitters = [
        FORK.Process(target=_submit, args=(valkey.url(), namespace, flow, each, ledger, barrier), daemon=True) for _ in range(processes)]
    ended, planned = store.keys.of(home, "ended:completed"), 4 + many // 50
    watcher = Watcher(store, home)
    try:
        for one in submitters:
            one.start()
        until, done = time.monotonic() + 40 + many / 4, 0
        while done < many and time.monotonic() < until:
            watcher.ask_a_position()
            done = int(store.client().zcard(ended))
            if len(gang.killed) < planned and done > many * len(gang.killed) // (planned + 1):  # spread over the work
                gang.kill_one()
            time.sleep(0.005)
        kills = len(gang.killed)
        for one in submitters:
            one.join(10)
    finally:
        gang.end()
    runs = ledger.read_text().split()
    assert (done, len(runs), kills) == (many, many, planned)
    assert set(runs) == set(store.client().zrange(ended, 0, -1))
    assert (watcher.most, watcher.longest > many // 4, watcher.asked >= 5) == (_PLACES, True, True), "the lane was never busy"
    assert read_lane(store, home, "five") is None
    assert fsck(engine) == []
