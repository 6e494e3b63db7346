"""`flow.call(other)`: another workflow as a step. What the child is started with is made by a step like any other; what it gives is the
child's result.
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import TYPE_CHECKING, Any

from conductor.declare.fitting import fits
from conductor.declare.hints import MISSING, describe
from conductor.declare.steps import Declared
from conductor.errors import DeclarationError

if TYPE_CHECKING:
    from conductor.declare.workflow import Workflow

__all__ = ["OPTIONS", "giver", "result_type"]

OPTIONS = frozenset({"when", "on_failure", "result", "queue", "priority", "retry"})


def giver(flow: Workflow[Any], other: Workflow[Any], given: Any, where: str) -> tuple[Callable[..., Any], dict[str, Declared | str]]:
    """The function whose parameters are wired and whose result the child is started with; and what its parameters are wired to."""
    wanted = other.input_type
    if isinstance(given, (Declared, str)):
        if wanted is None:
            raise DeclarationError(where=where, problem=f"workflow '{other.name}' takes no input, so nothing can be given to it")
        if isinstance(given, Declared) and not fits(given.gives, wanted):
            problem = f"step '{given.name}' gives {describe(given.gives)}, workflow '{other.name}' takes {describe(wanted)}"
            raise DeclarationError(where=where, problem=f"{problem}; give a function that makes one of the other")
        return _passing("given", wanted), {"given": given}
    if given is not None:
        if not callable(given):
            raise DeclarationError(where=where, problem=f"{given!r} is no step, name of a step, or function that makes the child's input")
        return given, {}
    if wanted is None:
        return _nothing, {}
    if wanted == flow.input_type:
        return _passing("input", wanted), {}
    problem = f"workflow '{other.name}' takes {describe(wanted)}: name the step that gives it, or a function that makes it"
    raise DeclarationError(where=where, problem=problem)


def result_type(flow: Workflow[Any], other: Workflow[Any]) -> Any:
    """What the child gives: the type of its only leaf, a dict of several; of a workflow that calls itself nobody can tell yet."""
    if other is flow:
        return MISSING
    leaves = other.leaf_types()
    return next(iter(leaves.values())) if len(leaves) == 1 else dict


def _passing(name: str, wanted: Any) -> Callable[..., Any]:
    if name == "given":
        def pass_on(given: Any) -> Any:
            return given
    else:
        def pass_on(input: Any) -> Any:  # type: ignore[misc]
            return input

    pass_on.__annotations__ = {name: wanted, "return": wanted}
    return pass_on


def _nothing() -> None:
    return None


_nothing.__annotations__ = {"return": NoneType}
