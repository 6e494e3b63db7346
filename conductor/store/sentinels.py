"""A server behind Sentinels: whoever is master now is asked for at every new connection, so a failover is a lost connection and no more.

Written as for Celery, `sentinel://:password@one:26379/0;sentinel://two:26379`, with the name of the group of servers as `?master_name=`
(default `mymaster`) and, where the Sentinels themselves want one, `?sentinel_password=`. User, password and database are of the server.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
from redis.sentinel import Sentinel

__all__ = ["connect_by_sentinels"]

_PORT = 26379


def connect_by_sentinels(url: str, **options: Any) -> redis.Redis:
    """A client of the present master. Nothing is connected yet."""
    parts = [urlsplit(one if "://" in one else f"sentinel://{one}") for one in url.split(";") if one.strip()]
    asked = {name: value for part in parts for name, value in parse_qsl(part.query)}
    user = next((part for part in parts if part.username or part.password), parts[0])
    db = asked.get("db") or asked.get("virtual_host") or next((part.path.strip("/") for part in parts if part.path.strip("/")), "0")
    tls = {"ssl": True} if parts[0].scheme.startswith("rediss") else {}
    secret = {"password": asked["sentinel_password"]} if "sentinel_password" in asked else {}
    limits = {name: options[name] for name in ("socket_timeout", "socket_connect_timeout")}
    ask: Any = Sentinel
    sentinel = ask([(part.hostname, part.port or _PORT) for part in parts], sentinel_kwargs={**limits, **tls, **secret})
    client: redis.Redis = sentinel.master_for(
        asked.get("master_name", "mymaster"), db=int(db), username=_plain(user.username), password=_plain(user.password), **tls, **options)
    return client


def _plain(part: str | None) -> str | None:
    return None if not part else unquote(part)
