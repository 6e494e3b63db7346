"""Whether what one step gives fits what the next one takes. Only what is surely wrong is refused; what cannot be decided is accepted,
because every value is validated again when it is read."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, Literal, TypeVar, get_args, get_origin

from typing_extensions import is_typeddict  # knows both kinds of TypedDict; pydantic needs the other one before 3.12

from conductor.declare.hints import MISSING, bare, members

__all__ = ["fits"]

_ANYTHING = (Any, object, MISSING)
_NUMBERS: dict[Any, tuple[Any, ...]] = {int: (float, complex), float: (complex,)}


def fits(given: Any, wanted: Any) -> bool:
    """Whether every value of type `given` may be read as `wanted`."""
    given, wanted = bare(given), bare(wanted)
    if given in _ANYTHING or wanted in _ANYTHING or isinstance(given, TypeVar) or isinstance(wanted, TypeVar) or given == wanted:
        return True
    several, choices = members(given), members(wanted)
    if len(several) > 1 or len(choices) > 1:
        return all(any(fits(one, choice) for choice in choices) for one in several)
    if get_origin(given) is Literal:
        return _literal_fits(get_args(given), wanted)
    if get_origin(wanted) is Literal:
        return any(fits(given, type(value)) for value in get_args(wanted))
    return _classes_fit(given, wanted)


def _literal_fits(values: tuple[Any, ...], wanted: Any) -> bool:
    if get_origin(wanted) is Literal:
        return all(any(value == known and type(value) is type(known) for known in get_args(wanted)) for value in values)
    return all(fits(type(value), wanted) for value in values)


def _classes_fit(given: Any, wanted: Any) -> bool:
    one, other = get_origin(given) or given, get_origin(wanted) or wanted
    if is_typeddict(one):
        return other is one or (not is_typeddict(other) and _classes_fit(dict, wanted))
    if is_typeddict(other):
        return False
    if not isinstance(one, type) or not isinstance(other, type):
        return True
    if one is bool or other is bool:
        return one is other  # strict: True is not 1
    if issubclass(one, datetime) and other is date:
        return False  # strict: a time is not a day
    if not _sub(one, other) and other not in _NUMBERS.get(one, ()):
        return False
    return _arguments_fit(get_args(given), get_args(wanted))


def _sub(one: type, other: type) -> bool:
    try:
        return issubclass(one, other)
    except TypeError:  # a protocol that cannot be asked
        return True


def _arguments_fit(given: tuple[Any, ...], wanted: tuple[Any, ...]) -> bool:
    if not given or not wanted or Ellipsis in given or Ellipsis in wanted or len(given) != len(wanted):
        return True
    return all(fits(one, other) for one, other in zip(given, wanted, strict=True))
