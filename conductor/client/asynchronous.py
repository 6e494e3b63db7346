"""`AsyncClient` and `AsyncHandle`: the API, one line a call. What is asked is in `calls.py`, how patiently in `asking.py`, how a run is
followed in `following.py`; this page differs from `synchronous.py` in `await` alone, and a test holds both to the same signatures."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Literal, Self

import httpx2

from conductor.client import calls
from conductor.client.asking import Manners, Request, answer, ask
from conductor.client.budget import Backoff, Budget
from conductor.client.pending import Ledger, Pending, Resolved, StillRunning, read_pending, resolving
from conductor.client.results import Event, Result
from conductor.client.settling import cancel_word, connection, fresh, refused_start, reported, settled, stopping
from conductor.client.tasks import Follower, converse
from conductor.errors import LaneFull

__all__ = ["AsyncClient", "AsyncHandle"]


class AsyncClient:
    """Conductor over HTTP: `AsyncClient("https://conductor.example", token=…)`. Tasks of one event loop may share it. More keywords
    (`verify`, `proxy`, …) are those of httpx2.AsyncClient."""

    def __init__(self, url: str, *, token: str = "", budget: Budget | None = None, backoff: Backoff | None = None, **http: Any) -> None:
        self.url = url.rstrip("/")
        self._manners = Manners(self.url, backoff or Backoff(), budget or Budget())
        self._ledger = Ledger()
        self._tasks: set[asyncio.Task[str]] = set()
        self._http = httpx2.AsyncClient(**connection(self.url, token, http))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections. Runs go on."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._http.aclose()

    def _keep(self, task: asyncio.Task[str]) -> asyncio.Task[str]:
        """The loop itself holds tasks weakly."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def __repr__(self) -> str:
        return f"<AsyncClient {self.url}>"

    async def _ask(self, request: Request) -> Any:
        return answer(await converse(self._http, ask(request, self._manners)))

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: Any) -> Any:
        """Any route of the service: `client.ask("GET", "/v1/lanes")`."""
        return await self._ask(calls.plain(method, path, body, query))

    async def send(self, request: Request) -> Any:
        """The same for who knows more of it: `Request` says whether it may be sent twice, and how long its answer may take."""
        return await self._ask(request)

    # Runs.

    async def start(self, workflow: str, input: Any = None, *, key: str | None = None, **options: Any) -> AsyncHandle:
        """Start a run. Options are those of the service: tags, session, queue, priority, countdown, eta, expires, deadline, lane. Without a
        key it gets one of its own, so that a lost reply never makes two runs."""
        reply = await converse(self._http, ask(calls.start(workflow, input, key, options), self._manners))
        handle = AsyncHandle(self, answer(reply)["run_id"], epoch=reply.epoch)
        self._ledger.know(handle.id, reply.epoch)
        return handle

    async def perform(
        self, workflow: str, input: Any = None, *, key: str | None = None, on_event: Callable[[Event], Any] | None = None,
        timeout: float | None = None, **options: Any,
    ) -> Result:
        """Start a run and follow it to its end. A full lane is a result too: `lane_full`."""
        try:
            handle = await self.start(workflow, input, key=key, **options)
        except LaneFull as full:
            return refused_start(full, self.url)
        return await handle.follow(on_event, timeout=timeout)

    def run(self, run_id: str) -> AsyncHandle:
        """The handle of a run, whoever started it. It asks nothing yet."""
        return AsyncHandle(self, run_id)

    async def runs(self, **filters: Any) -> AsyncGenerator[dict[str, Any]]:
        """All runs that a filter finds, page by page: `client.runs(status="failed", since="2026-01-01")`."""
        cursor: str | None = None
        while True:
            told = await self._ask(calls.runs(filters, cursor))
            for run in calls.listed(told, "runs"):
                yield run
            if not (cursor := told.get("cursor")):
                return

    async def batch(
        self, action: Literal["retry", "cancel", "pause", "resume"], where: Mapping[str, Any], *, reason: str = "", dry_run: bool = True,
        rate: float | None = None,
    ) -> dict[str, Any]:
        """Act on all runs that a filter finds. A dry run counts them; else the answer names the batch."""
        return dict(await self._ask(calls.batch(action, where, reason, dry_run, rate)))

    async def batch_state(self, batch_id: str) -> dict[str, Any]:
        """How far a batch is."""
        return dict(await self._ask(calls.batch_state(batch_id)))

    # Pending runs.

    def pending(self) -> list[dict[str, Any]]:
        """The runs started or followed here whose end was not reported yet, as JSON: save it, and give it to `resume` after a restart."""
        return self._ledger.to_json()

    async def resume(self, pending: Iterable[Pending | Mapping[str, Any]]) -> list[Resolved]:
        """What became of each: Terminal, StillRunning, NotFound or NoAnswer. Those that go on, or got no answer, are pending here again."""
        known = {one.run_id: one for one in read_pending(pending)}
        answers = await converse(self._http, resolving(list(known.values()), self._manners))
        return [self._again(known[one.run_id], one) for one in answers]

    def _again(self, one: Pending, found: Resolved) -> Resolved:
        handle = AsyncHandle(self, one.run_id, epoch=one.epoch, last_event=one.last_event)
        return settled(self._ledger, one, replace(found, handle=handle) if isinstance(found, StillRunning) else found)

    # Operations and sessions.

    async def call(
        self, capability: str, params: Any = None, *, session: str | None = None, key: str | None = None, timeout: float = 30.0,
    ) -> dict[str, Any]:
        """Run a capability on a worker and wait. Look at the answer: queued is not success, and a timeout is not failure."""
        return dict(await self._ask(calls.call(capability, params, session, key, timeout)))

    async def submit(
        self, capability: str, params: Any = None, *, session: str | None = None, key: str | None = None, queue: str | None = None,
        priority: int | None = None,
    ) -> dict[str, Any]:
        """Queue a capability for a worker and return at once."""
        return dict(await self._ask(calls.submit(capability, params, session, key, queue, priority)))

    async def operation(self, operation_id: str) -> dict[str, Any]:
        """One operation."""
        return dict(await self._ask(calls.one_operation(operation_id)))

    async def operations(self, **filters: Any) -> list[dict[str, Any]]:
        """Operations, newest first."""
        return calls.listed(await self._ask(calls.operations(filters)), "operations")

    async def inbox(self, session: str, *, after: str = "", limit: int = 100) -> list[dict[str, Any]]:
        """A session's messages, oldest first."""
        return calls.listed(await self._ask(calls.inbox(session, after, limit)), "messages")

    async def acknowledge(self, session: str, message_id: str) -> None:
        """Take a message out of the inbox."""
        await self._ask(calls.acknowledge(session, message_id))


