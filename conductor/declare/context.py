"""`Ctx`: what a running step may know and tell. The worker builds one per attempt and gives it its callbacks."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from conductor import codec
from conductor.errors import BadInput, NoConductor
from conductor.records import Attempt

__all__ = ["RUNNING", "Ctx", "StepLogger", "key_of"]

_LOGGER = logging.getLogger("conductor.step")
_NOTE = 500
_ONCE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}\Z")

T = TypeVar("T")

RUNNING: ContextVar[Ctx | None] = ContextVar("conductor_running_step", default=None)
"""The context of the step whose code is running here, so that waiting for another run inside a step can be refused."""


def key_of(run_id: str, step: str, item: int | None = None) -> str:
    """The idempotency key of a step or item: the same in every attempt and generation."""
    return f"{run_id}:{step}" if item is None else f"{run_id}:{step}:{item}"


class StepLogger(logging.LoggerAdapter[logging.Logger]):
    """Puts run, step and attempt in front of each line and on each record (`record.run_id`, …)."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        extra = dict(self.extra or {})
        kwargs["extra"] = {**extra, **(kwargs.get("extra") or {})}
        return f"[{extra['run_id']} {extra['step']} #{extra['attempt']}] {msg}", kwargs


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _never() -> bool:
    return False


def _unheard(*_told: Any) -> None:
    return None


def _nothing_saved() -> str | None:
    return None


def _nothing_named(_name: str) -> str | None:
    return None


def _no_store(_ctx: Ctx, name: str, _params: Mapping[str, Any]) -> Any:
    raise NoConductor(workflow=f"capability {name}")


