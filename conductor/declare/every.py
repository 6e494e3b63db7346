"""Schedules as they are declared: `flow.every(crontab(hour=3))`. Declared here, they are written to the store by whoever sweeps.

A job is the value that stands in the store: what to start (a run of a workflow, or an operation of a capability), with what, and when. This
module keeps the jobs that this process has declared, by name; the store keeps all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from conductor import codec
from conductor.declare import registry
from conductor.declare.cadence import Cadence
from conductor.declare.options import check_name
from conductor.declare.registry import Place
from conductor.declare.starting import start_options
from conductor.errors import DeclarationError

__all__ = ["Every", "Job", "declared", "isolated", "register"]

_CATCH_UP, _OVERLAP, _SOURCES = ("last",), ("skip", "allow"), ("declared", "made")
_OPTIONS = {"run": ("key", "priority", "queue", "session", "tags"), "operation": ("key", "priority", "queue", "session")}
_TICK = "{tick}"


@dataclass(frozen=True, slots=True)
class Job:
    """A schedule. `options` are those of its starts (session, queue, priority, tags, key); `source`: code or a caller owns the name."""

    name: str
    kind: str
    target: str
    cadence: Cadence
    payload: str = codec.NULL
    options: Mapping[str, Any] = field(default_factory=dict)
    catch_up: str = "last"
    overlap: str = "skip"
    source: str = "made"

    def __post_init__(self) -> None:
        where = f"schedule {self.name}"
        check_name(self.name, where, "name")
        for what, given, known in (
            ("kind", self.kind, tuple(_OPTIONS)), ("catch_up", self.catch_up, _CATCH_UP), ("overlap", self.overlap, _OVERLAP),
            ("source", self.source, _SOURCES),
        ):
            if given not in known:
                raise DeclarationError(where=where, problem=f"{what} is {given!r}; known are {', '.join(known)}")
        if unknown := sorted(set(self.options) - set(_OPTIONS[self.kind])):
            problem = f"option {unknown[0]!r} is not known; the start of {self.kind} takes {', '.join(_OPTIONS[self.kind])}"
            raise DeclarationError(where=where, problem=problem)
        key = self.options.get("key")
        if key is not None and _TICK not in str(key):
            problem = f"key {key!r} is the same at every tick, so only the first would start anything; put {_TICK} into it"
            raise DeclarationError(where=where, problem=problem)

    def definition(self) -> str:
        """The stored form without payload and cadence, which are kept beside it: a list of jobs reads no payload."""
        doc = {
            "v": 1, "kind": self.kind, "target": self.target, "options": dict(self.options), "catch_up": self.catch_up,
            "overlap": self.overlap, "source": self.source,
        }
        return json.dumps(doc, sort_keys=True, separators=(",", ":"))

    @classmethod
    def read(cls, name: str, definition: str, cadence: str, payload: str = codec.NULL) -> Job:
        """From the stored form; ValueError for one of a newer release."""
        doc = json.loads(definition)
        if not isinstance(doc, dict) or doc.pop("v", None) != 1:
            raise ValueError("it was written by a newer release than this one (format 1); upgrade celery-conductor")
        return cls(name, cadence=Cadence.from_json(cadence), payload=payload, **doc)

    def options_at(self, tick: str) -> dict[str, Any]:
        """The options of one start; `tick` is its nominal time as text."""
        key = self.options.get("key")
        return dict(self.options) if key is None else {**self.options, "key": str(key).replace(_TICK, tick)}


declared: dict[str, Job] = {}
_owners: dict[str, tuple[Place, object]] = {}


def register(job: Job, place: Place, owner: object) -> Job:
    """Make a declared job known by its name; `owner` is the workflow or capability it was declared on."""
    if job.name in _owners:
        earlier, before = _owners[job.name]
        # Declared again by a reload, or with its owner by a function called twice. A loop would run over its own earlier job.
        again = earlier.same(place) and (owner is not before or place.code is not earlier.code)
        if not again:
            problem = f"declared twice, at {earlier} and at {place}; give one of them another name with name="
            raise DeclarationError(where=f"schedule {job.name}", problem=problem)
    declared[job.name] = job
    _owners[job.name] = (place, owner)
    return job


@contextmanager
def isolated() -> Iterator[None]:
    """Begin with no schedule declared, and bring back at the end what was: for tests."""
    kept, owners = dict(declared), dict(_owners)
    declared.clear()
    _owners.clear()
    try:
        yield
    finally:
        declared.clear()
        declared.update(kept)
        _owners.clear()
        _owners.update(owners)


class _Startable(Protocol):
    """What `every` needs of a workflow."""

    @property
    def name(self) -> str: ...

    def encode_input(self, value: Any = None) -> str: ...


class Every:
    """Gives `Workflow` its `every`."""

    def every(
        self: _Startable, when: object, /, *, tz: object = "UTC", input: Any = None, name: str | None = None, catch_up: str = "last",
        overlap: str = "skip", key: str | None = None, queue: str | None = None, priority: int | None = None, tags: Iterable[str] = (),
        session: str | None = None,
    ) -> Job:
        """Start a run at every tick of a Celery `crontab` or `schedule`, a timedelta or a number of seconds; once per tick, whoever sweeps.

        A crontab is read in the zone `tz`. After a gap only the latest missed tick starts a run. With `overlap="skip"` a tick is left out
        while the run of an earlier one is going on. `key` holds `{tick}`, the nominal time in UTC: a run that somebody else started under
        that key is the tick's run. A second schedule of a workflow needs a `name`.
        """
        title = self.name if name is None else name
        where = f"schedule {title} of workflow {self.name}"
        cadence = Cadence.of(when, tz=tz, where=where)
        checked = start_options(self.name, key=key, queue=queue, priority=priority, tags=tags, session=session)
        options = {
            "key": key, "queue": checked.queue or None, "priority": checked.priority, "tags": list(checked.tags) or None,
            "session": checked.session or None,
        }
        job = Job(
            title, "run", self.name, cadence, payload=self.encode_input(input), catch_up=catch_up, overlap=overlap, source="declared",
            options={option: value for option, value in options.items() if value is not None},
        )
        return register(job, registry.place_of_caller(), self)
