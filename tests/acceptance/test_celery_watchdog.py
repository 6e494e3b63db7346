"""A worker that is alive but deaf restarts itself, by exec, in a plain shell without any supervisor."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.test_celery_worker import Project, project
from tests.support.waiting import eventually

__all__ = ["project"]

QUICK = {"CONDUCTOR_WATCHDOG_SECONDS": "1", "CONDUCTOR_WATCHDOG_DEAF_SECONDS": "2"}


@pytest.mark.spec("REC-7")
def test_a_deaf_worker_restarts_itself_and_works_again(project: Project, tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    worker = project.processes.worker(env={**QUICK, "CONDUCTOR_LIVENESS_FILE": str(alive)})
    assert project.start("quick").get(timeout=15) == 2
    assert alive.exists()
    pid = worker.pid
    project.app.control.broadcast("deafen")
    eventually(lambda: "it restarts itself" in worker.text(), 20)
    eventually(lambda: worker.text().count("ready.") == 2, 40)
    assert worker.alive
    assert worker.pid == pid
    assert project.start("quick").get(timeout=20) == 2


@pytest.mark.spec("REC-7")
def test_a_worker_whose_main_thread_hangs_restarts_itself_too(project: Project) -> None:
    worker = project.processes.worker(env=QUICK)
    old = set(worker.children)
    project.app.control.broadcast("hang")
    eventually(lambda: "does not react" in worker.text(), 40)
    eventually(lambda: worker.text().count("ready.") == 2, 40)
    assert not old & set(worker.children)
    assert project.start("quick").get(timeout=20) == 2


@pytest.mark.spec("REC-7")
def test_a_healthy_worker_with_nothing_to_do_or_with_a_full_pool_stays(project: Project) -> None:
    worker = project.processes.worker(concurrency=1, env=QUICK)
    assert project.start("lengthy", 6).get(timeout=30) == "held"
    assert project.start("quick").get(timeout=20) == 2
    assert worker.text().count("ready.") == 1
    assert "restarts itself" not in worker.text()
    keys = [key for key in project.server.client(1).keys() if "pulse" in key]
    assert len(keys) <= 1  # an unread message, never more: nothing is left behind
