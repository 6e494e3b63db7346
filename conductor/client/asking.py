"""One call, as a conversation: it yields what is to be sent or how long to wait, is told what came back, and returns the answer. Sans-IO.

**Repeating.** A request that may be sent twice (it reads, or it carries a key) is repeated with backoff while nobody answers or the store
is away. One that may not is repeated only if it never left; else `ReplyLost` says that it may have happened: also when it is the service
that has lost its store, because what it was doing there may have been done. Auth errors are never repeated, refusals neither: a full lane
is an answer. A fork carries a key that older services overlook, so before it is repeated the service is asked whether it knows such keys.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from conductor.client.budget import Backoff, Budget
from conductor.client.errors import AUTH, ConductorUnreachable, ReplyLost, ServiceRefused
from conductor.client.reading import NoReply, Reply, refusal
from conductor.errors import ArchiveUnreachable, BlobUnreachable, ConductorError, StoreUnreachable

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
    keyed: str = ""  # the route, as the service's document names it, if the request may be repeated where that route takes a key
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
_IN_THE_MIDDLE = (StoreUnreachable, ArchiveUnreachable, BlobUnreachable)  # the service's own: how far it had come is not known
_DOCUMENT = "/v1/openapi.json"


def ask(request: Request, manners: Manners) -> Conversation[Reply]:
    """Send it until somebody answers. Raises the error of a refusal, ConductorUnreachable, or ReplyLost."""
    try:
        return (yield from _insist(request, manners))
    except ReplyLost:
        if not request.keyed or not (yield from _knows_key(request, manners)):
            raise
    return (yield from _insist(replace(request, repeatable=True), manners))


def _knows_key(request: Request, manners: Manners) -> Conversation[bool]:
    """Whether the service says that this route takes a key. One that does not answer says nothing."""
    try:
        told = (yield from _insist(Request("GET", _DOCUMENT), manners)).json()
        parameters = told["paths"][request.keyed][request.method.lower()].get("parameters", ())
        return any(str(one.get("name", "")).lower() == "idempotency-key" for one in parameters)
    except (ConductorError, LookupError, TypeError, AttributeError):
        return False


def _insist(request: Request, manners: Manners) -> Conversation[Reply]:
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
            unknown = foreign or isinstance(error, _IN_THE_MIDDLE)
            raise ReplyLost(what=f"{request.method} {request.path}", remedy=request.look, problem=str(error)) if unknown else error
    elif isinstance(reply, NoReply) and reply.sent and not request.repeatable:
        raise ReplyLost(what=f"{request.method} {request.path}", remedy=request.look, problem=reply.problem)


def answer(reply: Reply) -> Any:
    """The JSON of a good answer."""
    told = reply.json()
    if told is None and reply.body:
        raise ServiceRefused(url=reply.url, status=reply.status, problem="what it answered is not JSON", foreign=True)
    return told
