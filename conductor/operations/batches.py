"""A batch: one action on many runs, as an operation like any other. What it does to one run stands in `runs/batching.py`.

Authority: the operation's record. It says who asked for what and why; under it stand the moment up to which runs are meant (`at`), each
page of them before anything is done to it (`page-n`), and how far the work is (its checkpoint, at most half a second old). States: those
of an operation. Trust window: none is needed, because a page that is worked through again moves nothing twice.
Failure: whoever works on it may vanish; its lease runs out, and another worker goes on from the record. It works in slices of some
seconds and steps aside after each, so that it holds no worker for long and no time limit ends it. The process that called it works on
without a pause. A batch that belongs to a session acts on the runs of that session only, whatever its filter says.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from conductor import codec
from conductor.declare import registry
from conductor.declare.capability import capability
from conductor.declare.context import Ctx
from conductor.errors import ArchiveUnreachable, OperationPending, UnknownOperation, redact
from conductor.operations import call
from conductor.operations.answers import Answer
from conductor.operations.read import find
from conductor.operations.start import start_operation
from conductor.records import QueueReason
from conductor.runs.batching import Action, Deed, Selection, Tally, counted, narrowed, perform, select
from conductor.runs.filters import Where
from conductor.runs.finding import rows_of
from conductor.state import OpState
from conductor.store.reads import RunRecord, read_now

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["BATCH", "RATE", "BatchParams", "Heard", "Preview", "batch", "preview", "run_here", "standing", "submit"]

BATCH = "conductor.batch"
RATE = 50.0
"""How many runs a second, where nothing else is said."""

_PAGE = 200
_SLICE, _TELL = 10.0, 0.5  # seconds: how long one attempt works, how often it says how far it is
_BREATH_MS, _TROUBLE_MS, _TROUBLES = 100, 10_000, 60
_NAP = 0.2

Heard = Callable[[str, dict[str, Any]], None]
"""Told of the batch's id and how far it is, in the process that called it."""

_LISTENS: ContextVar[Heard | None] = ContextVar("conductor_batch_listens", default=None)


