"""Which workflows this process has declared, and who starts their runs. The only module of this package that keeps state."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Protocol

from conductor import codec
from conductor.errors import DeclarationError, NoConductor

if TYPE_CHECKING:
    from conductor.declare.capability import Capability
    from conductor.declare.starting import StartOptions
    from conductor.declare.workflow import Workflow

__all__ = [
    "Place", "Starter", "bind", "caller_frames", "capabilities", "current", "declared", "forget_functions", "isolated", "names",
    "place_of_caller", "register", "register_capability",
]

_HERE = "conductor.declare"


class Starter(Protocol):
    """Who turns a checked start into a run: the Conductor of this process."""

    def start(self, flow: Workflow[Any], *, payload: str, options: StartOptions) -> Any: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where a workflow was declared. `code` is the code object that declared it: a reload has a new one."""

    file: str
    line: int
    code: CodeType

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def same(self, other: Place) -> bool:
        """The same line again, a reloaded version of the same code, or an interactive session (whose files are not real)."""
        if self.file.startswith("<") and other.file.startswith("<"):
            return True
        if self.file != other.file:
            return False
        return self.line == other.line or (self.code is not other.code and self.code.co_qualname == other.code.co_qualname)


declared: dict[str, Workflow[Any]] = {}
capabilities: dict[str, Capability[..., Any]] = {}
_places: dict[str, Place] = {}
_starter: Starter | None = None


def register(flow: Workflow[Any], place: Place) -> None:
    """Make a workflow known by its name. Two places may not share a name: workers would disagree about what it means."""
    earlier = _places.get(flow.name)
    if earlier is not None and not earlier.same(place):
        raise DeclarationError(where=flow.name, problem=f"declared in two places, {earlier} and {place}; give one of them another name")
    declared[flow.name] = flow
    _places[flow.name] = place


def register_capability(found: Capability[..., Any], place: Place) -> None:
    """Make a capability known by its name, under the same rule."""
    earlier = _places.get(f"capability {found.name}")
    if earlier is not None and not earlier.same(place):
        where = f"capability {found.name}"
        raise DeclarationError(where=where, problem=f"declared in two places, {earlier} and {place}; give one of them another name")
    capabilities[found.name] = found
    _places[f"capability {found.name}"] = place


def bind(starter: Starter | None) -> None:
    """Name who starts runs in this process; the latest Conductor wins."""
    global _starter
    _starter = starter


def current(workflow: str = "") -> Starter:
    """Who starts runs in this process."""
    if _starter is None:
        raise NoConductor(workflow=workflow)
    return _starter


def payload_limit() -> int:
    """How large an input may be. Without a Conductor it is the plain limit; the start itself says what is missing."""
    return codec.LIMIT if _starter is None else int(getattr(_starter, "payload_limit", codec.LIMIT))


@contextmanager
def isolated() -> Iterator[None]:
    """Begin with nothing declared and nobody bound, and bring back at the end what was: for tests."""
    global _starter
    kept, called, places, starter = dict(declared), dict(capabilities), dict(_places), _starter
    declared.clear()
    capabilities.clear()
    _places.clear()
    _starter = None
    try:
        yield
    finally:
        declared.clear()
        declared.update(kept)
        capabilities.clear()
        capabilities.update(called)
        _places.clear()
        _places.update(places)
        _starter = starter


def names() -> frozenset[str]:
    """Everything declared so far: workflows by name, capabilities as `capability NAME`."""
    return frozenset(_places)


def forget_functions(since: frozenset[str]) -> None:
    """Forget what was declared since then inside functions; what modules declare stays, they are imported only once: for tests."""
    for name in _places.keys() - since:
        if _places[name].code.co_name != "<module>":
            del _places[name]
            declared.pop(name, None)
            capabilities.pop(name.removeprefix("capability "), None)


def caller_frames() -> Iterator[FrameType]:
    """The frames of whoever called into this package, nearest first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not str(frame.f_globals.get("__name__", "")).startswith(_HERE):
            yield frame
        frame = frame.f_back


def place_of_caller() -> Place:
    frame = next(caller_frames())
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code)
