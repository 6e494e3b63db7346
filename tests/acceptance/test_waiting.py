"""Runs that wait, with real processes: nothing is held meanwhile, and a worker that was killed with an answer in its hands loses nothing."""

from __future__ import annotations

import pytest

from tests.support.server import BROKER_DB
from tests.support.site import Site
from tests.support.waiting import eventually


@pytest.mark.spec("WF-5", "IDLE-1", "REC-2", "STK-1")
def test_a_waiting_run_holds_no_worker_and_survives_its_death(site: Site) -> None:
    """It waits; every worker is killed; signal and answer are taken while none is up; another worker goes on."""
    first = site.worker()
    runs = [site.start("waited", number) for number in range(4)]
    doomed = site.start("lonely", 1)
    eventually(lambda: all(site.state(run_id) == "waiting_signal" for run_id in runs), 20, what=site.processes.logs)
    store = site.engine.store
    for partition in range(store.partitions):
        assert not store.client().zcard(store.keys.of(partition, "leases")), "a waiting run holds no lease"
    assert not site.server.client(BROKER_DB).llen("celery"), "and no message"
    first.kill()
    handles = [site.conductor.run(run_id) for run_id in runs]
    for handle in handles:
        assert handle.signal("word", 10).word == "taken"
    site.worker()
    task = site.conductor.app.send_task("conductor.advance_run", (runs[0], "draft", 20))
    assert task.id
    for handle in handles[1:]:
        assert handle.advance("draft", 20).word == "taken"
    site.conductor.cancel(doomed)
    assert site.state(doomed) == "cancelled"
    site.wait_for_all(30)
    site.verdict(cancelled=[doomed])
