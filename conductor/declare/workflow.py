"""`Workflow`: the surface users declare and start with. What stands behind it is in `building`, `freezing` and `starting`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar, Unpack, overload

from conductor import codec
from conductor.declare import registry
from conductor.declare.building import Building
from conductor.declare.calling import OPTIONS, giver, result_type
from conductor.declare.capability import Capability, find
from conductor.declare.code import Code
from conductor.declare.durations import Duration, in_ms
from conductor.declare.every import Every
from conductor.declare.feeding import mismatch
from conductor.declare.hints import MISSING
from conductor.declare.lanes import Lane, check_lane
from conductor.declare.later import Later
from conductor.declare.limits import Limit, check_limit
from conductor.declare.options import HookOptions, StepOptions, check_name, check_parallel, check_policy, options_of
from conductor.declare.results import Results
from conductor.declare.retry import Retry
from conductor.declare.shapes import Misfit, Shape, refuse, shape_of
from conductor.declare.starting import Handle, StartOptions, start_options
from conductor.declare.steps import After, Call, Declared, Each, Hook, Step
from conductor.declare.waits import Waits, idle_ms
from conductor.errors import BadInput, DeclarationError, NotAvailableYet, SettingsError
from conductor.records import FailurePolicy, Graph, NodeKind

__all__ = ["Workflow"]

Input = TypeVar("Input")
P = ParamSpec("P")
R = TypeVar("R")

Order = After | Iterable[After]
Retention = Duration | tuple[Duration, Duration]


class Workflow(Every, Waits, Later, Generic[Input]):
    """A graph of steps, wired by parameter names and checked as it is declared.

    `input` is a pydantic model, a dataclass, a TypedDict or a plain type; without it runs take no input. `on_failure` says what a step's
    final failure does to its run (`fail`, `continue`, `pause`, `compensate`). `idle_timeout` is how long a run may wait for agents alone
    before it is cancelled (None: for ever; by default the setting `idle_timeout_hours`). `retention` is how long finished runs are kept:
    one duration, or one for completed and one for failed runs. `lane` is a Lane, or the name of one.
    """

    @overload
    def __init__(
        self: Workflow[None], name: str, *, input: None = None, on_failure: str = "fail", retention: Retention | None = None,
        idle_timeout: Duration | None = MISSING, lane: Lane | str | None = None, limit: Limit | None = None, version: Any = None,
    ) -> None: ...

    @overload
    def __init__(
        self, name: str, *, input: type[Input], on_failure: str = "fail", retention: Retention | None = None,
        idle_timeout: Duration | None = MISSING, lane: Lane | str | None = None, limit: Limit | None = None, version: Any = None,
    ) -> None: ...

    def __init__(
        self, name: str, *, input: Any = None, on_failure: str = "fail", retention: Retention | None = None,
        idle_timeout: Duration | None = MISSING, lane: Lane | str | None = None, limit: Limit | None = None, version: Any = None,
    ) -> None:
        self.name = check_name(name, str(name), "workflow name")
        if version is not None:
            raise NotAvailableYet(where=name, what="version=")
        self.limit = None if limit is None else check_limit(limit, name)
        self.input_type = input
        self.lane = None if lane is None else check_lane(lane, name)
        self.policy: FailurePolicy = check_policy(on_failure, name)
        self.retain_completed_ms, self.retain_failed_ms = _retention(retention, name)
        self._idle_ms = idle_ms(idle_timeout, name)
        self._input: Shape = shape_of(type(None) if input is None else input, name)
        self._building = Building(self, input, self.policy)
        registry.register(self, registry.place_of_caller())

    def __repr__(self) -> str:
        return f"<Workflow {self.name}: {len(self._building.steps)} steps>"

    # Declaring.

    @overload
    def step(
        self, fn: Capability[P, R] | str, /, *, name: str | None = None, after: Order = (), using: Mapping[str, After] | None = None,
        params: Mapping[str, Any] | None = None, **options: Unpack[StepOptions],
    ) -> Step[..., Any]: ...

    @overload
    def step(self, fn: Callable[P, R], /) -> Step[P, R]: ...

    @overload
    def step(
        self, /, *, name: str | None = None, after: Order = (), using: Mapping[str, After] | None = None, **options: Unpack[StepOptions]
    ) -> Callable[[Callable[P, R]], Step[P, R]]: ...

    def step(
        self, fn: Any = None, /, *, name: Any = None, after: Any = (), using: Any = None, params: Any = None,
        **options: Unpack[StepOptions],
    ) -> Any:
        """Declare a function, or a registered capability, as a step. `using={"parameter": step}` wires a parameter to a step of another
        name; `params=` gives parameters of a capability that no step gives."""
        if isinstance(fn, (Capability, str)):
            return self._called(fn, name, params or {}, options, after=after, using=using)
        if params is not None:
            raise DeclarationError(where=self.name, problem="params= belongs to a step of a registered capability")
        return self._declared(NodeKind.STEP, fn, name=name, after=after, using=using, **options)

    def _called(self, named: Capability[..., Any] | str, name: str | None, fixed: Mapping[str, Any], options: Any, **order: Any) -> Any:
        """A step of a capability: its own options stand unless the declaration says otherwise."""
        found = find(named) if isinstance(named, str) else named
        where, own = f"{self.name}.{name or found.name}", found.options
        given = options_of(where, **{"effect": bool(own.effects), "idempotent": own.idempotent, "queue": own.queue or None, **options})
        chosen = replace(
            given, capability=found, fixed=dict(fixed), retry=given.retry or Retry.of(own.policy),
            timeout_ms=given.timeout_ms or own.timeout_ms)
        made = self._building.step(found.as_step(fixed, where), NodeKind.STEP, chosen, name=name or found.name, **order)
        made.judge = found.judge(fixed)
        return made

    @overload
    def effect(self, fn: Callable[P, R], /) -> Step[P, R]: ...

    @overload
    def effect(
        self, /, *, name: str | None = None, after: Order = (), using: Mapping[str, After] | None = None, **options: Unpack[StepOptions]
    ) -> Callable[[Callable[P, R]], Step[P, R]]: ...

    def effect(self, fn: Any = None, /, *, name: Any = None, after: Any = (), using: Any = None, **options: Unpack[StepOptions]) -> Any:
        """Declare a step that changes something outside. It is claimed alone; give `ctx.key` to what it changes."""
        return self._declared(NodeKind.STEP, fn, name=name, after=after, using=using, **{**options, "effect": True})

    def each(
        self, source: After, *, max_parallel: int = 20, name: str | None = None, after: Order = (),
        using: Mapping[str, After] | None = None, effect: bool = False, **options: Unpack[StepOptions],
    ) -> Callable[[Callable[P, R]], Each[P, R]]:
        """Declare a step that runs once for each member of the list that `source` gives. It takes the options of `step`."""
        parallel = check_parallel(max_parallel, self.name)
        return self._declared(  # type: ignore[no-any-return]
            NodeKind.EACH, None, name=name, after=after, using=using, source=source, max_parallel=parallel, effect=effect, **options
        )

    def call(
        self, other: Workflow[Any], given: After | Callable[..., Any] | None = None, /, *, name: str | None = None, after: Order = (),
        using: Mapping[str, After] | None = None, **options: Unpack[StepOptions],
    ) -> Call[..., Any]:
        """Declare a step that runs another workflow and gives its result. `given` is the step whose result the child is started with, or a
        function that makes its input and whose parameters are wired like those of a step; without it the child gets this run's input, if
        it takes the same. Child failed or cancelled: the step fails with `child_failed` or `child_cancelled`."""
        if not isinstance(other, Workflow):
            raise DeclarationError(where=self.name, problem=f"call takes a Workflow, found {other!r}")
        where = f"{self.name}.{name or other.name}"
        if wrong := set(options) - OPTIONS:
            raise DeclarationError(where=where, problem=f"a call takes no {', '.join(sorted(wrong))}; the child's own steps may")
        fn, wired = giver(self, other, given, where)
        gives = result_type(self, other)
        made = self._building.step(
            fn, NodeKind.CALL, options_of(where, **options), name=name or other.name, after=after, using={**wired, **(using or {})},
            calls=other)
        assert isinstance(made, Call)
        made.child_gives = gives
        return made

    @overload
    def on_failure(self, fn: Callable[P, R], /) -> Hook[P, R]: ...

    @overload
    def on_failure(self, /, *, name: str | None = None, **options: Unpack[HookOptions]) -> Callable[[Callable[P, R]], Hook[P, R]]: ...

    def on_failure(self, fn: Any = None, /, *, name: Any = None, **options: Unpack[HookOptions]) -> Any:
        """Declare a last step that runs if the run fails. It may take the input, `ctx` and a `RunOutcome`."""
        return self._declared(NodeKind.ON_FAILURE, fn, name=name, **options)

    @overload
    def on_finish(self, fn: Callable[P, R], /) -> Hook[P, R]: ...

    @overload
    def on_finish(self, /, *, name: str | None = None, **options: Unpack[HookOptions]) -> Callable[[Callable[P, R]], Hook[P, R]]: ...

    def on_finish(self, fn: Any = None, /, *, name: Any = None, **options: Unpack[HookOptions]) -> Any:
        """Declare a last step that runs however the run ends."""
        return self._declared(NodeKind.ON_FINISH, fn, name=name, **options)

    def add(
        self, fn: Callable[P, R], *, name: str | None = None, after: Order = (), using: Mapping[str, After] | None = None,
        **options: Unpack[StepOptions],
    ) -> Step[P, R]:
        """Declare a step from a program: `step(name=…)(fn)`."""
        return self._declared(NodeKind.STEP, fn, name=name, after=after, using=using, **options)  # type: ignore[no-any-return]

    def _declared(
        self, kind: NodeKind, fn: Any, *, name: Any = None, after: Any = (), using: Any = None, source: Any = None, **options: Any
    ) -> Any:
        def declare(found: Any) -> Any:
            # Only now is it known which function the options are of: the error names it.
            where = f"{self.name}.{name or getattr(found, '__name__', 'step')}"
            if kind in (NodeKind.ON_FAILURE, NodeKind.ON_FINISH):
                _check_hook(where, options)
            checked = options_of(where, **options)
            return self._building.step(found, kind, checked, name=name, after=after, source=source, using=using)

        return declare if fn is None else declare(fn)

    def add_undo(self, step: Declared, fn: Callable[..., Any], options: HookOptions) -> None:
        """What `@step.undo` declares."""
        where = f"{step.where}.undo"
        _check_hook(where, options)
        self._building.undo(step, fn, options_of(where, **options))

    def changed(self) -> None:
        """A step of it was declared further: what was frozen before no longer counts."""
        self._building.changed()

    # What the engine reads.

    @property
    def graph(self) -> Graph:
        """The frozen graph: made when first asked for, and kept until a step is added."""
        return self._building.frozen.graph

    @property
    def codes(self) -> Mapping[int, Code]:
        """The code of each node, by its index in `graph`."""
        return self._building.frozen.codes

    def leaf_types(self) -> dict[str, Any]:
        """The types of the steps whose results are those of a run, by name."""
        return {node.name: self._building.steps[node.name].gives for node in self.graph.leaves}

    def encode_input(self, value: Any = None, *, limit: int = codec.LIMIT) -> str:
        """The payload of a run's input: an instance of the input model, or plain data that fits it strictly."""
        what = f"input of workflow {self.name}"
        if self.input_type is None and value is not None:
            raise BadInput(what=what, field="input", problem="the workflow takes no input; declare it with Workflow(…, input=Model)")
        try:
            return self._input.accept(value, limit=limit, what=what)
        except Misfit as misfit:
            raise refuse(misfit, what) from None

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits its steps stand under."""
        return self._building.frozen.limits

    def read_input(self, payload: str) -> Any:
        """The input that a payload holds: what `key=` of a lane or a limit is asked about."""
        return self._input.read(payload)

    def result_of(self, values: Mapping[str, str | Results[Any] | None]) -> Any:
        """The result of a run, from the payloads of its leaves by name: the value of the only one, or a dict."""
        read = {name: self._read_result(name, value) for name, value in values.items()}
        return next(iter(read.values())) if len(read) == 1 else read

    def _read_result(self, name: str, value: str | Results[Any] | None) -> Any:
        step = self._building.steps.get(name)
        if value is None or step is None or step.shape is None:
            # A leaf of an older graph: nobody here knows its type any more.
            return codec.decode(value) if isinstance(value, str) else None if value is None else list(value)
        try:
            if isinstance(value, str):
                return shape_of(step.gives, step.where).read(value)
            return list(value.with_decoder(step.shape.read))
        except Misfit as misfit:
            raise mismatch(misfit, self.name, name, "result", step.shape.text) from None

    # Starting.

    def delay(self, x: Input | Mapping[str, Any] | None = None, /) -> Handle:
        """Start a run."""
        return self.apply_async(x)

    def apply_async(
        self, x: Input | Mapping[str, Any] | None = None, /, *, key: str | None = None, countdown: Duration | None = None,
        eta: datetime | None = None, expires: Duration | datetime | None = None, priority: int | None = None, tags: Iterable[str] = (),
        deadline: Duration | datetime | None = None, session: str | None = None, queue: str | None = None,
        lane: Lane | str | None = None,
    ) -> Handle:
        """Start a run. The same `key` with the same input is the same run; times are durable timers, not messages."""
        options = start_options(
            self.name, key=key, countdown=countdown, eta=eta, expires=expires, priority=priority, tags=tags, deadline=deadline,
            session=session, queue=queue, lane=lane,
        )
        return self._start(self.encode_input(x, limit=registry.payload_limit()), options)

    def delay_on_commit(self, x: Input | Mapping[str, Any] | None = None, /, *, database: str | None = None, **options: Any) -> None:
        """Start a run when Django's current transaction commits. Input and options are checked at once."""
        try:
            from django.db import transaction  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError:
            raise SettingsError(setting="delay_on_commit", problem="Django is not installed; use delay()") from None
        payload, checked = self.encode_input(x, limit=registry.payload_limit()), start_options(self.name, **options)
        transaction.on_commit(lambda: self._start(payload, checked), using=database)

    def _start(self, payload: str, options: StartOptions) -> Handle:
        handle: Handle = registry.current(self.name).start(self, payload=payload, options=options)
        return handle


def _check_hook(where: str, options: Mapping[str, Any]) -> None:
    if wrong := set(options) - HookOptions.__optional_keys__:
        what = "an undo" if where.endswith(".undo") else "a last step"
        raise DeclarationError(where=where, problem=f"{what} takes no {', '.join(sorted(wrong))}")


def _retention(given: Retention | None, where: str) -> tuple[int | None, int | None]:
    if given is None:
        return None, None
    pair = given if isinstance(given, tuple) else (given, given)
    try:
        completed, failed = (in_ms(one, least=timedelta(0)) for one in pair)
    except ValueError as error:
        raise DeclarationError(where=where, problem=f"retention: {error}") from None
    return completed, failed
