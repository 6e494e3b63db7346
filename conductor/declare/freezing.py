"""From declarations to the frozen graph that runs keep, and to the code that workers run. Linear in the size of the workflow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from conductor.declare.binding import check_skippable, did_you_mean
from conductor.declare.code import Code
from conductor.declare.hints import describe
from conductor.declare.limits import Limit
from conductor.declare.steps import Declared, Feed
from conductor.errors import DeclarationError
from conductor.records import FailurePolicy, Graph, Node, NodeKind

__all__ = ["MAX_STEPS", "MAX_SUCCESSORS", "Frozen", "check_source", "check_successors", "freeze", "may_skip", "signature"]

MAX_STEPS = 20_000
MAX_SUCCESSORS = 1_000


@dataclass(frozen=True, slots=True)
class Frozen:
    """A declared workflow, ready to run."""

    graph: Graph
    codes: Mapping[int, Code]
    limits: tuple[Limit, ...] = ()


def freeze(workflow: str, steps: Sequence[Declared], beside: Sequence[Declared], policy: FailurePolicy) -> Frozen:
    """Resolve what was named before it existed, check the whole, and number what stands beside the steps (last steps, undos) after them."""
    if not steps:
        raise DeclarationError(where=workflow, problem="it has no steps")
    parents = _parents(workflow, steps)
    if any(isinstance(named, str) for step in steps for named in step.after):
        _check_late(workflow, steps, parents)
    _check_defaults(steps)
    for number, found in enumerate(beside, start=len(steps)):
        found.index = number
    fed = {step.source.index for step in steps if step.source is not None}
    everything = (*steps, *beside)
    signatures = [signature(found) for found in everything]
    nodes = tuple(
        _node(found, parents.get(found, ()), policy, signed) for found, signed in zip(everything, signatures, strict=True)
    )
    codes = {found.index: Code(found, signed, feeds_each=found.index in fed) for found, signed in zip(everything, signatures, strict=True)}
    return Frozen(Graph.build(workflow, nodes), codes, _limits(workflow, steps))


def limit_of(step: Declared) -> Limit | None:
    """The limit a step stands under: its own, else its capability's, else its workflow's. What runs no code stands under none."""
    if step.kind not in (NodeKind.STEP, NodeKind.EACH):
        return None
    own: Limit | None = step.options.limit
    if own is not None or step.options.capability is None or step.options.capability.options.limit is None:
        return own or step.flow.limit
    found: Limit = step.options.capability.options.limit
    if found.key is not None:
        problem = f"limit {found.name} of capability {step.options.capability.name} takes its key from the capability's parameters, "
        raise DeclarationError(where=step.where, problem=problem + "which a step has only when it runs; give the step a limit= of its own")
    return found


def _limits(workflow: str, steps: Sequence[Declared]) -> tuple[Limit, ...]:
    """Each limit once; two of one name in one workflow must be the same object, or at least say the same."""
    found: dict[str, Limit] = {}
    for step in steps:
        if (limit := limit_of(step)) is None:
            continue
        known = found.setdefault(limit.name, limit)
        if known.terms != limit.terms or known.key is not limit.key:
            raise DeclarationError(where=step.where, problem=f"limit {limit.name} is declared twice and differently; share one Limit")
    return tuple(found.values())


def signature(step: Declared) -> str:
    """What a worker must have to run this step: names, where data comes from, types; not the body nor options: the run's graph has them."""
    parts = [
        step.flow.name, step.name, str(step.kind), step.source.name if step.source is not None else "",
        [(slot.name, str(slot.feed), slot.source.name if slot.source is not None else "", describe(slot.annotation))
         for slot in step.slots if slot.feed is not Feed.DEFAULT],
        describe(step.returns), step.options.when is not None, *([step.calls.name] if step.calls is not None else []),
    ]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=5).hexdigest()


def may_skip(step: Declared, parents: Iterable[Declared]) -> bool:
    """Whether the step can end `skipped`: by its own condition, or because everything before it was."""
    before = tuple(parents)
    conditional = step.options.when is not None and step.kind is not NodeKind.EACH  # the condition of an each is asked for each item
    return conditional or (bool(before) and all(parent.may_skip for parent in before))


