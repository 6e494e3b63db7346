"""A broker that is wiped, that doubles every message, that loses them: it costs time, never work."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from kombu import Connection

from tests.faults.test_workers import assert_ran_once, lost
from tests.support.broken_broker import broken, install
from tests.support.server import BROKER_DB
from tests.support.site import Site
from tests.support.waiting import eventually


@pytest.mark.spec("RUN-4", "RUN-6", "STK-5")
@pytest.mark.parametrize(("runs", "wipes"), [(40, 2), pytest.param(200, 10, marks=pytest.mark.faults)])
def test_wiping_the_broker_in_the_middle_loses_nothing(own_site: Site, runs: int, wipes: int, seed: int) -> None:
    own_site.worker(), own_site.worker()
    lost_keys = 0
    per_wipe = runs // wipes
    for number in range(wipes):
        own_site.start_mix(per_wipe, seed + number, hold=0.02)
        lost_keys += own_site.server.flush_broker()
        assert own_site.open_runs(), "the broker was wiped when nothing was under way"
    assert lost_keys, "nothing was in the broker when it was wiped"
    own_site.wait_for_all(60)
    assert_ran_once(own_site)
    own_site.verdict()


@pytest.mark.spec("RUN-2", "RUN-4")
@pytest.mark.parametrize("runs", [30, pytest.param(200, marks=pytest.mark.faults)])
def test_every_message_delivered_five_times_runs_every_step_once(site: Site, runs: int, seed: int) -> None:
    mend = install(5, 0, site.ledger, seed)
    try:
        site.worker(env=broken(copies=5)), site.worker(env=broken(copies=5))
        site.start_mix(runs, seed)
    finally:
        mend()
    site.wait_for_all(60)
    assert len(site.ledger.lines("message_copied")) >= 10
    assert not lost(site)
    assert_ran_once(site)
    site.verdict()


@pytest.mark.spec("RUN-6")
@pytest.mark.parametrize(("runs", "loss"), [(20, 1.0), pytest.param(200, 0.5, marks=pytest.mark.faults)])
def test_lost_messages_are_made_good_by_the_sweep(site: Site, runs: int, loss: float, seed: int) -> None:
    """All pokes of the client are lost, and in the long form half of those of the workers too."""
    site.worker(env=broken(loss=loss if loss < 1 else 0)), site.worker()
    mend = install(1, loss, site.ledger, seed)
    try:
        site.start_mix(runs, seed)
    finally:
        mend()
    site.wait_for_all(90)
    assert site.ledger.lines("message_lost")
    assert_ran_once(site)
    site.verdict()


FORGED: dict[str, tuple[str, dict[str, Any]]] = {
    "not a poke": ("[]", {"task": "conductor.execute"}),
    "not JSON": ("{", {"task": "conductor.execute"}),
    "another namespace": ('[["elsewhere", 0, "celery"], {}, {}]', {"task": "conductor.execute"}),
    "no such partition": ('[["NS", 999, "celery"], {}, {}]', {"task": "conductor.execute"}),
    "a queue of another kind": ('[["NS", 0, {"a": 1}], {}, {}]', {"task": "conductor.execute"}),
    "too many arguments": ('[["NS", 0, "celery", 1, 2], {"x": 1}, {}]', {"task": "conductor.execute"}),
    "limits of another kind": ('[["NS", 0, "celery"], {}, {}]', {"task": "conductor.execute", "timelimit": "soon"}),
    "an id of another kind": ('[["NS", 0, "celery"], {}, {}]', {"task": "conductor.execute", "id": {"a": 1}}),
    "no such task": ("[[], {}, {}]", {"task": "os.system"}),
    "no headers": ("[[], {}, {}]", {}),
}


@pytest.mark.spec("RUN-4", "BAD-1")
def test_forged_messages_do_not_stop_a_worker(own_site: Site) -> None:
    """Well-formed envelopes with hostile contents; bytes that are no envelope at all end in kombu, before anything of ours sees them."""
    worker = own_site.worker()
    with Connection(own_site.env["TEST_BROKER_URL"]) as connection, connection.Producer() as producer:
        for body, headers in FORGED.values():
            forged = {"id": "forged", "lang": "py", "root_id": "forged", **headers} if headers else {}
            text = body.replace("NS", own_site.namespace)
            producer.publish(text, routing_key="celery", content_type="application/json", content_encoding="utf-8", headers=forged)
        pickled = pickle.dumps([[], {}, {}])
        producer.publish(
            pickled, routing_key="celery", content_type="application/x-python-serialize", content_encoding="binary",
            headers={"task": "conductor.execute", "id": "pickled", "lang": "py"},
        )
    run_id = own_site.start("chain", 1)
    eventually(lambda: own_site.state(run_id) == "completed", 30, what="the run ends although forged messages were in the queue")
    assert worker.alive and own_site.server.client(BROKER_DB).llen("celery") == 0
    own_site.verdict()