class AsyncHandle:
    """A run from its caller's side. `last_event` is how far its events were followed here."""

    def __init__(self, client: AsyncClient, run_id: str, *, epoch: str = "", last_event: int = 0) -> None:
        self.id, self.epoch, self.last_event = run_id, epoch, last_event
        self._client = client
        self._followers: set[Follower] = set()

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    async def status(self) -> str:
        """The run's state now."""
        return str((await self._client._ask(calls.outcome(self.id)))["state"])

    async def show(self, values: bool = False) -> dict[str, Any]:
        """The run, step by step; with `values` also its input and result."""
        return dict(await self._client._ask(calls.show(self.id, values)))

    async def why(self) -> dict[str, Any]:
        """In one sentence what it waits for or why it ended, and which command would move it."""
        return dict((await self.show())["why"])

    # Following.

    async def get(self, timeout: float | None = None) -> Any:
        """Wait for the end and return the run's result. Raises what the code means (RunFailed, RunCancelled, ConductorUnreachable, …), or
        GetTimeout after `timeout` seconds; the run itself is not touched by that."""
        return (await self._result(self._steps(False, None, timeout), None)).get()

    async def follow(
        self, on_event: Callable[[Event], Any] | None = None, *, after: int | None = None, timeout: float | None = None,
    ) -> Result:
        """Follow the run to its end, through everything, telling each event once and in order. The result has a code; only an auth error is
        raised. `after` begins behind that event, else it begins where this handle was."""
        return await self._result(self._steps(on_event is not None, after, timeout), on_event)

    @staticmethod
    async def _result(steps: AsyncGenerator[Event | Result], on_event: Callable[[Event], Any] | None) -> Result:
        async with aclosing(steps):
            async for one in steps:
                if isinstance(one, Result):
                    return one
                if on_event is not None and inspect.isawaitable(said := on_event(one)):
                    await said
        raise AssertionError("a following ends with a result")

    async def events(self, *, after: int | None = None, timeout: float | None = None) -> AsyncGenerator[Event]:
        """The run's events until it has ended; raises if it can no longer be followed."""
        async with aclosing(self._steps(True, after, timeout)) as steps:
            async for one in steps:
                if isinstance(one, Event):
                    yield one
                elif not one.ended:
                    one.get()

    async def _steps(self, events: bool, after: int | None, timeout: float | None) -> AsyncGenerator[Event | Result]:
        machine = fresh(self, self._client._manners, events, after, timeout, time.monotonic())
        follower = Follower(self._client._http, machine)
        self._followers.add(follower)
        reported(self._client._ledger, self, None)
        steps = follower.steps()
        try:
            async for one in steps:
                self.epoch, self.last_event = machine.epoch, machine.last_event if events else self.last_event
                reported(self._client._ledger, self, one)
                yield one
        finally:
            self._followers.discard(follower)
            await steps.aclose()

    def stop(self, *, cancel: bool = True, reason: str = "stopped by its caller", within: float = 5.0) -> asyncio.Task[str]:
        """Follow no longer, now: everything that follows by this handle ends with code `stopped`. The run is cancelled in the background,
        as well as can be done `within` seconds; the task tells the service's word, or what went wrong."""
        for follower in list(self._followers):
            follower.stop()
        return self._client._keep(asyncio.create_task(self._cancel_within(within, reason) if cancel else asyncio.sleep(0, "left")))

    async def _cancel_within(self, within: float, reason: str) -> str:
        try:
            async with asyncio.timeout(within):
                return cancel_word(await converse(self._client._http, stopping(self.id, reason, within, self._client._manners)))
        except Exception as error:  # best effort: whoever asks the task is told
            return f"not cancelled: {str(error) or 'no answer in time'}"

    # Acting on the run.

    async def _act(self, request: Request) -> dict[str, Any]:
        return dict(await self._client._ask(request) or {})

    async def signal(self, name: str, value: Any = None, *, id: str = "") -> dict[str, Any]:
        """Send a signal. The same `id` again is no news."""
        return await self._act(calls.signal(self.id, name, value, id))

    async def advance(self, step: str, result: Any = None) -> dict[str, Any]:
        """Answer for an agent step. The first answer wins, the same one again gets the same reply."""
        return await self._act(calls.advance(self.id, step, result))

    async def cancel(self, reason: str = "requested", *, terminate: bool = False, compensate: bool = False) -> dict[str, Any]:
        """Cancel the run. One that has ended is left as it is; the answer says so."""
        return await self._act(calls.cancel(self.id, reason, terminate, compensate))

    async def retry(self) -> dict[str, Any]:
        """Open a new generation of a failed run. A lost reply is `ReplyLost`: it is not sent twice."""
        return await self._act(calls.retry(self.id))

    async def fork(self, from_: str, **changes: Any) -> AsyncHandle:
        """A new run that keeps what stands upstream of step `from_`, with these fields of the input changed."""
        told = await self._act(calls.fork(self.id, from_, changes))
        return AsyncHandle(self._client, str(told["run_id"]), epoch=self.epoch)

    async def pause(self, reason: str = "requested") -> dict[str, Any]:
        """Stop claims; running attempts may commit."""
        return await self._act(calls.act(self.id, "pause", reason=reason))

    async def resume(self) -> dict[str, Any]:
        """Let a paused run go on."""
        return await self._act(calls.act(self.id, "resume"))
