"""Working under a limit: ask for a permit in the limit's home, take what it was given for, run it, give the permit back.

Authority: the home of the limit, in one script (`permit`). Nothing is claimed without a permit, so what is over the limit costs no
attempt, no lease and no worker: it stands ready, and the worker goes. States of a permit: given → returned, or its lease ends and what
it was given for is queued again. Who wakes: whoever gives a permit back asks for the next in the same call; where only time makes room,
the due sweep of the limit's home pokes at that moment. A limit that nobody uses costs nothing: its steps stand in a ready index of their
own (`queue!limit`), which nobody else reads. What this worker's code says of a limit counts; of one that it does not know, what the runs
under it have in their graphs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from conductor.ids import partition_of
from conductor.records import Attempt, Outcome, Poke
from conductor.store import Store, Want
from conductor.store.limits import GAP_MS, Permit, Wish

__all__ = ["Limiting"]


class Limiting:
    """One per drainer. `run` runs one attempt to its commit and gives its outcome, None if it did not begin."""

    def __init__(
        self, store: Store, terms: dict[str, str], *, want: Callable[[], Want], poke: Callable[[list[Poke]], None],
        run: Callable[[int, Attempt, float], Outcome | None], again: Callable[[], None], heartbeat_seconds: float,
        stall_sweep_seconds: float,
    ) -> None:
        self._store, self.terms, self._want, self._poke, self._run, self._register = store, terms, want, poke, run, again
        self._lease_ms = max(1_000, int(heartbeat_seconds * 3_000))  # three beats fit into it
        self.gap_ms = max(GAP_MS, int(stall_sweep_seconds * 2_000))  # as the stall sweep judges one
        self._held: tuple[str, Permit] | None = None

    def renew(self) -> None:
        """Said by the pulse, with each heartbeat."""
        if (held := self._held) is not None:
            self._store.keep_permit(held[0], held[1].fence, self._lease_ms)

    def drain(self, partition: int, queue: str, until: float, budget: int, stopping: Callable[[], bool]) -> None:
        """Until the limit gives nothing more, or the time of a drain is over; then others are woken, if there is room."""
        name = queue.partition("!")[2]
        terms = self.terms.get(name, "")
        returned: list[tuple[str, str]] = []
        backs: list[tuple[str, int]] = []
        wishes = self._store.ask(partition, queue)
        terms = terms or self._said_by_graph(wishes)
        asked_in = partition
        while True:
            go_on = budget > 0 and time.monotonic() < until and not stopping()
            told = self._store.permit(
                queue, most=int(go_on), terms=terms, lease_ms=self._lease_ms, returned=returned, backs=backs, wants=wishes,
                gap_ms=self.gap_ms)
            self._poke(told.pokes)
            if wishes:
                self._enrol(asked_in, queue, wishes, {permit.member for permit in told.permits}, terms)
            if not told.permits:
                return
            permit, budget = told.permits[0], budget - 1
            used, held_back = self._use(queue, name, permit)
            returned = [(permit.fence, "done" if used else "unused")]
            backs = [(permit.key, held_back)] if held_back else []
            asked_in = partition_of(permit.member.partition(":")[0])
            wishes = self._store.ask(asked_in, queue)  # what it has made ready, or an each that has more items
            terms = terms or self._said_by_graph(wishes)

    def _said_by_graph(self, wishes: list[Wish]) -> str:
        """A limit that has left the code goes on for what was started under it: a run keeps the graph it began with. Without terms it would
        wait for ever for a limit of which nobody knows anything."""
        for wish in wishes:
            run_id, _, place = wish.member.partition(":")
            (digest,) = self._store.values(self._store.keys.run(run_id), ["h"])
            try:
                graph = self._store.graph(partition_of(run_id), digest or "")
            except LookupError:
                continue  # its run was purged meanwhile
            return graph.nodes[int(place.partition(":")[0])].limit_terms
        return ""

    def _enrol(self, partition: int, queue: str, wishes: list[Wish], given: set[str], terms: str) -> None:
        """Put aside what has asked; more may stand there than one question holds. What was given at once needs no place to wait in."""
        told = {wish for wish in wishes if wish.member in given}
        asked = [wish for wish in wishes if wish not in told]
        while asked:
            told.update(asked)
            asked = [wish for wish in self._store.ask(partition, queue, enrolled=asked) if wish not in told]
            if asked:
                self._poke(self._store.permit(queue, most=0, terms=terms, wants=asked, gap_ms=self.gap_ms).pokes)

    def _use(self, queue: str, name: str, permit: Permit) -> tuple[bool, int]:
        """Whether the permit was spent on something, and for how long its key is held back."""
        asked = time.monotonic()
        partition = partition_of(permit.member.partition(":")[0])
        word, attempts, pokes = self._store.take(partition, queue, permit.member, self._want())
        self._poke(pokes)
        if word == "NO_CODE":
            self._register()
        if not attempts:
            return False, 0
        self._held = (name, permit)
        try:
            outcome = self._run(partition, attempts[0], asked)
        finally:
            self._held = None
        return outcome is not None, outcome.retry_after_ms if outcome is not None else 0

