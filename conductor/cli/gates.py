"""Commands on what holds work back: lanes, limits."""

from __future__ import annotations

import re
from typing import Any

import click
from rich.markup import escape

from conductor.cli.doors import KEEP, Told
from conductor.cli.finding import Here
from conductor.cli.render import command, note, print_json, print_text, short, span, stdout, table
from conductor.errors import BadInput

__all__ = ["lanes", "limits"]


@command("lanes", "Show lanes: who is active in them, who is queued.")
@click.argument("name", required=False, metavar="[LANE]")
def lanes(here: Here, name: str | None) -> None:
    """Show lanes that somebody is in, and those that are declared here; with a name, its runs in their order."""
    shown = here.door.lanes(name or "")
    if here.json:
        print_json({"lanes": shown})
    elif name:
        _show(shown[0])
    elif not shown:
        note("no lanes: nobody is in one, and no workflow declares one")
    else:
        rows = ((escape(lane["lane"]), f"{lane['active_count']} of {lane['max_active']}", _queue(lane), _patience(lane)) for lane in shown)
        stdout().print(table(("LANE", "ACTIVE", "QUEUED", "PATIENCE"), rows))


def _queue(lane: Told) -> str:
    queued = str(lane["queued_count"])
    return queued if lane["max_queued"] is None else f"{queued} of {lane['max_queued']}"


def _patience(lane: Told) -> str:
    return span(lane["queue_timeout_ms"]) if lane["queue_timeout_ms"] else "for ever"


def _show(lane: Told) -> None:
    active = f"{lane['active_count']} of {lane['max_active']} active"
    print_text(f"{lane['lane']}: {active}, {_queue(lane)} queued, patience {_patience(lane)}")
    rows = [(short(run_id), "active", "") for run_id in lane["active"]]
    rows += [(short(run_id), "queued", str(place)) for place, run_id in enumerate(lane["queue"], 1)]
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
    shown = here.door.limits(name or "")
    if here.json:
        print_json({"limits": shown})
    elif not shown:
        note("no limits: none is in use, and no workflow declares one")
    else:
        stdout().print(table(("LIMIT", "RATE", "AT ONCE", "WAITING", ""), map(_limit_row, shown)))


def _set(here: Here, name: str | None, rate: str | None, concurrency: str | None, as_declared: bool) -> None:
    if not name:
        raise click.UsageError("name the limit that is to be set")
    if as_declared:
        here.door.limits_as_declared(name)
        return
    try:
        here.door.set_limit(name, rate=_asked(rate), concurrency=_number(concurrency))
    except BadInput as wrong:
        if wrong.field == "limit":
            raise click.UsageError(wrong.problem) from None
        raise click.BadParameter(wrong.problem, param_hint=f"--{wrong.field}") from None


def _asked(text: str | None) -> Any:
    """An option that was not given keeps what is; `none` takes it away."""
    return KEEP if text is None else None if text == "none" else text


def _number(text: str | None) -> Any:
    if text is not None and text != "none" and not re.fullmatch("[0-9]{1,7}", text):
        raise click.BadParameter(f"{text!r} is not a whole number from 1 to 1000000, nor none", param_hint="--concurrency")
    asked = _asked(text)
    return int(asked) if asked not in (KEEP, None) else asked


def _limit_row(one: Told) -> tuple[str, ...]:
    rate = f"{one['spent']} of {one['rate']} in {span(one['per_ms'])}" if one["rate"] else "-"
    waiting = sum(one["waiting"].values())
    keys = f" of {len(one['waiting'])} keys" if len(one["waiting"]) > 1 else ""
    more = [*(["set by hand"] if one["set_by_hand"] else []), *([f"{len(one['held_back'])} held back"] if one["held_back"] else [])]
    running = f"{one['running']} of {one['concurrency']}" if one["concurrency"] else "-"
    return escape(one["limit"]), rate, running, f"{waiting}{keys}" if waiting else "-", ", ".join(more)
