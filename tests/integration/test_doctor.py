"""The checks of a server, on a real one with the settings people have."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from conductor.embedded import EmbeddedServer
from conductor.errors import UnsafeServer
from conductor.runs.doctor import Check, examine, found_durability, refuse_unsafe
from conductor.settings import Settings


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with tempfile.TemporaryDirectory(prefix="cd-") as name, EmbeddedServer(name, announce=lambda line: None) as running:
        yield running


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A client; what a test sets on the server is put back."""
    with redis.Redis.from_url(server.url, decode_responses=True) as connected:
        yield connected
        for name, value in {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction", "maxmemory": "0"}.items():
            connected.config_set(name, value)


def settings(**values: Any) -> Settings:
    return Settings(**values)


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


@pytest.mark.spec("SET-1", "SET-3")
def test_what_we_start_ourselves_is_in_order(client: redis.Redis) -> None:
    checks = examine(client, settings())
    assert {check.name: check.status for check in checks} == dict.fromkeys(
        ("reachability", "version", "persistence", "memory", "eviction", "clock"), "ok"
    )
    assert all(check.found for check in checks)
    refuse_unsafe(checks, settings())
    assert found_durability(client, settings()) == "always"


@pytest.mark.spec("SET-3")
@pytest.mark.parametrize(
    ("server_says", "declared", "status", "level"),
    [
        ("always", None, "ok", "always"), ("always", "always", "ok", "always"), ("always", "none", "ok", "always"),
        ("everysec", None, "warn", "everysec"), ("everysec", "everysec", "ok", "everysec"), ("everysec", "always", "failed", "everysec"),
        ("everysec", "replicated", "ok", "everysec"), ("no", None, "failed", "none"), ("no", "none", "warn", "none"),
        ("off", None, "failed", "none"), ("off", "always", "failed", "none"), ("off", "everysec", "failed", "none"),
        ("off", "none", "warn", "none"), ("off", "replicated", "warn", "replicated"),
    ],
)
def test_durability_is_a_stated_level(client: redis.Redis, server_says: str, declared: Any, status: str, level: str) -> None:
    if server_says == "off":
        client.config_set("appendonly", "no")
    else:
        client.config_set("appendfsync", server_says)
    ours = settings(durability=declared)
    checks = examine(client, ours)
    found = by_name(checks)["persistence"]
    assert found.status == status, found
    assert found_durability(client, ours) == level
    if status == "failed":
        assert "conductor_durability" in found.remedy
        with pytest.raises(UnsafeServer, match="appendonly yes") as caught:
            refuse_unsafe(checks, ours, url="redis://user:secret@host/0")
        assert "secret" not in str(caught.value)
    else:
        refuse_unsafe(checks, ours)


@pytest.mark.spec("SET-1")
@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "volatile-lru", "allkeys-random"])
def test_a_server_that_evicts_is_refused(client: redis.Redis, policy: str) -> None:
    client.config_set("maxmemory-policy", policy)
    checks = examine(client, settings())
    assert by_name(checks)["eviction"].status == "failed"
    with pytest.raises(UnsafeServer, match="noeviction") as caught:
        refuse_unsafe(checks, settings(durability="none"))
    assert policy in str(caught.value)


def test_memory_that_is_nearly_full_is_a_warning(client: redis.Redis) -> None:
    client.config_set("maxmemory", str(int(client.info("memory")["used_memory"] * 1.1)))
    memory = by_name(examine(client, settings()))["memory"]
    assert (memory.status, "conductor_retention" in memory.remedy) == ("warn", True)


