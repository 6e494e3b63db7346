"""A session that comes back: the consent its runs hold is kept where they live, and revoked where they have ended.

Authority: the run. Consent for everything in a run (a blanket) is a field of it and is worth nothing once it has ended, so nothing here
can widen what may run; it only takes away what is left over, so that nobody reads a consent that is none. Two processes that reconcile at
once do the same thing twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from conductor.codec import check_session
from conductor.state import RUN, RunState, terminal
from conductor.store.indexes import hash_pages
from conductor.store.listing import Filter, list_runs

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["Reconciled", "reconcile_consent"]

_ENDED = frozenset(RunState) & terminal(RUN)
_LATEST = 1000  # ended runs that are looked at: nothing older is of use to anybody


@dataclass(frozen=True, slots=True)
class Reconciled:
    """Ids of runs whose consent was kept, and of those from which it was taken."""

    session: str
    kept: list[str] = field(default_factory=list)
    revoked: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def reconcile_consent(engine: Engine, session: str) -> Reconciled:
    """What a session does when it registers (again). Parked runs keep what they have; they have not ended."""
    name = check_session(session)
    ended = [run.run_id for run in list_runs(engine.store, Filter(_ENDED, session=name), limit=_LATEST).runs]
    left_over = _with_consent(engine, ended)
    revoked = [run_id for run_id in left_over if engine.store.blanket(run_id, on=False) == "ENDED"]
    return Reconciled(name, _with_consent(engine, sorted(_live(engine, name))), revoked)


def _live(engine: Engine, session: str) -> Iterator[str]:
    """The session's runs that have not ended, from the active-runs hashes."""
    store = engine.store
    for number in range(store.partitions):
        for page in hash_pages(store, number, "active"):
            yield from (run_id for run_id, entry in page if entry.split(";", 5)[5] == session)


def _with_consent(engine: Engine, run_ids: Sequence[str]) -> list[str]:
    """Those of several runs that carry consent for everything in them, in one round trip."""
    pipe = engine.store.client().pipeline(transaction=False)
    for run_id in run_ids:
        pipe.hexists(engine.store.keys.run(run_id), "bl")
    return [run_id for run_id, given in zip(run_ids, pipe.execute() if run_ids else [], strict=True) if given]
