"""What is asked right before a capability's code runs, wherever it runs: the consent of whoever asked, and the tools it needs."""

from __future__ import annotations

from typing import Any

from conductor.declare.capability import Capability
from conductor.declare.context import key_of
from conductor.declare.needs import Needs
from conductor.declare.operation import capability_of
from conductor.records import Attempt
from conductor.sessions import consent
from conductor.store import Store

__all__ = ["Gate"]


class Gate:
    """One per worker thread. `recovered`: whether the last capability asked about had been disabled and its tools were found again."""

    def __init__(self, store: Store, needs: Needs) -> None:
        self._store, self._needs = store, needs
        self.recovered = False

    def __call__(self, held: Attempt, capability: Capability[..., Any]) -> None:
        """Raises ConsentRequired. A tool that is missing forbids nothing: the code's own error says it better, and queues the operation."""
        self.recovered = bool(capability.options.needs) and self._needs.check(capability.name, capability.options.needs).recovered
        if capability.options.consent and not self._blanket(held):
            operation = held.run_id if capability_of(held.workflow) else key_of(held.run_id, str(held.index), held.item)
            consent.require(self._store, held.session, capability.name, operation)

    def _blanket(self, held: Attempt) -> bool:
        """A run may carry consent for everything in it, as long as it has not ended; so may each run above an operation or a child."""
        given, bound = self._store.values(self._store.keys.run(held.run_id), ["bl", "up"])
        while bound and not given:
            state, given, bound = self._store.values(self._store.keys.run(bound.partition(";")[0]), ["st", "bl", "up"])
            if state in (None, "completed", "failed", "cancelled"):
                return False
        return bool(given)
