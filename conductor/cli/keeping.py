"""Commands that keep the store in order: sweeper, purge."""

from __future__ import annotations

import functools
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import click

from conductor.cli import exits
from conductor.cli.finding import Here
from conductor.cli.render import SPAN, command, line_of_json, note, print_json, print_text, stderr
from conductor.errors import ConductorError, StoreUnreachable
from conductor.runs.erasing import erase_run, erase_session, marked_runs
from conductor.runs.read import RunView, counted, view_run, with_queues
from conductor.runs.why import Why, why
from conductor.state import RUN, RunState, terminal
from conductor.store.listing import Filter, list_runs
from conductor.store.notices import Unreachable
from conductor.store.reads import RunRecord, read_now, read_runs
from conductor.store.stubs import read_stubs
from conductor.sweeps.guard import SweepReport
from conductor.sweeps.overdue import run_sweeper
from conductor.wiring import Engine

__all__ = ["NotEnded", "purge", "sweeper"]

_STALE_SHOWN = 20
_TRY_AGAIN = 5.0
_LOOK_AGAIN, _CALM = 2.0, 20.0
_PAGE = 500
_ENDINGS = sorted(state.value for state in terminal(RUN))


class NotEnded(ConductorError):
    """run {run_id} is {state} and cannot be purged; cancel it first, with {program} cancel {run_id} or --cancel"""


@command("sweeper", "Put back what was lost, as workers and beat do too.", direct=True)
@click.option("--interval", type=SPAN, default=300, show_default=True, help="Seconds between two rounds.")
@click.option("--stale-after", type=SPAN, default=600, show_default=True, help="Name runs without progress for so long, mend stuck ones.")
@click.option("--once", is_flag=True, help="One round.")
@click.option("--dry-run", is_flag=True, help="Say what would be moved and move nothing.")
def sweeper(here: Here, interval: float, stale_after: float, once: bool, dry_run: bool) -> None:
    """Put back what was lost: ended leases, due timers, unanswered pokes, old runs.

    Workers and beat do so too; this is a third pair of hands.
    """
    if interval <= 0:
        raise click.BadParameter("it must be more than 0", param_hint="--interval")
    engine, stop = here.engine, threading.Event()
    if not once:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        note(f"sweeping each {interval:g} s; Ctrl-C ends it")
    while True:
        rest = interval
        try:
            look = functools.partial(run_sweeper, engine, once=True, dry_run=True, stale_after=stale_after)
            reports = look() if dry_run else _whole_round(engine, stop, stale_after)
            _print_round(here, reports, [_Stale(view, why(view, here.spelling)) for view in _stale(engine, int(stale_after * 1000))])
        except (StoreUnreachable, *Unreachable) as error:
            if once:
                raise
            note(f"the store cannot be reached ({type(error).__name__}); trying again")
            rest = min(interval, _TRY_AGAIN)
        if once or stop.wait(rest):
            return


def _whole_round(engine: Engine, stop: threading.Event, stale_after: float) -> list[SweepReport]:
    """One round, repeated while ended leases are left. After a long gap since the last look the store takes none for one lease length,
    because a holder may only have been cut off; the rounds of a lone sweeper are so far apart that each would be a first look."""
    reports = run_sweeper(engine, once=True, stale_after=stale_after)
    until = time.monotonic() + _CALM
    told = False
    while engine.store.glance().expired and time.monotonic() < until:
        if not told:
            note(f"leases have ended; if nobody renews them they are taken within {_CALM:.0f} s")
            told = True
        if stop.wait(_LOOK_AGAIN):
            break
        again = run_sweeper(engine, once=True, stale_after=stale_after)
        reports = [_joined(one, other) for one, other in zip(reports, again, strict=True)]
    return reports


def _joined(one: SweepReport, other: SweepReport) -> SweepReport:
    return replace(
        one, count=one.count + other.count, pokes=one.pokes + other.pokes, causes=one.causes + other.causes, ran=one.ran or other.ran)


@dataclass(frozen=True, slots=True)
class _Stale:
    """A run that has not moved for long, and why."""

    view: RunView
    why: Why


def _print_round(here: Here, reports: list[SweepReport], stale: list[_Stale]) -> None:
    if here.json:
        told = [{"run_id": one.view.run.run_id, "workflow": one.view.run.workflow, "since": one.view.run.progress_at,
                 "why": one.why.sentence, "command": one.why.command} for one in stale]
        click.echo(line_of_json({"sweeps": [report.to_json() for report in reports], "stale": told}))
        return
    for report in reports:
        verb = "would move" if report.dry_run else "moved"
        print_text(f"{report.name}: " + (f"{verb} {report.count}, pokes {report.pokes}" if report.ran else "another process is at it"))
        for cause in report.causes:
            print_text(f"  {cause}")
    for one in stale:
        print_text(f"stale: {one.why.sentence}")
        if one.why.command:
            print_text(f"  → {one.why.command}")


