"""Why an operation stands where it stands: one sentence, and the command that would move it. The counterpart of `runs/why.py`.

`why` is pure: it speaks from a record and a view that somebody has read (`look`). Ended operations are answered from tables by state and
reason; a queued one by the first of several looks that finds something, the nearest cause first.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

from conductor.operations.read import Operation, find
from conductor.runs.around import worker_names
from conductor.runs.read import RunView, StepView, error_text, view_run, with_queues
from conductor.runs.why import STEP_REASONS, Spelling, Why, lifts, moment, scope_in_words, span
from conductor.state import OpState, StepState

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["OP_REASONS", "look", "step_of", "why"]

_PLAIN = Spelling()
_PATIENCE_MS = 5_000  # ready for longer than this: nobody seems to come
_WATCH, _RETRY, _ABOVE = "{conductor} watch {id}", "{conductor} ops retry {id}", "{conductor} why {run}"
_RESOLVE = "{conductor} resolve {what} --landed VALUE, or --absent"
_GRANT, _CALL = "{conductor} grant {session} {capability}", "{conductor} call {capability} --session SESSION"

# What stands beside a state. Reasons that a person gives in their own words (cancel) are quoted.
OP_REASONS: dict[OpState, tuple[str, ...]] = {
    OpState.QUEUED: ("", "retry_budget"),
    OpState.RUNNING: ("",),
    OpState.COMPLETED: ("",),
    OpState.FAILED: tuple(name for name in STEP_REASONS if not name.startswith("retr")),
    OpState.EXHAUSTED: ("retries_exhausted", "retry_age_exceeded"),
    OpState.CANCELLED: ("requested", "run_ended", "expired"),
}

_IN_DOUBT = {
    "effect_in_doubt": "failed: nobody can tell whether its effect happened; look, then say it",
    "outcome_unknown": "failed: its worker was lost in the middle and it may not be repeated; look whether it took effect, then say it",
}
_EXHAUSTED = {"retries_exhausted": "has used up its retries", "retry_age_exceeded": "was retried for too long"}
_CANCELLED = {
    "requested": "was cancelled on request",
    "run_ended": "was cancelled: the run it belonged to ended before it",
    "expired": "was cancelled: it had not begun when it expired",
}
_WAITS = {"deferred_submit": "was submitted and waits", "scheduled_job": "was started by its schedule and waits"}


def look(engine: Engine, operation_id: str) -> tuple[Operation, RunView]:
    """One operation whole, and how its run stands. Whoever holds it is told by name, not by the tag that claims carry."""
    store, found = engine.store, find(engine, operation_id)
    if found.holder:
        found = found.model_copy(update={"holder": worker_names(store, [found.holder])[found.holder]})
    return found, with_queues(store, view_run(store, operation_id.partition(":")[0]))


def why(found: Operation, view: RunView, spelling: Spelling = _PLAIN) -> Why:
    """The sentence for an operation as it stands."""
    said = _ANSWERS[found.state](found, view)
    run_id, _, place = found.operation_id.partition(":")
    shown = f"{run_id[:13]}:{place}" if place else run_id[:13]
    return Why(f"operation {shown} of {found.capability} {said.sentence}", said.command.format(
        id=found.operation_id, run=run_id, what=f"{run_id} {place}".rstrip(), capability=found.capability,
        session=shlex.quote(found.originating_session_id), conductor=spelling.conductor, worker=spelling.worker,
    ))


def step_of(found: Operation, view: RunView) -> StepView:
    """The node it is; an item is told by its record alone, because the view of an `each` speaks of all of them."""
    return view.steps[0] if found.step is None else next(step for step in view.steps if step.name == found.step)


def _error(found: Operation) -> str:
    """`CardError: declined`, of the last attempt that failed."""
    last = found.retry_history[-1] if found.retry_history else {}
    return error_text({"type": last.get("type"), "message": last.get("error") or found.error}) or "no error was recorded"


# Ended.


def _completed(found: Operation, view: RunView) -> Why:
    if step_of(found, view).state is StepState.SKIPPED:
        return Why("was skipped; it waits for nothing")
    ended = found.ended_at or view.run.ended_at
    when = f" at {moment(ended, view.now)} after {span(ended - found.created_at)}" if found.step is None else ""
    recovered = isinstance(found.result, dict) and found.result.get("post_write_recovery") is True
    return Why(f"completed{when}; " + (
        "the call had not reported success, but its effects were found in place" if recovered else "it waits for nothing"))


def _failed(found: Operation, view: RunView) -> Why:
    reason = found.reason or step_of(found, view).reason
    if sentence := _IN_DOUBT.get(reason):
        return Why(sentence, _RESOLVE)
    if _error(found).startswith("ConsentRequired"):
        return _unconsented(found)
    cause = STEP_REASONS.get(reason, reason)
    return Why(f"failed: {f'{cause}, ' if cause else ''}{_error(found)}", _RETRY if found.step is None else _ABOVE)


def _unconsented(found: Operation) -> Why:
    """Who asked is part of the record, so one that nobody asked for can only be called anew."""
    if not found.originating_session_id:
        return Why("failed: it needs the consent of a session, and it was called without one", _CALL if found.step is None else _ABOVE)
    again = _RETRY if found.step is None else "{conductor} retry {run}"
    return Why(f"failed: it needs consent, and session {found.originating_session_id} has not granted it", f"{_GRANT} && {again}")


def _exhausted(found: Operation, view: RunView) -> Why:
    cause = _EXHAUSTED.get(found.reason, found.reason)
    return Why(f"{cause}: it gave up after {found.attempt} attempts, the last one failed with {_error(found)}", _RETRY)


def _cancelled(found: Operation, view: RunView) -> Why:
    if found.step is not None:
        return Why("was cancelled with its run", _ABOVE)
    reason, by = found.reason or "no reason was given", f" by {view.actor}" if view.actor else ""
    return Why(f"{_CANCELLED.get(reason, f'was cancelled ({reason})')}{by} at {moment(found.ended_at or 0, view.now)}")


# Open.


def _running(found: Operation, view: RunView) -> Why:
    step, where = step_of(found, view), f" on {found.holder}" if found.holder else ""
    if found.lease_until is not None and found.lease_until < view.now:
        silence = span(view.now - found.lease_until)
        return Why(f"has lost its worker{where} (lease over for {silence}); it is taken up again, or ended, soon", _WATCH)
    tries = f", attempt {found.attempt}" if found.attempt > 1 else ""
    total = f" of {step.progress['total']}" if step.progress.get("total") else ""
    note = f" ({step.progress['note']})" if step.progress.get("note") else ""
    done = f", {step.progress.get('done', 0)}{total} done{note}" if step.progress else ""
    return Why(f"is running{where} for {span(view.now - step.since)}{tries}{done}", _WATCH)


def _queued(found: Operation, view: RunView) -> Why:
    looks = (_with_its_run, _over_budget, _retrying, _delayed, _held)
    return next((said for one in looks if (said := one(found, view))), None) or _standing(found, view)


def _with_its_run(found: Operation, view: RunView) -> Why | None:
    """A step may wait for more than a worker: for predecessors, a timer, somebody who resumes the run."""
    if found.step is None or step_of(found, view).state in (StepState.READY, StepState.RUNNING, StepState.RETRY_PENDING):
        return None
    return Why(f"waits with its run, which is {view.run.state}", _ABOVE)


def _over_budget(found: Operation, view: RunView) -> Why | None:
    if found.reason != "retry_budget":
        return None
    next_at = _in(found.retry_at or 0, view)
    return Why(f"waits: capability {found.capability} has used its retry budget of this minute; the next try is {next_at}", _WATCH)


def _retrying(found: Operation, view: RunView) -> Why | None:
    if not found.attempt or found.retry_at is None:
        return None
    budget = f"{found.attempt}/{found.max_retries}" if found.max_retries else f"{found.attempt}"
    return Why(f"waits for retry {budget} {_in(found.retry_at, view)} after {_error(found)}", _RETRY)


def _delayed(found: Operation, view: RunView) -> Why | None:
    if found.retry_at is None or found.retry_at <= view.now:
        return None
    return Why(f"has not begun: it starts {_in(found.retry_at, view)}", "{conductor} ops cancel {id}")


def _held(found: Operation, view: RunView) -> Why | None:
    scope = next(iter(view.holds), None)
    if scope is None:
        return None
    return Why(f"waits: {scope_in_words(scope)} is paused ({view.holds[scope] or 'no reason was given'})", f"{{conductor}} {lifts(scope)}")


def _standing(found: Operation, view: RunView) -> Why:
    step, more_workers = step_of(found, view), f"{{worker}} -Q {shlex.quote(step_of(found, view).queue)}"
    waits, for_long = _WAITS.get(found.queue_reason, "waits"), span(view.now - step.since)
    if step.aside:
        return Why(f"{waits}: no worker present has the code of capability {found.capability}, ready for {for_long}", more_workers)
    if view.now - step.since < _PATIENCE_MS:
        return Why(f"{waits} on queue {step.queue}; a worker has been woken", _WATCH)
    if step.queue in view.busy:
        return Why(f"{waits} in queue {step.queue}: it has been ready for {for_long} and all workers are busy", "{conductor} queues")
    if view.unanswered.get(step.queue, 0) > 1_000:
        return Why(f"{waits}: no worker consumes queue {step.queue}, where it has been ready for {for_long}", more_workers)
    return Why(f"{waits} in queue {step.queue}: it has been ready for {for_long} and nobody has taken it yet", more_workers)


def _in(at: int, view: RunView) -> str:
    return f"in {span(at - view.now)}" if at > view.now else "now"


_ANSWERS: dict[OpState, Callable[[Operation, RunView], Why]] = {
    OpState.QUEUED: _queued, OpState.RUNNING: _running, OpState.COMPLETED: _completed, OpState.FAILED: _failed,
    OpState.EXHAUSTED: _exhausted, OpState.CANCELLED: _cancelled,
}
