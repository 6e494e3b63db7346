"""`Client` and `Handle`: the API, one line a call. What is asked is in `calls.py`, how patiently in `asking.py`, how a run is followed in
`following.py`; the asynchronous twin of this page differs in `await` alone, and a test holds both to the same signatures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from typing import Any, Literal, Self

import httpx2

from conductor.client import calls
from conductor.client.asking import Manners, Request, answer, ask
from conductor.client.budget import Backoff, Budget
from conductor.client.pending import Ledger, Pending, Resolved, StillRunning, read_pending, resolving
from conductor.client.results import Event, Result
from conductor.client.settling import cancel_word, connection, fresh, refused_start, reported, settled, stopping
from conductor.client.threads import Follower, converse
from conductor.errors import LaneFull

__all__ = ["Client", "Handle"]


class Client:
    """Conductor over HTTP: `Client("https://conductor.example", token=…)`. Threads may share it. More keywords (`verify`, `proxy`, …) are
    those of httpx2.Client."""

    def __init__(self, url: str, *, token: str = "", budget: Budget | None = None, backoff: Backoff | None = None, **http: Any) -> None:
        self.url = url.rstrip("/")
        self._manners = Manners(self.url, backoff or Backoff(), budget or Budget())
        self._ledger = Ledger()
        self._http = httpx2.Client(**connection(self.url, token, http))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Runs go on."""
        self._http.close()

    def __repr__(self) -> str:
        return f"<Client {self.url}>"

    def _ask(self, request: Request) -> Any:
        return answer(converse(self._http, ask(request, self._manners)))

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: Any) -> Any:
        """Any route of the service: `client.ask("GET", "/v1/lanes")`."""
        return self._ask(calls.plain(method, path, body, query))

    def send(self, request: Request) -> Any:
        """The same for who knows more of it: `Request` says whether it may be sent twice, and how long its answer may take."""
        return self._ask(request)

    # Runs.

    def start(self, workflow: str, input: Any = None, *, key: str | None = None, **options: Any) -> Handle:
        """Start a run. Options are those of the service: tags, session, queue, priority, countdown, eta, expires, deadline, lane. Without a
        key it gets one of its own, so that a lost reply never makes two runs."""
        reply = converse(self._http, ask(calls.start(workflow, input, key, options), self._manners))
        handle = Handle(self, answer(reply)["run_id"], epoch=reply.epoch)
        self._ledger.know(handle.id, reply.epoch)
        return handle

    def perform(
        self, workflow: str, input: Any = None, *, key: str | None = None, on_event: Callable[[Event], Any] | None = None,
        timeout: float | None = None, **options: Any,
    ) -> Result:
        """Start a run and follow it to its end. A full lane is a result too: `lane_full`."""
        try:
            handle = self.start(workflow, input, key=key, **options)
        except LaneFull as full:
            return refused_start(full, self.url)
        return handle.follow(on_event, timeout=timeout)

    def run(self, run_id: str) -> Handle:
        """The handle of a run, whoever started it. It asks nothing yet."""
        return Handle(self, run_id)

    def runs(self, **filters: Any) -> Iterator[dict[str, Any]]:
        """All runs that a filter finds, page by page: `client.runs(status="failed", since="2026-01-01")`."""
        cursor: str | None = None
        while True:
            told = self._ask(calls.runs(filters, cursor))
            yield from calls.listed(told, "runs")
            if not (cursor := told.get("cursor")):
                return

    def batch(
        self, action: Literal["retry", "cancel", "pause", "resume"], where: Mapping[str, Any], *, reason: str = "", dry_run: bool = True,
        rate: float | None = None,
    ) -> dict[str, Any]:
        """Act on all runs that a filter finds. A dry run counts them; else the answer names the batch."""
        return dict(self._ask(calls.batch(action, where, reason, dry_run, rate)))

    def batch_state(self, batch_id: str) -> dict[str, Any]:
        """How far a batch is."""
        return dict(self._ask(calls.batch_state(batch_id)))

    # Pending runs.

    def pending(self) -> list[dict[str, Any]]:
        """The runs started or followed here whose end was not reported yet, as JSON: save it, and give it to `resume` after a restart."""
        return self._ledger.to_json()

    def resume(self, pending: Iterable[Pending | Mapping[str, Any]]) -> list[Resolved]:
        """What became of each: Terminal, StillRunning, NotFound or NoAnswer. Those that go on, or got no answer, are pending here again."""
        known = {one.run_id: one for one in read_pending(pending)}
        answers = converse(self._http, resolving(list(known.values()), self._manners))
        return [self._again(known[one.run_id], one) for one in answers]

    def _again(self, one: Pending, found: Resolved) -> Resolved:
        handle = Handle(self, one.run_id, epoch=one.epoch, last_event=one.last_event)
        return settled(self._ledger, one, replace(found, handle=handle) if isinstance(found, StillRunning) else found)

    # Operations and sessions.

    def call(
        self, capability: str, params: Any = None, *, session: str | None = None, key: str | None = None, timeout: float = 30.0,
    ) -> dict[str, Any]:
        """Run a capability on a worker and wait. Look at the answer: queued is not success, and a timeout is not failure."""
        return dict(self._ask(calls.call(capability, params, session, key, timeout)))

    def submit(
        self, capability: str, params: Any = None, *, session: str | None = None, key: str | None = None, queue: str | None = None,
        priority: int | None = None,
    ) -> dict[str, Any]:
        """Queue a capability for a worker and return at once."""
        return dict(self._ask(calls.submit(capability, params, session, key, queue, priority)))

    def operation(self, operation_id: str) -> dict[str, Any]:
        """One operation."""
        return dict(self._ask(calls.one_operation(operation_id)))

    def operations(self, **filters: Any) -> list[dict[str, Any]]:
        """Operations, newest first."""
        return calls.listed(self._ask(calls.operations(filters)), "operations")

    def inbox(self, session: str, *, after: str = "", limit: int = 100) -> list[dict[str, Any]]:
        """A session's messages, oldest first."""
        return calls.listed(self._ask(calls.inbox(session, after, limit)), "messages")

    def acknowledge(self, session: str, message_id: str) -> None:
        """Take a message out of the inbox."""
        self._ask(calls.acknowledge(session, message_id))


