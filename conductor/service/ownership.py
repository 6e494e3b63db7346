"""Whose it is. What belongs to another session is answered exactly like what does not exist, after the same look into the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from conductor.errors import KeyConflict, UnknownOperation, UnknownRun
from conductor.runs.archived import archived_row
from conductor.service.access import Caller
from conductor.service.errors import Forbidden
from conductor.store.reads import read_session

if TYPE_CHECKING:
    from conductor.broker.conductor import Conductor

__all__ = ["own_keys", "own_operation", "own_run", "own_session"]


def own_run(conductor: Conductor, caller: Caller, run_id: str) -> None:
    """Refuse a run of another session, and an id of wrong form. A caller bound to no session pays nothing for it."""
    conductor._check_id(run_id)
    if caller.sessions is None:
        return
    engine = conductor.engine
    session = read_session(engine.store, run_id)
    if session is None and (row := archived_row(engine, run_id)) is not None:
        session = row.session
    if session is None or not caller.sees(session):
        raise UnknownRun(run_id=run_id, namespace=engine.settings.namespace)


def own_operation(conductor: Conductor, caller: Caller, operation_id: str) -> None:
    """The same for an operation: a stand-alone one by its id, a step by `run:step[:item]`."""
    if caller.sessions is None:
        return
    try:
        own_run(conductor, caller, operation_id.partition(":")[0])
    except UnknownRun:
        raise UnknownOperation(operation_id=operation_id, namespace=conductor.settings.namespace) from None


def own_session(caller: Caller, session: str | None) -> str:
    """The session that something new belongs to: the one named, or the only one the caller acts for."""
    if caller.sessions is None:
        return session or ""
    if session is None and len(caller.sessions) == 1:
        return next(iter(caller.sessions))
    if not caller.sees(session or ""):
        raise Forbidden(problem=f"{caller.actor} acts for sessions {', '.join(sorted(caller.sessions)) or 'none'} only")
    return session or ""


@contextmanager
def own_keys(conductor: Conductor, caller: Caller) -> Iterator[None]:
    """Around what takes an idempotency key: keys are everybody's, but who has one is told to those alone who may see it."""
    try:
        yield
    except KeyConflict as error:
        try:
            own_run(conductor, caller, error.run_id)
        except UnknownRun:
            raise KeyConflict(workflow=error.workflow, key=error.key, run_id="of another session") from None
        raise
