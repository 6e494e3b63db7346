"""Is this server fit to hold runs? Checks that look only, and the refusal at start.

A check that the server does not let us make (a blocked or renamed command, a managed service) is `unknown`, never failed: we do not know
that anything is wrong. What is failed stops the start, because each such thing loses acknowledged work without a word: evicted keys, a file
that is not written, a server too old for the scripts.

Durability is a stated level. `always` and `everysec` are seen on the server; `replicated` and `none` start only if `conductor_durability`
names them, because then a crash or a failover may lose what was acknowledged, and that is for the user to accept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from conductor.errors import UnsafeServer, redact
from conductor.locations import masked
from conductor.settings import Durability, Settings

__all__ = [
    "Check", "Server", "Status", "examine", "found_durability", "nodes_of", "refuse_unsafe", "remedy_for_url", "source_of_url", "together",
]

Status = Literal["ok", "warn", "failed", "unknown"]

_OLDEST = (6, 2)
_WITH_FLAGS = (7, 0)  # scripts may say that they are needed even when memory is full
# First releases with the known holes of the Lua engine closed, by line; a later line has them closed too.
_MENDED = {"valkey": ((9, 0, 5), (9, 1, 1)), "redis": ((7, 4, 9), (8, 6, 3))}
_STRENGTH: Mapping[str, int] = {"none": 0, "replicated": 0, "everysec": 1, "always": 2}
_WEAKEST_FIRST: tuple[Durability, ...] = ("none", "replicated", "everysec", "always")  # the weakest node counts
_BADNESS: tuple[Status, ...] = ("ok", "unknown", "warn", "failed")
_UNDECLARED: Mapping[Durability, Status] = {"always": "ok", "everysec": "warn", "replicated": "failed", "none": "failed"}
_LOSES = {
    "always": "nothing acknowledged is lost when the server is killed",
    "everysec": "up to two seconds of acknowledged work may be gone after a crash",
    "replicated": "a failover may lose the last writes",
    "none": "a restart of the server loses everything",
}
_BROKER = "broker_url of the Celery app"
_SLOW_SECONDS = 0.05
_CLOCK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    """One look at the server: what was found, and what to do about it unless it is ok."""

    name: str
    status: Status
    found: str
    remedy: str = ""


class Server(Protocol):
    """What of a Redis client the checks need."""

    def ping(self) -> Any: ...
    def info(self, section: str | None = None) -> Any: ...
    def config_get(self, pattern: str = "*") -> Any: ...
    def time(self) -> Any: ...


class _Blocked(Exception):
    """The server does not answer this question."""


def examine(client: Server, settings: Settings) -> list[Check]:
    """All checks, in the order a person reads them. An unreachable server has only the first. Of a cluster every node is looked at."""
    try:
        nodes = nodes_of(client)
    except Exception as error:
        return [_unreachable(error, settings)]
    if list(nodes) == [""]:
        return _examine(client, settings)
    return together({name: _examine(node, settings) for name, node in nodes.items()})


def nodes_of(client: Any) -> Mapping[str, Server]:
    """The nodes of a cluster by their address; one server stands under no name."""
    found: Mapping[str, Server] = client.nodes() if hasattr(client, "nodes") else {"": client}
    return found


def together(found: Mapping[str, Sequence[Check]]) -> list[Check]:
    """One line for each check: what the nodes with the worst outcome say, and how many there are if all say the same."""
    by_check: dict[str, dict[str, Check]] = {}
    for node, checks in found.items():
        for check in checks:
            by_check.setdefault(check.name, {})[node] = check
    return [_worst(checks) for checks in by_check.values()]


def _worst(checks: Mapping[str, Check]) -> Check:
    status = max((check.status for check in checks.values()), key=_BADNESS.index)
    bad = {node: check for node, check in checks.items() if check.status == status}
    same = len({check.found for check in checks.values()}) == 1
    first = next(iter(bad.values()))
    told = f"{first.found} ({len(checks)} nodes)" if same else "; ".join(f"{node}: {check.found}" for node, check in bad.items())
    return Check(first.name, status, told, first.remedy)


def _unreachable(error: Exception, settings: Settings) -> Check:
    return Check("reachability", "failed", redact(f"{type(error).__name__}: {error}"), remedy_for_url(settings))


def _examine(client: Server, settings: Settings) -> list[Check]:
    checks: list[Check] = []
    try:
        for look in (_reachability, _version, _persistence, _memory, _eviction, _clock):
            try:
                checks.append(look(client, settings))
            except (_Blocked, KeyError, ValueError) as silence:
                name = look.__name__.removeprefix("_")
                checks.append(Check(name, "unknown", f"the server does not tell: {silence}", "ask its provider or its administrator"))
    except Exception as error:
        return [_unreachable(error, settings)]
    return checks


def source_of_url(settings: Settings) -> str:
    """Which setting says where the state is."""
    return _BROKER if settings.redis_url is None else settings.source("redis_url")


def remedy_for_url(settings: Settings) -> str:
    """What to do about a server that does not answer."""
    if settings.redis_url is None:
        return f"start the server, correct {_BROKER}, which names it, or set conductor_redis_url if the state is elsewhere"
    return f"start the server, or correct conductor_redis_url (now from: {settings.source('redis_url')})"


def refuse_unsafe(checks: Sequence[Check], settings: Settings, *, url: str = "") -> None:
    """Raise `UnsafeServer` if a check failed. Called before a worker takes its first step."""
    failed = [check for check in checks if check.status == "failed"]
    if failed:
        raise UnsafeServer(
            url=masked(url or settings.redis_url or "the configured address"), checks=[check.name for check in failed],
            problem="; ".join(f"{check.name}: {check.found}" for check in failed), remedy="; ".join(check.remedy for check in failed),
        )


def found_durability(client: Server, settings: Settings) -> Durability | None:
    """The level that holds, for the start-up line and health: what is declared where the server cannot be asked, None if nobody knows."""
    try:
        seen = min((_seen_durability(node)[0] for node in nodes_of(client).values()), key=_WEAKEST_FIRST.index)
    except _Blocked:
        return settings.durability
    return "replicated" if settings.durability == "replicated" and seen == "none" else seen


def _reachability(client: Server, settings: Settings) -> Check:
    seconds = sorted(_timed(client.ping) for _ in range(3))[1]
    found = f"answers in {seconds * 1000:.1f} ms"
    if seconds <= _SLOW_SECONDS:
        return Check("reachability", "ok", found)
    return Check("reachability", "warn", found, "each step costs at least one such round trip: bring workers and server closer together")


def _version(client: Server, settings: Settings) -> Check:
    info = _info(client, "server")
    name, text = _name_and_version(info)
    version = tuple(int(part) for part in text.split(".")[:3] if part.isdigit())
    found = f"{name} {text}"
    if "cluster" in (info.get("server_mode"), info.get("redis_mode")) and not hasattr(client, "fails_over"):
        return Check("version", "failed", f"{found}, one node of a cluster", "name the whole cluster: redis+cluster://host:port,host:port")
    if version < _OLDEST:
        return Check("version", "failed", found, "upgrade to Valkey 7.2 or Redis 7 or later; 6.2 is the oldest that works")
    if version < _WITH_FLAGS:
        return Check("version", "warn", found, "upgrade to 7 or later: before it, running work cannot be finished while memory is full")
    if not _is_mended(name, version):
        wanted = " or ".join(".".join(map(str, release)) for release in _MENDED[name])
        return Check("version", "warn", found, f"upgrade to {wanted} or later: older ones have known holes in their script engine")
    return Check("version", "ok", found)


def _name_and_version(info: Mapping[str, Any]) -> tuple[str, str]:
    """Valkey also names the Redis version it is compatible with."""
    if "valkey_version" in info:
        return "valkey", str(info["valkey_version"])
    if "redis_version" in info:
        return "redis", str(info["redis_version"])
    raise _Blocked("INFO has no version")


def _is_mended(name: str, version: tuple[int, ...]) -> bool:
    releases = _MENDED[name]
    line = next((release for release in releases if release[:2] == version[:2]), None)
    return version >= (line or releases[-1])


def _persistence(client: Server, settings: Settings) -> Check:
    if _info(client, "persistence").get("aof_last_write_status") == "err":
        remedy = "free space on the server's disk and look in its log"
        return Check("persistence", "failed", "the append-only file cannot be written", remedy)
    seen, found = _seen_durability(client)
    declared = settings.durability
    if declared is None:
        status = _UNDECLARED[seen]
    elif _STRENGTH[seen] < _STRENGTH[declared]:
        status = "failed"
    else:
        status = "ok" if _STRENGTH[seen] else "warn"
    level = declared if declared and status == "warn" else seen
    remedy = "" if status == "ok" else _durability_remedy(status, declared, settings, seen)
    return Check("persistence", status, f"{found}: {_LOSES[level]}", remedy)


def _durability_remedy(status: Status, declared: Durability | None, settings: Settings, seen: Durability) -> str:
    if seen == "replicated":
        accepted = status == "warn" and f"accepted by conductor_durability ({settings.source('durability')})"
        return accepted or "accept it: conductor_durability=replicated; or name one server with an append-only file"
    switch = "CONFIG SET appendonly yes and CONFIG SET appendfsync always on the server (and in its configuration file)"
    if declared is not None:
        accepted = "accepted by" if status == "warn" else f"or lower it from {declared}:"
        return f"{switch}; {accepted} conductor_durability ({settings.source('durability')})"
    if status == "warn":
        return f"{switch}, or set conductor_durability=everysec to accept it"
    return f"{switch}, or accept the loss: conductor_durability=replicated for a server with replicas, else conductor_durability=none"


def _seen_durability(client: Server) -> tuple[Durability, str]:
    """What the server does. INFO tells whether it writes a file; how often it syncs only CONFIG does, which many providers block. Behind
    Sentinels, or in a cluster with replicas, the file of today's master says little: after a failover another's counts, which may lack the
    last writes."""
    if type(getattr(client, "connection_pool", None)).__name__ == "SentinelConnectionPool":
        return "replicated", "a server behind Sentinels"
    if getattr(client, "fails_over", False):
        return "replicated", "a node of a cluster with a replica"
    if not int(_info(client, "persistence")["aof_enabled"]):
        return "none", "append-only file off"
    synced = str(_config(client, "appendfsync"))
    found = f"append-only file on, appendfsync {synced}"
    return ("none" if synced == "no" else cast("Durability", synced)), found


def _memory(client: Server, settings: Settings) -> Check:
    info = _info(client, "memory")
    used, limit = int(info["used_memory"]), int(info["maxmemory"])
    if not limit:
        return Check("memory", "ok", f"{used >> 20} MiB used, no maxmemory")
    found = f"{used >> 20} of {limit >> 20} MiB used"
    if used < 0.8 * limit:
        return Check("memory", "ok", found)
    return Check("memory", "warn", found, "raise maxmemory or shorten conductor_retention_*: at 90 % new runs are refused")


def _eviction(client: Server, settings: Settings) -> Check:
    policy = str(_info(client, "memory").get("maxmemory_policy") or _config(client, "maxmemory-policy"))
    if policy == "noeviction":
        return Check("eviction", "ok", policy)
    remedy = "CONFIG SET maxmemory-policy noeviction (and in its configuration file), or use a server that is not a cache"
    return Check("eviction", "failed", f"maxmemory-policy {policy}: the server may throw runs away when memory is full", remedy)


def _clock(client: Server, settings: Settings) -> Check:
    """Only a warning: leases and timers go by the server's clock, but people compare its times with their own."""
    before = time.time()
    seconds, micros = _ask(client.time)
    behind = (before + time.time()) / 2 - (int(seconds) + int(micros) / 1e6)
    found = f"{abs(behind):.1f} s {'behind' if behind > 0 else 'ahead of'} this machine's"
    if abs(behind) <= _CLOCK_SECONDS:
        return Check("clock", "ok", found)
    return Check("clock", "warn", found, "set both clocks by NTP; runs go by the server's clock, times in logs by this machine's")


def _timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    _ask(call)
    return time.perf_counter() - began


def _info(client: Server, section: str) -> Mapping[str, Any]:
    answer = _ask(lambda: client.info(section))
    if not isinstance(answer, Mapping) or not answer:
        raise _Blocked(f"INFO {section} is empty")
    return answer


def _config(client: Server, name: str) -> str:
    answer = _ask(lambda: client.config_get(name))
    if not isinstance(answer, Mapping) or name not in answer:
        raise _Blocked(f"CONFIG GET {name} is empty")
    return str(answer[name])


def _ask(question: Callable[[], Any]) -> Any:
    """A refusal (no permission, renamed command) is an answer, a broken connection is not. Told by name: only store/ imports redis."""
    try:
        return question()
    except Exception as error:
        if any(cls.__name__ in ("ConnectionError", "TimeoutError", "OSError") for cls in type(error).__mro__):
            raise
        raise _Blocked(str(error)) from None
