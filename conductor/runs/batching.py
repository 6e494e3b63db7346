"""One action on many runs: which of them it can be done to, a page of them as it is recorded, and doing it to one.

Authority: each run's own script. A member of a page is (run, generation, event number), recorded before anything is done to it. The script
of the action refuses a run that lives in another generation by then, so however often a page is worked through, by however many workers at
once, no run is retried twice. What a repeated page has done already is known by the name under which it was done, which stands in the log
after that event number: so a run that a person has paused again, or let go on, since is not moved again either.
Failure: a run that cannot be moved is told and passed over; only a store that is away ends the work, which is then repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from conductor.errors import (
    BadInput,
    ConductorError,
    NotFailed,
    StepTimeout,
    StoreUnreachable,
    Superseded,
    UnknownRun,
    WasUndone,
    redact,
)
from conductor.runs.cancelling import cancel
from conductor.runs.filters import Where
from conductor.runs.finding import page_of
from conductor.runs.pausing import pause_run, resume_run
from conductor.runs.retry import retry_run
from conductor.state import RunState
from conductor.store.notices import Unreachable
from conductor.store.reads import RunRecord, read_events
from conductor.store.stubs import read_stub

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["Action", "Deed", "Member", "Selection", "Tally", "counted", "narrowed", "perform", "select"]

_CAN: Mapping[str, tuple[RunState, ...]] = {
    "retry": (RunState.FAILED,),
    "cancel": (RunState.QUEUED, RunState.RUNNING, RunState.WAITING_SIGNAL, RunState.PAUSED),
    "pause": (RunState.RUNNING, RunState.WAITING_SIGNAL),
    "resume": (RunState.PAUSED,),
}
_SAYS = {"retry": "reopened", "cancel": "cancelled", "pause": "paused", "resume": "resumed"}  # the action's event in a run's log
_MOVED_ON = (NotFailed, Superseded, UnknownRun, WasUndone)
_LOG_PAGE = 1000
_ERRORS, _LONGEST_ERROR = 20, 300
_COUNT_PAGE, _COUNT_PAGES, _LOOK = 1000, 11, 5_000
_EXAMPLES = 5


class Action(StrEnum):
    """What can be done to many runs."""

    RETRY = "retry"
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Member:
    """A run as it was chosen: in which generation it lived, and how long its log was."""

    run_id: str
    generation: int
    events: int


@dataclass(frozen=True, slots=True)
class Selection:
    """A page of runs to be moved; with a `place` there may be more behind it."""

    members: tuple[Member, ...]
    place: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"members": [[one.run_id, one.generation, one.events] for one in self.members], "place": self.place}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Selection:
        return cls(tuple(Member(*one) for one in told["members"]), told["place"])


@dataclass(frozen=True, slots=True)
class Deed:
    """What is to be done, as it stands in each run's log: by whom, and why. `by` names the batch, so that it knows its own deeds again."""

    action: Action
    by: str
    reason: str = ""


@dataclass(slots=True)
class Tally:
    """What became of the runs so far. `unchanged` had moved on by themselves, or another had moved them."""

    done: int = 0
    changed: int = 0
    unchanged: int = 0
    failed: int = 0
    errors: list[dict[str, str]] = field(default_factory=list)

    def count(self, word: str, run_id: str = "", error: ConductorError | Exception | None = None) -> None:
        self.done += 1
        setattr(self, word, getattr(self, word) + 1)
        if error is not None and len(self.errors) < _ERRORS:
            code = error.code if isinstance(error, ConductorError) else "unexpected"
            text = str(error) if isinstance(error, ConductorError) else f"{type(error).__name__}: {error}"
            self.errors.append({"run_id": run_id, "code": code, "message": redact(text)[:_LONGEST_ERROR]})


