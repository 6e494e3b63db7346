"""Commands that look for what is wrong: fsck, check, doctor. They change nothing; exit code 6 means that something was found."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import click
from rich.markup import escape

from conductor.cli import exits
from conductor.cli.broken import BrokenModule
from conductor.cli.finding import Here
from conductor.cli.render import command, print_json, print_text, span, stderr, stdout, styled, table
from conductor.errors import ConductorError, redact
from conductor.runs.doctor import Check, examine, found_durability, source_of_url
from conductor.runs.words import counted
from conductor.settings import unknown_variables
from conductor.state import RUN, STEP, RunState, terminal
from conductor.store.listing import Filter, list_runs
from conductor.store.listing import queues as list_queues
from conductor.store.notices import Unreachable
from conductor.store.reads import read_graph, read_steps
from conductor.sweeps.overdue import intervals
from conductor.wiring import Engine

__all__ = ["check", "doctor", "fsck"]

_LIVE = frozenset(RunState) - terminal(RUN)
_PAGE = 500
_BROKER_SECONDS = 3.0
_SWEEP_SECONDS = 60.0
_LAG_MS = 5000


@command("fsck", "Recount everything from the records and their logs.", direct=True)
def fsck(here: Here) -> None:
    """Recount everything from the records and their logs, beside live workers, and tell every difference."""
    from conductor.runs.fsck import Progress
    from conductor.runs.fsck import fsck as recount

    runs, console = 0, stderr()
    with console.status("recounting") as status:

        def tell(progress: Progress) -> None:
            nonlocal runs
            runs = progress.runs
            found = f"{counted(runs, 'run')}, {counted(progress.differences, 'difference')}"
            status.update(f"partition {progress.partition + 1} of {progress.partitions}: {found}")

        found = recount(here.engine, tell)
    if here.json:
        print_json({"runs": runs, "differences": [asdict(difference) for difference in found]})
    else:
        for difference in found:
            print_text(str(difference))
        print_text(f"{counted(runs, 'run')} recounted, {counted(len(found), 'difference')}")
    if found:
        raise click.exceptions.Exit(exits.FOUND_WRONG)


@dataclass(frozen=True, slots=True)
class _Orphan:
    """Live runs with open steps that the code here cannot run."""

    workflow: str
    graph: str
    steps: tuple[str, ...]
    runs: int
    example: str


@command("check", "Check the declared workflows, before a deployment.", direct=True)
@click.option("--live", is_flag=True, help="Also ask the store: would runs that are under way lose their code?")
def check(here: Here, live: bool) -> None:
    """Check the declared workflows, before a deployment: exit code 6 if one is wrong, if a module of theirs cannot be imported or, with
    --live, if runs would be left without code."""
    flows, broken = _declared(here)
    orphans = list(_orphans(here.engine, {name for name, told in flows.items() if told["error"] is None})) if live and not broken else []
    wrong = bool(orphans) or any(told["error"] for told in flows.values()) or not flows or broken is not None
    if here.json:
        told = None if broken is None else {"file": broken.file, "line": broken.line, "message": str(broken)}
        print_json({"ok": not wrong, "broken": told, "workflows": flows, "orphans": [asdict(orphan) for orphan in orphans]})
    else:
        if broken is not None:
            print_text(str(broken))
        if flows or broken is None:
            _print_check(flows, orphans, live and broken is None)
    if wrong:
        raise click.exceptions.Exit(exits.FOUND_WRONG)


def _declared(here: Here) -> tuple[dict[str, dict[str, Any]], BrokenModule | None]:
    """The declared workflows, and the module that could not be imported. Nothing is asked of the store."""
    try:
        workflows, broken = here.declared, here.broken
    except BrokenModule as found:
        return {}, found
    flows: dict[str, dict[str, Any]] = {}
    for name, flow in sorted(workflows.items()):
        try:
            graph = flow.graph
            flows[name] = {"steps": len(graph.steps), "graph": graph.hash, "error": None}
        except ConductorError as error:
            flows[name] = {"steps": 0, "graph": None, "error": str(error)}
    return flows, broken


def _print_check(flows: dict[str, dict[str, Any]], orphans: list[_Orphan], live: bool) -> None:
    rows = [
        (escape(name), styled("failed" if told["error"] else "ok"), str(told["steps"] or "-"), escape(told["error"] or told["graph"]))
        for name, told in flows.items()
    ]
    if rows:
        stdout().print(table(("WORKFLOW", "STATE", "STEPS", "GRAPH"), rows))
    else:
        print_text(
            "no workflow is declared: put it into a module workflows.py beside the app, or name its package: "
            'Conductor(app, autodiscover=["shop.orders"])')
    for orphan in orphans:
        print_text(
            f"{counted(orphan.runs, 'live run')} of {orphan.workflow} (graph {orphan.graph}) without code here: {', '.join(orphan.steps)}; "
            f"for example {orphan.example}; keep the old steps until no such run is left"
        )
    if live and not orphans:
        print_text("every live run can go on with the code that is here")


def _orphans(engine: Engine, sound: set[str]) -> Iterator[_Orphan]:
    """Live runs by graph, judged by the signatures of their open steps: a step that has ended needs no code any more."""
    here = {code.signature for name in sound for code in engine.workflows[name].codes.values()}
    ended = terminal(STEP)
    counts: dict[tuple[str, str], tuple[set[str], list[str]]] = {}
    cursor, seen, console = "", 0, stderr()
    with console.status("looking at live runs") as status:
        while True:
            page = list_runs(engine.store, Filter(_LIVE), cursor=cursor, limit=_PAGE)
            for run in page.runs:
                graph = read_graph(engine.store, run.partition, run.graph)
                foreign = [node.index for node in graph.nodes if node.signature and node.signature not in here]
                records = read_steps(engine.store, run.run_id, graph, foreign) if foreign else {}
                if lost := [graph.nodes[index].name for index, record in records.items() if record.state not in ended]:
                    steps, run_ids = counts.setdefault((run.workflow, run.graph), (set(), []))
                    steps.update(lost)
                    run_ids.append(run.run_id)
            seen += len(page.runs)
            status.update(f"looking at live runs: {seen}")
            cursor = page.cursor
            if not cursor:
                break
    for (workflow, hash_), (steps, run_ids) in counts.items():
        yield _Orphan(workflow, hash_, tuple(sorted(steps)), len(run_ids), run_ids[0])


@command("doctor", "Print the settings; check server, broker, sweeps and workers.", direct=True)
def doctor(here: Here) -> None:
    """Print the settings as they are in force, with their sources, and check server, broker, sweeps and workers."""
    engine = here.engine
    checks = examine(engine.store.client(), engine.settings)
    reached = checks[0].status != "failed"
    if reached:
        checks += [_sweeps(here), *_archive(here), *_workers(here)]
    settings, strangers = _effective(here, reached), unknown_variables()
    if here.json:
        print_json({
            "ok": all(one.status != "failed" for one in checks), "store": engine.store.url,
            "settings": [{"name": name, "value": value, "source": source} for name, value, source in settings],
            "checks": [asdict(one) for one in checks], "unknown_variables": strangers,
        })
    else:
        console = stdout()
        rows = [(name, escape("-" if value is None else str(value)), escape(source)) for name, value, source in settings]
        console.print(table(("SETTING", "VALUE", "FROM"), rows))
        console.print(f"\nstore {escape(engine.store.url)}")
        console.print(table(("CHECK", "STATE", "FOUND", "WHAT TO DO"), [_check_row(one) for one in checks]))
        for stranger in strangers:
            print_text(f"the variable {stranger} sets nothing")
    if any(one.status == "failed" for one in checks):
        raise click.exceptions.Exit(exits.FOUND_WRONG if reached else exits.UNREACHABLE)


def _archive(here: Here) -> list[Check]:
    """Whether the archive answers, how far checkpoints lag behind, and whether idle runs are parked."""
    from conductor.runs.parking import why_not_parking
    from conductor.sweeps.checkpoints import lag_ms

    engine = here.engine
    if not engine.archive.configured:
        return []
    try:
        found = engine.archive.open().examine()
        problem, server = found.problem, f"{found.dialect} {found.server}"
    except ConductorError as error:
        problem, server = str(error), ""
    if problem:
        return [Check("archive", "failed", problem, "ended runs stay in the store and parked ones cannot be woken until it answers")]
    lag = lag_ms(engine)
    late = Check("checkpoints", "failed" if lag > _LAG_MS else "ok", f"{span(lag)} behind", "see to the archive's load" * (lag > _LAG_MS))
    why = why_not_parking(engine)
    parks = Check("parking", "warn", why, "idle runs stay in memory; name an archive that every worker reaches") if why else Check(
        "parking", "ok", f"after {engine.settings.park_after_minutes:g} min")
    return [Check("archive", "ok", server), late, parks]


def _effective(here: Here, reached: bool) -> list[tuple[str, Any, str]]:
    """Name, value and source of every setting as it is in force: what was not set is shown as it was found or is used."""
    engine = here.engine
    settings = engine.settings
    used: dict[str, tuple[Any, str]] = {
        "redis_url": (engine.store.url, source_of_url(settings)),
        "default_queue": (engine.default_queue, "task_default_queue of the Celery app"),
    }
    if reached and (found := found_durability(engine.store.client(), settings)):
        used["durability"] = (found, "found on the server")
    rows: list[tuple[str, Any, str]] = []
    for name, shown, source in settings.describe():
        value = getattr(settings, name)
        if value is None and name in used:
            rows.append((name, *used[name]))
        else:
            rows.append((name, value if value is None or isinstance(value, (bool, int, float)) else shown, source))
    return rows


def _check_row(one: Check) -> tuple[str, ...]:
    return one.name, styled(one.status), escape(one.found), escape(one.remedy)


def _sweeps(here: Here) -> Check:
    """Somebody must sweep: a worker's timer, beat, or `conductor sweeper`."""
    engine = here.engine
    noted, now = engine.store.last_sweeps()
    if not noted:
        return Check("sweeps", "warn", "no sweep has run yet", f"start a worker, its timer sweeps: {here.spelling.worker}")
    # Each by its own interval: some are hourly. What else is noted there (a recovery, a look of a sweep) has none, and is no sweep.
    every = intervals(engine.settings)
    late = [name for name, seconds in every.items() if name in noted and now - noted[name] > max(_SWEEP_SECONDS, 3 * seconds) * 1000]
    found = ", ".join(f"{name} {span(now - at)} ago" for name, at in sorted(noted.items()) if name in every)
    found += f"; late: {', '.join(sorted(late))}" if late else ""
    remedy = f"start a worker: {here.spelling.worker}; or beat, or {here.program} sweeper" if late else ""
    return Check("sweeps", "warn" if late else "ok", found, remedy)


