"""May work be accepted? Not by a server that would lose it, and not by one that has no room for what it accepted before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from conductor.declare import registry
from conductor.errors import StoreFull, UnsafeServer
from conductor.runs import admission
from conductor.runs.execute import Drainer
from tests.integration.shop import Order, Shop
from tests.support.server import ValkeyServer


@pytest.fixture
def shop(own_valkey: ValkeyServer, namespace: str) -> Iterator[Shop]:
    with registry.isolated():
        yield Shop(own_valkey.url(), namespace)


@pytest.fixture
def client(own_valkey: ValkeyServer) -> redis.Redis:
    return own_valkey.client()


def fill(client: Any, share: float) -> None:
    """Let what is used be this share of what is allowed, with so much of it that what the test itself needs does not matter."""
    client.config_set("maxmemory", 0)
    client.setrange("ballast", 50_000_000, "x")  # made there: sent, it would also count as a buffer for a while
    client.config_set("maxmemory", int(client.info("memory")["used_memory"] / share))


@pytest.mark.spec("RET-1")
def test_at_ninety_percent_starts_are_refused_while_the_rest_goes_on(
    shop: Shop, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_LOOK_SECONDS", 0.0)
    kept, unwanted = shop.conductor.start("cli_orders", Order(number=3)), shop.conductor.start("cli_orders", Order(number=4))
    fill(client, 0.85)
    assert shop.conductor.start("cli_orders", Order(number=5)).id
    fill(client, 0.93)
    with pytest.raises(StoreFull, match=r"used 9\d% of its memory, so new runs are refused .*; free memory or raise maxmemory"):
        shop.conductor.start("cli_orders", Order(number=6))
    refused = shop.call("start", "cli_orders", '{"number": 6}')
    assert (refused.exit_code, "new runs are refused" in refused.stderr) == (1, True)
    assert shop.conductor.cancel(unwanted.id)["word"] == "OK"
    shop.drain()
    assert kept.get(1) == 7
    client.config_set("maxmemory", 0)
    assert shop.conductor.start("cli_orders", Order(number=6)).id
    assert len(shop.json("runs")["runs"]) == 4


@pytest.mark.spec("RET-1")
def test_a_server_without_any_room_refuses_starts_alone(shop: Shop, client: redis.Redis) -> None:
    """Where the memory may not be looked at, the server is the judge."""
    shop.engine.store.admit = lambda: None
    kept, unwanted = shop.conductor.start("cli_orders", Order(number=3)), shop.conductor.start("cli_naps")
    worker = Drainer(shop.engine, worker_name="there before")
    worker._register()
    client.config_set("maxmemory", "1mb")
    with pytest.raises(StoreFull, match="used 100% of its memory"):
        shop.conductor.start("cli_orders", Order(number=4))
    worker.drain(int(kept.id[-2:], 16), "celery")
    assert kept.get(1) == 7
    assert unwanted.cancel().word == "OK"


@pytest.mark.spec("SET-3", "SET-1")
def test_a_server_that_would_lose_it_accepts_no_run(own_valkey: ValkeyServer, client: redis.Redis, namespace: str) -> None:
    client.config_set("appendonly", "no")
    with registry.isolated():
        shop = Shop(own_valkey.url(), namespace)
        with pytest.raises(UnsafeServer, match=r"append-only file off.*CONFIG SET appendonly yes.*conductor_durability=none"):
            shop.conductor.start("cli_orders", Order(number=3))
        assert client.keys(f"*{namespace}*") == []
    with registry.isolated():
        assert Shop(own_valkey.url(), namespace, durability="none").conductor.start("cli_orders", Order(number=3)).id


@pytest.mark.spec("RET-1")
def test_the_memory_is_looked_at_once_a_second_at_most(shop: Shop, client: Any) -> None:
    shop.conductor.start("cli_orders", Order(number=1))
    before = client.info("commandstats")["cmdstat_info"]["calls"]
    for number in range(50):
        shop.conductor.start("cli_orders", Order(number=number))
    assert client.info("commandstats")["cmdstat_info"]["calls"] - before <= 3  # one is the question itself
