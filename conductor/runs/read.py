"""Looking at runs: what `show`, `list` and `why` tell. A few pipelined round trips; a result is made of the leaves when asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from conductor import codec
from conductor.declare.results import Results
from conductor.errors import UnknownRun
from conductor.idleness import Waiter, active_waiters
from conductor.log import Event
from conductor.records import Graph, Node, NodeKind, RetryPolicy
from conductor.runs.around import busy_queues, cancelled_by, concerning, worker_names
from conductor.runs.undone import read_undone
from conductor.runs.words import counted, error_text
from conductor.state import STEP, StepState, terminal
from conductor.store.lanes import Place, read_place
from conductor.store.reads import (
    EachRecord,
    RunRecord,
    Source,
    StepRecord,
    error_name,
    read_children,
    read_each,
    read_events,
    read_graph,
    read_items,
    read_live,
    read_now,
    read_run,
    read_steps,
)
from conductor.store.results import item_results, read_results
from conductor.store.standing import Standing, read_attempt_errors, read_standing

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = [
    "RunView", "StepView", "counted", "error_text", "failed_steps", "leaf_values", "run_result", "step_view", "summary", "to_json",
    "view_run", "with_queues",
]

_ENDED = terminal(STEP)
_TAIL, _TAIL_PAGES = 500, 20
_SHOWN_ITEMS = 3
_SHOWN = (
    "attempt", "max_attempts", "losses", "queue", "since", "waited_ms", "ran_ms", "due_at", "lease_until", "worker", "reason", "calls",
    "child", "limited", "aside",
)


@dataclass(frozen=True, slots=True)
class StepView:
    """A step as a person sees it. `state` of a step that had not ended when its run did is `cancelled`: that is derived, not stored."""

    index: int
    name: str
    kind: NodeKind
    state: StepState
    attempt: int = 0
    max_attempts: int = 0
    losses: int = 0
    queue: str = ""
    since: int = 0
    waited_ms: int = 0
    ran_ms: int = 0
    due_at: int = 0
    lease_until: int = 0
    worker: str = ""
    reason: str = ""
    aside: bool = False
    limited: str = ""  # the limit it waits for
    poison: bool = False
    error: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)
    each: EachRecord | None = None
    calls: str = ""  # the workflow it runs
    child: str = ""  # the run it has called


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as a person sees it, at `now` of the store's clock. `holds` are the paused scopes that concern it, with their reasons."""

    run: RunRecord
    graph: Graph
    now: int
    steps: tuple[StepView, ...]
    holds: Mapping[str, str] = field(default_factory=dict)
    unanswered: Mapping[str, int] = field(default_factory=dict)  # queue → ms since a poke that nobody answered
    starts_at: int = 0
    busy: frozenset[str] = frozenset()  # queues in which somebody works; only `with_queues` looks
    actor: str = ""  # who cancelled it, if anybody said so
    undos_left: int = 0  # planned and not begun
    place: Place | None = None  # where it stands in its lane, if it has one

    @property
    def duration_ms(self) -> int:
        return max(0, (self.run.ended_at or self.now) - self.run.created_at)

    @property
    def undos_done(self) -> int:
        """Undos that have ended; one at a time is under way."""
        under_way = any(step.kind is NodeKind.UNDO and step.state not in _ENDED for step in self.steps)
        return max(0, int(self.run.undone or 0) - self.undos_left - under_way)

    @property
    def progress(self) -> dict[str, int]:
        """How many steps are where; last steps are not counted."""
        counts: dict[str, int] = {}
        for step in self.steps:
            if not step.kind.beside:
                counts[step.state] = counts.get(step.state, 0) + 1
        return counts

    @property
    def waiters(self) -> tuple[Waiter, ...]:
        """What it waits for, with the times at which that is over."""
        return active_waiters(self.run, self.graph, {step.index: step.due_at for step in self.steps})

    def named(self, *states: StepState) -> list[StepView]:
        return [step for step in self.steps if step.state in states]


