"""Wiring by parameter names: what each parameter of a step receives, decided and checked when the step is declared."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, get_args, get_origin

from conductor.declare.context import Ctx
from conductor.declare.fitting import fits
from conductor.declare.hints import MISSING, accepts_none, bare, describe, members, resolve, signature_of, without_none
from conductor.declare.outcome import RunOutcome
from conductor.declare.results import Results
from conductor.declare.shapes import shape_of
from conductor.declare.steps import Declared, Feed, Sleep, Slot
from conductor.errors import DeclarationError
from conductor.records import NodeKind

__all__ = ["bind", "check_skippable", "did_you_mean", "element_of", "return_type"]

_SMALL = 100
_HOOKS = (NodeKind.ON_FAILURE, NodeKind.ON_FINISH)


def bind(
    fn: Callable[..., Any],
    *,
    where: str,
    kind: NodeKind,
    earlier: Mapping[str, Declared],
    input_type: Any,
    source: Declared | None = None,
    using: Mapping[str, Declared] | None = None,
) -> tuple[tuple[Slot, ...], dict[str, Any]]:
    """The slots of `fn`, and its annotations. `using` wires parameters to steps of other names."""
    hints = resolve(fn, where)
    binder = _Binder(where, kind, earlier, input_type, source, using or {}, hints)
    slots = tuple(binder.slot(parameter) for parameter in signature_of(fn, where).parameters.values())
    if unused := set(binder.using) - {slot.name for slot in slots}:
        raise DeclarationError(where=where, problem=f"using= names {_listed(unused)}, which are not among its parameters")
    if kind is NodeKind.EACH and not any(slot.feed is Feed.ITEM for slot in slots):
        problem = "no parameter is left for the item; add one that is neither named like a step nor typed like the input"
        raise DeclarationError(where=where, problem=problem)
    return slots, hints


def return_type(hints: Mapping[str, Any]) -> Any:
    return hints.get("return", MISSING)


class _Binder:
    """Decides slot by slot; in an `each` the first parameter that nothing else claims is the item."""

    def __init__(
        self, where: str, kind: NodeKind, earlier: Mapping[str, Declared], input_type: Any, source: Declared | None,
        using: Mapping[str, Declared], hints: Mapping[str, Any],
    ) -> None:
        self.where, self.kind, self.earlier, self.input_type = where, kind, earlier, input_type
        self.source, self.using, self.hints = source, using, hints
        self.item_taken = False

    def slot(self, parameter: inspect.Parameter) -> Slot:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise self._wrong(f"parameter '{parameter}' has no name to be wired by; name each parameter")
        slot = Slot(
            parameter.name,
            Feed.DEFAULT,
            annotation=self.hints.get(parameter.name, MISSING),
            default=MISSING if parameter.default is parameter.empty else parameter.default,
            keyword_only=parameter.kind is parameter.KEYWORD_ONLY,
        )
        return self._fed(slot)

    def _fed(self, slot: Slot) -> Slot:
        if self.kind in _HOOKS and bare(slot.annotation) is RunOutcome:
            return replace(slot, feed=Feed.OUTCOME, shape=shape_of(RunOutcome, self.where))
        if bare(without_none(slot.annotation)) is Ctx or (slot.annotation is MISSING and slot.name == "ctx"):
            return replace(slot, feed=Feed.CTX)
        named = self.using.get(slot.name) or self.earlier.get(slot.name)
        if named is not None:
            return self._from_step(slot, named)
        if self._takes_input(slot):
            return replace(slot, feed=Feed.INPUT, shape=shape_of(self.input_type, self.where))
        if self.source is not None and not self.item_taken:
            self.item_taken = True
            return self._from_item(slot, self.source)
        return self._by_default(slot)

    def _takes_input(self, slot: Slot) -> bool:
        if self.input_type is None or (self.source is not None and not self.item_taken and not _is_model(self.input_type)):
            return False  # an item of the same plain type as the input is the item
        if slot.annotation is MISSING:
            return slot.name == "input"
        return bare(self.input_type) in members(slot.annotation) or slot.annotation == self.input_type

    def _from_step(self, slot: Slot, named: Declared) -> Slot:
        if self.kind in _HOOKS:
            raise self._wrong(f"parameter '{slot.name}' names step '{named.name}', but a last step receives only input, ctx and RunOutcome")
        if isinstance(named, Sleep):
            raise self._wrong(f"parameter '{slot.name}': '{named.name}' is a sleep and gives no value; order by after={named.name}")
        if named is self.source:
            raise self._wrong(
                f"parameter '{slot.name}' is named like the list it runs over; name the item otherwise, or read the list in another step"
            )
        wanted = element = without_none(slot.annotation)
        if get_origin(bare(wanted)) is Results or bare(wanted) is Results:
            element = list[get_args(bare(wanted))[0]] if get_args(bare(wanted)) else list[Any]  # type: ignore[misc]
        if not fits(named.gives, element if element is not wanted else slot.annotation):
            raise self._wrong(
                f"parameter '{slot.name}' is declared {describe(slot.annotation)}, step '{named.name}' gives {describe(named.gives)}"
            )
        check_skippable(slot, named, self.where)
        shape = shape_of(element if element is not wanted else slot.annotation, self.where)
        return replace(slot, feed=Feed.STEP, source=named, shape=shape)

    def _from_item(self, slot: Slot, source: Declared) -> Slot:
        given = element_of(source.gives)
        if not fits(given, slot.annotation):
            raise self._wrong(
                f"parameter '{slot.name}' is declared {describe(slot.annotation)}, an item of step '{source.name}' is {describe(given)}"
            )
        return replace(slot, feed=Feed.ITEM, shape=shape_of(slot.annotation, self.where))

    def _by_default(self, slot: Slot) -> Slot:
        # A default that looks like a misspelt step is refused, except in large generated graphs, where looking would take quadratic time.
        close = did_you_mean(slot.name, self.earlier) if slot.default is MISSING or len(self.earlier) <= _SMALL else ""
        if slot.default is not MISSING and not close:
            return slot
        takes = "no input" if self.input_type is None else f"the input ({describe(self.input_type)})"
        raise self._wrong(
            f"parameter '{slot.name}' is not {takes} and no earlier step has that name (have: {_listed(self.earlier) or 'none'}){close}"
        )

    def _wrong(self, problem: str) -> DeclarationError:
        return DeclarationError(where=self.where, problem=problem)


def check_skippable(slot: Slot, source: Declared, where: str) -> None:
    """A skipped step gives None, so whoever receives it must be able to take None."""
    if source.may_skip and slot.default is MISSING and not accepts_none(slot.annotation):
        raise DeclarationError(
            where=where,
            problem=f"parameter '{slot.name}' is declared {describe(slot.annotation)}, but step '{source.name}' may be skipped and then "
            f"gives None; declare it {describe(slot.annotation)} | None, or give it a default",
        )


def element_of(annotation: Any) -> Any:
    """The member type of a list type; Any where it does not say."""
    arguments = get_args(bare(without_none(annotation)))
    return arguments[0] if arguments else Any


def did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known)[:2000], n=1, cutoff=0.75)
    return f"; did you mean '{close[0]}'?" if close else ""


def _listed(names: Iterable[str]) -> str:
    found = sorted(names) if isinstance(names, (set, frozenset)) else list(names)
    return ", ".join(found[:20]) + (f", … {len(found) - 20} more" if len(found) > 20 else "")


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and annotation.__module__ != "builtins"
