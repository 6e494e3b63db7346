"""Addresses of the state: which URLs are Redis, how Celery's spellings become redis-py's, how one is shown without its credentials."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

__all__ = ["EMBEDDED", "broker_problem", "is_redis", "kind_of", "masked", "native"]

EMBEDDED = "embedded"

_PLAIN = frozenset({"redis", "rediss", "unix"})
_SENTINEL = frozenset({"sentinel", "redis+sentinel", "rediss+sentinel"})
_CLUSTER = frozenset({"redis+cluster", "rediss+cluster"})
_SCHEMES = _PLAIN | _SENTINEL | _CLUSTER | {"redis+socket", "socket"}
_CREDENTIALS = re.compile(r"://\S*@")  # up to the last `@`: a password may hold any character, and showing too little does no harm
_SECRET_OPTIONS = re.compile(r"([?&][^=&#]*(?:password|token|secret)[^=&#]*=)[^&#;\s]*", re.IGNORECASE)
_CERTIFICATE = {"CERT_NONE": "none", "CERT_OPTIONAL": "optional", "CERT_REQUIRED": "required"}


def is_redis(url: str) -> bool:
    """Whether a broker's URL names a Redis or Valkey."""
    return _scheme(url) in _SCHEMES


def kind_of(url: str) -> str:
    """What stands behind the URL of a state: a `server`, a group behind a `sentinel`, or a `cluster`."""
    scheme = _scheme(url)
    return "sentinel" if scheme in _SENTINEL else "cluster" if scheme in _CLUSTER else "server"


def masked(url: str) -> str:
    """The URL as it may be shown: no user, no password, no secret option."""
    return _SECRET_OPTIONS.sub(r"\1***", _CREDENTIALS.sub("://***@", url))


def native(url: str) -> str:
    """The URL as redis-py reads it: `redis+socket://` and Celery's certificate words are translated, Sentinels pass."""
    if url.strip() == EMBEDDED:
        return EMBEDDED
    scheme = _scheme(url)
    if scheme not in _SCHEMES:
        raise ValueError(f"its scheme {scheme!r} is none of {', '.join(sorted(_SCHEMES))}, nor is it the word {EMBEDDED}")
    if scheme in _SENTINEL:
        return url
    if scheme in _CLUSTER:
        return _of_cluster(url.strip())
    if ";" in url:
        raise ValueError("it names several servers, and which of them has the state cannot be told")
    return _translated(url, scheme)


def broker_problem(state: str, broker: str) -> str:
    """Why this broker cannot stand beside a state on a cluster; empty if it can. Celery's keys are spread over slots and its commands take
    several at once, which a cluster refuses."""
    if kind_of(state) != "cluster":
        return ""
    if kind_of(broker) == "cluster" or (is_redis(broker) and _hosts(broker) & _hosts(state)):
        return "it is the cluster that has the state, and Celery needs a server of its own beside it"
    return ""


def _hosts(url: str) -> set[str]:
    """Host and port of each server that a URL names."""
    parts = [part.rpartition("@")[2].partition("/")[0].partition("?")[0] for part in re.split(r"[;,]", url.partition("://")[2])]
    return {part.lower() if ":" in part else f"{part.lower()}:6379" for part in parts if part}


def _of_cluster(url: str) -> str:
    """A cluster has one database. Celery's certificate words are translated as for one server."""
    head, mark, query = url.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    db = options.get("db") or head.partition("://")[2].rpartition("@")[2].partition("/")[2].strip("/") or "0"
    if db != "0":
        raise ValueError(f"a cluster has no database {db}, only 0; namespaces keep apps apart")
    if word := _CERTIFICATE.get(options.get("ssl_cert_reqs", "")):
        return f"{head}{mark}{urlencode({**options, 'ssl_cert_reqs': word}, safe='/')}"
    return url


def _scheme(url: str) -> str:
    return url.partition("://")[0].strip().lower() if "://" in url else ""


def _translated(url: str, scheme: str) -> str:
    parts = urlsplit(url.strip())
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if scheme in ("redis+socket", "socket"):
        scheme = "unix"
        options["db"] = options.pop("virtual_host", "0").lstrip("/") or "0"
    if word := _CERTIFICATE.get(options.get("ssl_cert_reqs", "")):
        options["ssl_cert_reqs"] = word
    # Only a changed URL is put together again: taking apart and joining may respell a password.
    if scheme == parts.scheme and options == dict(parse_qsl(parts.query, keep_blank_values=True)):
        return url.strip()
    query = urlencode(options, safe="/")
    return f"unix://{parts.netloc}{parts.path}?{query}" if scheme == "unix" else urlunsplit(parts._replace(scheme=scheme, query=query))
