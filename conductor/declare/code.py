"""`Code`: a step as a worker runs it. Payloads in, payload out; everything that can be prepared was prepared when it was built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from conductor import codec
from conductor.declare.context import RUNNING, Ctx
from conductor.declare.feeding import Values, feeder
from conductor.declare.hints import MISSING, accepts_none, signature_of
from conductor.declare.judging import UNASKED, Judge, Judged, check_result
from conductor.declare.shapes import Misfit, Shape
from conductor.declare.steps import Declared
from conductor.errors import BadInput, BadResult, DeclarationError, ValueTooLarge, WhenFailed
from conductor.records import NodeKind

if TYPE_CHECKING:
    from conductor.declare.capability import Capability

__all__ = ["MAX_ITEMS", "Code", "Skip", "TooLate", "check_when"]

MAX_ITEMS = 1_000_000
_WHEN = "?when"  # no name that a user may give to ctx.once
_LIST_LIMITS = 256  # a list that is fanned out is staged in chunks: its members have the limit, the whole may have this many times that


class Skip(Exception):
    """The step's condition said no. Not an error: the step ends `skipped`."""


class TooLate(Exception):
    """It may no longer begin: its claim is too old. It goes back, and is claimed anew if it is still wanted."""


def _yes() -> bool:
    return True


def _no_call(ctx: Ctx, name: str, _params: Mapping[str, Any]) -> Any:
    problem = f"a verifier only looks; {name} was not called"
    raise BadInput(what=f"ctx.call in a verifier of step {ctx.step}", field="capability", problem=problem)