def narrowed(action: Action, where: Where, *, now: int) -> Where:
    """The runs that are meant and can be moved so, none of them started after `now`: what is chosen is settled at the start, so a batch
    cannot chase what it brings about. No filter at all is more often an empty variable than a wish for everything."""
    if not where.to_json():
        _refuse("where", "no filter was given; name at least one, such as status=failed")
    if where.archived:
        _refuse("archived", "what only the archive has cannot be moved; leave it out")
    able = _CAN[action]
    status = tuple(state for state in able if not where.status or state in where.status)
    if not status:
        _refuse("status", f"{', '.join(where.status)} cannot be moved by {action}, only {', '.join(able)}")
    return where.model_copy(update={"status": status, "until": now if where.until is None else min(now, where.until)})


def _refuse(field: str, problem: str) -> None:
    raise BadInput(what="batch", field=field, problem=problem)


def select(engine: Engine, action: Action, where: Where, *, at: int, place: str, limit: int, within: frozenset[str] | None) -> Selection:
    """The next page of runs that are meant, newest first. A page may be empty and still not be the last."""
    page = page_of(engine, where, at=at, place=place, limit=limit, within=within, look_at_most=_LOOK)
    able = [run for run in page.runs if _may_be_moved(action, run)]
    return Selection(tuple(Member(run.run_id, run.generation, run.events) for run in able), page.cursor)


def counted(
    engine: Engine, action: Action, where: Where, *, at: int, within: frozenset[str] | None,
) -> tuple[int, bool, list[RunRecord]]:
    """How many runs are meant, whether there may be more than were counted, and the newest of them."""
    place, count, examples = "", 0, list[RunRecord]()
    for _ in range(_COUNT_PAGES):
        page = page_of(engine, where, at=at, place=place, limit=_COUNT_PAGE, within=within, look_at_most=_LOOK)
        able = [run for run in page.runs if _may_be_moved(action, run)]
        count, place = count + len(able), page.cursor
        examples += able[: _EXAMPLES - len(examples)]
        if not place:
            return count, False, examples
    return count, True, examples


def _may_be_moved(action: Action, run: RunRecord) -> bool:
    """A child is retried with its parent, which calls it anew; what was undone has nothing to go on from."""
    return action is not Action.RETRY or not (run.bound_to or run.undone)


def perform(engine: Engine, deed: Deed, member: Member, tally: Tally, *, again: bool) -> None:
    """Do it to one run, and count what came of it. `again`: an earlier attempt may have done it already."""
    try:
        if again and _was_done(engine, deed, member):
            tally.count("changed")
            return
        word = _DO[deed.action](engine, deed, member)
    except (StoreUnreachable, StepTimeout, *Unreachable):
        raise
    except _MOVED_ON:
        tally.count("unchanged")
    except Exception as error:  # one run that cannot be read must not keep the others
        tally.count("failed", member.run_id, error)
    else:
        tally.count("changed" if word == "OK" else "unchanged")


def _was_done(engine: Engine, deed: Deed, member: Member) -> bool:
    """Whether this very batch has moved the run since it was chosen."""
    after, by, kind = member.events, deed.by.replace(";", ","), _SAYS[deed.action]
    stub = read_stub(engine.store, member.run_id)
    if stub is not None:
        return stub.actor == by
    while events := read_events(engine.store, member.run_id, after, _LOG_PAGE):
        if any(event.kind == kind and event.actor == by for event in events):
            return True
        after += len(events)
    return False


def _retry(engine: Engine, deed: Deed, member: Member) -> str:
    return retry_run(engine, member.run_id, actor=deed.by, only=member.generation).word


def _cancel(engine: Engine, deed: Deed, member: Member) -> str:
    return cancel(engine, member.run_id, reason=deed.reason, actor=deed.by, only=member.generation).word


def _pause(engine: Engine, deed: Deed, member: Member) -> str:
    return pause_run(engine, member.run_id, reason=deed.reason, actor=deed.by, only=member.generation).word


def _resume(engine: Engine, deed: Deed, member: Member) -> str:
    return resume_run(engine, member.run_id, actor=deed.by, only=member.generation).word


_DO = {Action.RETRY: _retry, Action.CANCEL: _cancel, Action.PAUSE: _pause, Action.RESUME: _resume}