def view_run(source: Source, run_id: str) -> RunView:
    """Everything about one run except its payloads."""
    run = read_run(source, run_id)
    if run is None:
        raise UnknownRun(run_id=run_id, namespace=source.namespace)
    graph = read_graph(source, run.partition, run.graph)
    records, eaches = read_steps(source, run_id, graph), read_each(source, run_id, graph)
    standing = read_standing(source, run, graph, records)
    said = _from_log(source, run, records)
    live = read_live(source, run_id)
    errors = _errors(source, run, records, eaches)
    children = read_children(source, run_id, graph)
    names = worker_names(source, (event.worker for event in said.values()))
    views = []
    undone, left = read_undone(source, run, graph, records)
    records |= {index: found.record for index, found in undone.items()}
    for node in graph.nodes:
        record = records[node.index]
        if node.kind is NodeKind.UNDO and record.state is StepState.PENDING:
            continue  # nothing of it was asked for
        view = step_view(run, node, record, standing, eaches.get(node.index))
        event = said.get(node.index)
        progress = {} if record.state in _ENDED else live.get(str(node.index), {})
        views.append(replace(
            view, each=undone[node.index].each if node.index in undone else view.each,
            worker=names.get(event.worker, "") if event else "", reason=_reason(record, event), error=errors.get(node.index, {}),
            progress=progress, calls=node.calls, child=children.get(node.index, ""),
        ))
    holds = {scope: standing.holds[scope] for scope in concerning(standing.holds, run, graph)}
    return RunView(
        run, graph, read_now(source), tuple(views), holds, standing.unanswered, standing.starts_at, actor=cancelled_by(source, run),
        place=read_place(source, run) if run.lane and not run.ended else None, undos_left=left,
    )


def with_queues(source: Source, view: RunView) -> RunView:
    """The same view, with the queues in which somebody works if a step of it stands ready: what `why` asks before it calls workers busy."""
    ready = view.named(StepState.READY) or any(step.each and step.each.listed for step in view.steps)
    return replace(view, busy=busy_queues(source)) if ready and not view.run.ended else view


def step_view(run: RunRecord, node: Node, record: StepRecord, standing: Standing, each: EachRecord | None) -> StepView:
    """One step, from its record and where it stands."""
    over = run.ended and record.state not in _ENDED and not node.kind.beside
    since = record.ready_at + (record.waited_ms if record.state not in (StepState.READY, StepState.WAITING) else 0)
    return StepView(
        node.index, node.name, node.kind, StepState.CANCELLED if over else record.state, record.attempt,
        1 + (node.retry or RetryPolicy()).max, record.losses, node.queue or run.queue, since, record.waited_ms, record.ran_ms,
        standing.due.get(node.index, 0), standing.leases.get(node.index, 0), aside=node.signature in standing.aside,
        limited=node.limit if node.index in standing.limited else "", poison=record.poison,
        each=each,
    )


def _reason(record: StepRecord, event: Event | None) -> str:
    if event is None or record.state not in (StepState.FAILED, StepState.SKIPPED, StepState.RETRY_PENDING, StepState.READY):
        return ""
    return event.reason


def _from_log(source: Source, run: RunRecord, records: Mapping[int, StepRecord]) -> dict[int, Event]:
    """The last event of each step that has moved and not simply completed, from the end of the log; old ones are not searched for ever."""
    wanted = {index for index, record in records.items() if record.state not in (StepState.PENDING, StepState.COMPLETED)}
    found: dict[int, Event] = {}
    end = run.events
    for _ in range(_TAIL_PAGES):
        if end <= 0 or wanted <= found.keys():
            break
        first = max(0, end - _TAIL)
        for event in reversed(read_events(source, run.run_id, first, end - first)):
            if event.index in wanted and event.index is not None and (event.items is None or event.kind == "claimed"):
                found.setdefault(event.index, event)
        end = first
    return found