@dataclass(slots=True, eq=False, kw_only=True)
class Ctx:
    """The context of one attempt.

    `key` is the step's stable idempotency key: give it to whatever the step changes outside. `attempt` counts from 1. `deadline` is when
    the run must have ended, if it has one.
    """

    key: str
    run_id: str
    workflow: str = ""
    step: str = ""
    item: int | None = None
    attempt: int = 1
    repeated: bool = False  # an earlier attempt of it may have run
    session: str = ""
    load_origin: Callable[[], tuple[str, str]] | None = field(default=None, repr=False)
    deadline: datetime | None = None
    is_cancelled: Callable[[], bool] = field(default=_never, repr=False)
    is_stopping: Callable[[], bool] = field(default=_never, repr=False)
    on_progress: Callable[[float, float | None, str], None] = field(default=_unheard, repr=False)
    save_checkpoint: Callable[[str], None] = field(default=_unheard, repr=False)
    load_checkpoint: Callable[[], str | None] = field(default=_nothing_saved, repr=False)
    load_once: Callable[[str], str | None] = field(default=_nothing_named, repr=False)
    save_once: Callable[[str, str], None] = field(default=_unheard, repr=False)
    on_call: Callable[[Ctx, str, Mapping[str, Any]], Any] = field(default=_no_store, repr=False)
    life: str = field(default="", repr=False)  # of a last step: which life of the run it ends; what it did for another does not count
    held: Attempt | None = field(default=None, repr=False)  # what the worker holds; None in a unit test, and where a verifier is asked
    _names: set[str] = field(default_factory=set, init=False, repr=False)
    _calls: int = field(default=0, init=False, repr=False)
    _within: str = field(default="", init=False, repr=False)
    _log: StepLogger | None = field(default=None, init=False, repr=False)
    _checkpoint: str | None = field(default=None, init=False, repr=False)

    @classmethod
    def for_test(cls, key: str = "", *, run_id: str = "test-run", step: str = "step", **fields: Any) -> Ctx:
        """A context for calling a step in a unit test: `charge(order, "hold-1", Ctx.for_test(key="k-1"))`. Checkpoints are kept in it."""
        saved: list[str] = []
        answers: dict[str, str] = {}
        fields.setdefault("load_once", answers.get)
        fields.setdefault("save_once", answers.__setitem__)
        fields.setdefault("save_checkpoint", saved.append)
        fields.setdefault("load_checkpoint", lambda: saved[-1] if saved else None)
        return cls(key=key or key_of(run_id, step, fields.get("item")), run_id=run_id, step=step, **fields)

    @property
    def root_id(self) -> str:
        """The first of the runs that called each other down to this one; this run, if nobody called it."""
        return self._origin()[0] or self.run_id

    @property
    def parent_id(self) -> str:
        """The run whose step has called this one; empty if none has."""
        return self._origin()[1]

    def _origin(self) -> tuple[str, str]:
        return ("", "") if self.load_origin is None else self.load_origin()

    @property
    def cancelled(self) -> bool:
        """Whether the run was cancelled: a long step should stop, its result will not be taken."""
        return self.is_cancelled()

    @property
    def stopping(self) -> bool:
        """Whether this worker is shutting down: a long step should save a checkpoint and return or raise; it will be run again."""
        return self.is_stopping()

    @property
    def log(self) -> StepLogger:
        """A logger that names run, step and attempt."""
        if self._log is None:
            extra = {
                "run_id": self.run_id, "workflow": self.workflow, "step": self.step, "item": self.item, "attempt": self.attempt,
            }
            self._log = StepLogger(_LOGGER, extra)
        return self._log

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Tell people how far the step is. It is shown live, and is not part of the run's history."""
        if not _is_number(done) or not (total is None or _is_number(total)):
            problem = f"{done!r} of {total!r}: finite numbers were expected"
            raise BadInput(what=f"progress of step {self.step}", field="done, total", problem=problem)
        self.on_progress(done, total, str(note)[:_NOTE])

    def once(self, name: str, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call `fn` and record what it gives, durably: a repeated attempt of this step gets the recorded answer and does not call it again.

        The answer must be plain data (JSON); it comes back as such. Two calls in one step need two names.
        """
        if not isinstance(name, str) or not _ONCE.match(name) or name in self._names:
            problem = f"{name!r}: a name of 1 to 200 letters, digits, '.', '_' or '-' that this step has not used yet was expected"
            raise BadInput(what=f"ctx.once in step {self.step}", field="name", problem=problem)
        self._names.add(name)
        kept = f"{name}@{self.life}" if self.life else name
        if (known := self.load_once(kept)) is not None:
            answer: T = codec.decode(known)
            return answer
        with self.counting_apart(name):
            answered = fn(*args, **kwargs)
        payload = codec.encode(answered, what=f"answer of {name} in step {self.step}")
        self.save_once(kept, payload)
        given: T = codec.decode(payload)
        return given

    def call(self, capability: str, /, **params: Any) -> Any:
        """Call a capability durably from inside this step. A repeated attempt finds the earlier operation and gets its recorded answer."""
        return self.on_call(self, capability, params)

    def next_call(self) -> str:
        """The number of the next call or submission of an operation: the same for the same one in a repeated attempt."""
        self._calls += 1
        within = f"{self.life}@{self._within}" if self.life else self._within
        return f"{within}{self._calls}"

    @contextmanager
    def counting_apart(self, name: str) -> Iterator[None]:
        """Calls in here are not counted with the others: what was recorded is not run again, and must not shift the numbers behind it."""
        kept = self._calls, self._within
        self._calls, self._within = 0, f"{self._within}{name}."
        try:
            yield
        finally:
            self._calls, self._within = kept

    def checkpoint(self, value: Any) -> None:
        """Save where this step is, durably. A repeated attempt finds it as `last_checkpoint` and can go on from there."""
        payload = codec.encode(value, what=f"checkpoint of step {self.step}")
        self.save_checkpoint(payload)
        self._checkpoint = payload

    @property
    def last_checkpoint(self) -> Any:
        """What this step saved last, in this or an earlier attempt; None if nothing."""
        if self._checkpoint is None:
            self._checkpoint = self.load_checkpoint()
        return None if self._checkpoint is None else codec.decode(self._checkpoint)
