"""What a declaration leaves behind: steps, fan-outs, sleeps and last steps. A step stays a plain callable, so unit tests just call it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, overload

from conductor.declare.hints import MISSING
from conductor.declare.judging import Judge, step_judge
from conductor.declare.options import HookOptions, Options
from conductor.declare.shapes import Shape
from conductor.errors import DeclarationError
from conductor.records import NodeKind

if TYPE_CHECKING:
    from conductor.declare.workflow import Workflow

__all__ = ["After", "Call", "Declared", "Each", "Feed", "Hook", "Sleep", "Slot", "Step", "Undo", "Wait"]

P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
T = TypeVar("T")


class Feed(StrEnum):
    """Where the value of a parameter comes from."""

    STEP = "step"
    INPUT = "input"
    CTX = "ctx"
    ITEM = "item"
    OUTCOME = "outcome"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter of a step: where its value comes from and as what it is read."""

    name: str
    feed: Feed
    annotation: Any = MISSING
    shape: Shape | None = None
    source: Declared | None = None
    default: Any = MISSING
    keyword_only: bool = False


@dataclass(eq=False, kw_only=True)
class Declared:
    """What every node of a workflow has. `index` is its place in the graph; `after` holds nodes, or names not declared yet."""

    flow: Workflow[Any]
    name: str
    kind: NodeKind
    index: int
    options: Options = field(default_factory=Options)
    after: tuple[Declared | str, ...] = ()
    slots: tuple[Slot, ...] = ()
    returns: Any = NoneType
    shape: Shape | None = None
    source: Declared | None = None
    delay_ms: int = 0
    signal: str = ""
    default: str | None = None
    idle_ms: int | None = None
    instructions: str = ""
    may_skip: bool = False
    undoes: Declared | None = None
    calls: Workflow[Any] | None = None
    fn: Callable[..., Any] | None = field(default=None, repr=False)
    judge: Judge | None = field(default=None, repr=False)

    @property
    def where(self) -> str:
        """`workflow.step`, as errors, Celery and Flower call it."""
        return f"{self.flow.name}.{self.name}"

    @property
    def gives(self) -> Any:
        """The type that a later step receives."""
        return self.returns

    @property
    def needs(self) -> tuple[Declared, ...]:
        """The nodes whose results the code receives, in the order of its parameters."""
        return tuple(dict.fromkeys(slot.source for slot in self.slots if slot.feed is Feed.STEP and slot.source is not None))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.where}>"

    @overload
    def undo(self, fn: Callable[Q, T], /) -> Callable[Q, T]: ...

    @overload
    def undo(self, /, **options: Unpack[HookOptions]) -> Callable[[Callable[Q, T]], Callable[Q, T]]: ...

    def undo(self, fn: Any = None, /, **options: Unpack[HookOptions]) -> Any:
        """Declare the compensation of this step. It takes the step's own parameters, `result` (None where it is not known) and `ctx`, whose
        key is that of the step with `:undo` behind it."""

        def declare(found: Callable[Q, T]) -> Callable[Q, T]:
            self.flow.add_undo(self, found, options)
            return found

        return declare if fn is None else declare(fn)

    def verify(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Declare who is asked whether this effect happened, before a repeat: None or False says no, True or the step's result yes."""
        if not self.options.effect:
            raise DeclarationError(where=self.where, problem="only an effect can be verified; declare it with @flow.effect")
        if self.judge is not None:
            raise DeclarationError(where=self.where, problem="it already has a verifier")
        self.judge = step_judge(fn, [slot.name for slot in self.slots], f"{self.where}.verify")
        self.flow.changed()
        return fn


After = Declared | str


class Step(Declared, Generic[P, R]):
    """A declared function. Calling it calls the function, nothing else."""

    def __init__(self, fn: Callable[P, R], **fields: Any) -> None:
        super().__init__(fn=fn, **fields)
        functools.update_wrapper(self, fn, updated=())
        self.__call: Callable[P, R] = fn

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.__call(*args, **kwargs)


class Each(Step[P, R]):
    """A function that runs once for each member of a list. What follows receives the list of its results, in the list's order."""

    @property
    def gives(self) -> Any:
        if self.returns is MISSING:
            return list
        return list[self.returns | None] if self.options.when is not None else list[self.returns]  # type: ignore[name-defined]


class Hook(Step[P, R]):
    """A last step: it runs after all others, durably, and is told how the run ends."""


class Call(Step[P, R]):
    """Another workflow as a step. Calling it calls the function that makes the child's input. `child_gives` is the type of its result."""

    child_gives: Any = MISSING

    @property
    def gives(self) -> Any:
        return self.child_gives


class Undo(Step[P, R]):
    """The compensation of a step, or the node that plans which steps are undone."""


class Wait(Declared):
    """A wait for a signal, or for an agent's answer. What follows receives the value that was sent."""


class Sleep(Declared):
    """A durable timer. It gives no value; name it in `after=`."""