def _stale(engine: Engine, patience_ms: int) -> Iterator[RunView]:
    """Runs that are running and have not moved for long, although neither a live lease nor a timer explains it; the oldest first."""
    store = engine.store
    before = read_now(store) - patience_ms
    pipe = store.client().pipeline(transaction=False)
    for partition in range(store.partitions):
        pipe.zrangebyscore(store.keys.of(partition, "progress"), "-inf", before, start=0, num=_STALE_SHOWN, withscores=True)
    met = sorted((at, run_id) for found in pipe.execute() for run_id, at in found)
    shown = 0
    for run in read_runs(store, [run_id for _, run_id in met]) if met else ():
        if run is None or run.state is not RunState.RUNNING:
            continue
        view = view_run(store, run.run_id)
        if not _explained(view):
            shown += 1
            yield with_queues(store, view)
        if shown == _STALE_SHOWN:
            return


def _explained(view: RunView) -> bool:
    if view.starts_at > view.now:
        return True
    return any(max(step.lease_until, step.due_at) > view.now or (step.each and step.each.active) for step in view.steps)


@command("purge", "Erase ended runs before their time, wherever they are.", direct=True)
@click.argument("run", required=False, metavar="[RUN]")
@click.option("--run", "named", default=None, metavar="RUN", help="The same as the argument.")
@click.option("--tag", default="", help="All runs with this tag.")
@click.option("--session", default="", help="All runs and operations of this session, its inbox and its grants.")
@click.option("--state", "states", multiple=True, type=click.Choice(_ENDINGS), help="All runs that ended so; may be repeated.")
@click.option("--workflow", default="", help="With --state: only of this workflow.")
@click.option("--older-than", type=SPAN, default=0, help="With --state: only runs that ended longer ago: 1h, 7d.")
@click.option("--cancel", is_flag=True, help="Cancel first what has not ended.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Count and name examples; delete nothing.")
def purge(
    here: Here, run: str | None, named: str | None, tag: str, session: str, states: tuple[str, ...], workflow: str, older_than: float,
    cancel: bool, yes: bool, dry_run: bool,
) -> None:
    """Erase ended runs before their time: from the store, the archive and the blob store."""
    if sum(map(bool, (run, named, tag, session, states))) != 1:
        raise click.UsageError("name a RUN, or runs by --tag, --session or --state")
    if one := run or named:
        found = [here.run_id(one)]
    elif states:
        found = [one.run_id for one in _ended(here.engine, frozenset(map(RunState, states)), workflow, int(older_than * 1000))]
    else:
        found = marked_runs(here.engine, tag=tag, session=session)
    if not states and not cancel and not dry_run:
        _all_ended(here, found)
    gone = 0
    if not dry_run and _agreed(here, found, yes):
        gone = _purge_all(here.engine, found, cancel)
        if session:
            erase_session(here.engine, session)
    told: dict[str, Any] = {"found": len(found), "purged": gone, "dry_run": dry_run, "examples": found[:3]}
    if here.json:
        print_json(told)
    elif dry_run and found:
        print_text(f"{counted(len(found), 'run')} would be deleted, such as {', '.join(found[:3])}")
    else:
        print_text(f"{gone} of {counted(len(found), 'run')} deleted")
    if found and not dry_run and gone < len(found):
        raise click.exceptions.Exit(exits.FAILED)


def _all_ended(here: Here, run_ids: list[str]) -> None:
    for at in range(0, len(run_ids), _PAGE):
        some = run_ids[at : at + _PAGE]
        records = [*read_runs(here.engine.store, some), *(stub.as_run() for stub in read_stubs(here.engine.store, some).values())]
        for record in records:
            if record is not None and not record.ended:
                raise NotEnded(run_id=record.run_id, state=record.state, program=here.program)


def _ended(engine: Engine, states: frozenset[RunState], workflow: str, older_ms: int) -> Iterator[RunRecord]:
    before, cursor = read_now(engine.store) - older_ms, ""
    while True:
        page = list_runs(engine.store, Filter(states, workflow), cursor=cursor, limit=_PAGE)
        yield from (run for run in page.runs if run.ended_at <= before)
        cursor = page.cursor
        if not cursor:
            return


def _agreed(here: Here, found: list[str], yes: bool) -> bool:
    if yes or not found:
        return True
    if here.json:
        raise click.UsageError("with --json nobody is asked: say --yes, or look first with --dry-run")
    what = f"run {found[0]}" if len(found) == 1 else f"{len(found)} runs"
    return click.confirm(f"delete {what} for good?", err=True)


def _purge_all(engine: Engine, run_ids: list[str], cancel: bool) -> int:
    """One run at a time; one that was retried meanwhile stays."""
    from rich.progress import track

    console = stderr()
    shown = track(run_ids, "deleting", console=console, disable=len(run_ids) == 1 or not console.is_terminal)
    gone, erased = 0, set[str]()  # what a run has called goes with it, and may be among those that were asked for
    for run_id in shown:
        if cancel:
            engine.poke(engine.store.cancel(run_id, reason="purged", actor="").pokes)
        gone += erase_run(engine, run_id, erased)
    return gone
