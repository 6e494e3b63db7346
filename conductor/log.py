"""The event log of a run: what its entries say, in words and as values. Pure: no store, no clock.

An entry is `code;ms;…`, numbered by its place in the list, so the sequence has no gap by construction. `parse` turns an entry into an
`Event`. `fold.py` folds events into a `Folded`: what the records must show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from conductor.state import RunState, StepState

__all__ = ["KINDS", "Event", "Folded", "FoldedEach", "FoldedStep", "UnreadableEntry", "parse", "parse_all"]


class UnreadableEntry(ValueError):
    """An entry whose code or fields this release does not know."""


@dataclass(frozen=True, slots=True)
class Event:
    """One entry. Fields that its kind does not have keep their defaults; `items` is a first and last item, both included."""

    number: int
    kind: str
    at: int
    index: int | None = None
    fence: int = 0
    items: tuple[int, int] | None = None
    reason: str = ""
    worker: str = ""
    total: int | None = None
    delay_ms: int = 0
    due: int = 0
    generation: int = 0
    ready: tuple[int, ...] = ()
    reset: tuple[int, ...] = ()
    signature: str = ""
    state: str = ""
    actor: str = ""
    lane: str = ""  # where it is queued
    by: str = ""  # the id of a signal, or who answered for an agent
    signal: str = ""
    waiters: tuple[int, ...] = ()
    totals: tuple[tuple[int, int], ...] = ()  # of a fork: lengths of the lists its eaches begin anew with
    how: str = ""  # a step completed not by its code: `verified`, `resolved`, `answered`, `default`
    doubt: bool = False
    child: str = ""  # the run that a step has called

    @property
    def item_numbers(self) -> range:
        """The items an entry covers; empty where it speaks of the step itself."""
        return range(self.items[0], self.items[1] + 1) if self.items else range(0)

    def to_json(self, names: Mapping[int, str] | None = None) -> dict[str, Any]:
        """What `--json` and followers show: only the fields this kind has."""
        told: dict[str, Any] = {"number": self.number, "kind": self.kind, "at": self.at}
        if self.index is not None and names:
            told["step"] = names.get(self.index, str(self.index))
        for name in (*_FIELDS_OF[self.kind], *(("ready",) if self.kind == "due" and self.ready else ())):
            value = getattr(self, name)
            told[name] = list(value) if isinstance(value, tuple) else value
        return told


@dataclass(slots=True)
class FoldedStep:
    """What the log says of a step or an item."""

    state: StepState = StepState.PENDING
    attempt: int = 0
    fence: int = 0
    left: int = 0
    completed_parent: bool = False
    failed_parent: bool = False
    reason: str = ""
    worker: str = ""
    since: int = 0
    answered: bool = False  # a signal's or an agent's value is there
    ended_in: int = 0  # the generation in which it ended


@dataclass(slots=True)
class FoldedEach:
    """What the log says of an `each`: its items by number, and how many of them are where."""

    total: int = 0
    cursor: int = 0
    active: int = 0
    items: dict[int, FoldedStep] = field(default_factory=dict)
    again: set[int] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)  # not kept by a reopening, and not yet reached by it

    def count(self, *states: StepState) -> int:
        return sum(1 for number, item in self.items.items() if item.state in states and number not in self.closed)


@dataclass
class Folded:
    """The run as its log tells it. `trusted` is False while entries may stand without being counted: a run that is failing or stopping."""

    state: RunState = RunState.RUNNING
    reason: str = ""
    generation: int = 0
    phase: str = ""
    number: int = 0
    ended_at: int = 0
    steps: dict[int, FoldedStep] = field(default_factory=dict)
    eaches: dict[int, FoldedEach] = field(default_factory=dict)
    undos: dict[tuple[int, int], FoldedStep] = field(default_factory=dict)  # of items: index of the undo and item
    left: int = 0
    ready: int = 0
    active: int = 0
    due: int = 0
    waiters: int = 0
    agents: int = 0
    children: int = 0
    failed: int = 0
    early: list[str] = field(default_factory=list)  # names of the signals that are kept, in order
    waiting: tuple[int, ...] = ()  # steps that wait for a time, a signal or an answer, in their order
    violations: list[str] = field(default_factory=list)

    @property
    def trusted(self) -> bool:
        return self.phase not in ("F", "U")


# code → (event, fields after the time). `reason` may itself contain `;`: what is too many belongs to it.
KINDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "s": ("started", ("generation", "ready", "due", "totals", "lane")),
    "q": ("queued", ("lane",)),
    "a": ("admitted", ("ready",)),
    "k": ("claimed", ("index", "fence", "items", "worker")),
    "c": ("completed", ("index", "fence", "items", "total", "how")),
    "z": ("skipped", ("index", "fence", "items", "reason")),
    "t": ("retry_scheduled", ("index", "fence", "items", "delay_ms", "reason", "doubt")),
    "f": ("failed", ("index", "fence", "items", "reason", "doubt")),
    "x": ("lost", ("index", "fence", "items", "reason")),
    "b": ("given_back", ("index", "fence", "items", "reason", "doubt")),
    "u": ("due", ("index", "items", "reason")),
    "v": ("answered", ("index", "by")),
    "y": ("signal_kept", ("signal", "by")),
    "i": ("run_idle", ("waiters",)),
    "j": ("run_resumed", ()),
    "m": ("set_aside", ("index", "signature")),
    "n": ("taken_back", ("index", "signature")),
    "p": ("paused", ("reason", "actor")),
    "r": ("resumed", ("actor",)),
    "d": ("deadline_passed", ("generation",)),
    "h": ("finishing", ("state", "index")),
    "e": ("ended", ("state", "reason")),
    "g": ("reopened", ("generation", "ready", "reset", "actor", "lane")),
    "V": ("called", ("index", "fence", "items", "child")),
    "Y": ("compensating", ("generation", "state", "reason", "actor")),
    "Q": ("undoing", ("index", "items")),
    "G": ("items_reopened", ("index", "items")),
    "K": ("cancelled", ("reason", "actor")),
    "C": ("clock_stepped_back", ()),
}
_FIELDS_OF = dict(KINDS.values())


def _number(text: str) -> int:
    return int(text) if text else 0


def _range(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _indexes(text: str) -> tuple[int, ...]:
    return tuple(map(int, filter(None, text.split(","))))


def _pairs(text: str) -> tuple[tuple[int, int], ...]:
    return tuple((int(index), int(total)) for index, _, total in (part.partition("=") for part in filter(None, text.split(","))))


_READ: Mapping[str, Callable[[str], Any]] = {
    "index": lambda text: int(text) if text.isdigit() else None, "fence": _number, "items": _range, "delay_ms": _number, "due": _number,
    "generation": _number, "waiters": _indexes, "ready": _indexes, "reset": _indexes, "total": lambda text: int(text) if text else None,
    "totals": _pairs, "doubt": lambda text: text == "d",
}


def parse(number: int, entry: str) -> Event:
    """The event that an entry tells."""
    code, _, rest = entry.partition(";")
    if code not in KINDS:
        raise UnreadableEntry(f"event {number}: code {code!r} is not known to this release; upgrade celery-conductor")
    kind, names = KINDS[code]
    at, *parts = rest.split(";")
    try:
        values = {name: _READ.get(name, str)(text) for name, text in zip(names, _fit(parts, names), strict=False)}
        if values.get("reason") == "start" and kind == "due":  # a delayed start names all its first steps
            values |= {"index": None, "ready": _indexes(parts[0])}
        return Event(number, kind, int(at), **values)
    except ValueError as found:
        raise UnreadableEntry(f"event {number}: {entry!r} cannot be read: {found}") from None


def _fit(parts: list[str], names: tuple[str, ...]) -> list[str]:
    """Join what a reason with `;` in it was split into."""
    surplus = len(parts) - len(names)
    if surplus <= 0:
        return parts
    if "reason" not in names:
        raise ValueError(f"{surplus} fields too many")
    at = names.index("reason")
    return [*parts[:at], ";".join(parts[at : at + surplus + 1]), *parts[at + surplus + 1 :]]


def parse_all(entries: Iterable[str], after: int = 0) -> Iterable[Event]:
    """Events of consecutive entries; the first one has the number `after + 1`."""
    return (parse(number, entry) for number, entry in enumerate(entries, after + 1))