class Handle:
    """A run from its caller's side. `last_event` is how far its events were followed here."""

    def __init__(self, client: Client, run_id: str, *, epoch: str = "", last_event: int = 0) -> None:
        self.id, self.epoch, self.last_event = run_id, epoch, last_event
        self._client = client
        self._followers: set[Follower] = set()

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    def status(self) -> str:
        """The run's state now."""
        return str(self._client._ask(calls.outcome(self.id))["state"])

    def show(self, values: bool = False) -> dict[str, Any]:
        """The run, step by step; with `values` also its input and result."""
        return dict(self._client._ask(calls.show(self.id, values)))

    def why(self) -> dict[str, Any]:
        """In one sentence what it waits for or why it ended, and which command would move it."""
        return dict(self.show()["why"])

    # Following.

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the end and return the run's result. Raises what the code means (RunFailed, RunCancelled, ConductorUnreachable, …), or
        GetTimeout after `timeout` seconds; the run itself is not touched by that."""
        return self._result(self._steps(False, None, timeout), None).get()

    def follow(
        self, on_event: Callable[[Event], Any] | None = None, *, after: int | None = None, timeout: float | None = None,
    ) -> Result:
        """Follow the run to its end, through everything, telling each event once and in order. The result has a code; only an auth error is
        raised. `after` begins behind that event, else it begins where this handle was."""
        return self._result(self._steps(on_event is not None, after, timeout), on_event)

    @staticmethod
    def _result(steps: Generator[Event | Result], on_event: Callable[[Event], Any] | None) -> Result:
        with closing(steps):
            for one in steps:
                if isinstance(one, Result):
                    return one
                if on_event is not None:
                    on_event(one)
        raise AssertionError("a following ends with a result")

    def events(self, *, after: int | None = None, timeout: float | None = None) -> Iterator[Event]:
        """The run's events until it has ended; raises if it can no longer be followed."""
        with closing(self._steps(True, after, timeout)) as steps:
            for one in steps:
                if isinstance(one, Event):
                    yield one
                elif not one.ended:
                    one.get()

    def _steps(self, events: bool, after: int | None, timeout: float | None) -> Generator[Event | Result]:
        machine = fresh(self, self._client._manners, events, after, timeout, time.monotonic())
        follower = Follower(self._client._http, machine)
        self._followers.add(follower)
        reported(self._client._ledger, self, None)
        steps = follower.steps()
        try:
            for one in steps:
                self.epoch, self.last_event = machine.epoch, machine.last_event if events else self.last_event
                reported(self._client._ledger, self, one)
                yield one
        finally:
            self._followers.discard(follower)
            steps.close()

    def stop(self, *, cancel: bool = True, reason: str = "stopped by its caller", within: float = 5.0) -> Future[str]:
        """Follow no longer, now: everything that follows by this handle ends with code `stopped`. The run is cancelled in the background,
        as well as can be done `within` seconds; the future tells the service's word, or what went wrong."""
        for follower in list(self._followers):
            follower.stop()
        told: Future[str] = Future()
        if cancel:
            threading.Thread(target=self._cancel_within, args=(within, reason, told), name="conductor-stop", daemon=True).start()
        else:
            told.set_result("left")
        return told

    def _cancel_within(self, within: float, reason: str, told: Future[str]) -> None:
        try:
            told.set_result(cancel_word(converse(self._client._http, stopping(self.id, reason, within, self._client._manners))))
        except Exception as error:  # best effort: whoever asks the future is told
            told.set_result(f"not cancelled: {error}")

    # Acting on the run.

    def _act(self, request: Request) -> dict[str, Any]:
        return dict(self._client._ask(request) or {})

    def signal(self, name: str, value: Any = None, *, id: str = "") -> dict[str, Any]:
        """Send a signal. The same `id` again is no news."""
        return self._act(calls.signal(self.id, name, value, id))

    def advance(self, step: str, result: Any = None) -> dict[str, Any]:
        """Answer for an agent step. The first answer wins, the same one again gets the same reply."""
        return self._act(calls.advance(self.id, step, result))

    def cancel(self, reason: str = "requested", *, terminate: bool = False, compensate: bool = False) -> dict[str, Any]:
        """Cancel the run. One that has ended is left as it is; the answer says so."""
        return self._act(calls.cancel(self.id, reason, terminate, compensate))

    def retry(self) -> dict[str, Any]:
        """Open a new generation of a failed run. A lost reply is `ReplyLost`: it is not sent twice."""
        return self._act(calls.retry(self.id))

    def fork(self, from_: str, **changes: Any) -> Handle:
        """A new run that keeps what stands upstream of step `from_`, with these fields of the input changed."""
        return Handle(self._client, str(self._act(calls.fork(self.id, from_, changes))["run_id"]), epoch=self.epoch)

    def pause(self, reason: str = "requested") -> dict[str, Any]:
        """Stop claims; running attempts may commit."""
        return self._act(calls.act(self.id, "pause", reason=reason))

    def resume(self) -> dict[str, Any]:
        """Let a paused run go on."""
        return self._act(calls.act(self.id, "resume"))
