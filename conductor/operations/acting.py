"""What people and programs do to operations: retry, cancel, resolve what is in doubt. An operation stands alone, or is a step of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from conductor import codec
from conductor.declare import registry
from conductor.declare.operation import capability_of
from conductor.errors import BadInput, BadResult, NotFailed, NotHealthy, NotInDoubt, UnknownOperation, redact
from conductor.operations.answers import Answer
from conductor.operations.call import answer_of
from conductor.operations.read import Operation, Place, place_of
from conductor.runs.doubt import ABSENT, landed
from conductor.runs.retry import resume_failed, retry_run
from conductor.state import OpState, RunState
from conductor.store import Cancelled
from conductor.store.reads import RunRecord, read_run

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["cancel", "refuse_over", "resolve", "retry"]

HealthCheck = Callable[[], Any]

_OVER = (OpState.COMPLETED, OpState.CANCELLED)


def retry(engine: Engine, operation_id: str, *, health_check: bool | HealthCheck = False, actor: str = "") -> Answer:
    """Replay from the record, without parameters. What waits is due now; what failed begins anew with a fresh budget. With a health check,
    what the capability needs is asked first: if it is not there, nothing is replayed and no attempt is burnt. What a run has called goes on
    with that run only."""
    place = place_of(engine, operation_id)
    if place.run.state is RunState.FAILED and (run_id := _caller_that_is_over(engine, place.run)):
        problem = f"run {run_id}, which called operation {operation_id}, has ended or begun anew; retry the run, which calls it again"
        raise NotFailed(problem, run_id=run_id, state="over")
    if health_check and (problem := _unhealthy(engine, place, health_check)):
        raise NotHealthy(operation_id=operation_id, problem=problem)
    if place.run.state is RunState.FAILED:
        retry_run(engine, place.run.run_id, actor=actor)
    elif engine.store.hasten(place.run.run_id, place.index, place.item) == "UNKNOWN":
        raise UnknownOperation(operation_id=operation_id, namespace=engine.store.namespace)
    return answer_of(engine, operation_id)


def refuse_over(found: Operation) -> None:
    """A person who asks to retry what has completed, or was cancelled, is told so. A program may ask again and gets the answer."""
    if found.state in _OVER:
        problem = f"operation {found.operation_id} is {found.state}; only one that failed or waits can be retried"
        raise NotFailed(problem, run_id=found.operation_id, state=found.state)


def _unhealthy(engine: Engine, place: Place, check: bool | HealthCheck) -> str:
    if callable(check):
        try:
            return "" if check() is not False else "the health check said no"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    name = capability_of(place.run.workflow) or place.graph.nodes[place.index].capability
    known = registry.capabilities.get(name)
    failures: Mapping[str, str] = engine.needs.probe(known.options.needs) if known is not None and known.options.needs else {}
    return "; ".join(f"{tool}: {why}" for tool, why in failures.items())


def cancel(engine: Engine, operation_id: str, *, reason: str = "requested", actor: str = "") -> Cancelled:
    """Cancel a stand-alone operation. A step belongs to its run, which is cancelled as a whole."""
    place = place_of(engine, operation_id)
    if not place.stand_alone:
        problem = f"it is a step of run {place.run.run_id}; cancel the run"
        raise BadInput(what=f"cancel of operation {operation_id}", field="operation", problem=problem)
    return engine.store.cancel(place.run.run_id, reason=redact(reason), actor=actor)


def resolve(engine: Engine, operation_id: str, *, happened: bool, value: Any = None, actor: str = "") -> Answer:
    """Say whether an effect in doubt happened, and what it gave. The step or operation then goes on from there; what a run has called, when
    the run does."""
    place = place_of(engine, operation_id)
    word = landed(_checked(engine, place, f"operation {operation_id}", value)) if happened else ABSENT
    told = engine.store.resolve(place.run.run_id, place.index, place.item, word)
    if told != "OK":
        state = place.run.state if place.stand_alone else f"part of a run that is {place.run.state}"
        raise NotInDoubt(what=f"operation {operation_id}", state=state)
    if place.run.state is RunState.FAILED:
        if not _caller_that_is_over(engine, place.run):
            retry_run(engine, place.run.run_id, actor=actor)
    else:
        resume_failed(engine, place.run.run_id, actor=actor)
    return answer_of(engine, operation_id)


def _caller_that_is_over(engine: Engine, run: RunRecord) -> str:
    """The run above that has ended, or lives in another generation than the one that called; empty if all go on."""
    while run.bound_to:
        run_id, _, generation = run.bound_to.partition(";")
        above = read_run(engine.store, run_id)
        if above is None or above.ended or str(above.generation) != generation:
            return run_id
        run = above
    return ""


def _checked(engine: Engine, place: Place, what: str, value: Any) -> str:
    """The payload of the value, fitting the step's type where this process knows it."""
    from conductor.runs.execute import code_table

    code = code_table(engine).get(place.graph.nodes[place.index].signature)
    limit = engine.payload_limit
    try:
        return code.landed(value, limit) if code is not None else codec.encode(value, limit=limit)
    except BadResult as wrong:  # here it was not the code that gave it
        problem = f"{wrong.expected} was expected: {wrong.problem}"
        raise BadInput(what=f"what {what} gave", field=wrong.field, problem=problem) from None
