"""How one run looks on a terminal, from what a door tells of it."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from conductor.cli.doors import Told
from conductor.cli.render import moment, span, styled, table
from conductor.idleness import Waiter
from conductor.records import NodeKind
from conductor.runs.words import error_text, lifts, scope_in_words
from conductor.state import STEP, RunState, StepState, terminal

__all__ = ["run_header", "step_table"]

_MOST = 40  # steps; of a longer graph those that say something are shown
_ENDED = terminal(STEP)
_QUIET = (StepState.PENDING, StepState.COMPLETED, StepState.SKIPPED, StepState.CANCELLED)


def run_header(told: Told, program: str = "conductor") -> str:
    """A few lines about the whole; `program` begins the commands that are named."""
    lines = [f"[bold]{told['run_id']}[/]  {escape(told['workflow'])}  {styled(told['state'], told['reason'])}", _times(told)]
    parent, root = told["parent_id"] or "", told["root_id"] or ""
    more = {
        "queue": told["queue"], "lane": _lane(told), "key": told["key"], "session": told["session"], "tags": ", ".join(told["tags"]),
        "forked from": told["forked_from"], "deadline": moment(told["deadline"]) if told["deadline"] else "",
        "called by": parent if root else "", "root": root if root != parent else "",
    }
    if beside := "  ".join(f"[dim]{name}[/] {escape(value)}" for name, value in more.items() if value):
        lines.append(beside)
    if "undos" in told and told["state"] == RunState.COMPENSATING:
        lines.append(f"[yellow]is being undone: {told['undos_done']} of {told['undos']}[/]")
    if waiters := [str(Waiter(**one)) for one in told["active_waiters"]]:
        idle = told["idle_since"]
        since = f" for {span(told['now'] - idle)}, idle since {moment(idle)}" if idle else ""
        lines.append(f"[cyan]waits for {escape(', '.join(waiters[:5]))}{since}[/]")
    for scope, reason in told["holds"].items():
        why = escape(f"{scope_in_words(scope)} ({reason or 'no reason was given'})")
        lines.append(f"[yellow]held: {why}[/]; {escape(f'{program} {lifts(scope)}')}")
    if told["archived"]:
        until = f" until {moment(told['kept_until'])}" if told["kept_until"] else ""
        lines.append(f"[dim]in the archive ({told['archived']}){until}[/]")
    return "\n".join(lines)


def _lane(told: Told) -> str:
    if "lane_position" not in told:
        return told["lane"] or ""
    return f"{told['lane']} (position {told['lane_position']} of {told['lane_queued']}, {told['lane_max_active']} may be active)"


def _times(told: Told) -> str:
    if told["starts_at"]:
        return f"accepted {moment(told['created_at'])}, starts at {moment(told['starts_at'])}"
    parts = [f"started {moment(told['created_at'])}"]
    if told["ended_at"]:
        parts.append(f"ended {moment(told['ended_at'])}" + (f" by {escape(told['actor'])}" if told.get("actor") else ""))
    parts.append(span(told["duration_ms"]))
    if told["generation"] > 1:
        parts.append(f"generation {told['generation']}")
    return ", ".join(parts)


def step_table(told: Told) -> Table:
    """The steps; of many only those that are not simply done or not begun."""
    steps: list[Told] = told["steps"]
    shown, left_out = steps, 0
    if len(shown) > _MOST:
        shown = [step for step in steps if step["state"] not in _QUIET][:_MOST]
        left_out = len(steps) - len(shown)
    made = table(("STEP", "STATE", "TRY", "TOOK", ""), (_row(told, step) for step in shown))
    if left_out:
        made.caption = f"{left_out} more: " + ", ".join(f"{count} {state}" for state, count in told["progress"].items())
    return made


def _row(told: Told, step: Told) -> tuple[str, ...]:
    last = step["kind"] in (NodeKind.ON_FAILURE, NodeKind.ON_FINISH)
    name = f"{escape(step['name'])} [dim]({step['kind']})[/]" if last else escape(step["name"])
    attempt, took = step.get("attempt", 0), ""
    if step["state"] == StepState.RUNNING and step.get("since"):
        took = span(told["now"] - step["since"])
    elif step.get("ran_ms") or (attempt and step["state"] in _ENDED):
        took = span(step.get("ran_ms", 0))
    most = step.get("max_attempts", 1)
    tries = f"{attempt}" + (f"/{most}" if most > 1 else "") if attempt else ""
    return name, styled(step["state"]), tries, took, escape(_beside(told, step))


def _beside(told: Told, step: Told) -> str:
    """What is worth saying beside the state."""
    parts: list[Any] = []
    if items := step.get("items", {}).get("total") and step["items"]:
        bad = f", {items['failed']} failed" if items["failed"] else ""
        parts.append(f"{items['done']} of {items['total']} items{bad}")
    if progress := step.get("progress"):
        total = f" of {progress['total']}" if progress.get("total") else ""
        parts.append(f"{progress.get('done', 0)}{total} {progress.get('note') or ''}".strip())
    if step.get("due_at", 0) > told["now"]:
        parts.append(f"in {span(step['due_at'] - told['now'])}")
    if step["state"] == StepState.RUNNING and step.get("worker"):
        parts.append(f"on {step['worker']}")
    if step.get("child"):
        parts.append(f"run {step['child']}")
    if step.get("aside"):
        parts.append("no worker has its code")
    if step.get("limited"):
        parts.append(f"limited by {step['limited']}")
    if step.get("reason"):
        parts.append(step["reason"])
    if step.get("error"):
        parts.append(error_text(step["error"]))
    return " · ".join(parts)
