"""A reason is read by everybody who sees what was moved, so a secret that slipped into one is taken out before it is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conductor.operations.batches import submit
from conductor.runs.batching import Action
from conductor.runs.filters import Where
from tests.integration.front import Front, opened
from tests.support.server import ValkeyServer

pytestmark = pytest.mark.spec("SVC-4")

CANARY = "canary-7f3a"
WHY = f"host moved, token={CANARY} password={CANARY} redis://u:{CANARY}@host"


@pytest.fixture
def front(valkey: ValkeyServer, namespace: str) -> Iterator[Front]:
    with opened(valkey, namespace) as one:
        yield one


def written(front: Front) -> str:
    """Everything that the store has of this namespace, as text."""
    client, parts = front.engine.store.client(), list[str]()
    read: dict[str, Any] = {
        "string": client.get, "hash": client.hgetall, "list": lambda key: client.lrange(key, 0, -1), "set": client.smembers,
        "zset": lambda key: client.zrange(key, 0, -1), "stream": client.xrange,
    }
    for key in client.scan_iter(f"conductor:{{{front.engine.store.namespace}:*"):
        parts.append(f"{key} {read[client.type(key)](key)}")
    return "\n".join(parts)


def moved(front: Front) -> None:
    """Every use case that takes a reason."""
    conductor, naps = front.conductor, [front.conductor.start("cli_naps") for _ in range(5)]
    conductor.cancel(naps[0].id, reason=WHY)
    naps[1].cancel(WHY)
    conductor.pause(naps[2].id, reason=WHY)
    naps[3].pause(WHY)
    front.told("POST", f"/runs/{naps[4].id}/pause", {"reason": WHY})
    front.told("POST", f"/runs/{naps[4].id}/cancel", {"reason": WHY})
    front.told("PUT", "/holds/queue:gpu", {"reason": WHY})
    conductor.cancel_operation(conductor.submit("lend", {"title": "x"}).operation_id, reason=WHY)
    conductor.schedule("nightly", "lend", {"title": "x"}, when=3600)
    front.told("POST", "/schedules/nightly/pause", {"reason": WHY})
    submit(front.engine, Action.CANCEL, Where.parse({"workflow": "cli_naps"}), reason=WHY)
    front.drain()


def test_no_reason_is_written_with_a_secret_in_it(front: Front) -> None:
    moved(front)
    found = [line[:300] for line in written(front).splitlines() if CANARY in line]
    assert found == []
    assert written(front).count("host moved, token=***") >= 7


def test_no_list_and_no_history_tells_one(front: Front) -> None:
    moved(front)
    runs = front.told("GET", "/runs")["runs"]
    assert any("host moved" in run["reason"] for run in runs)
    for path in ("/runs", "/operations", "/schedules", "/holds", *(f"/runs/{run['run_id']}/events" for run in runs)):
        assert CANARY not in front.say("GET", path).text, path
