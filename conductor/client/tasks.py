"""The driver of the asynchronous client: it carries out what the cores ask for, and decides nothing. One task a stream, one a question."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

import httpx2

from conductor.client import calls, facts
from conductor.client.asking import Conversation, Pause, Request
from conductor.client.facts import CloseStream, Deliver, Finish, OpenStream, PollOutcome, ReadEvents
from conductor.client.following import Following
from conductor.client.reading import NoReply, Reply, StreamReading
from conductor.client.results import Event, Result
from conductor.client.threads import built, no_reply, question, reply_of

__all__ = ["Follower", "converse", "send"]

T = TypeVar("T")


async def send(http: httpx2.AsyncClient, request: Request) -> Reply | NoReply:
    """One request, once."""
    try:
        response = await http.send(built(http, request, request.seconds))
        return reply_of(response, response.content)
    except (httpx2.HTTPError, OSError) as error:
        return no_reply(error)


async def converse(http: httpx2.AsyncClient, conversation: Conversation[T]) -> T:
    """Carry a conversation to its end."""
    said: Reply | NoReply | None = None
    while True:
        try:
            wanted = conversation.send(said)
        except StopIteration as over:
            answer: T = over.value
            return answer
        if isinstance(wanted, Pause):
            await asyncio.sleep(wanted.seconds)
            said = None
        else:
            said = await send(http, wanted)


class Follower:
    """One following under way."""

    def __init__(self, http: httpx2.AsyncClient, machine: Following) -> None:
        self._http, self._machine = http, machine
        self._facts: asyncio.Queue[facts.Fact] = asyncio.Queue()
        self._stream: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """End it now."""
        self._facts.put_nowait(facts.Stopped())

    async def steps(self) -> AsyncGenerator[Event | Result]:
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
                            self._stream = self._begin(self._read(StreamReading(number), after))
                        case CloseStream():
                            self._let_go()
                        case PollOutcome() | ReadEvents():
                            self._begin(self._ask(command))
                todo = machine.receive(await self._next(), time.monotonic())
        finally:
            for task in self._tasks:
                task.cancel()  # not waited for: a connection may take its time to close, the caller does not

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _next(self) -> facts.Fact:
        at = self._machine.wakes_at
        try:
            async with asyncio.timeout(None if at is None else max(0.0, at - time.monotonic())):
                return await self._facts.get()
        except TimeoutError:
            return facts.Passed()

    async def _ask(self, command: PollOutcome | ReadEvents) -> None:
        request, fact = question(self._machine, command)
        self._facts.put_nowait(fact(command.number, await send(self._http, request)))

    def _let_go(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None

    async def _read(self, reading: StreamReading, after: int) -> None:
        put = self._facts.put_nowait
        try:
            wanted = built(self._http, calls.events(self._machine.run_id, after), self._machine.budget.stall)
            response = await self._http.send(wanted, stream=True)
            try:
                put(reading.begin(reply_of(response, await response.aread() if response.status_code != 200 else b"")))
                if reading.begun:
                    await self._take(reading, response)
            finally:
                await response.aclose()
        except Exception as error:  # whatever a dying connection raises, it is over
            put(reading.over(no_reply(error).problem))

    async def _take(self, reading: StreamReading, response: httpx2.Response) -> None:
        async for chunk in response.aiter_bytes():
            for fact in reading.feed(chunk):
                self._facts.put_nowait(fact)
            if reading.ended:
                return
        self._facts.put_nowait(reading.over())
