"""Commands on what holds work back: lanes, limits."""

from __future__ import annotations

from typing import Any

import click
from rich.markup import escape

from conductor.cli.finding import Here
from conductor.cli.render import command, note, print_json, print_text, short, span, stdout, table
from conductor.errors import BadInput
from conductor.runs.gating import KEEP, lane_json, limit_json, limits_as_declared, set_limit
from conductor.runs.gating import lanes as list_lanes
from conductor.runs.gating import limits as list_limits
from conductor.store.lanes import LaneView
from conductor.store.limits import LimitView

__all__ = ["lanes", "limits"]


@command("lanes", "Show lanes: who is active in them, who is queued.")
@click.argument("name", required=False, metavar="[LANE]")
def lanes(here: Here, name: str | None) -> None:
    """Show lanes that somebody is in, and those that are declared here; with a name, its runs in their order."""
    shown = list_lanes(here.engine, name or "")
    if here.json:
        print_json({"lanes": [lane_json(view) for view in shown]})
    elif name:
        _show(shown[0])
    elif not shown:
        note("no lanes: nobody is in one, and no workflow here declares one")
    else:
        rows = ((escape(view.name), f"{len(view.active)} of {view.max_active}", _queue(view), _patience(view)) for view in shown)
        stdout().print(table(("LANE", "ACTIVE", "QUEUED", "PATIENCE"), rows))


def _queue(view: LaneView) -> str:
    return f"{len(view.queue)} of {view.max_queued}" if view.max_queued is not None else str(len(view.queue))


def _patience(view: LaneView) -> str:
    return span(view.timeout_ms) if view.timeout_ms else "for ever"


def _show(view: LaneView) -> None:
    print_text(f"{view.name}: {len(view.active)} of {view.max_active} active, {_queue(view)} queued, patience {_patience(view)}")
    rows = [(short(run_id), "active", "") for run_id in view.active]
    rows += [(short(run_id), "queued", str(place)) for place, run_id in enumerate(view.queue, 1)]
    stdout().print(table(("RUN", "STATE", "POSITION"), rows))


@command("limits", "Show limits: what they allow, who waits; set one.")
@click.argument("name", required=False, metavar="[LIMIT]")
@click.option("--rate", help='Set it: so many in such a time, as "500/m"; "none" for no rate.')
@click.option("--concurrency", help='Set it: so many at once; "none" for any number.')
@click.option("--as-declared", is_flag=True, help="Take back what was set: the code's word counts again.")
def limits(here: Here, name: str | None, rate: str | None, concurrency: str | None, as_declared: bool) -> None:
    """Show limits that are in use, set, or declared here. With --rate or --concurrency one is set, for all workers, at once."""
    if rate is not None or concurrency is not None or as_declared:
        _set(here, name, rate, concurrency, as_declared)
    shown = list_limits(here.engine, name or "")
    if here.json:
        print_json({"limits": [limit_json(view) for view in shown]})
    elif not shown:
        note("no limits: none is in use, and no workflow here declares one")
    else:
        stdout().print(table(("LIMIT", "RATE", "AT ONCE", "WAITING", ""), map(_limit_row, shown)))


def _set(here: Here, name: str | None, rate: str | None, concurrency: str | None, as_declared: bool) -> None:
    if not name:
        raise click.UsageError("name the limit that is to be set")
    if as_declared:
        limits_as_declared(here.engine, name)
        return
    try:
        set_limit(here.engine, name, rate=_asked(rate), concurrency=_asked(concurrency))
    except BadInput as wrong:
        if wrong.field == "limit":
            raise click.UsageError(wrong.problem) from None
        raise click.BadParameter(wrong.problem, param_hint=f"--{wrong.field}") from None


def _asked(text: str | None) -> Any:
    """An option that was not given keeps what is; `none` takes it away."""
    return KEEP if text is None else None if text == "none" else int(text) if text.isdigit() else text


def _limit_row(view: LimitView) -> tuple[str, ...]:
    many, per, at_once = view.terms.split(";")
    rate = f"{view.spent} of {many} in {span(int(per))}" if many else "-"
    waiting = sum(view.waiting.values())
    keys = f" of {len(view.waiting)} keys" if len(view.waiting) > 1 else ""
    more = [*(["set by hand"] if view.by_hand else []), *([f"{len(view.back)} held back"] if view.back else [])]
    running = f"{view.permits} of {at_once}" if at_once else "-"
    return escape(view.name), rate, running, f"{waiting}{keys}" if waiting else "-", ", ".join(more)
