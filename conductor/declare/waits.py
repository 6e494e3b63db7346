"""`flow.wait`, `flow.agent` and `flow.sleep`: steps that run no code of their own but wait for a signal, an answer, a time."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from conductor import codec
from conductor.declare.durations import Duration, in_ms
from conductor.declare.hints import MISSING
from conductor.declare.options import check_name, options_of
from conductor.declare.shapes import Misfit, shape_of
from conductor.declare.steps import After, Sleep, Wait
from conductor.errors import BadInput, DeclarationError
from conductor.records import NodeKind

if TYPE_CHECKING:
    from conductor.declare.building import Building

__all__ = ["WaitOptions", "Waits", "idle_ms"]

_LONGEST_INSTRUCTIONS = 10_000
Order = After | Iterable[After]


class WaitOptions(TypedDict, total=False):
    """What a wait may say besides what it waits for: `queue` and `priority` are of the moment in which it goes on."""

    queue: str | None
    priority: int | None
    on_failure: str | None
    result: bool


class Waits:
    """The waiting half of `Workflow`."""

    name: str
    _building: Building
    _idle_ms: int | None

    def wait(
        self, signal: str, model: Any = Any, *, timeout: Duration | None = None, default: Any = MISSING, name: str | None = None,
        after: Order = (), **options: Unpack[WaitOptions],
    ) -> Wait:
        """Wait for a signal whose value fits `model`; what follows receives it under the step's name, which is the signal's unless `name`
        says otherwise. After `timeout` the step fails with `wait_timeout`, or completes with `default`."""
        signal = check_name(signal, self.name, "signal name")
        where = f"{self.name}.{name or signal}"
        if default is not MISSING and timeout is None:
            raise DeclarationError(where=where, problem="default= is what it gives when its time is over; say with timeout= when that is")
        return self._building.wait(
            NodeKind.WAIT, signal if name is None else name, model, options_of(where, **options), after=after, signal=signal,
            delay_ms=0 if timeout is None else _duration("timeout", timeout, where),
            default=None if default is MISSING else _default(default, model, where),
        )

    def agent(
        self, name: str, model: Any = Any, *, instructions: str = "", after: Order = (), idle_timeout: Duration | None = MISSING,
        **options: Unpack[WaitOptions],
    ) -> Wait:
        """Wait for an outside agent to answer by `advance`; the first answer wins. A run that waits for agents alone is cancelled after
        `idle_timeout` (by default what the workflow says, else the setting `idle_timeout_hours`); None: never."""
        where = f"{self.name}.{name}"
        if not isinstance(instructions, str) or len(instructions) > _LONGEST_INSTRUCTIONS:
            raise DeclarationError(where=where, problem=f"instructions must be text of at most {_LONGEST_INSTRUCTIONS} characters")
        return self._building.wait(
            NodeKind.AGENT, name, model, options_of(where, **options), after=after, instructions=instructions,
            idle_ms=self._idle_ms if idle_timeout is MISSING else idle_ms(idle_timeout, where),
        )

    def sleep(self, duration: Duration, *, name: str | None = None, after: Order = ()) -> Sleep:
        """Declare a durable timer; steps that follow name it in `after=`."""
        return self._building.sleep(duration, name=name, after=after)


def idle_ms(given: Duration | None, where: str) -> int | None:
    """Milliseconds of an idle timeout: None where nothing was said, 0 for one that never comes."""
    if given is MISSING:
        return None
    return 0 if given is None else _duration("idle_timeout", given, where)


def _duration(option: str, given: Duration, where: str) -> int:
    try:
        return in_ms(given, least=timedelta(milliseconds=1))
    except ValueError as error:
        raise DeclarationError(where=where, problem=f"{option}: {error}") from None


def _default(value: Any, model: Any, where: str) -> str:
    try:
        return codec.plain(shape_of(model, where).accept(value, limit=codec.LIMIT, what=f"default of {where}"))
    except (Misfit, BadInput) as error:
        raise DeclarationError(where=where, problem=f"default: {error.field}: {error.problem}") from None
