"""The driver of the synchronous client: it carries out what the cores ask for, and decides nothing.

Following a run, the caller's thread waits for facts, and short-lived threads of our own talk to the network. So `stop` is immediate, a
timeout is kept, and Ctrl-C is heard, whatever a socket does; a thread that is left behind in a dead connection ends by its own timeout, and
what it still says is dropped by its number.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Generator
from typing import TypeVar

import httpx2

from conductor.client import calls, facts
from conductor.client.asking import Conversation, Pause, Request
from conductor.client.facts import CloseStream, Deliver, Finish, OpenStream, PollOutcome, ReadEvents
from conductor.client.following import Following
from conductor.client.reading import NoReply, Reply, StreamReading, page_fact, poll_fact
from conductor.client.results import Event, Result
from conductor.errors import BadInput

__all__ = ["Follower", "converse", "send"]

T = TypeVar("T")
_UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError, httpx2.UnsupportedProtocol)
CONNECT = 5.0


def timeouts(seconds: float) -> httpx2.Timeout:
    """No answer for `seconds` is none; nobody waits for a free connection."""
    return httpx2.Timeout(seconds, connect=min(CONNECT, seconds), pool=None)


def no_reply(error: Exception) -> NoReply:
    """What a failure of the network says."""
    return NoReply(f"{type(error).__name__}: {error}".rstrip(": "), sent=not isinstance(error, _UNSENT))


def reply_of(response: httpx2.Response, body: bytes) -> Reply:
    """An answer in our own words."""
    return Reply(response.status_code, response.headers, body, str(response.request.url.copy_with(query=None)))


def built(http: httpx2.Client | httpx2.AsyncClient, request: Request, seconds: float) -> httpx2.Request:
    """A request in the library's words."""
    headers = dict(request.headers) | ({} if request.body is None else {"Content-Type": "application/json"})
    return http.build_request(
        request.method, request.path, params=dict(request.query) or None, content=_body(request), headers=headers,
        timeout=timeouts(seconds),
    )


def _body(request: Request) -> bytes | None:
    """As plain JSON. What is none is refused here, where it can be told what it was."""
    try:
        return None if request.body is None else json.dumps(request.body, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as problem:
        raise BadInput(what=f"{request.method} {request.path}", field="body", problem=f"it is no JSON: {problem}") from None


def question(
    machine: Following, command: PollOutcome | ReadEvents,
) -> tuple[Request, Callable[[int, Reply | NoReply], facts.Fact]]:
    """What to send for a command, and what reads the answer."""
    seconds = machine.budget.answer
    if isinstance(command, ReadEvents):
        return calls.page(machine.run_id, command.after, seconds), page_fact
    return calls.outcome(machine.run_id, seconds), poll_fact


def send(http: httpx2.Client, request: Request) -> Reply | NoReply:
    """One request, once."""
    try:
        response = http.send(built(http, request, request.seconds))
        return reply_of(response, response.content)
    except (httpx2.HTTPError, OSError) as error:
        return no_reply(error)


def converse(http: httpx2.Client, conversation: Conversation[T]) -> T:
    """Carry a conversation to its end."""
    said: Reply | NoReply | None = None
    while True:
        try:
            wanted = conversation.send(said)
        except StopIteration as over:
            answer: T = over.value
            return answer
        if isinstance(wanted, Pause):
            time.sleep(wanted.seconds)
            said = None
        else:
            said = send(http, wanted)


class Follower:
    """One following under way."""

    def __init__(self, http: httpx2.Client, machine: Following) -> None:
        self._http, self._machine = http, machine
        self._facts: queue.SimpleQueue[facts.Fact] = queue.SimpleQueue()
        self._stream: _Stream | None = None

    def stop(self) -> None:
        """End it now, from any thread."""
        self._facts.put(facts.Stopped())

    def steps(self) -> Generator[Event | Result]:
        """Events as they come, and last the result. Raises what may not be tried again."""
        machine = self._machine
        todo = machine.begin(time.monotonic())
        try:
            while True:
                for command in todo:
                    match command:
                        case Deliver(event=event):
                            yield event
                        case Finish(result=result, error=error):
                            if error is not None:
                                raise error
                            assert result is not None
                            yield result
                            return
                        case OpenStream(number=number, after=after):
                            self._stream = _Stream(self._http, StreamReading(number), machine, after, self._facts.put)
                        case CloseStream():
                            self._let_go()
                        case PollOutcome() | ReadEvents():
                            threading.Thread(target=self._ask, args=(command,), name="conductor-ask", daemon=True).start()
                todo = machine.receive(self._next(), time.monotonic())
        finally:
            self._let_go()

    def _next(self) -> facts.Fact:
        at = self._machine.wakes_at
        try:
            return self._facts.get(timeout=None if at is None else max(0.0, at - time.monotonic()))
        except queue.Empty:
            return facts.Passed()

    def _ask(self, command: PollOutcome | ReadEvents) -> None:
        request, fact = question(self._machine, command)
        self._facts.put(fact(command.number, send(self._http, request)))

    def _let_go(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class _Stream:
    """One stream, read by a thread of its own until it is over or let go."""

    def __init__(
        self, http: httpx2.Client, reading: StreamReading, machine: Following, after: int, put: Callable[[facts.Fact], None],
    ) -> None:
        self._http, self._reading, self._put = http, reading, put
        self._request = calls.events(machine.run_id, after)
        self._seconds = machine.budget.stall
        self._closed = False
        self._response: httpx2.Response | None = None
        threading.Thread(target=self._read, name="conductor-stream", daemon=True).start()

    def close(self) -> None:
        """Let go. A socket that another thread reads is shut down, not closed: only that wakes its reader."""
        self._closed = True
        if self._response is None or (network := self._response.extensions.get("network_stream")) is None:
            return
        try:
            network.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        except (OSError, AttributeError):
            pass  # it is gone already

    def _read(self) -> None:
        reading = self._reading
        try:
            response = self._http.send(built(self._http, self._request, self._seconds), stream=True)
            self._response = response
            try:
                self._put(reading.begin(reply_of(response, response.read() if response.status_code != 200 else b"")))
                if reading.begun and not self._closed:
                    self._take(response)
            finally:
                response.close()
        except Exception as error:  # whatever a dying connection raises, it is over
            self._put(reading.over(no_reply(error).problem))

    def _take(self, response: httpx2.Response) -> None:
        for chunk in response.iter_bytes():
            for fact in self._reading.feed(chunk):
                self._put(fact)
            if self._closed or self._reading.ended:
                return
        self._put(self._reading.over())
