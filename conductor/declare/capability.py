"""`@capability`: a named callable that is called durably, alone or as a step. Declaring it checks it; nothing here runs or stores anything.

A capability is stored as a graph of one step (see `operation.py`), so that everything that serves steps serves it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Generic, ParamSpec, TypeVar

from pydantic import BaseModel, ConfigDict, create_model

from conductor import codec
from conductor.declare import registry
from conductor.declare.binding import did_you_mean, return_type
from conductor.declare.context import Ctx
from conductor.declare.durations import Duration, in_ms
from conductor.declare.effects import EffectSpec, bind_verifier
from conductor.declare.hints import MISSING, resolve, signature_of
from conductor.declare.judging import Judge, effects_judge
from conductor.declare.limits import Limit, check_limit
from conductor.declare.options import check_name, check_queue
from conductor.declare.retry import Retry
from conductor.declare.shapes import Misfit, Shape, refuse, shape_of
from conductor.errors import DeclarationError, UnknownCapability
from conductor.records import RetryPolicy

__all__ = ["Capability", "CapabilityOptions", "capability", "find", "search"]

P = ParamSpec("P")
R = TypeVar("R")

POLICIES = ("none", "replay", "verify_first")
_BUILT_IN = "conductor."
_NEVER = RetryPolicy(max=0, never=("builtins.BaseException",))


class CapabilityOptions(BaseModel):
    """What stands beside the code of a capability, checked."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    retry: str = "none"
    policy: RetryPolicy = _NEVER
    effects: tuple[EffectSpec, ...] = ()
    needs: tuple[str, ...] = ()
    consent: bool = False
    lease_ms: int = 90_000
    deferred_lease_ms: int = 600_000
    timeout_ms: int = 0
    idempotent: bool = False
    queue: str = ""
    budget: int = 0
    limit: Any = None  # a Limit


