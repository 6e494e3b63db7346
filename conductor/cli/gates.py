"""Commands on what holds work back: lanes, limits."""

from __future__ import annotations

from typing import Any

import click
from rich.markup import escape

from conductor.cli.finding import Here
from conductor.cli.render import command, note, print_json, print_text, short, span, stdout, table
from conductor.declare.limits import read_rate
from conductor.errors import DeclarationError, UnknownLane, UnknownLimit
from conductor.runs.execute import limits_of
from conductor.store.lanes import LaneView, read_lanes
from conductor.store.limits import LimitView, read_limits

__all__ = ["lanes", "limits"]


@command("lanes", "Show lanes: who is active in them, who is queued.")
@click.argument("name", required=False, metavar="[LANE]")
def lanes(here: Here, name: str | None) -> None:
    """Show lanes that somebody is in, and those that are declared here; with a name, its runs in their order."""
    found = {one.name: one for one in read_lanes(here.engine.store, name or "")}
    declared = {
        flow.lane.name: LaneView.empty(terms) for flow in here.engine.workflows.values()
        if flow.lane is not None and (terms := getattr(flow.lane, "terms", None))
    }
    shown = {lane: view for lane, view in sorted((declared | found).items()) if name in (None, lane)}
    if name and not shown:
        raise UnknownLane(lane=name, known=", ".join(sorted(declared)) or "none")
    if here.json:
        print_json({"lanes": [_told(view) for view in shown.values()]})
    elif name:
        _show(shown[name])
    elif not shown:
        note("no lanes: nobody is in one, and no workflow here declares one")
    else:
        rows = ((escape(view.name), f"{len(view.active)} of {view.max_active}", _queue(view), _patience(view)) for view in shown.values())
        stdout().print(table(("LANE", "ACTIVE", "QUEUED", "PATIENCE"), rows))


def _told(view: LaneView) -> dict[str, Any]:
    return {
        "lane": view.name, "max_active": view.max_active, "max_queued": view.max_queued, "queue_timeout_ms": view.timeout_ms or None,
        "fair": view.fair, "active": list(view.active), "queue": list(view.queue),
    }


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
    declared = limits_of(here.engine)
    if rate is not None or concurrency is not None or as_declared:
        _set(here, name, rate, concurrency, as_declared, declared)
    found = {view.name: view for view in read_limits(here.engine.store, name or "")}
    shown = {one: LimitView(one, terms) for one, terms in declared.items()} | found
    shown = {one: view for one, view in sorted(shown.items()) if name in (None, one)}
    if name and not shown:
        raise UnknownLimit(limit=name, known=", ".join(sorted(declared)) or "none")
    if here.json:
        print_json({"limits": [_limit_json(view) for view in shown.values()]})
    elif not shown:
        note("no limits: none is in use, and no workflow here declares one")
    else:
        stdout().print(table(("LIMIT", "RATE", "AT ONCE", "WAITING", ""), map(_limit_row, shown.values())))


def _set(here: Here, name: str | None, rate: str | None, concurrency: str | None, as_declared: bool, declared: dict[str, str]) -> None:
    if not name:
        raise click.UsageError("name the limit that is to be set")
    store = here.engine.store
    if name not in declared and not read_limits(store, name):
        raise UnknownLimit(limit=name, known=", ".join(sorted(declared)) or "none")
    if as_declared:
        here.engine.poke(store.set_limit(name, "", by_hand=False, forget=True)[1])
        if name in declared:
            here.engine.poke(store.set_limit(name, declared[name], by_hand=False)[1])
        return
    now = next(iter(read_limits(store, name)), LimitView(name, declared.get(name, ";;")))
    many, per, at_once = now.terms.split(";")
    if rate is not None:
        many, per = _rate(rate)
    if concurrency is not None:
        if concurrency != "none" and not (concurrency.isdigit() and int(concurrency) > 0):
            raise click.BadParameter(f"{concurrency!r} is not a whole number from 1, nor none", param_hint="--concurrency")
        at_once = "" if concurrency == "none" else concurrency
    if not many and not at_once:
        raise click.UsageError("without a rate and a concurrency it would limit nothing; take limit= out of the code instead")
    here.engine.poke(store.set_limit(name, f"{many};{per};{at_once}", by_hand=True)[1])


def _rate(text: str) -> tuple[str, str]:
    try:
        return ("", "") if text == "none" else read_rate(text, "--rate")
    except DeclarationError as wrong:
        raise click.BadParameter(wrong.problem, param_hint="--rate") from None


def _limit_json(view: LimitView) -> dict[str, Any]:
    many, per, at_once = view.terms.split(";")
    return {
        "limit": view.name, "rate": int(many) if many else None, "per_ms": int(per) if per else None,
        "concurrency": int(at_once) if at_once else None, "set_by_hand": view.by_hand, "running": view.permits, "spent": view.spent,
        "waiting": view.waiting, "held_back": view.back,
    }


def _limit_row(view: LimitView) -> tuple[str, ...]:
    many, per, at_once = view.terms.split(";")
    rate = f"{view.spent} of {many} in {span(int(per))}" if many else "-"
    waiting = sum(view.waiting.values())
    keys = f" of {len(view.waiting)} keys" if len(view.waiting) > 1 else ""
    more = [*(["set by hand"] if view.by_hand else []), *([f"{len(view.back)} held back"] if view.back else [])]
    running = f"{view.permits} of {at_once}" if at_once else "-"
    return escape(view.name), rate, running, f"{waiting}{keys}" if waiting else "-", ", ".join(more)
