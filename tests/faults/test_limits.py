"""A limit over several workers of several slots, which are killed all the while: never more than it says, and not less than it may give."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conductor import Limit, Workflow
from conductor.declare.starting import start_options
from conductor.ids import new_run_id
from conductor.runs.fsck import fsck
from conductor.runs.start import start
from conductor.store.limits import home_of_limit
from tests.faults.gangs import PARTITIONS, Gang, engine_of
from tests.support.server import ValkeyServer


@dataclass(frozen=True)
class Campaign:
    """`late`: how much longer than its window the next permit may take, as a part of it; None where the window is too short to tell."""

    rate: str
    at_once: int
    many: int
    slots: int
    body: float
    seconds: float
    kill_every: float
    late: float | None

    @property
    def allowed(self) -> int:
        return int(self.rate.partition("/")[0])

    @property
    def window(self) -> int:
        return {"s": 1_000, "m": 60_000}[self.rate[-1]]


_SHORT = Campaign("20/s", 5, 60, 2, 0.15, 3.0, 0.7, None)
_LONG = Campaign("500/m", 20, 1_200, 8, 0.5, 135.0, 9.0, 0.04)  # 4 workers of 8 slots: more than 20


def _write_permits(ledger: Path, store: Any) -> None:
    """Keeps a ledger of the permits that a worker is given. One that goes back unused was not spent: said before it goes, so that a worker
    that is killed there is counted for less, never for more."""
    real: Callable[..., Any] = store.permit

    def permit(*asked: Any, returned: Sequence[tuple[str, str]] = (), **options: Any) -> Any:
        _write(ledger, "".join(f"-{fence}\n" for fence, how in returned if how == "unused"))
        told = real(*asked, returned=returned, **options)
        _write(ledger, "".join(f"{one.fence}\n" for one in told.permits))
        return told

    store.permit = permit


def _write(ledger: Path, lines: str) -> None:
    if lines:
        with ledger.open("a") as book:
            book.write(lines)


def _most_at_once(lines: Sequence[str], killed: dict[int, float]) -> int:
    """How many bodies ran at the same moment: one without an end ended with its process."""
    moves: list[tuple[float, int]] = []
    begun: dict[str, int] = {}
    for line in lines:
        word, name, pid, at = line.split()
        if word == "end":
            del begun[name]
            moves.append((float(at), -1))
        else:
            begun[name] = int(pid)
            moves.append((float(at), 1))
    moves += [(killed[pid], -1) for pid in begun.values()]
    now = most = 0
    for _, by in sorted(moves):
        now += by
        most = max(most, now)
    return most


@pytest.mark.spec("LANE-3")
@pytest.mark.parametrize("one", [
    pytest.param(_SHORT, id="short"), pytest.param(_LONG, id="long", marks=[pytest.mark.faults, pytest.mark.timeout(500)]),
])
def test_a_limit_holds_over_four_workers_while_they_are_killed(valkey: ValkeyServer, namespace: str, tmp_path: Path, one: Campaign) -> None:
    """Rate by the permits: their fences are the moments at which the store gave them, and a watcher sees each while it is out. Concurrency
    by the bodies themselves, and by what is out in one moment. In the burst at the beginning of each window it is the concurrency that
    holds, from then on the rate."""
    bodies, ledger = tmp_path / "bodies", tmp_path / "permits"

    def work() -> None:
        name = os.urandom(6).hex()
        _write(bodies, f"begin {name} {os.getpid()} {time.time()}\n")
        time.sleep(one.body)
        _write(bodies, f"end {name} {os.getpid()} {time.time()}\n")

    flow: Workflow[Any] = Workflow("limited", limit=Limit("outside", one.rate, concurrency=one.at_once))
    flow.add(work, name="work", lease_seconds=1)
    engine = engine_of(valkey.url(), namespace, flow)
    store, home = engine.store, home_of_limit("outside", PARTITIONS)
    for number in range(one.many):
        start(engine, flow, payload=flow.encode_input(), options=start_options("limited"),
              run_id=new_run_id(PARTITIONS, number % PARTITIONS))
    # One slot of each worker asks for what stands in every partition, the others take what the limit's home gives.
    everywhere = [(partition, "celery!outside") for partition in range(PARTITIONS)]
    places = [everywhere, *([[(home, "celery!outside")]] * (one.slots - 1))]
    out, seen, most_out = store.keys.of(home, "limit:outside:permits"), set[int](), 0
    ended = [store.keys.of(partition, "ended:completed") for partition in range(PARTITIONS)]
    gang, began, done = Gang(4, valkey.url(), namespace, flow, places, partial(_write_permits, ledger)), time.monotonic(), 0
    try:
        until, kill_at = began + 30 + 2 * one.seconds, began + one.kill_every
        while done < one.many and time.monotonic() < until:
            given = [int(fence) for fence in store.client().zrange(out, 0, -1)]
            assert len(given) <= one.at_once
            seen.update(given)
            most_out = max(most_out, len(given))
            if time.monotonic() > kill_at:
                gang.kill_one()
                kill_at += one.kill_every
            done = sum(int(store.client().zcard(key)) for key in ended)
            time.sleep(0.02)
        kills = len(gang.killed)
    finally:
        gang.end()
    assert done == one.many
    assert kills >= one.seconds / one.kill_every * 0.7, "it was not killed all the while"
    told = [int(line) for line in ledger.read_text().split()]
    at = sorted((seen | {fence for fence in told if fence > 0}) - {-fence for fence in told if fence < 0})
    apart = [at[n + one.allowed] - at[n] for n in range(len(at) - one.allowed)]
    assert min(apart) >= one.window, "more than its rate in a window"
    wanted = apart[: one.many - one.allowed - 2 * one.at_once]  # at the end there are but a few left, and those that were lost
    assert one.late is None or max(wanted) <= one.window * (1 + one.late), "less than its rate in a window"
    assert at[-1] - at[0] <= (one.many / one.allowed) * one.window * 1.2 + 3_000, "the limit gives less than it should"
    lines = bodies.read_text().splitlines()
    assert _most_at_once(lines, gang.killed) <= one.at_once
    assert most_out == one.at_once, "the concurrency never held anybody back"
    assert one.many <= sum(line.startswith("begin") for line in lines) <= len(at), "a body began without a permit"
    assert fsck(engine) == []
