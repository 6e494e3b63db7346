"""Undoing a run: which steps, in which order, and what each undo receives.

Authority: the event log. When a run begins to be undone its generation is raised, so nothing forward can follow in the log, and whoever
holds the fence of the plan reads the same log and makes the same plan. Trust: an attempt whose holder was refused may still be in the
middle of its body, the run's own or one of anything that it has called; the plan waits until the holders have said that it ended, or their
leases are over. Failure: a lost plan is made anew, its first chunk begins the list anew; a lost undo is repeated under the same key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from conductor import codec
from conductor.declare.code import Code
from conductor.declare.context import key_of
from conductor.declare.effects import Verdict
from conductor.declare.judging import Judged
from conductor.errors import BadResult
from conductor.log import Event, parse_all
from conductor.records import Attempt, Graph, Node, NodeKind, Outcome, OutcomeKind

if TYPE_CHECKING:
    from conductor.runs.inputs import Inputs
    from conductor.store import Store

__all__ = ["QUESTIONED", "Place", "fed_for_undo", "key_of_undo", "make_plan", "plan_undos", "undone_attempt"]

QUESTIONED = "q"  # flag of an undo: what it undoes is an attempt in doubt
_CHUNK = 1_000
_MARGIN_MS = 50

Place = tuple[int, int | None]
Fed = tuple[Any, ...]


def plan_undos(graph: Graph, events: Iterable[Event]) -> list[str]:
    """What is undone, the latest first: `index[:item]` of the undo, `q` behind what is in doubt."""
    undos = {node.undoes: node.index for node in graph.nodes if node.undoes is not None}
    found: dict[Place, int] = {}  # by the event that says so: since when it counts
    doubtful: dict[Place, int] = {}
    running: dict[Place, None] = {}
    for event in events:
        if event.index not in undos:
            continue
        eaches = graph.nodes[event.index].kind is NodeKind.EACH
        if eaches and event.items is None and event.fence == 0:
            continue  # the last item ended the each: its items speak for themselves
        for item in event.item_numbers if event.items else (None,):
            place = (event.index, item)
            if event.kind == "claimed":
                running[place] = None
            elif event.kind == "completed":
                running.pop(place, None)
                doubtful.pop(place, None)
                found[place] = event.number
            elif event.kind == "called":  # the child does not go on, and what it has done is not undone by itself
                running.pop(place, None)
                doubtful[place] = event.number
            elif event.kind in _ENDS:
                running.pop(place, None)
                if event.doubt or event.kind == "lost":
                    doubtful[place] = event.number
                elif event.kind != "given_back":  # one that was given back is as doubtful as it was
                    doubtful.pop(place, None)
    last = max([*found.values(), *doubtful.values()], default=0)
    doubtful |= {place: last + 1 + number for number, place in enumerate(running)}
    everything = sorted([(number, place, "") for place, number in found.items()]
                        + [(number, place, QUESTIONED) for place, number in doubtful.items()], reverse=True, key=_since)
    return [_spell(undos[index], item) + flag for _, (index, item), flag in everything]


_ENDS = ("skipped", "failed", "retry_scheduled", "given_back", "lost")


def _since(entry: tuple[int, Place, str]) -> tuple[int, int]:
    number, (_, item), _ = entry
    return number, -1 if item is None else item


def _spell(index: int, item: int | None) -> str:
    return str(index) if item is None else f"{index}:{item}"


def make_plan(store: Store, held: Attempt, graph: Graph) -> Outcome:
    """Read the log, stage the plan, and say how long it is; or wait for attempts that may still be in the middle of their bodies."""
    if (left := store.last_lease(held.run_id, besides=held.ref) - held.at) > 0:
        return Outcome(held, OutcomeKind.RETRY, reason="attempts_running", delay_ms=left + _MARGIN_MS)
    places = plan_undos(graph, parse_all(store.log_of(held.run_id)))
    for number, first in enumerate(range(0, max(1, len(places)), _CHUNK)):
        if store.stage_undo(held, number, places[first : first + _CHUNK]) != "OK":
            break  # the commit will be refused as well
    return Outcome(held, OutcomeKind.COMPLETED, payload=codec.NULL, total=len(places))


def undone_attempt(held: Attempt, node: Node) -> Attempt:
    """The attempt as that of the step which is undone: whose inputs the undo receives."""
    assert node.undoes is not None
    return replace(held, index=node.undoes, needs=())


def key_of_undo(held: Attempt, graph: Graph, node: Node) -> str:
    """The key of the step or item, and `:undo`."""
    assert node.undoes is not None
    return f"{key_of(held.run_id, graph.nodes[node.undoes].name, held.item)}:undo"


def fed_for_undo(
    store: Store, inputs: Inputs, held: Attempt, graph: Graph, code: Code, target: Code | None, ask: Callable[[], Judged], limit: int,
) -> Fed | None:
    """What the arguments of an undo are made from: input, results, item. None where what it would undo is verified to be absent."""
    node = graph.nodes[held.index]
    assert node.undoes is not None
    of = graph.nodes[node.undoes]
    result: Any = _result(store, inputs, held, graph, of) if QUESTIONED not in held.flags.partition("w")[0] else None
    if QUESTIONED in held.flags.partition("w")[0] and target is not None:
        judged = ask()
        if judged.verdict is Verdict.ABSENT:
            return None
        if judged.verdict is Verdict.VERIFIED and judged.has_value:
            result = _given(target, judged, limit)
    others = tuple(need for need in node.needs if need != node.undoes)
    read = dict(zip(others, inputs.values(held, graph, replace(node, needs=others), ()), strict=True))
    stored: Mapping[int, Any] = {**read, node.undoes: result}
    values = dict(zip(code.needs, (stored[need] for need in node.needs), strict=True))
    item = inputs.item(held, replace(of, needs=())) if held.item is not None else None
    return inputs.start(held) if node.wants_input else None, values, item


def _given(target: Code, judged: Judged, limit: int) -> str | None:
    try:
        return target.landed(judged.value, limit)
    except BadResult:
        return None  # it happened, but what it gave does not fit: as good as not known


def _result(store: Store, inputs: Inputs, held: Attempt, graph: Graph, of: Node) -> Any:
    """What the step or item gave."""
    if held.item is not None:
        return store.values(store.keys.items(held.run_id, of.index, held.item), [f"{held.item}r"])[0]
    return inputs.values(held, graph, replace(of, needs=(of.index,), source=None), ())[0]