class Capability(Generic[P, R]):
    """A registered capability. Calling it calls the function, nothing else; `conductor.call(name, …)` is the durable way."""

    def __init__(self, fn: Callable[P, R], name: str, params: type[BaseModel] | None, options: CapabilityOptions) -> None:
        self.name, self.fn, self.options = name, fn, options
        where = f"capability {name}"
        self._signature = signature_of(fn, where).parameters
        hints = resolve(fn, where)
        self.returns = return_type(hints)
        self._ctx = next((parameter for parameter in self._signature if hints.get(parameter) is Ctx or parameter == "ctx"), None)
        self._whole = _whole(self._signature, hints, params, where)
        self.params: type[BaseModel] = params or _model_of(name, self._signature, hints, self._ctx)
        self.shape: Shape = shape_of(self.params, where)
        fields = tuple(self.params.model_fields)
        if self._whole is None:
            _check_fields(self._signature, fields, self._ctx, where)
        self._bound = [bind_verifier(effect, fields, where) for effect in options.effects]
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Capability {self.name}>"

    def encode(self, params: BaseModel | Mapping[str, Any] | None, *, limit: int = codec.LIMIT) -> str:
        """The payload of the parameters, checked strictly: before anything is written."""
        what = f"parameters of capability {self.name}"
        try:
            return self.shape.accept({} if params is None else params, limit=limit, what=what)
        except Misfit as misfit:
            raise refuse(misfit, what) from None

    def run(self, params: BaseModel, ctx: Ctx) -> Any:
        """The function, with its parameters as it takes them."""
        spread = {name: getattr(params, name) for name in type(params).model_fields}
        given: dict[str, Any] = {self._whole: params} if self._whole else spread
        if self._ctx is not None:
            given[self._ctx] = ctx
        fn: Callable[..., Any] = self.fn
        return fn(**given)

    def judge(self, fixed: Mapping[str, Any] | None = None) -> Judge | None:
        """Who says whether its effects happened: asked with the model (an operation) or with one argument per field (a step)."""
        if not self._bound:
            return None

        def params(arguments: Mapping[str, Any]) -> BaseModel:
            whole = arguments.get("params")
            if isinstance(whole, self.params):
                return whole
            given = {**(fixed or {}), **arguments}
            return self.params.model_construct(**{name: given[name] for name in self.params.model_fields if name in given})

        return effects_judge(self._bound, [effect.name for effect in self.options.effects], params)

    @property
    def alone(self) -> bool:
        """In a batch only what may be repeated at will: a lost worker leaves all of a batch in doubt."""
        return self.options.retry != "replay" or bool(self.options.effects) or self.options.consent

    def as_step(self, fixed: Mapping[str, Any], where: str) -> Callable[..., Any]:
        """A plain function with one parameter per field that is not fixed, to be wired by names like any step."""
        if unknown := sorted(set(fixed) - set(self.params.model_fields)):
            have = ", ".join(self.params.model_fields)
            problem = f"params= names '{unknown[0]}', which capability {self.name} does not take (have: {have})"
            raise DeclarationError(where=where, problem=problem)

        def step(*, ctx: Ctx, **given: Any) -> Any:
            return self.run(self.params(**fixed, **given), ctx)

        free = {name: field for name, field in self.params.model_fields.items() if name not in fixed}
        annotations = {name: field.annotation for name, field in free.items()}
        parameters = [_parameter(name, field, annotations[name]) for name, field in free.items()]
        parameters.append(inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=Ctx))
        step.__name__, step.__doc__ = self.name, self.fn.__doc__
        step.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        step.__annotations__ = {**annotations, "ctx": Ctx} | ({} if self.returns is MISSING else {"return": self.returns})
        return step

    def schema(self) -> dict[str, Any]:
        """What a caller must know: parameters as JSON schema, and what the capability promises."""
        chosen = self.options
        return {
            "name": self.name, "doc": (self.fn.__doc__ or "").strip(), "params": self.params.model_json_schema(), "retry": chosen.retry,
            "max_retries": chosen.policy.max, "effects": [effect.name for effect in chosen.effects], "needs": list(chosen.needs),
            "consent": chosen.consent, "idempotent": chosen.idempotent, "lease_seconds": chosen.lease_ms / 1000,
        }


def capability(
    name: str, *, params: type[BaseModel] | None = None, retry: str = "none", max_retries: int = 5, backoff: str = "adaptive",
    max_retry_age_minutes: float = 30, retry_unknown: bool = False, effects: Iterable[EffectSpec] = (), needs: Iterable[str] = (),
    consent: bool = False, lease_seconds: Duration | None = None, timeout: Duration | None = None, idempotent: bool = False,
    queue: str | None = None, retry_budget: int = 0, limit: Limit | None = None,
) -> Callable[[Callable[P, R]], Capability[P, R]]:
    """Register a function under a name.

    `retry`: what a passing failure means: `none` (it fails), `replay` (it is repeated, also when nobody knows whether it took effect),
    `verify_first` (effects are verified before a repeat). `retry_budget`: repeats a minute over all callers, 0 for no bound. `limit`: a
    Limit, whose `key=` takes the parameters.
    """
    where = f"capability {name}"
    check_name(name, where, "capability name")
    if retry not in POLICIES:
        raise DeclarationError(where=where, problem=f"retry is {retry!r}; known are {', '.join(POLICIES)}")
    listed = tuple(effects)
    if retry == "verify_first" and not listed:
        raise DeclarationError(where=where, problem="retry='verify_first' needs effects= that can be verified")
    options = CapabilityOptions(
        retry=retry, policy=_policy(retry, max_retries, backoff, max_retry_age_minutes, retry_unknown), effects=listed, needs=tuple(needs),
        consent=consent, idempotent=idempotent, budget=_budget(retry_budget, where), **_leases(lease_seconds, where),
        timeout_ms=0 if timeout is None else _ms("timeout", timeout, where), queue="" if queue is None else check_queue(queue, where),
        limit=None if limit is None else check_limit(limit, where),
    )

    def declare(fn: Callable[P, R]) -> Capability[P, R]:
        made = Capability(fn, name, params, options)
        registry.register_capability(made, registry.place_of_caller())
        return made

    return declare


