"""Redis: the only door to it. `Store` has every verb; keys are catalogued in `keys.py`, scripts stand in `lua/`."""

from __future__ import annotations

from conductor.store.answers import Batch, Cancelled, Glance, Moved, Started, Swept, Want
from conductor.store.attempts import AttemptVerbs
from conductor.store.auditing import AuditVerbs
from conductor.store.door import connect, masked
from conductor.store.jobs import JobVerbs
from conductor.store.keys import Keys
from conductor.store.limits import LimitVerbs
from conductor.store.parking import ParkingVerbs
from conductor.store.runs import RunVerbs
from conductor.store.sessions import SessionVerbs
from conductor.store.sweeping import SweepVerbs
from conductor.store.tokens import TokenVerbs
from conductor.store.waiting import Answered, WaitVerbs

__all__ = ["Answered", "Batch", "Cancelled", "Glance", "Keys", "Moved", "Started", "Store", "Swept", "Want", "connect", "masked"]


class Store(RunVerbs, LimitVerbs, AttemptVerbs, SweepVerbs, SessionVerbs, JobVerbs, ParkingVerbs, WaitVerbs, TokenVerbs, AuditVerbs):
    """Every verb of one namespace on one server. One per process; safe in threads and across forks."""
