"""Types as written in code: resolving annotations of a step's function, and saying a type in words."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from conductor.declare.registry import caller_frames
from conductor.errors import DeclarationError

__all__ = ["MISSING", "accepts_none", "bare", "describe", "resolve", "signature_of", "without_none"]

_FRAMES = 8


class _Missing:
    """No annotation was written."""

    def __repr__(self) -> str:
        return "no annotation"


MISSING: Any = _Missing()


def signature_of(fn: Callable[..., Any], where: str) -> inspect.Signature:
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError) as error:
        raise DeclarationError(where=where, problem=f"its parameters cannot be read ({error}); wrap it in a plain function") from None


def resolve(fn: Callable[..., Any], where: str) -> dict[str, Any]:
    """The annotations of `fn` as types. Names that the module does not have are looked up where the step is being declared, outwards, so
    that models defined inside a function work under `from __future__ import annotations` as well."""
    target = _function_of(fn)
    try:
        return get_type_hints(target, include_extras=True)
    except NameError:
        return _resolve_locally(target, where)
    except Exception as error:
        raise DeclarationError(where=where, problem=f"its annotations cannot be read: {error}") from error


def _function_of(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    return fn if hasattr(fn, "__annotations__") or not callable(fn) else type(fn).__call__


def _resolve_locally(target: Any, where: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    missing = ""
    for _, frame in zip(range(_FRAMES), caller_frames(), strict=False):
        names = {**frame.f_locals, **names}
        try:
            return get_type_hints(target, localns=names, include_extras=True)
        except NameError as error:
            missing = error.name or str(error)
    raise DeclarationError(
        where=where,
        problem=f"its annotations use {missing!r}, which does not exist when the step is declared; define or import it before the step, "
        "and not only under TYPE_CHECKING",
    )


def bare(annotation: Any) -> Any:
    """Without `Annotated`, aliases and new names: what remains decides which values fit."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            return type(None) if annotation is None else annotation


def members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; a type that is none is its own only member."""
    annotation = bare(annotation)
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(inner for member in get_args(annotation) for inner in members(member))
    return (annotation,)


def accepts_none(annotation: Any) -> bool:
    return any(member in (type(None), Any, object, MISSING) for member in members(annotation))


def without_none(annotation: Any) -> Any:
    """`list[T] | None` as `list[T]`; a union of several other members stays as it is."""
    rest = [member for member in members(annotation) if member is not type(None)]
    return rest[0] if len(rest) == 1 else annotation


def describe(annotation: Any) -> str:
    """A type in words, without modules: the same whether a file is run as a script or imported, so that signatures agree."""
    if annotation is MISSING:
        return "Any"
    if annotation is type(None) or annotation is None:
        return "None"
    if get_origin(annotation) is Annotated:
        return describe(get_args(annotation)[0])
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(describe(member) for member in args)
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    if origin is not None:
        inner = ", ".join("..." if member is Ellipsis else describe(member) for member in args)
        return f"{describe(origin)}[{inner}]"
    name = getattr(annotation, "__qualname__", None) or getattr(annotation, "__name__", None) or repr(annotation)
    return str(name).rpartition("<locals>.")[2]
