"""What health and metrics say: what is paused, whether idle runs are parked, how far checkpoints lag."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conductor.declare import every, needs, registry
from conductor.store.reads import read_now
from tests.support.bureau import Bureau
from tests.support.leaks import forget
from tests.support.server import ValkeyServer


@pytest.fixture
def bureau(valkey: ValkeyServer, namespace: str, tmp_path: Path) -> Iterator[Bureau]:
    """With an archive, which nobody ships to."""
    with registry.isolated(), needs.isolated(), every.isolated():
        yield Bureau(valkey.url(), namespace, archive_url=f"sqlite:///{tmp_path / 'archive.db'}")
    forget(valkey.client(), namespace)


def metrics(bureau: Bureau) -> list[str]:
    bureau.api.app.state.metrics._at = float("-inf")  # read anew
    return str(bureau.api.ask("GET", "/metrics").text).splitlines()


@pytest.mark.spec("RUN-14", "SVC-1")
def test_health_and_metrics_show_what_is_paused(bureau: Bureau) -> None:
    assert bureau.api.get("/v1/ready")["holds"] == {}
    for scope in ("all", "queue:gpu", "queue:mail", "workflow:asking", "capability:typo-of-somebody"):
        bureau.ok("pause", "--all") if scope == "all" else bureau.api.told(bureau.api.ask("PUT", f"/v1/holds/{scope}", {"reason": "update"}))
    told = bureau.api.get("/v1/ready")
    assert set(told["holds"]) == {"all", "queue:gpu", "queue:mail", "workflow:asking", "capability:typo-of-somebody"}
    assert told["holds"]["queue:gpu"]["reason"] == "update"
    assert (told["status"], told["health"]) == ("ready", "green")  # somebody wants it so
    lines = metrics(bureau)
    assert {f'conductor_holds{{kind="{kind}"}} {number}.0' for kind, number in (("all", 1), ("queue", 2), ("workflow", 1), ("capability", 1))} <= set(lines)
    assert not any("typo" in line for line in lines)


@pytest.mark.spec("IDLE-6")
def test_health_says_whether_idle_runs_are_parked_and_why_not(bureau: Bureau, valkey: ValkeyServer, namespace: str) -> None:
    assert bureau.api.get("/v1/ready")["parking"] == {"on": True, "why": None}
    assert "conductor_parking 1.0" in metrics(bureau)
    with registry.isolated():
        bare = Bureau(valkey.url(), namespace)
    told = bare.api.get("/v1/ready")
    assert told["parking"] == {"on": False, "why": "there is no archive"}
    assert (told["checkpoint_lag_seconds"], told["health"]) == (None, "green")
    assert "conductor_parking 0.0" in metrics(bare)
    assert not any(line.startswith("conductor_checkpoint_lag_seconds") for line in metrics(bare))


@pytest.mark.spec("REC-6")
def test_checkpoints_more_than_five_seconds_behind_are_red_and_take_no_service_away(bureau: Bureau) -> None:
    run_id, store = bureau.run(), bureau.engine.store
    told = bureau.api.get("/v1/ready")
    assert (told["health"], told["failed"]) == ("green", [])
    assert told["checkpoint_lag_seconds"] < 5
    stream = store.keys.of(int(run_id[-2:], 16), "notices")
    (_, notice), *_ = store.client().xrange(stream)
    store.client().delete(stream)
    store.client().xadd(stream, notice, id=f"{read_now(store) - 12_000}-0")  # its change is twelve seconds old
    answer = bureau.api.ask("GET", "/v1/ready")
    told = answer.json()
    assert (answer.status_code, told["status"], told["health"]) == (200, "ready", "red")
    assert 12 <= told["checkpoint_lag_seconds"] < 30
    assert [(one["check"], bool(one["remedy"])) for one in told["failed"]] == [("checkpoints", True)]
    (line,) = (line for line in metrics(bureau) if line.startswith("conductor_checkpoint_lag_seconds"))
    assert 12 <= float(line.split()[1]) < 30
    bureau.api.with_token("ci", "write")
    assert bureau.api.get("/v1/ready") == {"status": "ready", "health": "red"}  # details are for readers
