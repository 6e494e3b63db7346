"""Judges: who can say whether an effect has happened. A step's `@x.verify`, or the declared effects of a capability.

A judge is asked with the arguments the code would get. It never raises: what cannot be told is indeterminate, with a reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from conductor.classify import is_transient_result
from conductor.declare.context import Ctx
from conductor.declare.effects import Verdict, ask, overall, unverified
from conductor.declare.hints import signature_of
from conductor.errors import DeclarationError, PartialEffects, SoftFailure, redact

__all__ = ["UNASKED", "Judge", "Judged", "check_result", "effects_judge", "step_judge"]


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict. `value` is what the effect gave, where its verifier could say; `count` how many effects were verified."""

    verdict: Verdict
    value: Any = None
    has_value: bool = False
    count: int = 0
    reason: str = ""


UNASKED = Judged(Verdict.INDETERMINATE, reason="nothing can be asked: it has no verifier")


class Judge(Protocol):
    """Asked with the arguments of the code, by name."""

    def __call__(self, arguments: Mapping[str, Any], ctx: Ctx) -> Judged: ...


def step_judge(fn: Callable[..., Any], parameters: Sequence[str], where: str) -> Judge:
    """`@x.verify`: takes any of the step's own parameters. None says absent, a verdict itself, any other value is the step's result."""
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None)):  # noqa: B004
        raise DeclarationError(where=where, problem="its verify is async; it is asked in a plain thread")
    names = tuple(signature_of(fn, where).parameters)
    for name in names:
        if name not in parameters and name != "ctx":
            have = ", ".join(parameters) or "none"
            raise DeclarationError(where=where, problem=f"verify takes '{name}', which is not a parameter of the step (have: {have})")

    def judge(arguments: Mapping[str, Any], ctx: Ctx) -> Judged:
        given = {"ctx": ctx, **arguments}
        try:
            return _read(fn(**{name: given[name] for name in names}))
        except Exception as error:
            return Judged(Verdict.INDETERMINATE, reason=redact(f"its verifier raised {type(error).__name__}: {error}")[:500])

    return judge


def _read(said: Any) -> Judged:
    if said is None or said is False:
        return Judged(Verdict.ABSENT)
    if said is True:
        return Judged(Verdict.VERIFIED, count=1)
    if isinstance(said, str) and said in tuple(Verdict):
        return Judged(Verdict(said), count=int(said == Verdict.VERIFIED))
    return Judged(Verdict.VERIFIED, said, has_value=True, count=1)


def effects_judge(effects: Sequence[Callable[[Any, Ctx], Any]], names: Sequence[str], params: Callable[[Mapping[str, Any]], Any]) -> Judge:
    """The effects of a capability, each asked with its validated parameters."""

    def judge(arguments: Mapping[str, Any], ctx: Ctx) -> Judged:
        found = [ask(effect, params(arguments), ctx) for effect in effects]
        reasons = [f"{name}: {why}" for name, (verdict, why) in zip(names, found, strict=True) if verdict is Verdict.INDETERMINATE]
        verified = sum(verdict is Verdict.VERIFIED for verdict, _ in found)
        return Judged(overall([verdict for verdict, _ in found]), count=verified, reason="; ".join(reasons))

    return judge


def check_result(result: Any, step: str) -> None:
    """A returned value may tell of a failure: effects that are not verified, or a passing error in place of an answer."""
    if names := unverified(result):
        raise PartialEffects(step=step, effects=", ".join(names))
    if is_transient_result(result):
        problem = next((str(result[name]) for name in ("error", "message", "detail", "reason") if result.get(name)), "it may pass")
        raise SoftFailure(step=step, problem=problem[:500])