class Code:
    """The code of one step. `signature` says which stored steps it can run; `needs` are the indexes it reads from `values`.

    A run may be on an older graph in which the same step reads from other indexes: there, pair `needs` with the stored node's `needs` by
    position, which a signature fixes.
    """

    __slots__ = (
        "_call", "_discards", "_feeders", "_gives_none", "_names", "_shape", "_when", "_when_names",
        "calls", "capability", "effect", "feeds_each", "guarded", "idempotent", "judge", "needs", "signature", "step", "workflow",
    )

    def __init__(self, declared: Declared, signature: str, *, feeds_each: bool = False) -> None:
        self.signature = signature
        self.workflow = declared.flow.name
        self.step = declared.name
        self.calls = declared.calls
        self.effect = declared.options.effect
        self.idempotent = declared.options.idempotent
        self.capability: Capability[..., Any] | None = declared.options.capability
        self.judge: Judge | None = declared.judge
        self.guarded = self.effect or self.capability is not None  # running it twice may matter outside
        self.feeds_each = feeds_each
        self.needs = tuple(source.index for source in declared.needs)
        self._names = tuple(slot.name for slot in declared.slots)
        self._feeders = tuple(feeder(slot, declared) for slot in declared.slots)
        self._call = _positional(declared)
        self._when = declared.options.when
        self._when_names = tuple(signature_of(self._when, declared.where).parameters) if self._when is not None else ()
        self._shape: Shape | None = declared.shape
        self._discards = declared.kind is NodeKind.UNDO  # nobody receives what an undo returns
        self._gives_none = declared.returns is MISSING or accepts_none(declared.returns)

    def run(
        self, ctx: Ctx, input: str | None, values: Values, item: str | None, *, limit: int = codec.LIMIT, begin: Callable[[], bool] = _yes,
    ) -> str:
        """Run the step once. Raises Skip if its condition says no, TooLate if `begin` does, and whatever its code raises."""
        token = RUNNING.set(ctx)
        try:
            arguments = [feed(ctx, input, values, item) for feed in self._feeders]
            if self._when is not None:
                self._ask(self._when, arguments, ctx)
            if not begin():  # reading the arguments may have taken long
                raise TooLate
            result = self._call(*arguments)
        finally:
            RUNNING.reset(token)
        if self.guarded:
            check_result(result, self.step)
        if self.calls is not None:
            return self.calls.encode_input(result, limit=limit)
        if self._discards or (result is None and self._gives_none and not self.feeds_each):
            return codec.encode(None)
        return self._write(result, limit)

    def ask(self, ctx: Ctx, input: str | None, values: Values, item: str | None) -> Judged:
        """Whether its effect has happened, as far as its judge can say."""
        if self.judge is None:
            return UNASKED
        ctx = replace(ctx, held=None, on_call=_no_call)  # it must look anew each time, and its calls are none of the step's
        token = RUNNING.set(ctx)
        try:
            arguments = [feed(ctx, input, values, item) for feed in self._feeders]
            return self.judge(dict(zip(self._names, arguments, strict=True)), ctx)
        finally:
            RUNNING.reset(token)

    def accept(self, value: Any, *, limit: int, what: str) -> str:
        """The payload of a value that a waiting step is sent from outside; Misfit, or what the codec refuses, if it does not fit."""
        assert self._shape is not None
        return self._shape.accept(value, limit=limit, what=what)

    def landed(self, value: Any, limit: int) -> str:
        """The payload of a result that was not given by the code itself; BadResult if it does not fit."""
        return codec.encode(None) if value is None and self._gives_none else self._write(value, limit)

    def _ask(self, when: Callable[..., Any], arguments: list[Any], ctx: Ctx) -> None:
        """The answer is recorded before the code runs: a repeat must not decide otherwise after half of it was done."""
        if ctx.repeated and ctx.load_once(_WHEN) is not None:
            return
        by_name = dict(zip(self._names, arguments, strict=True))
        try:
            with ctx.counting_apart(_WHEN):
                said = bool(when(**{name: by_name[name] for name in self._when_names}))
        except Exception as error:
            raise WhenFailed(workflow=self.workflow, step=self.step, error=f"{type(error).__name__}: {error}") from error
        if not said:
            raise Skip
        ctx.save_once(_WHEN, codec.encode(True))

    def _write(self, result: Any, limit: int) -> str:
        shape = self._shape
        assert shape is not None
        what = f"result of {self.workflow}.{self.step}"
        try:
            if self.feeds_each:
                return self._write_list(shape, result, limit, what)
            return shape.write(result, limit=limit, what=what)
        except (Misfit, BadInput) as error:
            raise self._bad(error.field, error.problem) from None

    def _write_list(self, shape: Shape, result: Any, limit: int, what: str) -> str:
        if not isinstance(result, (list, tuple)):
            raise self._bad("value", f"a list was expected because a later step runs for each member, found {type(result).__name__}")
        if len(result) > MAX_ITEMS:
            raise ValueTooLarge(what=what, size=len(result), limit=MAX_ITEMS, unit="items")
        payload = shape.write(result, limit=limit * _LIST_LIMITS, what=what)
        if len(payload) > limit // 4:  # no member of a shorter text can be over the limit, whatever its characters
            for number, member in enumerate(codec.split_list(payload)):
                if (size := len(member.encode())) > limit:
                    raise ValueTooLarge(what=f"item {number} of {what}", size=size, limit=limit)
        return payload

    def _bad(self, field: str, problem: str) -> BadResult:
        expected = self._shape.text if self._shape is not None else "None"
        return BadResult(workflow=self.workflow, step=self.step, expected=expected, field=field, problem=problem)

    def __repr__(self) -> str:
        return f"<Code {self.workflow}.{self.step} {self.signature}>"


def check_when(declared: Declared) -> None:
    """A condition may ask for the step's own parameters, by name, and for nothing else."""
    if declared.options.when is None:
        return
    mine = {slot.name for slot in declared.slots}
    for name, parameter in signature_of(declared.options.when, declared.where).parameters.items():
        if name not in mine or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            have = ", ".join(sorted(mine)) or "none"
            problem = f"when= takes '{name}', which is not a parameter of the step (have: {have})"
            raise DeclarationError(where=declared.where, problem=problem)


def _nothing() -> None:
    return None


def _positional(declared: Declared) -> Callable[..., Any]:
    """The function, callable with all arguments in the order of its parameters."""
    fn = declared.fn or _nothing
    first = next((number for number, slot in enumerate(declared.slots) if slot.keyword_only), None)
    if first is None:
        return fn
    names = tuple(slot.name for slot in declared.slots[first:])
    return lambda *arguments: fn(*arguments[:first], **dict(zip(names, arguments[first:], strict=True)))
