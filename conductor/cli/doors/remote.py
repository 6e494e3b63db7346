"""The door over HTTP: a service that somebody runs elsewhere, asked by the client. It needs neither the app nor Redis.

The service is asked for a few seconds before a command says that nobody answers; what follows a run goes on for as long as the client does.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from conductor.cli.doors import Away, Heard, Told
from conductor.cli.doors.remote_operations import RemoteOperations, name_problem
from conductor.cli.doors.starting import chosen
from conductor.client import Backoff, Budget, Client, ConductorUnreachable, ServiceRefused, calls
from conductor.client.asking import Request
from conductor.errors import BadInput, GetTimeout, StoreUnreachable

if TYPE_CHECKING:
    from conductor.cli.finding import Here

__all__ = ["Remote"]

_PATIENCE = 3.0  # seconds for one question
_NEVER = 1e9  # seconds: as directly, who waits for a run that nobody works on is told so, and waits
_LOOK_AGAIN = 1.0
_NOT_OFTENER = 0.1
_PAGE, _EVENTS = 1000, 500
_OURS = re.compile(r"(?:(?<=^)|(?<= && ))conductor(?= )")
_AWAY = (ConductorUnreachable, StoreUnreachable)


class Remote(RemoteOperations):
    """Everything by a service's routes. Who stands in the logs is said by the service, which knows the token."""

    def __init__(self, here: Here, url: str, token: str) -> None:
        self._here = here
        self._client = Client(url, token=token, backoff=Backoff(call_total=_PATIENCE), budget=Budget(lost_after=_NEVER))

    def close(self) -> None:
        self._client.close()

    def _send(self, request: Request) -> Any:
        """A filter that is refused is the same error as directly."""
        try:
            return self._client.send(request)
        except ServiceRefused as refused:
            if refused.refusal != "unknown_filter":
                raise
            field, problem = (str(refused.details.get(name, "")) for name in ("field", "problem"))
            told = re.sub(rf"^(?:filter|parameter) '?{re.escape(field)}'?:? ", "", problem)
            raise BadInput(what="filter", field=field, problem=told) from None

    def _ask(self, method: str, *parts: str, body: Mapping[str, Any] | None = None, **query: Any) -> Any:
        """What may be sent twice."""
        asked = {name: value for name, value in query.items() if value not in (None, "", False)}
        return self._send(Request(method, calls.path(*parts), query=asked, body=body))

    def _spelled(self, told: Told) -> Told:
        """Commands as the user calls us, so that they can be pasted."""
        if told.get("command"):
            told["command"] = _OURS.sub(lambda _: self._here.program, told["command"])
        return told

    def runs_named(self, text: str) -> list[str]:
        if problem := name_problem(text, "a run"):
            raise BadInput(what="name of a run", field="run", problem=problem)
        return list(self._ask("GET", "named", "runs", text)["ids"])

    def now(self) -> int:
        return int(self._send(calls.runs({}, None, 1))["now"])

    # Looking.

    def runs(self, where: Mapping[str, Any], *, cursor: str, limit: int) -> Told:
        """A page of theirs may be smaller than what was asked for here."""
        told = self._send(calls.runs(where, cursor, min(limit, _PAGE)))
        rows, page = list(told["runs"]), len(told["runs"])
        while page == _PAGE and told.get("cursor") and len(rows) < limit:
            told = self._send(calls.runs(where, told["cursor"], min(limit - len(rows), _PAGE)))
            page = len(told["runs"])
            rows += told["runs"]
        return {"runs": rows, "cursor": told.get("cursor") or "", "now": told["now"], "warning": told.get("warning") or ""}

    def show(self, run_id: str, *, values: bool = False) -> Told:
        told = dict(self._send(calls.show(run_id, values)))
        return told | {"why": self._spelled(told["why"])}

    def why(self, run_id: str) -> Told:
        return self._spelled(self._ask("GET", "runs", run_id, "why"))

    def events(
        self, run_id: str, *, after: int = 0, follow: bool = False, timeout: float | None = None, away: Away = lambda: None,
    ) -> Iterator[Told]:
        """Whoever follows insists by itself, through restarts of the service and its store."""
        if follow:
            try:
                yield from (dict(event.data) for event in self._client.run(run_id).events(after=after, timeout=timeout))
            except GetTimeout:
                raise self._timed_out(run_id, timeout) from None
            return
        while True:
            page = self._send(Request("GET", calls.path("runs", run_id, "events"), query={"after": after, "limit": _EVENTS}))
            yield from page["events"]
            after = page["last"]
            if len(page["events"]) < _EVENTS:
                return

    def looks(self, run_id: str, *, timeout: float | None, away: Away) -> Iterator[Told]:
        handle, moved = self._client.run(run_id), threading.Event()
        threading.Thread(target=lambda: handle.follow(lambda _: moved.set()), name="conductor-moved", daemon=True).start()
        until = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                try:
                    moved.clear()
                    yield self.show(run_id)
                    if until is not None and time.monotonic() >= until:
                        return
                    moved.wait(_LOOK_AGAIN if until is None else max(0.0, min(_LOOK_AGAIN, until - time.monotonic())))
                    time.sleep(_NOT_OFTENER)  # a fan-out says much at once; one picture of it is enough
                except _AWAY:
                    if until is not None and time.monotonic() >= until:
                        raise
                    away()
                    time.sleep(_LOOK_AGAIN)
        finally:
            handle.stop(cancel=False)

    def wait(self, run_id: str, timeout: float | None) -> Any:
        try:
            return self._client.run(run_id).get(timeout)
        except GetTimeout:
            raise self._timed_out(run_id, timeout) from None

    def _timed_out(self, run_id: str, timeout: float | None) -> GetTimeout:
        try:
            state = self._client.run(run_id).status()
        except _AWAY:
            state = "not known, the service is out of reach"
        return GetTimeout(run_id=run_id, seconds=timeout, state=state)

    def graph(self, workflow: str) -> Told:
        return dict(self._ask("GET", "workflows", workflow)["graph"])

    # Moving.

    def start(self, workflow: str, input: Any, *, key: str | None, options: Mapping[str, Any]) -> Told:
        chosen(workflow, key, options)  # an empty text is refused here as it is directly; a service takes it for none
        told = self._send(calls.start(workflow, input, key, options))
        return {name: told[name] for name in ("run_id", "workflow", "new")}

    def cancel(self, run_id: str, *, reason: str, terminate: bool, compensate: bool) -> Told:
        return _loud(self._send(calls.cancel(run_id, reason, terminate, compensate)))

    def pause(self, run_id: str, *, reason: str) -> Told:
        return _loud(self._send(calls.act(run_id, "pause", reason=reason)))

    def resume(self, run_id: str) -> Told:
        return _loud(self._send(calls.act(run_id, "resume")))

    def retry(self, run_id: str) -> Told:
        return _loud(self._send(calls.retry(run_id)))

    def fork(self, run_id: str, *, from_: str, changes: Mapping[str, Any]) -> Told:
        return dict(self._send(calls.fork(run_id, from_, changes)))

    def signal(self, run: str, name: str, value: Any, *, key: str | None, id: str) -> Told:
        asked = calls.signal(run, name, value, id)
        return self._by_key(run, "signal", asked, key)

    def advance(self, run: str, step: str, result: Any, *, key: str | None) -> Told:
        return self._by_key(run, "advance", calls.advance(run, step, result), key)

    def _by_key(self, named: str, verb: str, asked: Request, key: str | None) -> Told:
        """With a key, what was named is the workflow."""
        if key is None:
            return dict(self._send(asked))
        return dict(self._ask("POST", "workflows", named, verb, body={**(asked.body or {}), "key": key}))

    def consent(self, run_id: str, *, on: bool) -> Told:
        return dict(self._ask("PUT" if on else "DELETE", "runs", run_id, "consent"))

    # Many.

    def preview(self, action: str, where: Mapping[str, Any]) -> Told:
        told = self._send(calls.batch(action, where, "", True, None))
        return {name: told[name] for name in ("count", "more", "runs", "now")}

    def move_many(self, action: str, where: Mapping[str, Any], *, reason: str, rate: float, heard: Heard) -> str:
        """A worker does it."""
        batch_id = str(self._send(calls.batch(action, where, reason, False, rate))["batch_id"])
        heard(batch_id, self.batch(batch_id))
        return batch_id

    def batch(self, batch_id: str) -> Told:
        return dict(self._send(calls.batch_state(batch_id)))

    def hold(self, scope: str, reason: str) -> Told:
        return _loud(self._ask("PUT", "holds", scope, body={"reason": reason}))

    def lift(self, scope: str) -> Told:
        return _loud(self._ask("DELETE", "holds", scope))

    def queues(self) -> Told:
        return dict(self._ask("GET", "queues"))


def _loud(told: Mapping[str, Any]) -> Told:
    """Words as the command line has them."""
    return {**told, "word": str(told["word"]).upper()}
