"""What the service said, as facts and errors. Sans-IO: both drivers, and every call, read answers here.

Only the service's own error JSON is believed. A 404 or 503 page of a proxy says nothing of a run; a 401 of anybody is still an auth
error, because sending the token again would not help.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from conductor.client import facts
from conductor.client.errors import AUTH, Forbidden, ServiceRefused, Unauthenticated, told
from conductor.client.frames import Frames
from conductor.client.results import Event, Outcome
from conductor.errors import BadInput, ConductorError, UnknownRun

__all__ = ["EPOCH", "NoReply", "Reply", "StreamReading", "judged", "page_fact", "poll_fact", "refusal"]

EPOCH = "conductor-epoch"
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, from whomever."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    url: str = ""

    @property
    def epoch(self) -> str:
        return self.headers.get(EPOCH, "")

    def json(self) -> Any:
        """The body as JSON; None if it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def now(self) -> int:
        """The clock of who answered, in ms: that of the service is nearer to the store's than ours."""
        try:
            return int(parsedate_to_datetime(self.headers["date"]).timestamp() * 1000)
        except (KeyError, ValueError):
            return int(time.time() * 1000)  # the distance to a deadline is then as good as our clock


@dataclass(frozen=True, slots=True)
class NoReply:
    """Nobody answered. `sent` says whether the request may have reached somebody."""

    problem: str
    sent: bool


def refusal(reply: Reply) -> ConductorError | None:
    """The error of an answer that is none; None if it is a good one."""
    if 200 <= reply.status < 300:
        return None
    error = body.get("error") if isinstance(body := reply.json(), Mapping) else None
    if isinstance(error, Mapping) and error.get("code"):
        return told(error, status=reply.status, url=reply.url)
    if reply.status in (401, 407):
        return Unauthenticated(url=reply.url, status=reply.status)
    if reply.status == 403:
        return Forbidden(url=reply.url, status=reply.status)
    said = " ".join(reply.body[:_SHOWN].decode(errors="replace").split())
    return ServiceRefused(url=reply.url, status=reply.status, problem=f"not an answer of Conductor: {said or 'nothing'}", foreign=True)


def judged(number: int, reply: Reply, error: ConductorError) -> facts.Fact:
    """What a refusal means to who follows a run."""
    if isinstance(error, UnknownRun) and reply.status == 404:
        return facts.Unknown(number, reply.epoch)
    foreign = bool(error.details.get("foreign"))
    if isinstance(error, AUTH) or (not foreign and 400 <= reply.status < 500 and reply.status not in (408, 429)):
        return facts.Refused(number, error)
    return facts.NoAnswer(number, str(error))


def poll_fact(number: int, reply: Reply | NoReply) -> facts.Fact:
    """What came of asking for the outcome."""
    if isinstance(reply, NoReply):
        return facts.Unreachable(number, reply.problem)
    if (error := refusal(reply)) is not None:
        return judged(number, reply, error)
    try:
        return facts.Polled(number, Outcome.of(reply.json(), reply.now), reply.epoch)
    except ValueError as found:
        return facts.NoAnswer(number, str(found))


def page_fact(number: int, reply: Reply | NoReply) -> facts.Fact:
    """What came of asking for a page of events."""
    if isinstance(reply, NoReply):
        return facts.Unreachable(number, reply.problem)
    if (error := refusal(reply)) is not None:
        return _events_refused(number, reply, error)
    try:
        told = reply.json()
        return facts.Page(number, tuple(Event.of(one) for one in told["events"]))
    except (ValueError, TypeError, LookupError, AttributeError) as found:
        return facts.NoAnswer(number, f"not a page of events: {found}")


def _events_refused(number: int, reply: Reply, error: ConductorError) -> facts.Fact:
    """Behind the end of a log that is shorter than it was, there is nothing: the outcome tells how long it is now."""
    return facts.NoAnswer(number, str(error)) if isinstance(error, BadInput) else judged(number, reply, error)


@dataclass
class StreamReading:
    """One stream, from its headers to its end."""

    number: int
    begun: bool = False
    ended: bool = False
    _frames: Frames = field(default_factory=Frames)

    def begin(self, reply: Reply) -> facts.Fact:
        """What the headers mean; `begun` says whether a stream follows. The body of a refusal has to be in `reply`."""
        if (error := refusal(reply)) is not None:
            return _events_refused(self.number, reply, error)
        if not reply.headers.get("content-type", "").startswith("text/event-stream"):
            return facts.NoAnswer(self.number, f"not a stream of events but {reply.headers.get('content-type', 'nothing')}")
        self.begun = True
        return facts.Opened(self.number, reply.epoch)

    def feed(self, chunk: bytes) -> list[facts.Fact]:
        """The facts in these bytes. Raises ValueError if they are no stream of events."""
        found: list[facts.Fact] = []
        for frame in self._frames.feed(chunk):
            if frame.beat:
                found.append(facts.Beat(self.number))
            elif (fact := self._fact(frame.event, frame.id, json.loads(frame.data))) is not None:
                found.append(fact)
        return found

    def _fact(self, event: str, id: str, said: object) -> facts.Fact | None:
        if not isinstance(said, Mapping):
            raise ValueError(f"not an event: {str(said)[:_SHOWN]}")
        if event == "end":
            self.ended = True
            generation = said.get("generation")
            return facts.Ended(
                self.number, str(said.get("state") or ""), generation if isinstance(generation, int) else 0, str(said.get("reason") or ""))
        if event == "error":  # the store went away under a stream that had begun
            raise ValueError(f"the service ended the stream: {str(said)[:_SHOWN]}")
        return facts.Told(self.number, Event.of(said, int(id) if id.isdecimal() else 0))

    def over(self, problem: str = "it ended without an end marker") -> facts.Fact:
        """The connection is gone, for whatever reason."""
        return facts.Broken(self.number, problem) if self.begun else facts.Unreachable(self.number, problem)