def _parameter(name: str, field: Any, annotation: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _policy(retry: str, most: int, backoff: str, minutes: float, unknown: bool) -> RetryPolicy:
    if retry == "none":
        return _NEVER
    return Retry(most, backoff=backoff, max_age=timedelta(minutes=minutes), unknown=unknown).policy


def _budget(given: Any, where: str) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= 1_000_000:
        raise DeclarationError(where=where, problem=f"retry_budget is {given!r}; a whole number of repeats a minute was expected")
    return given


def _leases(given: Duration | None, where: str) -> dict[str, int]:
    """What was said holds for every operation; unsaid, one that nobody waits for is held longer."""
    return {} if given is None else dict.fromkeys(("lease_ms", "deferred_lease_ms"), _ms("lease_seconds", given, where))


def _ms(option: str, given: Duration, where: str) -> int:
    try:
        return in_ms(given, least=timedelta(seconds=1), most=timedelta(days=1))
    except ValueError as error:
        raise DeclarationError(where=where, problem=f"{option}: {error}") from None


def _whole(parameters: Mapping[str, Any], hints: Mapping[str, Any], model: type[BaseModel] | None, where: str) -> str | None:
    """The parameter that takes the whole model, if one does."""
    if model is None:
        return None
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise DeclarationError(where=where, problem=f"params is {model!r}; a pydantic model was expected")
    return next((name for name in parameters if hints.get(name) is model), None)


def _check_fields(parameters: Mapping[str, Any], fields: Iterable[str], ctx: str | None, where: str) -> None:
    """Every field is a parameter and every parameter a field: a typing error must not wait for the first call."""
    taken, known = {name for name in parameters if name != ctx}, set(fields)
    if wrong := sorted(taken ^ known):
        near = did_you_mean(wrong[0], taken | known - {wrong[0]})
        raise DeclarationError(where=where, problem=f"'{wrong[0]}' is not both a parameter of the function and a field of params{near}")


def _model_of(name: str, parameters: Mapping[str, Any], hints: Mapping[str, Any], ctx: str | None) -> type[BaseModel]:
    """The parameters of a plain function as a model."""
    fields: dict[str, Any] = {}
    for parameter, found in parameters.items():
        if found.kind in (found.VAR_POSITIONAL, found.VAR_KEYWORD, found.POSITIONAL_ONLY):
            raise DeclarationError(where=f"capability {name}", problem=f"parameter '{parameter}' has no name a caller could use")
        if parameter != ctx:
            default = ... if found.default is found.empty else found.default
            fields[parameter] = (hints.get(parameter, Any), default)
    title = "".join(part.title() for part in name.replace("-", "_").replace(".", "_").split("_"))
    made: type[BaseModel] = create_model(f"{title}Params", __config__=ConfigDict(strict=True, extra="forbid"), **fields)
    return made


def find(name: str) -> Capability[..., Any]:
    """A registered capability, or UnknownCapability with the nearest names."""
    found = registry.capabilities.get(name)
    if found is None:
        close = did_you_mean(name, registry.capabilities)
        known = ", ".join(sorted(one for one in registry.capabilities if not one.startswith(_BUILT_IN))) or "none"
        raise UnknownCapability(capability=name, known=f"{known}{close}")
    return found


def search(text: str = "") -> list[Capability[..., Any]]:
    """Capabilities whose name or documentation has every word of `text`, by name."""
    words = text.lower().split()
    found = sorted(registry.capabilities.items())
    return [one for name, one in found if all(word in f"{name} {one.fn.__doc__ or ''}".lower() for word in words)]
