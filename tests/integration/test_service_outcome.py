"""How a run ended, as the service tells it: durable, sanitized, and above every hint of what the run may have left."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conductor.declare import registry
from conductor.ids import new_run_id
from conductor.runs.execute import Drainer
from conductor.sweeps.archiving import sweep_archive
from conductor.sweeps.parked import sweep_parked
from tests.support.bureau import Bureau
from tests.support.server import ValkeyServer

OUTCOME = {
    "run_id", "workflow", "session", "state", "ended", "generation", "reason", "ended_at", "deadline", "last_event", "live_leases", "due", "children",
    "held", "limited", "progress_at", "parked", "epoch",
}


@pytest.fixture
def bureau(valkey: ValkeyServer, namespace: str, clean_keys: None, tmp_path: Path) -> Iterator[Bureau]:
    with registry.isolated():
        yield Bureau(valkey.url(), namespace, archive_url=f"sqlite:///{tmp_path}/a.db", park_after_minutes=0.00001)


def told(bureau: Bureau, run_id: str) -> Any:
    return bureau.api.get(f"/v1/runs/{run_id}/outcome")


@pytest.mark.spec("SVC-5")
def test_a_run_that_goes_on_says_what_a_client_needs_to_wait_for_it(bureau: Bureau) -> None:
    run_id = bureau.run(deadline=3600)
    found = told(bureau, run_id)
    assert set(found) == OUTCOME
    assert (found["ended"], found["state"], found["live_leases"], found["last_event"], found["parked"]) == (False, "running", 0, 1, False)
    assert found["deadline"] > found["progress_at"]
    assert found["epoch"] == bureau.engine.store.identity()


@pytest.mark.spec("SVC-5")
def test_a_completed_run_has_its_result(bureau: Bureau) -> None:
    found = told(bureau, bureau.done())
    assert (found["ended"], found["state"], found["result"]) == (True, "completed", 7)
    assert "error" not in found


@pytest.mark.spec("SVC-5")
def test_a_failed_run_names_its_steps_and_tells_no_secret_and_no_traceback(bureau: Bureau) -> None:
    run_id = bureau.done({"number": 1, "bad": True})
    key = bureau.engine.store.keys.run(run_id, "err")
    client = bureau.engine.store.client()
    for name, text in client.hgetall(key).items():
        error = json.loads(text) | {"message": "no way into redis://ann:hunter2@db: password=hunter2" + "x" * 10_000, "traceback": "File secret.py"}
        client.hset(key, name, json.dumps(error))
    found = told(bureau, run_id)
    assert (found["state"], found["reason"], found["ended"]) == ("failed", "step_failed", True)
    assert found["error"]["code"] == "run_failed"
    (failed,) = found["error"]["failed"]
    assert failed["step"] == "charge"
    assert failed["error"].startswith("ValueError: no way into redis://***@db: password=***")
    assert len(json.dumps(found)) < 6000
    assert "hunter2" not in json.dumps(found)
    assert "secret.py" not in json.dumps(found)
    shown = json.dumps(bureau.api.get(f"/v1/runs/{run_id}"))
    assert "secret.py" not in shown
    assert "hunter2" not in shown


@pytest.mark.spec("SVC-5", "LANE-2")
def test_a_run_that_never_began_has_a_record_too(bureau: Bureau) -> None:
    """It failed, or was cancelled, before any step of it ran: nothing that it could have produced is there."""
    bureau.run("queued")
    queued = bureau.run("queued")
    client, store = bureau.engine.store.client(), bureau.engine.store
    partition = int(queued[-2:], 16)
    client.zadd(store.keys.of(partition, "due"), {f"lane:{queued}": 1})
    store.fire_due(partition)
    found = told(bureau, queued)
    assert (found["ended"], found["state"], found["reason"], found["error"]["code"]) == (True, "failed", "lane_busy", "lane_busy")
    assert found["error"]["failed"] == []
    cancelled = bureau.run()
    bureau.api.post(f"/v1/runs/{cancelled}/cancel", {"reason": "password=hunter2"})
    found = told(bureau, cancelled)
    assert (found["state"], found["error"]["code"], found["reason"]) == ("cancelled", "run_cancelled", "password=***")


@pytest.mark.spec("SVC-5")
def test_the_record_outlives_the_run_in_the_archive(bureau: Bureau) -> None:
    failed, fine = bureau.done({"number": 1, "bad": True}), bureau.done()
    before = told(bureau, failed), told(bureau, fine)
    _forget(bureau, failed, fine)
    after = told(bureau, failed), told(bureau, fine)
    assert after == before
    assert bureau.api.get(f"/v1/runs/{failed}")["archived"] == "finished"
    assert bureau.api.get(f"/v1/runs/{fine}?values=true")["result"] == 7


@pytest.mark.spec("SVC-5")
def test_it_wins_over_every_hint_of_what_is_missing(bureau: Bureau) -> None:
    """Steps, errors, results, even the archived snapshot may be gone: how the run ended is told all the same."""
    failed, fine, kept = bureau.done({"number": 1, "bad": True}), bureau.done(), bureau.done({"number": 1, "bad": True})
    client, keys = bureau.engine.store.client(), bureau.engine.store.keys
    client.delete(keys.run(failed, "err"), keys.run(failed, "log"))
    found = told(bureau, failed)
    assert (found["state"], found["reason"], found["error"]["code"]) == ("failed", "step_failed", "run_failed")
    client.hset(keys.run(fine), "1r", "b1:9:gone/blob")
    found = told(bureau, fine)
    assert (found["state"], found["ended"], found["result"]) == ("completed", True, None)
    assert found["result_error"]["code"]
    _forget(bureau, kept)
    _spoil(bureau)
    found = told(bureau, kept)
    assert (found["state"], found["error"]["code"], [one["step"] for one in found["error"]["failed"]]) == ("failed", "run_failed", ["charge"])
    for run_id in (failed, fine):  # for the check of leaks: what was cut out of them is not found by a purge
        client.delete(*client.scan_iter(f"{keys.run(run_id)}*"))


@pytest.mark.spec("SVC-5")
def test_a_parked_run_says_so_and_what_was_said_to_it_counts_at_once(bureau: Bureau) -> None:
    run_id = bureau.run("asking", session="ann")
    bureau.drain()
    sweep_parked(bureau.engine)
    assert bureau.engine.store.client().exists(bureau.engine.store.keys.run(run_id)) == 0
    found = told(bureau, run_id)
    assert (found["parked"], found["state"], found["ended"], found["session"]) == (True, "waiting_signal", False, "ann")
    assert bureau.api.get(f"/v1/runs/{run_id}")["parked"] is True
    bureau.api.post(f"/v1/runs/{run_id}/cancel", {"reason": "enough"})
    found = told(bureau, run_id)
    assert (found["state"], found["ended"], found["reason"]) == ("cancelled", True, "enough")


@pytest.mark.spec("CLI-1", "RUN-14")
@pytest.mark.parametrize("scope", ["all", "workflow:cli_orders", "queue:celery"])
def test_a_run_that_somebody_holds_says_so(bureau: Bureau, scope: str) -> None:
    run_id = bureau.run()
    assert (told(bureau, run_id)["held"], told(bureau, run_id)["limited"]) == ([], False)
    bureau.api.told(bureau.api.ask("PUT", f"/v1/holds/{scope}", {"reason": "night"}))
    bureau.drain()
    found = told(bureau, run_id)
    assert (found["state"], found["live_leases"], found["held"], found["limited"]) == ("running", 0, [scope], False)
    bureau.api.told(bureau.api.ask("DELETE", f"/v1/holds/{scope}"))
    bureau.drain()
    assert (told(bureau, run_id)["state"], told(bureau, run_id)["held"]) == ("completed", [])


@pytest.mark.spec("CLI-1", "LANE-3")
def test_a_run_that_waits_for_its_limit_says_so(bureau: Bureau) -> None:
    first, second = bureau.run("metered"), bureau.run("metered")
    assert told(bureau, first)["limited"] is False, "nobody has asked for it yet"
    for partition in range(bureau.engine.store.partitions):
        Drainer(bureau.engine, worker_name="w1").drain(partition, f"{bureau.engine.default_queue}!meter")
    states = {run_id: told(bureau, run_id) for run_id in (first, second)}
    assert sorted(found["state"] for found in states.values()) == ["completed", "running"]
    (waits,) = (found for found in states.values() if found["state"] == "running")
    assert (waits["limited"], waits["live_leases"], waits["held"]) == (True, 0, [])


@pytest.mark.spec("SVC-5")
def test_nobody_knows_a_run_that_never_was(bureau: Bureau) -> None:
    assert bureau.api.refused("GET", f"/v1/runs/{new_run_id(2)}/outcome") == (404, "unknown_run")


@pytest.mark.spec("SVC-1")
def test_waiting_ends_with_the_run_or_with_the_time(bureau: Bureau) -> None:
    run_id = bureau.run()
    began = time.monotonic()
    assert bureau.api.get(f"/v1/runs/{run_id}/outcome?wait=0.2")["ended"] is False
    assert time.monotonic() - began >= 0.2
    threading.Timer(0.1, bureau.drain).start()
    assert bureau.api.get(f"/v1/runs/{run_id}/outcome?wait=30")["result"] == 7
    assert bureau.api.refused("GET", f"/v1/runs/{run_id}/outcome?wait=31") == (422, "unknown_filter")


def _forget(bureau: Bureau, *run_ids: str) -> None:
    """Move ended runs to the archive, as when their time is over."""
    store = bureau.engine.store
    for run_id in run_ids:
        for state in ("completed", "failed", "cancelled"):
            store.client().zadd(store.keys.of(int(run_id[-2:], 16), f"ended:{state}"), {run_id: 1}, xx=True)
    sweep_archive(bureau.engine)
    assert not any(store.client().exists(store.keys.run(run_id)) for run_id in run_ids)


def _spoil(bureau: Bureau) -> None:
    """Make every snapshot of the archive unreadable."""
    import sqlite3

    path = bureau.engine.settings.archive_url.removeprefix("sqlite:///")
    with sqlite3.connect(path) as connection:
        (table,) = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'") if "run" in name]
        assert connection.execute(f"UPDATE {table} SET snapshot = x'00ff'").rowcount