def _workers(here: Here) -> list[Check]:
    """Whether the broker answers, and which queues with ready steps no worker consumes. The broker is asked in a thread: one that hangs
    must not hold up the answer."""
    answer: list[dict[str, Any] | None] = []
    problem = [f"no answer within {_BROKER_SECONDS:g} s"]

    def ask() -> None:
        try:
            answer.append(here.conductor.app.control.inspect(timeout=1.0).active_queues())
        except Exception as error:  # whatever a broker that is away raises
            problem.append(redact(f"{type(error).__name__}: {error}"))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_BROKER_SECONDS)
    if not answer:
        remedy = "start the broker, or correct broker_url of the Celery app; without it no worker is woken"
        return [Check("broker", "failed", problem[-1], remedy)]
    return [Check("broker", "ok", "answers"), _consumers(here, answer[0] or {})]


def _consumers(here: Here, answer: dict[str, Any]) -> Check:
    told = {queue["name"] for queues in answer.values() for queue in queues}
    consumed = {name for name in told if not name.startswith("conductor.pulse.")}  # a worker's messages to itself
    try:
        waiting = [view.queue for view in list_queues(here.engine.store) if view.ready and view.queue not in consumed]
    except Unreachable:
        return Check("workers", "unknown", "the store went away", "look again")
    start = here.spelling.worker
    found = f"{counted(len(answer), 'worker')} on {', '.join(sorted(consumed)) or 'no queue'}" if answer else "no worker answers"
    if waiting:
        remedy = f"{start} -Q {shlex.quote(','.join(waiting))}"
        return Check("workers", "warn", f"{found}; nobody consumes {', '.join(waiting)}", remedy)
    return Check("workers", "ok" if consumed else "warn", found, "" if consumed else start)
