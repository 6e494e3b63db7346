"""What callers do with operations, sessions and schedules: the second half of `Conductor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from conductor.declare.cadence import Cadence
from conductor.declare.capability import Capability, find, search
from conductor.declare.durations import Duration
from conductor.declare.starting import start_options
from conductor.errors import RunFinished, UnknownRun
from conductor.operations import acting, call, listing, read, schedules
from conductor.operations.answers import Answer, Submitted
from conductor.sessions import consent, inbox
from conductor.store.jobs import JobRecord
from conductor.store.sessions import GrantEntry

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["Operating"]

Params = Any  # the capability's own model, or plain data that fits it


class Operating:
    """Operations by capability name. `params` is the capability's model, or a dict that fits it strictly."""

    @property
    def engine(self) -> Engine:
        raise NotImplementedError

    def call(
        self, capability: Capability[..., Any] | str, params: Params = None, *, session: str = "", key: str = "",
        timeout: float | None = None, remote: bool = False,
    ) -> Answer:
        """Run a capability now, in this process or with `remote` on a worker, waiting up to `timeout` seconds. Look at the answer: queued
        is not success, and a timeout is not failure."""
        chosen = self.capability(capability)
        checked = start_options(f"capability {chosen.name}", session=session or None, key=key or None)
        return call.call(self.engine, chosen, params, session=checked.session, key=checked.key, timeout=timeout, remote=remote)

    def begin(self, capability: Capability[..., Any] | str, params: Params = None, *, session: str = "", key: str = "") -> str:
        """Call a capability on a worker without waiting: the operation's id, for `operation(id)`. Whoever begins asks for the answer; say
        `leave(id)` if you stop, and the session finds the end in its inbox."""
        chosen = self.capability(capability)
        checked = start_options(f"capability {chosen.name}", session=session or None, key=key or None)
        return call.begin(self.engine, chosen, params, session=checked.session, key=checked.key)

    def leave(self, operation_id: str) -> None:
        """Nobody waits for the answer to this call any more."""
        call.leave(self.engine, operation_id)

    def submit(
        self, capability: Capability[..., Any] | str, params: Params = None, *, session: str = "", key: str = "", queue: str | None = None,
        priority: int | None = None,
    ) -> Submitted:
        """Queue a capability for a worker and return at once."""
        chosen = self.capability(capability)
        checked = start_options(f"capability {chosen.name}", session=session or None, key=key or None, queue=queue, priority=priority)
        return call.submit(
            self.engine, chosen, params, session=checked.session, key=checked.key, queue=checked.queue, priority=checked.priority)

    def schedule(
        self, name: str, capability: Capability[..., Any] | str, params: Params = None, *, when: Any, tz: str = "UTC", session: str = "",
        overlap: str = "skip",
    ) -> str:
        """Call a capability on a schedule: `when` is a crontab, a timedelta or seconds. A tick is one operation, however many beats run."""
        chosen = self.capability(capability)
        payload = chosen.encode(params, limit=self.engine.payload_limit)
        job = schedules.Job(
            name, "operation", chosen.name, Cadence.of(when, tz=tz, where=f"schedule {name}"), payload,
            {"session": session} if session else {}, overlap=overlap)
        return schedules.define(self.engine, job)

    def capability(self, named: Capability[..., Any] | str) -> Capability[..., Any]:
        """A registered capability; what the app would import at a worker's start is imported before it is called unknown."""
        if isinstance(named, Capability):
            return named
        self._import_modules(named)
        return find(named)

    def capabilities(self, text: str = "") -> list[Capability[..., Any]]:
        """Registered capabilities whose name or documentation has every word of `text`."""
        return search(text)

    def _import_modules(self, wanted: str) -> None:
        """Nothing to import without a Celery app."""

    # Operations that are there.

    def operation(self, operation_id: str) -> read.Operation:
        """One operation: a stand-alone one by its id, a step by `run:step[:item]`."""
        return read.find(self.engine, operation_id)

    def operations(
        self, wanted: read.OpFilter | None = None, *, cursor: str = "", limit: int = 50, patient: bool = False,
    ) -> listing.Listed:
        """A page of operations, newest first, then steps that wait for a retry; `.cursor` of the page, given back, is where the next one
        begins. `patient` looks on until there are `limit` of them, or no more, however long that takes."""
        return listing.list_operations(self.engine, wanted, cursor=cursor, limit=limit, patient=patient)

    def operation_status(self) -> dict[str, Any]:
        """The queue at a glance."""
        return listing.status(self.engine)

    def retry_operation(self, operation_id: str, *, health_check: Any = False, actor: str = "") -> Answer:
        """Replay from the record, without parameters."""
        return acting.retry(self.engine, operation_id, health_check=health_check, actor=actor)

    def cancel_operation(self, operation_id: str, *, reason: str = "requested", actor: str = "") -> dict[str, Any]:
        """Cancel a stand-alone operation."""
        told = acting.cancel(self.engine, operation_id, reason=reason, actor=actor)
        return {"operation_id": operation_id, "word": told.word, "state": told.state, "reason": told.reason}

    def resolve(self, operation_id: str, *, happened: bool, value: Any = None, actor: str = "") -> Answer:
        """Say whether an effect in doubt happened, and what it gave."""
        return acting.resolve(self.engine, operation_id, happened=happened, value=value, actor=actor)

    # Sessions.

    def grant(
        self, session: str, capability: str, mode: Literal["once", "until", "always"] = "once", *, lasting: Duration | None = None,
        by: str = "",
    ) -> str:
        """Let a capability that needs consent run for a session: once, for a time, or always."""
        return consent.grant(self.engine.store, session, capability, mode, lasting=lasting, by=by)

    def grant_run(self, run_id: str, *, on: bool = True) -> None:
        """Consent for everything in a run, as long as it has not ended."""
        told = self.engine.store.blanket(run_id, on=on)
        if told == "UNKNOWN":
            raise UnknownRun(run_id=run_id, namespace=self.engine.store.namespace)
        if told == "ENDED":
            raise RunFinished(run_id=run_id, state="ended")

    def revoke(self, session: str, capability: str = "") -> None:
        """Take a session's grants back, of one capability or all."""
        consent.revoke(self.engine.store, session, capability)

    def grants(self, session: str) -> list[GrantEntry]:
        """What a session has granted."""
        return consent.granted(self.engine.store, session)

    def inbox(self, session: str, *, after: str = "", limit: int = 100) -> list[inbox.Message]:
        """A session's messages, oldest first."""
        return inbox.read(self.engine.store, session, after, limit)

    def acknowledge(self, session: str, message_id: str) -> bool:
        """Take a message out of the inbox. False if it was not there."""
        return bool(inbox.acknowledge(self.engine.store, session, message_id))

    # Schedules.

    def schedules(self) -> list[JobRecord]:
        """All schedules of the store."""
        return self.engine.store.jobs()
