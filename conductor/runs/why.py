"""`conductor why`: in one sentence what a run waits for, or why it ended or is stuck, and the command that would move it.

Pure. Ended and paused runs are answered from a table by state and reason; a running one by the first of several looks that finds something,
the nearest cause first. A test walks over every state and reason, so that none is left without a sentence.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from conductor.idleness import orphan_until
from conductor.records import NodeKind
from conductor.runs.read import RunView, StepView
from conductor.runs.words import Spelling, counted, error_text, lifts, moment, scope_in_words, span
from conductor.state import RunState, StepState

__all__ = ["REASONS", "STEP_REASONS", "Spelling", "Why", "lifts", "moment", "scope_in_words", "span", "why"]

_PLAIN = Spelling()
_PATIENCE_MS = 5_000  # ready for longer than this: nobody seems to come


@dataclass(frozen=True, slots=True)
class Why:
    """One sentence, and a command; an empty one where nothing needs to be done."""

    sentence: str
    command: str = ""


# What stands beside a state. Reasons that a person gives in their own words (pause, cancel) are quoted.
REASONS: dict[RunState, tuple[str, ...]] = {
    RunState.QUEUED: ("",),
    RunState.RUNNING: ("",),
    RunState.WAITING_SIGNAL: ("",),
    RunState.PAUSED: ("requested", "code_missing", "step_failed", "payload_mismatch", "effect_in_doubt", "archive_missing"),
    RunState.COMPENSATING: ("step_failed", "deadline", "requested"),
    RunState.COMPLETED: ("",),
    RunState.FAILED: ("step_failed", "deadline", "last_step_failed", "compensation_failed", "lane_busy"),
    RunState.CANCELLED: ("requested", "expired", "idle_timeout", "run_ended"),
}

# Why a step failed, in words; anything else is told as it stands.
STEP_REASONS: dict[str, str] = {
    "effect_in_doubt": "nobody can tell whether its effect happened",
    "outcome_unknown": "its worker was lost in the middle and it may not be repeated",
    "poison": "it killed its worker again and again",
    "retries_exhausted": "its retries are used up",
    "retry_age_exceeded": "it was retried for too long",
    "timed_out": "it ran longer than its timeout",
    "items_failed": "items of it failed",
    "child_failed": "the run it called failed",
    "child_cancelled": "the run it called was cancelled",
    "call_too_deep": "runs call each other more than 8 deep",
    "bad_result": "its result does not fit its type",
    "payload_mismatch": "a stored value no longer fits its model",
    "when_failed": "its condition raised",
    "wait_timeout": "what it waited for did not come in time",
    "permanent_error": "it raised an error that no repeat can solve",
    "unknown_error": "it raised an error that nothing says may be repeated",
    "transient_error": "it raised an error that its policy does not repeat",
}
# After these the same code would fail in the same way again.
_TO_BE_CORRECTED = frozenset({"bad_result", "items_failed", "permanent_error", "poison", "unknown_error", "when_failed"})

_PAUSED = {
    "requested": ("is paused on request", "{conductor} resume {id}"),
    "code_missing": ("is paused: no worker present has the code of {aside}; it goes on when one comes", "{worker}"),
    "step_failed": ("is paused because {failed}", "{conductor} resume {id}"),
    "payload_mismatch": ("is paused: {mismatch}", "{conductor} resume {id}"),
    "effect_in_doubt": (
        "is paused: nobody can tell whether the effect of {failed} happened", "{conductor} resolve {id} STEP --landed VALUE, or --absent"),
    "archive_missing": ("is paused: its archived part cannot be found", "{conductor} recover"),
}
_FAILED = {
    "step_failed": ("failed because {failed}", "{conductor} retry {id}"),
    "deadline": ("failed: its deadline {deadline} passed before it ended", "{conductor} retry {id}"),
    "last_step_failed": ("failed because its last step did: {failed}", "{conductor} retry {id}"),
    "compensation_failed": ("failed and could not undo everything: {failed}; undo that by hand", "{conductor} show {id}"),
    "lane_busy": ("failed: lane {lane} did not admit it in time; nothing of it ran while it waited", "{conductor} retry {id}"),
}
_CANCELLED = {
    "expired": "was cancelled: nothing of it had begun when it expired",
    "idle_timeout": "was cancelled: it waited for an agent that did not come",
    "requested": "was cancelled on request",
    "run_ended": "was cancelled: the run it belonged to ended before it",
}


def why(view: RunView, spelling: Spelling = _PLAIN) -> Why:
    """The sentence for a run as it stands."""
    found = _ANSWERS[view.run.state](view)
    command = found.command.format(id=view.run.run_id, conductor=spelling.conductor, worker=spelling.worker)
    return Why(f"run {view.run.run_id[:13]} of {view.run.workflow} {found.sentence}", command)


def _of_table(table: dict[str, tuple[str, str]], other: tuple[str, str]) -> Callable[[RunView], Why]:
    def answer(view: RunView) -> Why:
        sentence, command = table.get(view.run.reason, other)
        said = sentence.format(
            reason=view.run.reason or "no reason was given", failed=_failures(view), deadline=moment(view.run.deadline, view.now),
            aside=_names(step for step in view.steps if step.aside) or "a step", mismatch=_mismatch(view),
            lane=view.run.lane,
        )
        if view.run.undone and view.run.reason != "compensation_failed" and view.run.ended:
            return Why(f"{said}; what it had done was undone", _from_the_beginning(view))
        corrected = "{failed}" in sentence and any(_reason(step) in _TO_BE_CORRECTED for step in view.named(StepState.FAILED))
        return Why(f"{said}; correct the cause, then {command.split()[1]} it" if corrected else said, command)

    return answer


def _cancelled(view: RunView) -> Why:
    reason = view.run.reason or "no reason was given"
    told = _CANCELLED.get(reason, f"was cancelled ({reason})")
    by = f" by {view.actor}" if view.actor else ""
    at = f"{by} at {moment(view.run.ended_at, view.now)}"
    if view.run.undone:
        return Why(f"{told}{at}, and what it had done was undone", _from_the_beginning(view))
    if view.run.queue_reason or not _from_the_beginning(view):
        return Why(told + at)
    return Why(f"{told}{at}; only a new run can do its work", _from_the_beginning(view))


def _from_the_beginning(view: RunView) -> str:
    first = next((node.name for node in view.graph.steps if not node.parents), "")
    return f"{{conductor}} fork {{id}} --from {shlex.quote(first)}" if first else ""


def _completed(view: RunView) -> Why:
    return Why(f"completed at {moment(view.run.ended_at, view.now)} after {span(view.duration_ms)}; it waits for nothing")


def _queued(view: RunView) -> Why:
    place = view.place
    if place is None or not place.position:
        return Why("waits for a place in its lane", "{conductor} lanes")
    before = "it is the next" if place.position == 1 else f"{counted(place.position - 1, 'run')} before it"
    ends = f", until {moment(place.until, view.now)} at most" if place.until else ""
    said = f"waits for a place in lane {place.lane}: all {place.max_active} are taken, {before}{ends}"
    return Why(said, f"{{conductor}} lanes {shlex.quote(place.lane)}")


def _running(view: RunView) -> Why:
    for look in (_held, _failing, _at_work, _standing, _retrying, _calling, _waiting, _delayed):
        if found := look(view):
            last = f"is finishing as {view.run.outcome}: " if view.run.phase == "H" else ""
            return Why(f"{last}{found.sentence}", found.command)
    return Why("has nothing that could move it: no step is ready, running or due", "{conductor} fsck")


def _undoing(view: RunView) -> Why:
    """How far the undoing is, what it does now, and as what the run will end."""
    if view.run.phase == "H":
        return _running(view)
    ends = "cancelled" if view.run.outcome == RunState.CANCELLED else "failed"
    cause = f"is being undone because {_failures(view)}" if view.run.reason == "step_failed" else f"is being undone ({view.run.reason})"
    planned = f"{view.undos_done} of {counted(int(view.run.undone or 0), 'undo')} done" if int(view.run.undone or 0) else "the plan is made"
    undos = replace(view, steps=tuple(step for step in view.steps if step.kind is NodeKind.UNDO))
    now = next((found for look in (_held, _at_work, _standing, _retrying) if (found := look(undos))), None)
    if any(step.reason == "attempts_running" for step in undos.named(StepState.RETRY_PENDING)):
        now = Why("waits until attempts that were running have ended, or their leases are over", "{conductor} watch {id}")
    doing = f"; it {now.sentence}" if now else ""
    return Why(f"{cause} and ends {ends} after that: {planned}{doing}", now.command if now else "{conductor} fsck")


def _held(view: RunView) -> Why | None:
    if _working(view):
        return None
    for scope, reason in view.holds.items():
        if step := next((one for one in _stands(view) if scope in _scopes(view, one)), None):
            said = f"{scope_in_words(scope)} is paused ({reason or 'no reason was given'})"
            return Why(f"waits: {said} and {step.name} stands ready", f"{{conductor}} {lifts(scope)}")
    return None


def _scopes(view: RunView, step: StepView) -> tuple[str, ...]:
    """What holds a step, if it is paused."""
    return "all", f"workflow:{view.run.workflow}", f"capability:{view.graph.nodes[step.index].capability}", f"queue:{step.queue}"


def _working(view: RunView) -> list[StepView]:
    """Steps that somebody runs; of an `each` at least one item."""
    return [step for step in view.named(StepState.RUNNING) if step.each is None or step.each.active or not step.each.total]


def _stands(view: RunView) -> list[StepView]:
    """Steps that somebody may take up, eaches with more items among them."""
    return view.named(StepState.READY) + [step for step in view.named(StepState.RUNNING) if step.each and step.each.listed]


def _failing(view: RunView) -> Why | None:
    if view.run.phase not in ("F", "U"):
        return None
    ends = "is failing" if view.run.phase == "F" else "is about to pause"
    still = f"; {counted(view.run.active, 'running attempt')} may still commit" if view.run.active else ""
    return Why(f"{ends} because {_failures(view)}{still}", "{conductor} watch {id}")


def _at_work(view: RunView) -> Why | None:
    running = _working(view)
    if not running:
        return None
    step = max(running, key=lambda found: view.now - found.since)
    if step.lease_until and step.lease_until < view.now:
        silence = span(view.now - step.lease_until)
        lost = f"has lost the worker of {step.name} ({step.worker}, lease over for {silence}); the step is repeated soon"
        return Why(lost, "{conductor} watch {id}")
    where = f" on {step.worker}" if step.worker else ""
    more = f" and {counted(len(running) - 1, 'more step')}" if len(running) > 1 else ""
    if step.each is not None and step.each.total:
        done = f"{step.each.done + step.each.failed} of {counted(step.each.total, 'item')} done, {step.each.active} running"
        return Why(f"is running {step.name}: {done}{more}", "{conductor} watch {id}")
    tries = f", attempt {step.attempt}" if step.attempt > 1 else ""
    return Why(f"is running {step.name}{where} for {span(view.now - step.since)}{tries}{_progress(step)}{more}", "{conductor} watch {id}")


def _standing(view: RunView) -> Why | None:
    ready = _stands(view)
    if not ready:
        return None
    step = min(ready, key=lambda found: found.since)
    for_long = span(view.now - step.since)
    more_workers = f"{{worker}} -Q {shlex.quote(step.queue)}"
    if step.aside:
        return Why(f"waits: no worker present has the code of {step.name}, ready for {for_long}", more_workers)
    if step.limited:
        said = f"waits for limit {step.limited}: {step.name} has been ready for {for_long} and takes its turn when there is room"
        return Why(said, f"{{conductor}} limits {shlex.quote(step.limited)}")
    if view.now - step.since < _PATIENCE_MS:
        return Why(f"has {step.name} ready on queue {step.queue}; a worker has been woken", "{conductor} watch {id}")
    # A poke may wait behind a long step of a busy worker, so that it went unanswered proves nothing while something runs there.
    if step.queue in view.busy:
        waits = f"waits in queue {step.queue}: {step.name} has been ready for {for_long} and all workers are busy"
        return Why(waits, "{conductor} queues")
    if view.unanswered.get(step.queue, 0) > 1_000:
        return Why(f"waits: no worker consumes queue {step.queue}: {step.name} has been ready there for {for_long}", more_workers)
    return Why(f"waits in queue {step.queue}: {step.name} has been ready for {for_long} and nobody has taken it yet", more_workers)


def _retrying(view: RunView) -> Why | None:
    waiting = view.named(StepState.RETRY_PENDING)
    if not waiting:
        return None
    step = min(waiting, key=lambda found: found.due_at or view.now)
    budget = f"{step.attempt}/{step.max_attempts - 1}" if step.max_attempts > 1 else f"{step.attempt}"
    error = f" after {error_text(step.error)}" if error_text(step.error) else ""
    due = f"in {span(step.due_at - view.now)}" if step.due_at > view.now else "now due"
    return Why(f"waits for retry {budget} of {step.name} {due}{error}", "{conductor} show {id}")


def _calling(view: RunView) -> Why | None:
    calling = [step for step in view.named(StepState.WAITING) if step.kind is NodeKind.CALL]
    if not calling:
        return None
    more = f" and for {counted(len(calling) - 1, 'more run')}" if len(calling) > 1 else ""
    return Why(f"waits for run {calling[0].child} of {calling[0].calls}, which {calling[0].name} has called{more}",
               f"{{conductor}} why {calling[0].child}")


def _sleeping(view: RunView) -> Why | None:
    asleep = [step for step in view.named(StepState.WAITING) if step.kind is not NodeKind.CALL]
    if not asleep:
        return None
    step = min(asleep, key=lambda found: found.due_at or view.now)
    return Why(f"sleeps in {step.name} until {moment(step.due_at, view.now)} ({span(max(0, step.due_at - view.now))} left)")


def _waiting(view: RunView) -> Why | None:
    """Whatever can be answered comes first; a time comes by itself."""
    answered = [waiter for waiter in view.waiters if waiter.kind != "time"]
    if not answered:
        return _sleeping(view)
    first = answered[0]
    since = f" for {span(view.now - view.run.idle_since)}" if view.run.idle_since else ""
    until = f" (until {moment(first.until, view.now)})" if first.until else ""
    others = [str(waiter) for waiter in view.waiters if waiter is not first]
    more = f", and for {', '.join(others[:3])}{' and others' if len(others) > 3 else ''}" if others else ""
    end = orphan_until(view.run, view.graph)
    limit = f"; without an answer it is cancelled at {moment(end, view.now)}" if end else ""
    if first.kind == "signal":
        return Why(f"waits{since} for signal {first.signal}{until}{more}", f"{{conductor}} signal {{id}} {first.signal} JSON")
    return Why(f"waits{since} for the answer of agent {first.step}{more}{limit}", f"{{conductor}} advance {{id}} {first.step} JSON")


def _delayed(view: RunView) -> Why | None:
    if not view.starts_at:
        return None
    left = span(view.starts_at - view.now)
    return Why(f"has not begun: it starts at {moment(view.starts_at, view.now)} (in {left})", "{conductor} cancel {id}")


_ANSWERS: dict[RunState, Callable[[RunView], Why]] = {
    RunState.QUEUED: _queued,
    RunState.RUNNING: _running,
    RunState.WAITING_SIGNAL: lambda view: _waiting(view) or Why("waits for a signal or an answer from outside", "{conductor} show {id}"),
    RunState.PAUSED: _of_table(_PAUSED, ("is paused: {reason}", "{conductor} resume {id}")),
    RunState.COMPENSATING: _undoing,
    RunState.COMPLETED: _completed,
    RunState.FAILED: _of_table(_FAILED, ("failed: {reason}; {failed}", "{conductor} retry {id}")),
    RunState.CANCELLED: _cancelled,
}


def _failures(view: RunView) -> str:
    failed = view.named(StepState.FAILED)
    if view.run.reason == "compensation_failed":
        failed.sort(key=lambda step: step.kind is not NodeKind.UNDO)
    if not failed:
        return "a step failed"
    step = failed[0]
    said = error_text(step.error)
    cause = STEP_REASONS.get(_reason(step), step.reason)
    items = f" (items {', '.join(map(str, step.each.bad[:5]))})" if step.each and step.each.bad else ""
    more = f", and {counted(len(failed) - 1, 'more step')} failed" if len(failed) > 1 else ""
    details = f"{cause}, {said}" if cause and said else cause or said or "no error was recorded"
    return f"step {step.name}{items} failed: {details}{more}"


def _reason(step: StepView) -> str:
    """A result that does not fit is an error that no repeat can solve; what it is, is the better word."""
    return "bad_result" if str(step.error.get("type")).endswith("BadResult") else step.reason


def _mismatch(view: RunView) -> str:
    """The step that could not read a stored value, and which field; its error names both."""
    step = next((step for step in view.steps if str(step.error.get("type")).endswith("PayloadMismatch")), None)
    return " ".join(str(step.error.get("message")).split()) if step else "a stored value no longer fits the model that reads it"


def _progress(step: StepView) -> str:
    if not step.progress:
        return ""
    total = f" of {step.progress['total']}" if step.progress.get("total") else ""
    note = f" ({step.progress['note']})" if step.progress.get("note") else ""
    return f", {step.progress.get('done', 0)}{total} done{note}"


def _names(steps: Iterable[StepView]) -> str:
    return ", ".join(step.name for step in steps)
