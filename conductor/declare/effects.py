"""Declared effects: what a capability leaves in the world, and who can say whether it is there.

A verifier is any callable. It takes `params` (the validated parameters), `ctx`, or single fields of the parameters, each by name; what it
asks for is checked once, when the capability is declared. It answers with a `Verdict` or its word, with True for verified, or with False or
None for absent. Any other answer, and any error, is indeterminate: a verifier that cannot tell must not decide whether work is repeated.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from conductor.declare.context import Ctx
from conductor.declare.hints import signature_of
from conductor.errors import DeclarationError, redact

__all__ = ["BoundVerifier", "EffectSpec", "Verdict", "Verifier", "ask", "bind_verifier", "in_words", "overall", "unverified"]

_REASON = 300
_PARAMS, _CTX = "params", "ctx"


class Verdict(StrEnum):
    """What asking about an effect found."""

    VERIFIED = "verified"
    ABSENT = "absent"
    INDETERMINATE = "indeterminate"
    PARTIAL = "partial"


Verifier: TypeAlias = Callable[..., object]
BoundVerifier: TypeAlias = Callable[[Any, Ctx], Verdict]


@dataclass(frozen=True)
class EffectSpec:
    """One effect and its verifier: `EffectSpec("invoice file", file_content(lambda p: p.path))`."""

    name: str
    verifier: Verifier

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise DeclarationError(where="EffectSpec", problem=f"name is {self.name!r}; a word was expected")
        if not callable(self.verifier):
            raise DeclarationError(where=f"effect '{self.name}'", problem=f"its verifier {self.verifier!r} cannot be called")


def bind_verifier(spec: EffectSpec, fields: Collection[str], where: str) -> BoundVerifier:
    """The verifier with its parameters wired by name. It raises what the verifier raises, so ask it through `ask`.

    `params` and `ctx` always mean the parameters and the context, even if a field has that name.
    """
    if inspect.iscoroutinefunction(spec.verifier) or inspect.iscoroutinefunction(getattr(spec.verifier, "__call__", None)):  # noqa: B004
        raise DeclarationError(where=where, problem=f"the verifier of effect '{spec.name}' is async; it is asked in a plain thread")
    in_place: list[str] = []
    by_name: list[str] = []
    for parameter in signature_of(spec.verifier, f"{where}: effect '{spec.name}'").parameters.values():
        if _is_wired(parameter, spec, fields, where):
            (in_place if parameter.kind is parameter.POSITIONAL_ONLY else by_name).append(parameter.name)

    def bound(params: Any, ctx: Ctx) -> Verdict:
        def of(name: str) -> Any:
            return params if name == _PARAMS else ctx if name == _CTX else getattr(params, name)

        return _read(spec.verifier(*(of(name) for name in in_place), **{name: of(name) for name in by_name}))

    return bound


def _is_wired(parameter: inspect.Parameter, spec: EffectSpec, fields: Collection[str], where: str) -> bool:
    """Whether it is given a value; what nothing can fill is refused, unless it has a default."""
    nameless = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    if not nameless and (parameter.name in (_PARAMS, _CTX) or parameter.name in fields):
        return True
    if parameter.default is not parameter.empty:
        return False
    have = ", ".join((_PARAMS, _CTX, *sorted(fields)))
    close = difflib.get_close_matches(parameter.name, list(fields), n=1, cutoff=0.75)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    problem = f"the verifier of effect '{spec.name}' asks for '{parameter}', which does not exist (have: {have}){hint}"
    raise DeclarationError(where=where, problem=problem)


def _read(answer: object) -> Verdict:
    if answer is True:
        return Verdict.VERIFIED
    if answer is False or answer is None:
        return Verdict.ABSENT
    if isinstance(answer, str) and answer in tuple(Verdict):
        return Verdict(answer)
    told = repr(answer)[:60] if isinstance(answer, (str, int, float)) else type(answer).__name__
    raise TypeError(f"the verifier answered {told}, which is no verdict")


def ask(bound: BoundVerifier, params: Any, ctx: Ctx) -> tuple[Verdict, str]:
    """The verdict, and for an indeterminate one the reason. Raises only what ends the process."""
    try:
        verdict = _read(bound(params, ctx))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a cancelled scope or a library's own BaseException must not look like a failed attempt
        return Verdict.INDETERMINATE, in_words(error)
    return verdict, "the verifier could not tell" if verdict is Verdict.INDETERMINATE else ""


def in_words(error: BaseException) -> str:
    """An error on one short line: its type and message, without credentials."""
    try:
        message = " ".join(str(error).split())
    except Exception:  # an error may break when it is looked at
        message = ""
    name = type(error).__name__
    # Redacted before it is cut: a cut in the middle of a URL would leave half a password that no longer looks like one.
    return redact(f"{name}: {message}" if message else name)[:_REASON]


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """One verdict for all effects of a capability. Nothing asked, or one that could not be told: indeterminate."""
    found = set(verdicts)
    if not found or Verdict.INDETERMINATE in found:
        return Verdict.INDETERMINATE
    return found.pop() if len(found) == 1 else Verdict.PARTIAL


def unverified(result: object) -> list[str]:
    """The names in a result's `verified` mapping that are neither True nor "verified"; empty if the result has none."""
    verified = result.get("verified") if isinstance(result, Mapping) else None
    if not isinstance(verified, Mapping):
        return []
    # 1 equals True but is a count, and a count is no verdict.
    return [str(name) for name, value in verified.items() if not (value is True or (isinstance(value, str) and value == "verified"))]
