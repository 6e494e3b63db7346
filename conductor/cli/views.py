"""How one run looks on a terminal."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from conductor.cli.render import moment, span, styled, table
from conductor.records import NodeKind
from conductor.runs.read import RunView, StepView, error_text
from conductor.runs.why import lifts, scope_in_words
from conductor.state import STEP, RunState, StepState, terminal

__all__ = ["run_header", "step_table"]

_MOST = 40  # steps; of a longer graph those that say something are shown
_ENDED = terminal(STEP)
_QUIET = (StepState.PENDING, StepState.COMPLETED, StepState.SKIPPED, StepState.CANCELLED)


def run_header(view: RunView, program: str = "conductor") -> str:
    """A few lines about the whole; `program` begins the commands that are named."""
    run = view.run
    lines = [f"[bold]{run.run_id}[/]  {escape(run.workflow)}  {styled(run.state, run.reason)}", _times(view)]
    more = {
        "queue": run.queue, "lane": _lane(view), "key": run.key, "session": run.session, "tags": ", ".join(run.tags),
        "forked from": run.forked_from, "deadline": moment(run.deadline) if run.deadline else "",
        "called by": run.bound_to.partition(";")[0] if run.root else "",
        "root": run.root if run.root != run.bound_to.partition(";")[0] else "",
    }
    if told := "  ".join(f"[dim]{name}[/] {escape(value)}" for name, value in more.items() if value):
        lines.append(told)
    if run.undone and run.state is RunState.COMPENSATING:
        lines.append(f"[yellow]is being undone: {view.undos_done} of {run.undone}[/]")
    if view.waiters:
        since = f" for {span(view.now - run.idle_since)}, idle since {moment(run.idle_since)}" if run.idle_since else ""
        lines.append(f"[cyan]waits for {escape(', '.join(map(str, view.waiters[:5])))}{since}[/]")
    for scope, reason in view.holds.items():
        why = escape(f"{scope_in_words(scope)} ({reason or 'no reason was given'})")
        lines.append(f"[yellow]held: {why}[/]; {escape(f'{program} {lifts(scope)}')}")
    return "\n".join(lines)


def _lane(view: RunView) -> str:
    place = view.place
    if place is None or not place.position:
        return view.run.lane
    return f"{place.lane} (position {place.position} of {place.queued}, {place.max_active} may be active)"


def _times(view: RunView) -> str:
    run = view.run
    if view.starts_at:
        return f"accepted {moment(run.created_at)}, starts at {moment(view.starts_at)}"
    parts = [f"started {moment(run.created_at)}"]
    if run.ended_at:
        parts.append(f"ended {moment(run.ended_at)}" + (f" by {escape(view.actor)}" if view.actor else ""))
    parts.append(span(view.duration_ms))
    if run.generation > 1:
        parts.append(f"generation {run.generation}")
    return ", ".join(parts)


def step_table(view: RunView) -> Table:
    """The steps; of many only those that are not simply done or not begun."""
    shown, left_out = list(view.steps), 0
    if len(shown) > _MOST:
        shown = [step for step in view.steps if step.state not in _QUIET][:_MOST]
        left_out = len(view.steps) - len(shown)
    made = table(("STEP", "STATE", "TRY", "TOOK", ""), (_row(view, step) for step in shown))
    if left_out:
        made.caption = f"{left_out} more: " + ", ".join(f"{count} {state}" for state, count in view.progress.items())
    return made


def _row(view: RunView, step: StepView) -> tuple[str, ...]:
    last = step.kind in (NodeKind.ON_FAILURE, NodeKind.ON_FINISH)
    name = f"{escape(step.name)} [dim]({step.kind})[/]" if last else escape(step.name)
    took = ""
    if step.state is StepState.RUNNING and step.since:
        took = span(view.now - step.since)
    elif step.ran_ms or (step.attempt and step.state in _ENDED):
        took = span(step.ran_ms)
    tries = f"{step.attempt}" + (f"/{step.max_attempts}" if step.max_attempts > 1 else "") if step.attempt else ""
    return name, styled(step.state), tries, took, escape(_told(view, step))


def _told(view: RunView, step: StepView) -> str:
    """What is worth saying beside the state."""
    parts = []
    if step.each is not None and step.each.total:
        bad = f", {step.each.failed} failed" if step.each.failed else ""
        parts.append(f"{step.each.done} of {step.each.total} items{bad}")
    if step.progress:
        total = f" of {step.progress['total']}" if step.progress.get("total") else ""
        parts.append(f"{step.progress.get('done', 0)}{total} {step.progress.get('note') or ''}".strip())
    if step.due_at > view.now:
        parts.append(f"in {span(step.due_at - view.now)}")
    if step.state is StepState.RUNNING and step.worker:
        parts.append(f"on {step.worker}")
    if step.child:
        parts.append(f"run {step.child}")
    if step.aside:
        parts.append("no worker has its code")
    if step.limited:
        parts.append(f"limited by {step.limited}")
    if step.reason:
        parts.append(step.reason)
    if step.error:
        parts.append(error_text(step.error))
    return " · ".join(parts)
