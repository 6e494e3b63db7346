"""One call, as a conversation: it yields what is to be sent or how long to wait, is told what came back, and returns the answer. Sans-IO.

**Repeating.** A request that may be sent twice (it reads, or it carries a key) is repeated with backoff while nobody answers or the store
is away. One that may not is repeated only if it never left; else `ReplyLost` says that it may have happened. Auth errors are never
repeated, refusals neither: a full lane is an answer.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from conductor.client.budget import Backoff, Budget
from conductor.client.errors import AUTH, ConductorUnreachable, ReplyLost, ServiceRefused
from conductor.client.reading import NoReply, Reply, refusal
from conductor.errors import ConductorError

__all__ = ["Conversation", "Manners", "Pause", "Request", "answer", "ask"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be sent. `look` says how to find out whether a request that may not be repeated has happened."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    look: str = ""
    seconds: float = 20.0  # the longest silence before the answer


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing is to be sent for so long."""

    seconds: float


Conversation = Generator[Request | Pause, Reply | NoReply | None, T]


@dataclass(frozen=True, slots=True)
class Manners:
    """How patiently one client asks, on which clock, and where."""

    url: str
    backoff: Backoff = field(default_factory=Backoff)
    budget: Budget = field(default_factory=Budget)
    clock: Callable[[], float] = time.monotonic
    random: Callable[[], float] = random.random


# The service is there or somebody before it is, and it may be otherwise in a moment.
_PASSING = frozenset({408, 502, 503, 504})
_FOREIGN_PASSING = _PASSING | {429, 500}


def ask(request: Request, manners: Manners) -> Conversation[Reply]:
    """Send it until somebody answers. Raises the error of a refusal, ConductorUnreachable, or ReplyLost."""
    began, tries = manners.clock(), 0
    while True:
        reply = yield request
        assert reply is not None
        error = refusal(reply) if isinstance(reply, Reply) else None
        if isinstance(reply, Reply) and error is None:
            return reply
        _check_repeatable(request, reply, error)
        pause = manners.backoff.pause(tries, manners.random)
        tries += 1
        spent = manners.clock() - began
        if spent + pause >= manners.backoff.call_total:
            problem = reply.problem if isinstance(reply, NoReply) else ""
            raise error or ConductorUnreachable(url=manners.url, seconds=f"{spent:.1f}", problem=problem, run_id="")
        yield Pause(pause)


def _check_repeatable(request: Request, reply: Reply | NoReply | None, error: ConductorError | None) -> None:
    """Raise unless the request may, and is worth to, be sent again."""
    if isinstance(reply, Reply) and error is not None:
        foreign = bool(error.details.get("foreign"))
        if isinstance(error, AUTH) or reply.status not in (_FOREIGN_PASSING if foreign else _PASSING):
            raise error
        if not request.repeatable:
            raise ReplyLost(what=f"{request.method} {request.path}", remedy=request.look, problem=str(error)) if foreign else error
    elif isinstance(reply, NoReply) and reply.sent and not request.repeatable:
        raise ReplyLost(what=f"{request.method} {request.path}", remedy=request.look, problem=reply.problem)


def answer(reply: Reply) -> Any:
    """The JSON of a good answer."""
    told = reply.json()
    if told is None and reply.body:
        raise ServiceRefused(url=reply.url, status=reply.status, problem="what it answered is not JSON", foreign=True)
    return told