@pytest.fixture
def limited(client: redis.Redis, server: EmbeddedServer, request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """A client whose user may do everything but the commands a provider blocks."""
    commands = ["+@all", *(f"-{name}" for name in request.param)]
    client.acl_setuser("limited", reset=True, enabled=True, passwords=["+pw"], keys=["*"], channels=["*"], commands=commands)
    with redis.Redis.from_url(server.url, username="limited", password="pw", decode_responses=True) as connected:
        yield connected
    client.acl_deluser("limited")


@pytest.mark.spec("SET-1", "SET-3")
@pytest.mark.parametrize(
    ("limited", "unknown"),
    [
        (("config",), {"persistence"}),
        (("info", "config"), {"version", "persistence", "memory", "eviction"}),
        (("info",), {"version", "persistence", "memory", "eviction"}),
        (("time",), {"clock"}),
        (("ping",), {"reachability"}),
    ],
    indirect=["limited"],
)
def test_what_a_provider_blocks_is_unknown_and_does_not_stop_the_start(limited: redis.Redis, unknown: set[str]) -> None:
    checks = examine(limited, settings())
    assert {check.name for check in checks if check.status == "unknown"} == unknown
    assert all(check.remedy for check in checks if check.status == "unknown")
    assert len(checks) == 6
    refuse_unsafe(checks, settings())
    if "persistence" in unknown:
        assert found_durability(limited, settings()) is None
        assert found_durability(limited, settings(durability="replicated")) == "replicated"


@pytest.mark.spec("SET-1")
@pytest.mark.parametrize("limited", [("config",)], indirect=True)
def test_an_append_only_file_that_is_off_is_seen_without_config(limited: redis.Redis, client: redis.Redis) -> None:
    client.config_set("appendonly", "no")
    assert by_name(examine(limited, settings()))["persistence"].status == "failed"


def test_a_command_renamed_away_is_unknown() -> None:
    quiet = {"rename-command": 'CONFIG ""'}
    with tempfile.TemporaryDirectory(prefix="cd-") as name, Renamed(name, options=quiet, announce=lambda line: None) as server:
        checks = by_name(examine(redis.Redis.from_url(server.url, decode_responses=True), settings()))
    assert (checks["persistence"].status, checks["eviction"].status) == ("unknown", "ok")


class Renamed(EmbeddedServer):
    """`rename-command` takes two words; the quoting of one value is taken off."""

    def _configuration(self) -> str:
        return super()._configuration().replace('rename-command "CONFIG \\"\\""', 'rename-command CONFIG ""')


@pytest.mark.spec("SET-1")
def test_an_unreachable_server_fails_with_the_setting_to_correct() -> None:
    gone = redis.Redis.from_url("unix:///nowhere/valkey.sock")
    checks = examine(gone, settings())
    assert [(check.name, check.status) for check in checks] == [("reachability", "failed")]
    with pytest.raises(UnsafeServer, match="conductor_redis_url"):
        refuse_unsafe(checks, settings())


class Told:
    """A server that says what a test wants it to: versions and clocks cannot be installed at will."""

    def __init__(self, client: redis.Redis, *, server: dict[str, Any] | None = None, shift: int = 0) -> None:
        self._client, self._server, self._shift = client, server, shift

    def ping(self) -> Any:
        return self._client.ping()

    def info(self, section: str | None = None) -> Any:
        return self._server if section == "server" and self._server is not None else self._client.info(section or "default")

    def config_get(self, pattern: str = "*") -> Any:
        return self._client.config_get(pattern)

    def time(self) -> Any:
        seconds, micros = self._client.time()
        return seconds + self._shift, micros


@pytest.mark.spec("SET-1", "STK-8")
@pytest.mark.parametrize(
    ("says", "status"),
    [
        ({"redis_version": "5.0.14"}, "failed"), ({"redis_version": "6.0.20"}, "failed"), ({"redis_version": "6.2.14"}, "warn"),
        ({"redis_version": "7.0.15"}, "warn"), ({"redis_version": "7.4.9"}, "ok"), ({"redis_version": "7.4.8"}, "warn"),
        ({"redis_version": "8.0.0"}, "warn"), ({"redis_version": "8.6.3"}, "ok"), ({"redis_version": "8.8.0"}, "ok"),
        ({"redis_version": "7.2.4", "valkey_version": "9.0.5"}, "ok"), ({"redis_version": "7.2.4", "valkey_version": "9.1.0"}, "warn"),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.3"}, "warn"), ({"redis_version": "7.2.4", "valkey_version": "10.0.0"}, "ok"),
        ({"something": "else"}, "unknown"), ({"redis_version": "255.255.255"}, "ok"),
    ],
)
def test_versions(client: redis.Redis, says: dict[str, Any], status: str) -> None:
    assert by_name(examine(Told(client, server=says), settings()))["version"].status == status


@pytest.mark.spec("SET-1")
@pytest.mark.parametrize(("shift", "status", "word"), [(0, "ok", ""), (60, "warn", "ahead"), (-3600, "warn", "behind")])
def test_clocks_that_differ_are_told(client: redis.Redis, shift: int, status: str, word: str) -> None:
    clock = by_name(examine(Told(client, shift=shift), settings()))["clock"]
    assert clock.status == status
    assert word in clock.found
