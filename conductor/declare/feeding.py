"""From payloads to arguments: one small function per parameter, made once and called for every attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_origin

from conductor import codec
from conductor.declare.binding import element_of
from conductor.declare.context import Ctx
from conductor.declare.hints import MISSING, bare, without_none
from conductor.declare.results import Results
from conductor.declare.shapes import Misfit, shape_of
from conductor.declare.steps import Declared, Feed, Slot
from conductor.errors import PayloadMismatch

__all__ = ["OUTCOME", "Feeder", "Values", "feeder", "mismatch"]

OUTCOME = -1  # under which index a last step finds how its run ends

Values = Mapping[int, "str | Results[Any] | None"]
Feeder = Callable[[Ctx, "str | None", Values, "str | None"], Any]


def feeder(slot: Slot, step: Declared) -> Feeder:
    """What gives the slot its value. Arguments: context, input payload, payloads by index, item payload."""
    if slot.feed is Feed.CTX:
        return lambda ctx, start, values, item: ctx
    if slot.feed is Feed.DEFAULT:
        return lambda ctx, start, values, item: slot.default
    if slot.feed is Feed.STEP:
        return _from_step(slot, step)
    read = _guarded(slot, step)
    if slot.feed is Feed.INPUT:
        return lambda ctx, start, values, item: read(codec.NULL if start is None else start)
    if slot.feed is Feed.ITEM:
        return lambda ctx, start, values, item: read(codec.NULL if item is None else item)
    return lambda ctx, start, values, item: read(_text(values[OUTCOME]))


def _from_step(slot: Slot, step: Declared) -> Feeder:
    assert slot.source is not None
    index = slot.source.index
    absent = None if slot.default is MISSING else slot.default
    read = _guarded(slot, step)
    wanted = bare(without_none(slot.annotation))
    lazy = wanted is Results or get_origin(wanted) is Results
    member = _guarded(slot, step, element_of(wanted))

    def feed(ctx: Ctx, start: str | None, values: Values, item: str | None) -> Any:
        value = values[index]
        if value is None:  # the step was skipped
            return absent
        if isinstance(value, str):
            return Results.of(codec.split_list(value), member) if lazy else read(value)
        view = value.with_decoder(member)
        return view if lazy else list(view)

    return feed


def _guarded(slot: Slot, step: Declared, annotation: Any = None) -> Callable[[str], Any]:
    """Read as the slot's type (or as `annotation`); a value that no longer fits names step, parameter and field."""
    shape = shape_of(annotation, step.where) if annotation is not None or slot.shape is None else slot.shape
    load = shape.read

    def read(payload: str) -> Any:
        try:
            return load(payload)
        except Misfit as misfit:
            raise mismatch(misfit, step.flow.name, step.name, slot.name, shape.text) from None

    return read


def mismatch(misfit: Misfit, workflow: str, step: str, parameter: str, expected: str) -> PayloadMismatch:
    return PayloadMismatch(
        workflow=workflow, step=step, parameter=parameter, expected=expected, field=misfit.field, problem=misfit.problem,
    )


def _text(value: str | Results[Any] | None) -> str:
    return value if isinstance(value, str) else codec.NULL
