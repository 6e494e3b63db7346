"""The caller's side over HTTP: `Client` and `AsyncClient`, which follow a run through everything.

`following.py` is the page to read first: one pure state machine, which both clients drive. `asking.py` does the same for single calls.
Importing this package imports no HTTP library; `Client` and `AsyncClient` need `pip install 'celery-conductor[client]'`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from conductor.client.budget import Backoff, Budget
from conductor.client.errors import (
    ClientNotInstalled,
    ConductorRestarted,
    ConductorUnreachable,
    DownstreamLost,
    FollowingStopped,
    Forbidden,
    ReplyLost,
    ServiceRefused,
    TooManyFailures,
    Unauthenticated,
    Unrecoverable,
)
from conductor.client.results import Code, Event, Outcome, Result

if TYPE_CHECKING:
    from conductor.client.asynchronous import AsyncClient, AsyncHandle
    from conductor.client.pending import NoAnswer, NotFound, Resolved, StillRunning, Terminal
    from conductor.client.synchronous import Client, Handle

__all__ = [
    "AsyncClient", "AsyncHandle", "Backoff", "Budget", "Client", "ClientNotInstalled", "Code", "ConductorRestarted",
    "ConductorUnreachable", "DownstreamLost", "Event", "FollowingStopped", "Forbidden", "Handle", "NoAnswer", "NotFound", "Outcome",
    "ReplyLost", "Resolved", "Result", "ServiceRefused", "StillRunning", "Terminal", "TooManyFailures", "Unauthenticated", "Unrecoverable",
]


_LATER = {
    "AsyncClient": "asynchronous", "AsyncHandle": "asynchronous", "Client": "synchronous", "Handle": "synchronous",
    "NoAnswer": "pending", "NotFound": "pending", "Resolved": "pending", "StillRunning": "pending", "Terminal": "pending",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"conductor.client.{_LATER[name]}"), name)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "httpx2":
            raise
        raise ClientNotInstalled from None
