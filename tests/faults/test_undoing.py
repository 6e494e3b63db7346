"""Real workers that are killed while they undo, and while they run a child: the work goes on, once, in its order."""

from __future__ import annotations

import signal

import pytest

from tests.support.site import Site
from tests.support.waiting import eventually

QUICK = {"TEST_LEASE_SECONDS": "2", "CONDUCTOR_HEARTBEAT_SECONDS": "0.5", "CONDUCTOR_STALL_SWEEP_SECONDS": "0.5"}


def begun(site: Site, key: str) -> list[int]:
    """The processes in which the body under this key began."""
    return [line.pid for line in site.ledger.lines("begin") if line.key == key]


def looked(site: Site) -> None:
    """As if the sweeps had been looking for a while: a system that has just begun waits one lease before it takes any away."""
    store = site.engine.store
    seconds, micros = store.client().time()
    for number in range(store.partitions):
        store.client().hset(store.keys.head(number), mapping={"look": int(seconds) * 1000 + int(micros) // 1000, "calm": 0})


def run_out(site: Site, run_id: str) -> None:
    """The leases of a run's attempts end now: the graph was made here, with leases of 15 s."""
    client, leases = site.engine.store.client(), site.engine.store.keys.of(int(run_id[-2:], 16), "leases")
    for member in client.zrange(leases, 0, -1):
        if member.startswith(run_id):
            client.zadd(leases, {member: 1}, xx=True)


@pytest.mark.spec("RUN-7", "WF-7")
@pytest.mark.parametrize("site", [QUICK], indirect=True)
def test_a_worker_killed_while_it_undoes_or_runs_a_child(site: Site) -> None:
    first, second = site.worker(concurrency=1), site.worker(concurrency=1)
    undone = site.start("undone", 3, hold=0.8)
    (pid,) = eventually(lambda: begun(site, f"{undone}:book:undo"), 20, what="the last undo begins")
    looked(site)
    victim = first if pid in first.children else second
    assert victim.signal_children(signal.SIGKILL) == [pid]
    run_out(site, undone)
    caller = site.start("caller", 5, hold=0.4)
    child = eventually(lambda: str(site.engine.store.client().hget(site.engine.store.keys.run(caller), "0c") or ""), 20, what="it calls")
    (pid,) = eventually(lambda: begun(site, f"{child}:second"), 20, what="the child is in the middle of a body")[:1]
    victim = first if pid in first.children else second
    assert victim.signal_children(signal.SIGKILL) == [pid]
    site.wait_for_all(40)
    assert len(begun(site, f"{undone}:rent:undo")) == 1
    assert len(begun(site, f"{undone}:book:undo")) == 2
    assert {f"{undone}:book:undo", f"{undone}:rent:undo", f"{child}:third"} <= site.ledger.effects()
    assert "x" in "".join(entry.code for entry in site.record(undone).log)
    assert "x" in "".join(entry.code for entry in site.record(child).log)
    site.verdict(failed=[undone])
