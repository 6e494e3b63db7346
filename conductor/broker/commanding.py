"""What every command shares: whose message it is, and whether what it asks was done before.

A command may be delivered twice: its worker died after doing it, or the broker gave it to another one. Most are the same thing twice. Where
that would be one time too many (a run that failed again would be retried again), the message's id is written into the run's log beside
the actor, and a command that finds its own id there answers how the run stands now. The log lives as long as the run, so this holds however
late a message comes again; two deliveries at the same moment are settled by the store, and one of them is told that it came second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conductor.errors import UnknownRun
from conductor.store.reads import RunRecord, read_run

if TYPE_CHECKING:
    from conductor.broker.conductor import Conductor
    from conductor.wiring import Engine

__all__ = ["Call"]


class Call:
    """One message: the app's Conductor, and the id of the message (empty if it had none)."""

    def __init__(self, conductor: Conductor, message_id: str | None) -> None:
        self.conductor = conductor
        self.message_id = message_id or ""

    @property
    def engine(self) -> Engine:
        return self.conductor.engine

    def signed(self, actor: str) -> str:
        """Who stands in the run's log: the actor that was named, and the message."""
        return " ".join(filter(None, (actor, self._mark)))

    def done(self, run_id: str) -> dict[str, Any] | None:
        """How the run stands, if this very message has moved it before; else None."""
        self.conductor._check_id(run_id)
        if not self._mark or not any(self._mark in entry for entry in self.engine.store.log_of(run_id)):
            return None
        return {"run_id": run_id, "word": "OK", "state": self.run(run_id).state}

    def run(self, run_id: str) -> RunRecord:
        found = read_run(self.engine.store, run_id)
        if found is None:
            raise UnknownRun(run_id=run_id, namespace=self.engine.store.namespace)
        return found

    def key(self, given: str) -> str:
        """The idempotency key: without one the message's id serves, so a message that comes twice makes nothing twice."""
        return given or (f"message:{self.message_id}" if self.message_id else "")

    @property
    def _mark(self) -> str:
        # A colon is no field separator of the log, and ids of messages are printable.
        return f"message:{self.message_id.replace(';', ',')}" if self.message_id else ""
