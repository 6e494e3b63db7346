"""Which operations a text names: an id, the beginning of one, or `last`. A step of a run is named by its run: `RUN:STEP[:ITEM]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conductor.errors import BadInput, UnknownOperation
from conductor.operations.listing import list_operations
from conductor.operations.read import OpFilter
from conductor.runs.naming import NEWEST, seen
from conductor.store.listing import Ambiguous, find_run_by_prefix

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["operations_named"]

_SHORT = 18


def operations_named(engine: Engine, text: str, *, within: frozenset[str] | None = None) -> list[str]:
    """The operation that a text names, or several if it is the beginning of more than one id. UnknownOperation if it names none."""
    named = text.strip()
    if named == NEWEST:
        found = [one.operation_id for one in list_operations(engine, OpFilter(sessions=within), limit=1, steps=False)]
    else:
        found = seen(engine, _beginning(engine, named.lower()), within) or _refuse_run(engine, named, within)
    if not found:
        raise UnknownOperation(operation_id=text, namespace=engine.store.namespace)
    return found


def _beginning(engine: Engine, text: str) -> list[str]:
    """Every id is looked at: that of an operation which a step or a schedule has started tells another time than that of its making."""
    if len(text) < 4 or not all(sign in "0123456789abcdef-" for sign in text):
        raise _refused(f"{text!r} is not the beginning of an operation id; give at least 4 of its characters")
    store, found = engine.store, set[str]()
    for number in range(store.partitions):
        found |= {op for op, _ in store.client().zscan_iter(store.keys.of(number, "ops"), match=f"{text}*", count=1000)}
    return sorted(found)


def _refuse_run(engine: Engine, text: str, within: frozenset[str] | None) -> list[str]:
    """Nothing; but whoever names a run is told how its steps are named."""
    try:
        run_id = find_run_by_prefix(engine.store, text)
    except Ambiguous:
        return []
    if run_id and seen(engine, [run_id], within):
        raise _refused(f"{run_id} is a run; name a step of it: {run_id[:_SHORT]}:STEP")
    return []


def _refused(problem: str) -> BadInput:
    return BadInput(what="name of an operation", field="operation", problem=problem)
