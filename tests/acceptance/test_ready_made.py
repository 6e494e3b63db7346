"""The ready-made application: `celery -A workers worker`, `beat` and `flower` just work, and Flower shows what a person needs."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Processes
from tests.support.server import BROKER_DB, STATE_DB, ValkeyServer, free_port
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture
def processes(own_valkey: ValkeyServer, tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path, {
        "CONDUCTOR_REDIS_URL": own_valkey.url(STATE_DB), "CELERY_BROKER_URL": own_valkey.url(BROKER_DB), "PYTHONPATH": str(ROOT),
        "CONDUCTOR_EMBEDDED_DIRECTORY": str(tmp_path), "ORDERS_LEDGER": str(tmp_path / "ledger"),
    }, app="workers")
    yield made
    made.close()


def conductor(processes: Processes, *arguments: str) -> int:
    """`celery -A workers conductor …`: the command line as Celery's own."""
    done = processes.python(f"cli{len(processes.started)}", ["-m", "celery", "-A", "workers", "conductor", *arguments])
    return done.wait(30)


def ask(port: int, path: str, password: str = "") -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    if password:
        request.add_header("Authorization", f"Basic {b64encode(f'conductor:{password}'.encode()).decode()}")
    with urllib.request.urlopen(request, timeout=5) as answer:
        return json.load(answer)


@pytest.mark.spec("STK-1", "STK-3", "CLI-3")
def test_each_step_and_each_run_is_a_row_in_flower_behind_a_password(processes: Processes, tmp_path: Path) -> None:
    port = free_port()
    processes.worker("-E", concurrency=1)
    processes.beat()
    flower = processes.python("flower", ["-m", "celery", "-A", "workers", "flower", f"--port={port}"], ready="Connected to", wait=True)
    assert f"http://127.0.0.1:{port}" in flower.text(), "on loopback unless somebody says otherwise"
    password = (tmp_path / "flower.password").read_text().strip()
    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask(port, "/api/tasks")
    eventually(lambda: ask(port, "/api/workers?status=1", password), 20)
    assert conductor(processes, "start", "chain", '{"to": "Ada", "text": "sesame"}', "--wait", "--timeout", "20s") == 0
    assert conductor(processes, "start", "order", '{"id": 7, "items": ["tea"], "total": 2000000}', "--wait", "--timeout", "20s") == 1
    rows: dict[str, Any] = {}

    def all_told() -> bool:
        rows.update({row["name"]: row for row in ask(port, "/api/tasks", password).values()})
        return {"chain", "order"} <= set(rows) and rows["order"]["state"] == "FAILURE" and rows["chain"]["state"] == "SUCCESS"

    eventually(all_told, 20, what="both runs have ended in Flower")
    assert set(rows) == {
        "chain", "chain.greet", "chain.write", "chain.sign", "order", "order.reserve", "order.charge", "order.tell_support"}, "no sweep, no poke"
    assert {row["root_id"] for name, row in rows.items() if name.startswith("chain")} == {rows["chain"]["uuid"]}
    assert rows["chain.sign"]["kwargs"] == "chain · sign · attempt 1"
    assert "over the limit of the card" in rows["order.charge"]["exception"]
    assert "sesame" not in json.dumps(rows), "no payloads"