def check_source(step: Declared, parents: Iterable[Declared]) -> None:
    """If the list may be missing, nothing else may make the each run: an each without a list has no meaning."""
    source = step.source
    if source is not None and source.may_skip and any(parent is not source for parent in parents):
        problem = f"its list comes from step '{source.name}', which may be skipped while other steps before it are not; "
        raise DeclarationError(where=step.where, problem=problem + f"let '{source.name}' give an empty list instead of when=")


def check_successors(workflow: str, parent: Declared, count: int) -> None:
    if count > MAX_SUCCESSORS:
        problem = f"{count} steps follow it directly, the limit is {MAX_SUCCESSORS}; use `each` to fan out"
        raise DeclarationError(where=f"{workflow}.{parent.name}", problem=problem)


def _parents(workflow: str, steps: Sequence[Declared]) -> dict[Declared, tuple[Declared, ...]]:
    names = {step.name: step for step in steps}
    found: dict[Declared, tuple[Declared, ...]] = {}
    followers: dict[Declared, int] = {}
    for step in steps:
        before: dict[Declared, None] = dict.fromkeys(step.needs)
        if step.source is not None:
            before[step.source] = None
        for named in step.after:
            before[_resolved(step, named, names)] = None
        found[step] = tuple(sorted(before, key=lambda parent: parent.index))
        for parent in before:
            followers[parent] = followers.get(parent, 0) + 1
    for parent, count in followers.items():
        check_successors(workflow, parent, count)
    return found


def _resolved(step: Declared, named: Declared | str, names: Mapping[str, Declared]) -> Declared:
    if isinstance(named, Declared):
        return named
    if named not in names:
        have, close = ", ".join(list(names)[:20]), did_you_mean(named, names)
        raise DeclarationError(where=step.where, problem=f"after= names '{named}', no step has that name (have: {have}){close}")
    return names[named]


def _check_late(workflow: str, steps: Sequence[Declared], parents: Mapping[Declared, tuple[Declared, ...]]) -> None:
    """A name used before it is declared can close a circle, and can make a step skippable that was not when its followers were declared."""
    try:
        order = list(TopologicalSorter({step: parents[step] for step in steps}).static_order())
    except CycleError as error:
        circle = " → ".join(found.name for found in reversed(error.args[1]))
        raise DeclarationError(where=workflow, problem=f"its steps wait for each other in a circle: {circle}") from None
    for step in order:
        step.may_skip = may_skip(step, parents[step])
        check_source(step, parents[step])
        for slot in step.slots:
            if slot.source is not None:
                check_skippable(slot, slot.source, step.where)


def _check_defaults(steps: Sequence[Declared]) -> None:
    names = {step.name for step in steps}
    for step in steps:
        for slot in step.slots:
            if slot.feed is Feed.DEFAULT and slot.name in names and slot.name != step.name:
                raise DeclarationError(
                    where=step.where, problem=f"parameter '{slot.name}' is named like a step that is declared later; declare that one first"
                )


def _node(step: Declared, parents: tuple[Declared, ...], policy: FailurePolicy, signed: str) -> Node:
    options, limit = step.options, limit_of(step)
    wary = options.effect or (options.capability is not None and options.capability.alone)
    return Node(
        index=step.index,
        name=step.name,
        kind=step.kind,
        parents=tuple(parent.index for parent in parents),
        needs=tuple(source.index for source in step.needs),
        source=step.source.index if step.source is not None else None,
        undoes=step.undoes.index if step.undoes is not None else None,
        queue=options.queue,
        priority=options.priority,
        alone=wary or options.timeout_ms > 0 or limit is not None or step.kind is NodeKind.UNDO,
        limit="" if limit is None else limit.name,
        limit_terms="" if limit is None else limit.terms,
        wants_input=any(slot.feed is Feed.INPUT for slot in step.slots),
        timeout_ms=options.timeout_ms,
        lease_ms=options.lease_ms,
        delay_ms=step.delay_ms,
        max_parallel=options.max_parallel,
        policy=options.policy or policy,
        retry=options.retry.policy if options.retry is not None else None,
        result=options.result,
        signature=signed,
        calls=step.calls.name if step.calls is not None else "",
        capability=options.capability.name if options.capability is not None else "",
        budget=options.capability.options.budget if options.capability is not None else 0,
        signal=step.signal,
        default=step.default,
        idle_ms=step.idle_ms,
        instructions=step.instructions,
    )
