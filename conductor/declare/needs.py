"""Tools that capabilities need, and whether they are there.

`@need("bridge")` names a probe; a capability says `needs=("bridge",)`. `Needs` knows for one process which capabilities are disabled and
why. Trust: a probe tells of one moment only, so nothing is remembered but that a capability is disabled, and a disabled one is probed again
each time it is wanted (only its own tools). Two threads that do so at once both get a true answer; the later one is kept. A probe runs
in a thread of its own, because one that hangs must not hold the caller: after its time it has failed, whatever it does later.
"""

from __future__ import annotations

import inspect
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from conductor.declare.effects import in_words
from conductor.declare.hints import signature_of
from conductor.declare.registry import Place, place_of_caller
from conductor.errors import DeclarationError

__all__ = ["PROBE_SECONDS", "Need", "Needs", "Readiness", "find", "isolated", "need"]

PROBE_SECONDS = 5.0
_MOST_HANGING = 8

Probe = Callable[[], object]
F = TypeVar("F", bound=Probe)


@dataclass(frozen=True)
class Need:
    """A tool by name. Its probe passes if it returns within its seconds, and not False."""

    name: str
    probe: Probe
    seconds: float = PROBE_SECONDS

    def __post_init__(self) -> None:
        where = f"need '{self.name}'"
        if not isinstance(self.name, str) or not self.name.strip():
            raise DeclarationError(where="need", problem=f"name is {self.name!r}; a word was expected")
        if not callable(self.probe) or inspect.iscoroutinefunction(self.probe):
            raise DeclarationError(where=where, problem=f"its probe {self.probe!r} is not a plain function; it is called in a thread")
        if not self.seconds > 0:
            raise DeclarationError(where=where, problem=f"seconds is {self.seconds!r}; a positive number was expected")
        try:
            signature_of(self.probe, where).bind()
        except TypeError as error:
            raise DeclarationError(where=where, problem=f"its probe is called without arguments: {error}") from None


_known: dict[str, Need] = {}
_places: dict[str, Place] = {}


def need(name: str, *, seconds: float = PROBE_SECONDS) -> Callable[[F], F]:
    """Register a probe: `@need("bridge")` above a function, or `need("bridge")(function)`."""

    def register(probe: F) -> F:
        tool, place = Need(name, probe, seconds), place_of_caller()
        earlier = _places.get(name)
        if earlier is not None and not earlier.same(place):
            problem = f"declared in two places, {earlier} and {place}; give one of them another name"
            raise DeclarationError(where=f"need '{name}'", problem=problem)
        _known[name], _places[name] = tool, place
        return probe

    return register


def find(names: Collection[str], where: str, known: Mapping[str, Need] | None = None) -> tuple[Need, ...]:
    """The tools of these names. An unknown one is an error that lists those there are."""
    known = _known if known is None else known
    names = (names,) if isinstance(names, str) else names  # `needs=("bridge")` is a string, and would be read letter by letter
    for name in names:
        if name not in known:
            have = ", ".join(sorted(known)) or "none"
            problem = f"needs '{name}', which no @need declares (have: {have})"
            raise DeclarationError(where=where, problem=problem)
    return tuple(known[name] for name in dict.fromkeys(names))


@contextmanager
def isolated() -> Iterator[None]:
    """Begin with no tools, and bring back at the end what was: for tests."""
    kept, places = dict(_known), dict(_places)
    _known.clear()
    _places.clear()
    try:
        yield
    finally:
        for live, saved in ((_known, kept), (_places, places)):
            live.clear()
            live.update(saved)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Readiness:
    """Whether a capability may be expected to work. `recovered`: it was disabled until this moment."""

    ready: bool
    recovered: bool = False
    reason: str = ""


class Needs:
    """Which capabilities of this process are disabled. Without `tools` it knows what `@need` registered."""

    def __init__(self, tools: Mapping[str, Need] | None = None) -> None:
        self._tools = tools
        self._disabled: dict[str, str] = {}
        self._hanging: dict[str, list[threading.Thread]] = {}
        self._lock = threading.Lock()  # held for a moment only, never while a probe runs

    @property
    def disabled(self) -> Mapping[str, str]:
        """Capability → reason, as of now."""
        with self._lock:
            return MappingProxyType(dict(self._disabled))

    def probe(self, names: Collection[str]) -> dict[str, str]:
        """Probe these tools, all at once, and tell which failed and why."""
        runs = [_Run(tool, self._stuck(tool.name)) for tool in find(names, "probe", self._tools)]
        failed = {run.tool.name: reason for run in runs if (reason := run.reason())}
        with self._lock:
            for run in runs:
                if run.thread is not None and run.thread.is_alive():
                    self._hanging.setdefault(run.tool.name, []).append(run.thread)
        return failed

    def check(self, capability: str, needs: Collection[str]) -> Readiness:
        """At dispatch: an enabled capability is ready unasked; a disabled one has its own tools probed again, and only those."""
        with self._lock:
            if capability not in self._disabled:
                return Readiness(ready=True)
        reason = self._settle(capability, self.probe(needs))
        return Readiness(ready=False, reason=reason) if reason else Readiness(ready=True, recovered=True)

    def examine(self, capabilities: Mapping[str, Collection[str]]) -> dict[str, str]:
        """Probe every tool of these capabilities once, disable and enable them accordingly, and tell which are disabled."""
        wanted = {name: find(needs, f"capability {name}", self._tools) for name, needs in capabilities.items()}
        failed = self.probe(tuple({tool.name for tools in wanted.values() for tool in tools}))
        reasons = {
            name: self._settle(name, {tool.name: failed[tool.name] for tool in tools if tool.name in failed})
            for name, tools in wanted.items()
        }
        return {name: reason for name, reason in reasons.items() if reason}

    def _settle(self, capability: str, failed: Mapping[str, str]) -> str:
        reason = "; ".join(f"{name}: {why}" for name, why in failed.items())
        with self._lock:
            if reason:
                self._disabled[capability] = reason
            else:
                self._disabled.pop(capability, None)
        return reason

    def _stuck(self, name: str) -> int:
        with self._lock:
            self._hanging[name] = [thread for thread in self._hanging.get(name, ()) if thread.is_alive()]
            return len(self._hanging[name])


class _Run:
    """One probe under way. `stuck` earlier ones of the same tool hang: beyond a few, no more threads are spent on it."""

    def __init__(self, tool: Need, stuck: int) -> None:
        self.tool, self.stuck = tool, stuck
        self.deadline = time.monotonic() + tool.seconds
        self.thread: threading.Thread | None = None
        self._answer: queue.SimpleQueue[str] = queue.SimpleQueue()
        if stuck < _MOST_HANGING:
            self.thread = threading.Thread(target=self._probe, name=f"conductor-probe-{tool.name}", daemon=True)
            self.thread.start()

    def reason(self) -> str:
        """Why it failed; empty if it passed."""
        if self.thread is None:
            return f"{self.stuck} earlier probes still hang; give the probe a time limit of its own, or restart this process"
        try:
            return self._answer.get(timeout=max(0.0, self.deadline - time.monotonic()))
        except queue.Empty:
            return f"no answer within {self.tool.seconds:g} s"

    def _probe(self) -> None:
        try:
            answer = self.tool.probe()
        except BaseException as error:  # also SystemExit: a probe cannot end the process, and silence would look like hanging
            self._answer.put(in_words(error))
            return
        if inspect.iscoroutine(answer):
            answer.close()
            self._answer.put("its probe is async and was not run")
        else:
            self._answer.put("its probe returned False" if answer is False else "")
