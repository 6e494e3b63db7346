"""For whom this code runs. Whoever runs a capability sets it, on a worker as in the caller's process, so that what the capability calls
can ask. A new thread begins without one; `contextvars.copy_context().run` takes it along."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["as_session", "originating_session"]

_SESSION: ContextVar[str] = ContextVar("conductor_originating_session", default="")


def originating_session() -> str:
    """The session that asked for what is running here; empty if nobody did."""
    return _SESSION.get()


@contextmanager
def as_session(session: str) -> Iterator[None]:
    """Run what is inside for `session`; afterwards it is as before."""
    before = _SESSION.set(session)
    try:
        yield
    finally:
        _SESSION.reset(before)
