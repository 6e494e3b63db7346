"""A user's project whose state stands on a cluster and whose broker is a server beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from conductor import Conductor
from conductor.runs.fsck import fsck
from tests.support.cluster import ValkeyCluster
from tests.support.processes import Processes
from tests.support.server import BROKER_DB, ValkeyServer


@pytest.mark.spec("ACT-3", "SET-2", "STK-5")
def test_an_ordinary_worker_runs_what_stands_on_a_cluster(
    cluster: ValkeyCluster, valkey: ValkeyServer, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = valkey.url(BROKER_DB)
    monkeypatch.setenv("TEST_BROKER_URL", broker)
    from tests.acceptance import celery_app  # noqa: F401 - declares the workflows for the client

    env = {"CONDUCTOR_REDIS_URL": cluster.url, "CONDUCTOR_NAMESPACE": namespace, "TEST_BROKER_URL": broker}
    queue = f"q-{namespace}"  # the broker is shared with other tests
    app = Celery("client", broker=broker, set_as_current=False)
    app.conf.task_default_queue = queue
    conductor = Conductor(app, redis_url=cluster.url, namespace=namespace)
    processes = Processes(tmp_path, env, app="tests.acceptance.celery_app")
    try:
        worker = processes.worker(queues=[queue])
        handles: list[Any] = [conductor.start("quick", {"trace": str(tmp_path / "trace")}) for _ in range(20)]
        assert [handle.get(timeout=20) for handle in handles] == [2] * 20
        assert "state in redis+cluster://" in worker.text()
        assert "durability always" in worker.text()
        assert fsck(conductor.engine) == []
        assert worker.terminate() == 0
    finally:
        processes.close()
