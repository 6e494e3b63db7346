"""Each call as the request it is: which route, which body, and whether it may be sent twice. Values only.

A start, a submit, a call, a fork and a batch always carry a key, one of our own if the caller gives none, and a signal always an id: when
the reply is lost, sending it again finds what the first one did. A key of the caller's goes in the body, where any text fits; a header
takes only those of our own.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from conductor.client.asking import Request

__all__ = [
    "acknowledge", "act", "advance", "batch", "batch_state", "call", "cancel", "events", "fork", "inbox", "listed", "one_operation",
    "operations", "outcome", "page", "path", "plain", "retry", "runs", "show", "signal", "start", "submit",
]

_KEY = "Idempotency-Key"
_PAGE = 500
_MARGIN = 15.0  # a worker's answer has a way to go


def path(*parts: str) -> str:
    """A path of which no part can name another route."""
    return "/v1/" + "/".join(_part(part) for part in parts)


def _part(text: str) -> str:
    """Dots alone would be taken for a way up."""
    return text.replace(".", "%2E") if text in (".", "..") else quote(text, safe="")


def _own_key() -> str:
    return f"auto-{uuid.uuid4().hex}"


def _plain(value: Any) -> Any:
    """Times and durations as the service reads them."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def _given(**values: Any) -> dict[str, Any]:
    """What was said, without what was not."""
    return {name: _plain(value) for name, value in values.items() if value is not None}


def _query(filters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _word(value) for name, value in _given(**filters).items()}


def _word(value: Any) -> Any:
    """A value as a query has it: several are one word, separated by commas."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (list, tuple, set, frozenset)) else value


def start(workflow: str, input: Any, key: str | None, options: Mapping[str, Any]) -> Request:
    """Start a run. The key goes in the body: a header cannot carry every key that the service takes."""
    body = {"workflow": workflow, "input": _plain(input), **_given(**options), "key": _own_key() if key is None else key}
    return Request("POST", "/v1/runs", body=body)


def runs(filters: Mapping[str, Any], cursor: str | None, limit: int | None = None) -> Request:
    """One page of runs."""
    return Request("GET", "/v1/runs", query=_query({**filters, "cursor": cursor or None, "limit": limit}))


def show(run_id: str, values: bool = False) -> Request:
    """One run, step by step."""
    return Request("GET", path("runs", run_id), query=_query({"values": values or None}))


def outcome(run_id: str, seconds: float = 20.0) -> Request:
    """How a run stands."""
    return Request("GET", path("runs", run_id, "outcome"), seconds=seconds)


def events(run_id: str, after: int) -> Request:
    """The stream of a run's events."""
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    return Request("GET", path("runs", run_id, "events"), query={"after": after}, headers=headers)


def page(run_id: str, after: int, seconds: float) -> Request:
    """A page of a run's events, without a stream."""
    return Request("GET", path("runs", run_id, "events"), query={"after": after, "limit": _PAGE}, seconds=seconds)


def act(run_id: str, verb: str, **said: Any) -> Request:
    """Pause, resume: saying it twice is saying it once."""
    return Request("POST", path("runs", run_id, verb), body=_given(**said))


def cancel(run_id: str, reason: str, terminate: bool, compensate: bool, seconds: float = 20.0) -> Request:
    """Cancelling again changes nothing and says so."""
    body = _given(reason=reason, terminate=terminate or None, compensate=compensate or None)
    return Request("POST", path("runs", run_id, "cancel"), body=body, seconds=seconds)


def signal(run_id: str, name: str, value: Any, id: str) -> Request:
    """The same id again is no news."""
    return Request("POST", path("runs", run_id, "signal"), body={"name": name, "value": _plain(value), "id": id or _own_key()})


def advance(run_id: str, step: str, result: Any) -> Request:
    """The same answer again gets the same reply."""
    return Request("POST", path("runs", run_id, "advance"), body={"step": step, "result": _plain(result)})


def retry(run_id: str) -> Request:
    """A second retry is refused if the first was taken, so a lost reply must be looked into."""
    look = f"does `conductor show {run_id}` show a new generation?"
    return Request("POST", path("runs", run_id, "retry"), body={}, repeatable=False, look=look)


def fork(run_id: str, from_: str, changes: Mapping[str, Any]) -> Request:
    """Sent twice it is two runs, unless the service knows keys of forks: then it may be sent again under the same one."""
    body = {"from": from_, "changes": {name: _plain(value) for name, value in changes.items()}}  # None is a value: the field becomes null
    return Request(
        "POST", path("runs", run_id, "fork"), body=body, headers={_KEY: _own_key()}, repeatable=False, keyed="/v1/runs/{run_id}/fork",
        look="does `conductor runs` list a new one?")


def batch(action: str, where: Mapping[str, Any], reason: str, dry_run: bool, rate: float | None) -> Request:
    """An action on all runs a filter finds; under the same key it is the same batch."""
    body = {"action": action, "where": _given(**where), "dry_run": dry_run, **_given(reason=reason or None, rate=rate)}
    return Request("POST", "/v1/batches", body=body, headers={_KEY: _own_key()})


def batch_state(batch_id: str) -> Request:
    """How far a batch is."""
    return Request("GET", path("batches", batch_id))


def call(capability: str, params: Any, session: str | None, key: str | None, timeout: float) -> Request:
    """Run a capability on a worker and wait."""
    body = {"capability": capability, "params": _plain(params), "key": key or _own_key(), "timeout": timeout, **_given(session=session)}
    return Request("POST", "/v1/call", body=body, seconds=timeout + _MARGIN)


def submit(capability: str, params: Any, session: str | None, key: str | None, queue: str | None, priority: int | None) -> Request:
    """Queue a capability for a worker."""
    more = _given(session=session, queue=queue, priority=priority)
    return Request("POST", "/v1/submit", body={"capability": capability, "params": _plain(params), "key": key or _own_key(), **more})


def one_operation(operation_id: str, values: bool = False) -> Request:
    """One operation."""
    return Request("GET", path("operations", operation_id), query=_query({"values": values or None}))


def operations(filters: Mapping[str, Any]) -> Request:
    """Operations, newest first."""
    return Request("GET", "/v1/operations", query=_query(filters))


def inbox(session: str, after: str, limit: int) -> Request:
    """A session's messages, oldest first."""
    return Request("GET", path("sessions", session, "inbox"), query=_given(after=after or None, limit=limit))


def acknowledge(session: str, message_id: str) -> Request:
    """Take a message out of the inbox."""
    return Request("POST", path("sessions", session, "inbox", message_id, "ack"), body={})


def plain(method: str, route: str, body: Mapping[str, Any] | None, query: Mapping[str, Any]) -> Request:
    """Any other route. A POST is not sent twice."""
    may = method.upper() in ("GET", "HEAD", "PUT", "DELETE")
    return Request(method.upper(), route, query=_query(query), body=body, repeatable=may, look=f"what does GET {route} say?")


def listed(told: Any, name: str) -> list[dict[str, Any]]:
    """The rows of an answer."""
    return list(told.get(name) or []) if isinstance(told, Mapping) else []
