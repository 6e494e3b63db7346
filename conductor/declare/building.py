"""How a declaration becomes part of its workflow: names, wiring, order, limits. `Workflow` is the surface of this."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from conductor.declare.binding import bind, did_you_mean, return_type
from conductor.declare.code import check_when
from conductor.declare.durations import Duration, in_ms
from conductor.declare.fitting import fits
from conductor.declare.freezing import MAX_STEPS, Frozen, check_source, check_successors, freeze, may_skip
from conductor.declare.hints import describe
from conductor.declare.options import Options, check_name
from conductor.declare.shapes import shape_of
from conductor.declare.steps import After, Call, Declared, Each, Hook, Sleep, Step, Wait
from conductor.declare.undoing import check_compensation, declare_undo, plan_of
from conductor.errors import DeclarationError, NotAvailableYet
from conductor.records import FailurePolicy, NodeKind

if TYPE_CHECKING:
    from conductor.declare.workflow import Workflow

__all__ = ["Building"]

D = TypeVar("D", bound=Declared)


class Building:
    """All nodes of one workflow in the order they were declared. Frozen when first asked for, and again after each addition."""

    def __init__(self, flow: Workflow[Any], input_type: Any, policy: FailurePolicy) -> None:
        self.flow = flow
        self.input_type = input_type
        self.policy = policy
        self.steps: dict[str, Declared] = {}
        self.hooks: dict[str, Declared] = {}
        self.undos: dict[Declared, Declared] = {}
        self._followers: dict[Declared, int] = {}
        self._result: Declared | None = None
        self._sleeps = 0
        self._frozen: Frozen | None = None

    @property
    def frozen(self) -> Frozen:
        if self._frozen is None:
            undos = tuple(self.undos.values())
            check_compensation(self.flow.name, tuple(self.steps.values()), undos, self.policy)
            beside = (*self.hooks.values(), *([plan_of(self.flow, self.policy), *undos] if undos else ()))
            self._frozen = freeze(self.flow.name, tuple(self.steps.values()), beside, self.policy)
        return self._frozen

    def changed(self) -> None:
        """Freeze it anew when it is next asked for."""
        self._frozen = None

    def step(
        self, fn: Callable[..., Any], kind: NodeKind, options: Options, *, name: str | None, after: Any = (), source: Any = None,
        using: Mapping[str, Any] | None = None, calls: Workflow[Any] | None = None,
    ) -> Step[..., Any]:
        """Add a step, an each, a call or a last step."""
        fn = _plain(fn, self.flow.name)
        name = check_name(name if name is not None else _name_of(fn), self.flow.name, "step name")
        where = f"{self.flow.name}.{name}"
        self._check_new(name, where)
        listed = self._source(source, where) if kind is NodeKind.EACH else None
        wired = {parameter: self._known(named, where, "using=") for parameter, named in (using or {}).items()}
        slots, hints = bind(
            fn, where=where, kind=kind, earlier=self.steps, input_type=self.input_type, source=listed, using=wired,
        )
        returns = return_type(hints)
        made = _CLASSES[kind](
            fn, flow=self.flow, name=name, kind=kind, index=len(self.steps), options=options, slots=slots, returns=returns,
            shape=shape_of(returns, where), source=listed, after=self._after(after, where), calls=calls,
        )
        check_when(made)
        return self._added(made)

    def undo(self, step: Declared, fn: Callable[..., Any], options: Options) -> None:
        """Add the compensation of a step."""
        if step in self.undos:
            raise DeclarationError(where=step.where, problem="it already has an undo")
        self.undos[step] = declare_undo(_plain(fn, self.flow.name), step, options, self.input_type)
        self.changed()

    def sleep(self, duration: Duration, *, name: str | None, after: Any) -> Sleep:
        """Add a durable timer."""
        self._sleeps += 1
        name = check_name(name if name is not None else f"sleep_{self._sleeps}", self.flow.name, "step name")
        where = f"{self.flow.name}.{name}"
        self._check_new(name, where)
        try:
            delay = in_ms(duration, least=timedelta(milliseconds=1))
        except ValueError as error:
            raise DeclarationError(where=where, problem=f"sleep: {error}") from None
        made = Sleep(
            flow=self.flow, name=name, kind=NodeKind.SLEEP, index=len(self.steps), after=self._after(after, where), delay_ms=delay,
            shape=shape_of(type(None), where),
        )
        return self._added(made)

    def wait(self, kind: NodeKind, name: str, model: Any, options: Options, *, after: Any, signal: str = "", **fields: Any) -> Wait:
        """Add a wait for a signal or for an agent's answer."""
        name = check_name(name, self.flow.name, "step name")
        where = f"{self.flow.name}.{name}"
        self._check_new(name, where)
        for other in self.steps.values():
            if signal and other.signal == signal and other.returns != model:
                problem = f"step '{other.name}' waits for signal '{signal}' as {describe(other.returns)}, this one as {describe(model)}; "
                raise DeclarationError(where=where, problem=problem + "one signal has one type")
        made = Wait(
            flow=self.flow, name=name, kind=kind, index=len(self.steps), after=self._after(after, where), options=options, returns=model,
            shape=shape_of(model, where), signal=signal, **fields,
        )
        return self._added(made)

    def _added(self, made: D) -> D:
        """Take it in, if it keeps the rules that concern its neighbours."""
        if isinstance(made, Hook):
            self.hooks[made.name] = made
        else:
            before = {*made.needs, *(found for found in made.after if isinstance(found, Declared))}
            before |= {made.source} if made.source is not None else set()
            made.may_skip = may_skip(made, before)
            check_source(made, before)
            self._check_result(made)
            for parent in before:
                check_successors(self.flow.name, parent, self._followers.get(parent, 0) + 1)
            self._followers.update({parent: self._followers.get(parent, 0) + 1 for parent in before})
            self.steps[made.name] = made
        self.changed()
        return made

    def _check_new(self, name: str, where: str) -> None:
        if name in self.steps or name in self.hooks:
            raise DeclarationError(where=where, problem=f"the workflow already has a step named '{name}'; give one of them another name")
        if len(self.steps) >= MAX_STEPS:
            raise DeclarationError(where=where, problem=f"the workflow already has {MAX_STEPS} steps, the limit; use `each` to fan out")

    def _check_result(self, made: Declared) -> None:
        if not made.options.result:
            return
        if self._result is not None:
            problem = f"step '{self._result.name}' is already the result of the workflow; only one may have result=True"
            raise DeclarationError(where=made.where, problem=problem)
        self._result = made

    def _source(self, source: Any, where: str) -> Declared:
        found = self._known(source, where, "each")
        if isinstance(found, Each):
            raise DeclarationError(
                where=where, problem=f"'{found.name}' is itself an each; an each cannot run over the results of another, use flow.call"
            )
        if isinstance(found, Sleep) or not fits(found.gives, list):
            given = "no value" if isinstance(found, Sleep) else describe(found.gives)
            raise DeclarationError(where=where, problem=f"it runs over step '{found.name}', which must give a list but gives {given}")
        return found

    def _after(self, after: Any, where: str) -> tuple[After, ...]:
        """Names of steps that do not exist yet are kept as they are and resolved when the workflow is frozen."""
        named = (after,) if isinstance(after, (str, Declared)) else tuple(after) if isinstance(after, Iterable) else after
        if not isinstance(named, tuple):
            raise DeclarationError(where=where, problem=f"after is {after!r}; a step, a name, or several of them were expected")
        return tuple(self.steps.get(one, one) if isinstance(one, str) else self._known(one, where, "after=") for one in named)

    def _known(self, named: Any, where: str, what: str) -> Declared:
        if isinstance(named, Hook):
            raise DeclarationError(where=where, problem=f"{what} names '{named.name}', a last step; nothing can follow it")
        if isinstance(named, Declared):
            if named.flow is not self.flow:
                raise DeclarationError(where=where, problem=f"{what} names '{named.name}', a step of workflow '{named.flow.name}'")
            return named
        if isinstance(named, str) and named in self.steps:
            return self.steps[named]
        have = ", ".join(list(self.steps)[:20]) or "none"
        close = did_you_mean(named, self.steps) if isinstance(named, str) else ""
        raise DeclarationError(where=where, problem=f"{what} names {named!r}, which is no earlier step (have: {have}){close}")


_CLASSES: dict[NodeKind, type[Step[..., Any]]] = {
    NodeKind.STEP: Step, NodeKind.EACH: Each, NodeKind.CALL: Call, NodeKind.ON_FAILURE: Hook, NodeKind.ON_FINISH: Hook,
}


def _plain(fn: Any, workflow: str) -> Callable[..., Any]:
    """A function that can be run as a step; what needs a later release, or can never work, is refused by name."""
    if isinstance(fn, Step):
        fn = fn.fn
    if not callable(fn):
        raise DeclarationError(where=workflow, problem=f"{fn!r} is not a function")
    inner = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__):
        raise NotAvailableYet(where=f"{workflow}.{_name_of(fn)}", what="an async step")
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise DeclarationError(where=f"{workflow}.{_name_of(fn)}", problem="it is a generator; return a list, or use ctx.checkpoint")
    plain: Callable[..., Any] = fn
    return plain


def _name_of(fn: Any) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))