class BatchParams(BaseModel):
    """What is to be done to which runs, who asks for it, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    action: Action
    where: dict[str, Any] = Field(description="the filters of a list of runs")
    reason: Annotated[str, Field(max_length=512)] = ""
    actor: Annotated[str, Field(max_length=256)] = ""
    rate: Annotated[float, Field(ge=0.1, le=10_000)] = RATE

    @model_validator(mode="after")
    def _means_something(self) -> BatchParams:
        """Refused before anything is written, as a list would refuse it."""
        narrowed(self.action, Where.parse(self.where), now=2**52)
        return self


@dataclass
class _Place:
    """How far a batch is: the page, the member in it, where the page after it begins, and what became of the runs before."""

    page: int = 0
    member: int = 0
    place: str = ""
    troubles: int = 0
    tally: Tally = field(default_factory=Tally)

    @classmethod
    def of(cls, told: dict[str, Any] | None) -> _Place:
        return cls() if told is None else cls(**{**told, "tally": Tally(**told["tally"])})


@capability(BATCH, params=BatchParams, retry="replay", idempotent=True, lease_seconds=15)
def batch(params: BatchParams, ctx: Ctx) -> dict[str, Any]:
    """Retry, cancel, pause or resume every run that a filter names, so many a second. Takes up where an earlier worker was lost."""
    conductor: Any = registry.current(f"capability {BATCH}")
    return _Work(conductor.engine, params, ctx).run()


class _Work:
    """One attempt at a batch."""

    def __init__(self, engine: Engine, params: BatchParams, ctx: Ctx) -> None:
        self._engine, self._params, self._ctx = engine, params, ctx
        self._heard = _LISTENS.get()
        self._within = frozenset({ctx.session}) if ctx.session else None
        self._at: int = ctx.once("at", read_now, engine.store)
        self._where = narrowed(params.action, Where.parse(params.where), now=self._at)
        by = ", ".join(filter(None, (params.actor, f"batch {ctx.run_id}")))
        self._deed = Deed(params.action, by, params.reason or "requested")
        self._here = _Place.of(ctx.last_checkpoint)
        longest = min(_SLICE, (engine.settings.default_step_timeout or 2 * _SLICE) / 2)
        self._until = time.monotonic() + longest if self._heard is None else float("inf")
        self._next = time.monotonic() + (1 / params.rate if self._here.tally.done else 0)
        self._told = float("-inf")
        self._total: int | None = None

    def run(self) -> dict[str, Any]:
        """Work through the pages; what it gives is the record of the batch."""
        try:
            self._count()
            while self._work_through(*self._page()):
                self._say_and_yield()
        except ArchiveUnreachable:  # parked runs cannot be told from others now; they must not be left out
            self._here.troubles += 1
            if self._here.troubles > _TROUBLES:
                raise
            self._step_aside(_TROUBLE_MS)
        return asdict(self._here.tally) | {"total": self._here.tally.done}

    def _count(self) -> None:
        found = self._ctx.once("total", lambda: counted(
            self._engine, self._params.action, self._where, at=self._at, within=self._within)[:2])
        self._total = None if found[1] else int(found[0])

    def _page(self) -> tuple[Selection, bool]:
        """The page to work on, and whether somebody may have worked on it before."""
        fresh = False

        def chosen() -> dict[str, Any]:
            nonlocal fresh
            fresh = True
            return select(
                self._engine, self._params.action, self._where, at=self._at, place=self._here.place, limit=_PAGE, within=self._within,
            ).to_json()

        return Selection.of(self._ctx.once(f"page-{self._here.page}", chosen)), not fresh

    def _work_through(self, page: Selection, again: bool) -> bool:
        """Whether there is a page behind this one."""
        for member in page.members[self._here.member :]:
            self._wait()
            perform(self._engine, self._deed, member, self._here.tally, again=again)
            self._here.member, self._here.troubles = self._here.member + 1, 0
            self._say_and_yield()
        if not page.place:
            self._tell(over=True)
            return False
        self._here.page, self._here.member, self._here.place = self._here.page + 1, 0, page.place
        return True

    def _say_and_yield(self) -> None:
        """Say how far it is, twice a second, and let others have this worker when the slice is over. Something was done by then, so
        however short a slice is, the batch goes on."""
        if time.monotonic() >= self._told + _TELL:
            self._tell()
        if time.monotonic() >= self._until:
            self._step_aside(_BREATH_MS)

    def _wait(self) -> None:
        """Until it is time for the next one. A worker that is told to go leaves at once, and so does one whose batch was cancelled."""
        while True:
            if self._ctx.stopping or self._ctx.cancelled:
                self._step_aside(_BREATH_MS)
            left = self._next - time.monotonic()
            if left <= 0:
                self._next = max(self._next, time.monotonic() - 1) + 1 / self._params.rate  # a second that was lost is made good, no more
                return
            time.sleep(min(left, _NAP))

    def _tell(self, *, over: bool = False) -> None:
        """Keep how far it is, and show it."""
        self._told = time.monotonic()
        tally = self._here.tally
        told = {"page": self._here.page, "member": self._here.member, "place": self._here.place, "troubles": self._here.troubles}
        if not over:  # the result says it in a moment
            self._ctx.checkpoint(told | {"tally": asdict(tally)})
        total = None if self._total is None else max(self._total, tally.done)
        note = f"{tally.changed} changed, {tally.unchanged} unchanged, {tally.failed} failed"
        self._ctx.progress(tally.done, total, note)
        if self._heard is not None:
            self._heard(self._ctx.run_id, asdict(tally) | {"total": total})

    def _step_aside(self, delay_ms: int) -> None:
        """Leave the worker to others for a moment; the batch is taken up again from its record."""
        self._tell()
        raise OperationPending(operation_id=self._ctx.run_id, capability=BATCH, delay_ms=delay_ms)


# What callers do.


@dataclass(frozen=True, slots=True)
class Preview:
    """What a batch would do: how many runs are meant (`more`: at least so many), and the newest of them. Nothing was written."""

    count: int
    more: bool
    examples: tuple[RunRecord, ...]


def preview(engine: Engine, action: Action, where: Where, *, session: str = "") -> Preview:
    """The dry run."""
    now = read_now(engine.store)
    within = frozenset({session}) if session else None
    count, more, examples = counted(engine, action, narrowed(action, where, now=now), at=now, within=within)
    return Preview(count, more, tuple(examples))


def preview_json(engine: Engine, action: Action, found: Preview) -> dict[str, Any]:
    """The dry run as others are told it, with the rows of its examples."""
    now = read_now(engine.store)
    return {
        "dry_run": True, "action": action, "count": found.count, "more": found.more, "examples": [run.run_id for run in found.examples],
        "runs": rows_of(engine, found.examples, now), "now": now,
    }


def submit(
    engine: Engine, action: Action, where: Where, *, reason: str = "", actor: str = "", rate: float = RATE, session: str = "",
    key: str = "",
) -> str:
    """Have it done by a worker; gives the batch's id. The same key is the same batch."""
    payload = batch.encode(_params(action, where, reason, actor, rate), limit=engine.payload_limit)
    return start_operation(engine, batch, payload, reason=QueueReason.RETRY, session=session, key=key).run_id


def run_here(
    engine: Engine, action: Action, where: Where, *, reason: str = "", actor: str = "", rate: float = RATE, session: str = "",
    heard: Heard = lambda _batch, _tally: None,
) -> Answer:
    """Do it in this process, which hears how far it is. If this process is killed, workers go on."""
    token = _LISTENS.set(heard)
    try:
        return call.call(engine, batch, _params(action, where, reason, actor, rate), session=session)
    finally:
        _LISTENS.reset(token)


def _params(action: Action, where: Where, reason: str, actor: str, rate: float) -> dict[str, Any]:
    return {"action": action, "where": where.to_json(), "reason": redact(reason), "actor": actor, "rate": rate}


def standing(engine: Engine, batch_id: str) -> dict[str, Any]:
    """How far a batch is, or what it came to. UnknownOperation if there is no batch of this id."""
    found = find(engine, batch_id)
    if found.capability != BATCH or found.step is not None:
        raise UnknownOperation(operation_id=batch_id, namespace=engine.store.namespace)
    keys = engine.store.keys
    kept, = engine.store.values(keys.run(batch_id, "cp"), ["0"])
    begun, = engine.store.values(keys.run(batch_id, "once"), ["0:total"])
    tally = found.result or (codec.decode(kept)["tally"] if kept else asdict(Tally()))
    count, more = codec.decode(begun) if begun else (None, False)
    total = tally.get("total") if found.result else None if more or count is None else max(count, tally["done"])
    waits = found.state is OpState.QUEUED and begun is not None
    asked = found.params
    return {
        "batch_id": batch_id, "state": "running" if waits else str(found.state), "action": asked["action"], "where": asked["where"],
        **{name: tally[name] for name in ("done", "changed", "unchanged", "failed")}, "total": total, "errors": tally["errors"],
        "actor": asked["actor"], "reason": asked["reason"], "rate": asked["rate"], "error": found.error, "created_at": found.created_at,
        "ended_at": found.ended_at,
    }