def _errors(
    source: Source, run: RunRecord, records: Mapping[int, StepRecord], eaches: Mapping[int, EachRecord]
) -> dict[int, dict[str, Any]]:
    """The latest error of each step that failed or will be repeated; of an `each` that of one of its bad items."""
    wanted: dict[str, int] = {}
    for index, record in records.items():
        if record.attempt and record.state in (StepState.FAILED, StepState.RETRY_PENDING, StepState.READY):
            wanted |= _names(str(index), record.attempt, run.generation, index)
    for index, each in eaches.items():
        for item in each.bad[:_SHOWN_ITEMS]:
            page = next(iter(read_items(source, run.run_id, index, item + 1, page=1 + item // 64)), {})
            if item in page:
                wanted |= _names(f"{index}:{item}", page[item].attempt, run.generation, index)
    found: dict[int, dict[str, Any]] = {}
    for name, error in read_attempt_errors(source, run.run_id, list(wanted)).items():
        found.setdefault(wanted[name], error)
    return found


def _names(place: str, attempt: int, generation: int, index: int) -> dict[str, int]:
    """Under which names its error may be kept, the latest generation first: a deadline raises it without new attempts."""
    return {error_name(place, attempt, one): index for one in range(generation, 0, -1)}


def failed_steps(source: Source, run: RunRecord) -> list[tuple[str, str]]:
    """Which steps failed, and why in a few words: what `RunFailed` names."""
    view = view_run(source, run.run_id)
    told = []
    for step in view.named(StepState.FAILED):
        items = f" (items {', '.join(map(str, step.each.bad))})" if step.each and step.each.bad else ""
        told.append((step.name + items, error_text(step.error) or step.reason or "no error was recorded"))
    return told


def leaf_values(
    source: Source, run_id: str, graph: Graph, known: Mapping[int, str | None] | None = None
) -> dict[str, str | Results[Any] | None]:
    """The payloads of the leaves by name; those of an `each` are read by pages when they are looked at."""
    plain = [node.index for node in graph.leaves if node.kind is not NodeKind.EACH]
    missing = [index for index in plain if known is None or index not in known or (known[index] or "").startswith("@")]
    payloads = dict(known or {}) | read_results(source, run_id, graph, missing)
    values: dict[str, str | Results[Any] | None] = {node.name: payloads.get(node.index) for node in graph.leaves}
    if len(plain) < len(graph.leaves):
        eaches, records = read_each(source, run_id, graph), read_steps(source, run_id, graph, [node.index for node in graph.leaves])
        for node in graph.leaves:
            if node.index in eaches and records[node.index].state is StepState.COMPLETED:
                values[node.name] = _lazy(source, run_id, node.index, eaches[node.index].total)
    return values


def _lazy(source: Source, run_id: str, index: int, total: int) -> Results[Any]:
    def page(start: int, stop: int) -> Sequence[str | None]:
        return [payload for part in item_results(source, run_id, index, stop, start) for payload in part]

    return Results(page, total)


def run_result(engine: Engine, run_id: str, workflow: str, graph: Graph, known: Mapping[int, str | None] | None = None) -> Any:
    """The value of a completed run: typed by its workflow if this process has declared it, else as plain JSON."""
    values = leaf_values(engine.store, run_id, graph, known)
    if flow := engine.workflows.get(workflow):
        return flow.result_of(values)
    read = {name: codec.decode(value) if isinstance(value, str) else value and list(value) for name, value in values.items()}
    return next(iter(read.values())) if len(read) == 1 else read


def summary(
    run: RunRecord, now: int, *, starts_at: int = 0, held: Sequence[str] = (), waiters: Sequence[Waiter] = (),
) -> dict[str, Any]:
    """One row of a list. A run that has ended has nothing ready or running, whatever its counters were when it was cancelled."""
    return {
        "run_id": run.run_id, "workflow": run.workflow, "state": run.state, "reason": run.reason, "generation": run.generation,
        "queue": run.queue, "priority": run.priority, "lane": run.lane or None, "session": run.session, "key": run.key,
        "tags": list(run.tags),
        "created_at": run.created_at, "ended_at": run.ended_at or None, "deadline": run.deadline or None,
        "duration_ms": max(0, (run.ended_at or now) - run.created_at), "progress_at": run.progress_at,
        "idle_since": run.idle_since or None, "idle_ms": max(0, now - run.idle_since) if run.idle_since else None,
        "active_waiters": [asdict(waiter) for waiter in waiters],
        "forked_from": run.forked_from or None, "parent_id": run.bound_to.partition(";")[0] or None, "root_id": run.root or None,
        "starts_at": starts_at or None, "held": list(held),
        "events": run.events, "steps_left": run.left, "steps_failed": run.failed, "running": 0 if run.ended else run.active,
        "ready": 0 if run.ended else run.ready,
    }


def to_json(view: RunView) -> dict[str, Any]:
    """A run as `show` and HTTP tell it, at `now` of the store's clock. Empty fields of steps are left out; `undo` names the step that
    takes it back."""
    steps, undos = [], {node.undoes: node.name for node in view.graph.nodes if node.undoes is not None}
    for step in view.steps:
        told: dict[str, Any] = {"index": step.index, "name": step.name, "kind": step.kind, "state": step.state}
        if step.index in undos:
            told["undo"] = undos[step.index]
        for name in _SHOWN:
            if value := getattr(step, name):
                told[name] = value
        if step.error:
            told["error"] = dict(step.error)
        if step.progress:
            told["progress"] = dict(step.progress)
        if step.each is not None:
            told["items"] = {
                "total": step.each.total, "done": step.each.done, "failed": step.each.failed, "active": step.each.active,
                "bad": list(step.each.bad),
            }
        steps.append(told)
    told = summary(view.run, view.now, starts_at=view.starts_at, held=list(view.holds), waiters=view.waiters)
    if view.place is not None and view.place.position:
        told |= {
            "lane_position": view.place.position, "lane_queued": view.place.queued, "lane_until": view.place.until or None,
            "lane_max_active": view.place.max_active,
        }
    if view.run.undone:
        told |= {"undos": int(view.run.undone), "undos_done": view.undos_done}
    if view.actor:
        told["actor"] = view.actor
    return told | {"now": view.now, "progress": view.progress, "holds": dict(view.holds), "steps": steps}
