"""The door over HTTP: operations, schedules, sessions, and what holds work back."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from conductor.cli.doors import KEEP, Asked, Told
from conductor.client import calls
from conductor.client.asking import Request
from conductor.errors import BadInput, UnknownMessage

__all__ = ["RemoteOperations", "name_problem"]

_MOST = 1000
_LONGEST = 50.0  # seconds of one wait for a call
_LOOK_AGAIN = 1.0


@dataclass(frozen=True, slots=True)
class _Call:
    """Asked again under the same key it is the same operation, and waits on."""

    ask: Callable[[float], Told]

    def __call__(self, seconds: float, /) -> Told:
        return self.ask(seconds)

    def leave(self) -> None:
        """The service says so by itself, each time it has waited in vain."""


class RemoteOperations:
    """The half of `Remote` that is not about runs."""

    def _send(self, request: Request) -> Any:
        raise NotImplementedError

    def _ask(self, method: str, *parts: str, body: Mapping[str, Any] | None = None, **query: Any) -> Any:
        raise NotImplementedError

    def _spelled(self, told: Told) -> Told:
        raise NotImplementedError

    def operations_named(self, text: str) -> list[str]:
        if problem := name_problem(text, "an operation"):
            raise BadInput(what="name of an operation", field="operation", problem=problem)
        return list(self._ask("GET", "named", "operations", text)["ids"])

    def operations(self, by: Mapping[str, Any], *, limit: int) -> Told:
        if limit > _MOST:
            raise BadInput(what="list of operations", field="limit", problem=f"over HTTP at most {_MOST} are told at once")
        return dict(self._ask("GET", "operations", limit=limit, **by))

    def operation(self, operation_id: str, *, values: bool = False) -> Told:
        told = dict(self._send(calls.one_operation(operation_id, values)))
        return told | {"why": self._spelled({"command": None, **told["why"]})}

    def operation_status(self) -> Told:
        return dict(self._ask("GET", "operations", "status"))

    def retry_operation(self, operation_id: str, *, health_check: bool) -> Told:
        look = f"does `conductor ops show {operation_id}` show a new attempt?"
        return dict(self._send(Request(
            "POST", calls.path("operations", operation_id, "retry"), body={"health_check": health_check}, repeatable=False, look=look)))

    def cancel_operation(self, operation_id: str, *, reason: str) -> Told:
        told = self._ask("POST", "operations", operation_id, "cancel", body={"reason": reason})
        return {**told, "word": str(told["word"]).upper()}

    def resolve(self, operation_id: str, *, happened: bool, value: Any) -> Told:
        look = f"is it still in doubt? `conductor ops show {operation_id}`"
        body = {"landed": value} if happened else {"absent": True}
        return dict(self._send(Request("POST", calls.path("operations", operation_id, "resolve"), body=body, repeatable=False, look=look)))

    def call(self, capability: str, params: Any, *, session: str, key: str) -> Asked:
        asked = key or f"auto-{uuid.uuid4().hex}"
        return _Call(lambda seconds: dict(self._send(calls.call(capability, params, session or None, asked, min(seconds, _LONGEST)))))

    def submit(self, capability: str, params: Any, *, session: str, key: str) -> Told:
        return dict(self._send(calls.submit(capability, params, session or None, key or None, None, None)))

    def capabilities(self, text: str) -> list[Told]:
        return list(self._ask("GET", "capabilities", text=text)["capabilities"])

    # What holds work back.

    def lanes(self, name: str) -> list[Told]:
        return [dict(self._ask("GET", "lanes", name))] if name else list(self._ask("GET", "lanes")["lanes"])

    def limits(self, name: str) -> list[Told]:
        return [dict(self._ask("GET", "limits", name))] if name else list(self._ask("GET", "limits")["limits"])

    def set_limit(self, name: str, *, rate: Any = KEEP, concurrency: Any = KEEP) -> None:
        given = {"rate": rate, "concurrency": concurrency}
        self._ask("PUT", "limits", name, body={field: value for field, value in given.items() if value != KEEP})

    def limits_as_declared(self, name: str) -> None:
        self._ask("DELETE", "limits", name)

    # Schedules.

    def schedules(self) -> Told:
        return dict(self._ask("GET", "schedules"))

    def schedule(self, name: str) -> Told:
        return dict(self._ask("GET", "schedules", name))

    def pause_schedule(self, name: str, reason: str) -> str:
        return str(self._ask("POST", "schedules", name, "pause", body={"reason": reason})["word"]).upper()

    def resume_schedule(self, name: str) -> str:
        return str(self._ask("POST", "schedules", name, "resume", body={})["word"]).upper()

    def drop_schedule(self, name: str) -> str:
        return str(self._ask("DELETE", "schedules", name)["word"]).upper()

    # Sessions.

    def inbox(self, session: str, *, after: str = "", limit: int) -> Told:
        return dict(self._send(calls.inbox(session, after, limit)))

    def messages(self, session: str, after: str, seconds: float) -> list[Told]:
        """Looked for each second: a session's inbox is not what programs wait at by the command line."""
        until = time.monotonic() + seconds
        while True:
            found = list(self.inbox(session, after=after, limit=_MOST)["messages"])
            left = until - time.monotonic()
            if found or left <= 0:
                return found
            time.sleep(min(_LOOK_AGAIN, left))

    def acknowledge(self, session: str, message_id: str) -> bool:
        try:
            self._send(calls.acknowledge(session, message_id))
        except UnknownMessage:
            return False
        return True

    def grant(self, session: str, capability: str, mode: str, seconds: float | None) -> Told:
        body = {"capability": capability, "mode": mode, **({} if seconds is None else {"lasting": seconds})}
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        return dict(self._send(Request("POST", calls.path("sessions", session, "grants"), body=body, headers=headers)))

    def grants(self, session: str) -> Told:
        return dict(self._ask("GET", "sessions", session, "grants"))

    def revoke(self, session: str, capability: str) -> Told:
        return dict(self._ask("DELETE", "sessions", session, "grants", *([capability] if capability else [])))


def name_problem(text: str, what: str) -> str:
    """What is wrong with a text that could not stand in a path: it is no beginning of an id."""
    if text.strip() and text.isascii() and "/" not in text:
        return ""
    return f"{text!r} is not the beginning of {what} id; give at least 4 of its characters"
