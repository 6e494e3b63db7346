"""`@x.undo`: what each parameter of a compensation receives, and the nodes that stand for undos in the frozen graph.

An undo takes the parameters of the step it undoes, by their names; the run's input; `ctx`; and what the step gave, as `result` or under
the step's name. That may be None: an attempt in doubt may have taken effect without anybody knowing what it gave.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import NoneType
from typing import TYPE_CHECKING, Any

from conductor.declare.context import Ctx
from conductor.declare.fitting import fits
from conductor.declare.hints import MISSING, accepts_none, bare, describe, members, resolve, signature_of, without_none
from conductor.declare.options import Options
from conductor.declare.shapes import shape_of
from conductor.declare.steps import Call, Declared, Feed, Hook, Sleep, Slot, Undo
from conductor.errors import DeclarationError
from conductor.records import FailurePolicy, NodeKind

if TYPE_CHECKING:
    from conductor.declare.workflow import Workflow

__all__ = ["check_compensation", "declare_undo", "plan_of"]

_RESULT = "result"


def declare_undo(fn: Callable[..., Any], step: Declared, options: Options, input_type: Any) -> Undo[..., Any]:
    """The compensation of a step; options it is not given are those of the step."""
    if isinstance(step, (Hook, Sleep, Undo)):
        raise DeclarationError(where=step.where, problem="only a step or an each can be undone")
    where = f"{step.where}.undo"
    hints = resolve(fn, where)
    slots = tuple(_slot(parameter, hints, step, input_type, where) for parameter in signature_of(fn, where).parameters.values())
    own = step.options
    options = replace(options, queue=options.queue or own.queue, priority=own.priority if options.priority is None else options.priority)
    return Undo(
        fn, flow=step.flow, name=f"{step.name}:undo", kind=NodeKind.UNDO, index=-1, options=options, slots=slots, returns=MISSING,
        shape=shape_of(MISSING, where), undoes=step)


def plan_of(flow: Workflow[Any], policy: FailurePolicy) -> Undo[..., Any]:
    """The node that makes the plan: claimed first, it reads the log. Its policy says whether the whole workflow asks to be undone."""
    return Undo(
        _nothing, flow=flow, name="undo:plan", kind=NodeKind.UNDO, index=-1, options=Options(policy=policy), returns=NoneType,
        shape=shape_of(NoneType, flow.name))


def check_compensation(workflow: str, steps: Sequence[Declared], undos: Sequence[Declared], policy: FailurePolicy) -> None:
    """Whoever asks for compensation must say how something is undone."""
    asking = next((step.where for step in steps if (step.options.policy or policy) is FailurePolicy.COMPENSATE), None)
    if asking and not undos:
        where = workflow if policy is FailurePolicy.COMPENSATE else asking
        raise DeclarationError(where=where, problem='on_failure="compensate", but no step has an undo; declare one with @step.undo')


def _nothing() -> None:
    return None


def _slot(parameter: inspect.Parameter, hints: dict[str, Any], step: Declared, input_type: Any, where: str) -> Slot:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise DeclarationError(where=where, problem=f"parameter '{parameter}' has no name to be wired by; name each parameter")
    slot = Slot(
        parameter.name, Feed.DEFAULT, annotation=hints.get(parameter.name, MISSING),
        default=MISSING if parameter.default is parameter.empty else parameter.default,
        keyword_only=parameter.kind is parameter.KEYWORD_ONLY)
    if bare(without_none(slot.annotation)) is Ctx or (slot.annotation is MISSING and slot.name == "ctx"):
        return replace(slot, feed=Feed.CTX)
    if slot.name in (_RESULT, step.name):
        return _from_result(slot, step, where)
    own = next((one for one in step.slots if one.name == slot.name and one.feed is not Feed.DEFAULT), None)
    if own is not None:
        return _from_own(slot, own, step, where)
    if input_type is not None and (slot.annotation == input_type or bare(input_type) in members(slot.annotation)):
        return replace(slot, feed=Feed.INPUT, shape=shape_of(input_type, where))
    if slot.default is not MISSING:
        return slot
    have = ", ".join(dict.fromkeys([*(one.name for one in step.slots if one.feed is not Feed.DEFAULT), _RESULT, "ctx"]))
    problem = f"undo takes '{slot.name}', which is neither a parameter of the step nor its result (have: {have})"
    raise DeclarationError(where=where, problem=problem)


def _from_result(slot: Slot, step: Declared, where: str) -> Slot:
    gives = step.gives if isinstance(step, Call) else step.returns
    if not fits(gives, slot.annotation):
        raise DeclarationError(
            where=where, problem=f"parameter '{slot.name}' is declared {describe(slot.annotation)}, the step gives {describe(gives)}")
    if slot.default is MISSING and not accepts_none(slot.annotation):
        wanted = describe(slot.annotation)
        problem = f"parameter '{slot.name}' is declared {wanted}, but of an attempt in doubt nobody knows the result and the undo gets None"
        raise DeclarationError(where=where, problem=f"{problem}; declare it {wanted} | None, or give it a default")
    return replace(slot, feed=Feed.STEP, source=step, shape=shape_of(slot.annotation, where))


def _from_own(slot: Slot, own: Slot, step: Declared, where: str) -> Slot:
    if slot.annotation is MISSING:
        return replace(own, keyword_only=slot.keyword_only, default=own.default if slot.default is MISSING else slot.default)
    if own.annotation is not MISSING and not fits(own.annotation, slot.annotation):
        problem = f"parameter '{slot.name}' is declared {describe(slot.annotation)}, in the step it is {describe(own.annotation)}"
        raise DeclarationError(where=where, problem=problem)
    shape = own.shape if slot.annotation == own.annotation else shape_of(slot.annotation, where)
    return replace(own, annotation=slot.annotation, shape=shape, keyword_only=slot.keyword_only)
