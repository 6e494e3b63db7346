"""The door to the store itself: the use cases of this process, on the app that was named. Runs; the rest is in `direct_operations.py`."""

from __future__ import annotations

import getpass
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from conductor.cli.doors import Away, Heard, Told
from conductor.cli.doors.direct_operations import DirectOperations
from conductor.cli.doors.starting import chosen
from conductor.errors import GetTimeout, RunFinished, RunQueued, UnknownRun
from conductor.ids import partition_of
from conductor.operations import batches
from conductor.runs.batching import Action
from conductor.runs.drawing import graph_json
from conductor.runs.filters import Where
from conductor.runs.finding import find, rows_of
from conductor.runs.fork import fork_run
from conductor.runs.handle import Handle
from conductor.runs.history import Histories
from conductor.runs.naming import runs_named
from conductor.runs.outcome import plain
from conductor.runs.scopes import holds_json, pause_scope, queues_json, resume_scope
from conductor.runs.showing import explain_run, show_run
from conductor.runs.start import start as start_run
from conductor.store.lanes import lane_of
from conductor.store.notices import Follower, Unreachable
from conductor.store.reads import error_name, read_now
from conductor.store.standing import read_attempt_errors

if TYPE_CHECKING:
    from conductor.cli.finding import Here
    from conductor.wiring import Engine

__all__ = ["Direct"]

_LOOK_AGAIN = 1.0
_NOT_OFTENER = 0.1
_PAGE = 500


class Direct(DirectOperations):
    """Everything by the app's own engine. A store that is away is told at once; the verbs themselves would be patient, as a worker must."""

    def __init__(self, here: Here) -> None:
        self._here = here
        self._notices: dict[str, str] = {}

    @cached_property
    def _engine(self) -> Engine:
        engine = self._here.engine
        engine.store.client().ping()
        return engine

    @property
    def _conductor(self) -> Any:
        _ = self._engine
        return self._here.conductor

    @cached_property
    def _actor(self) -> str:
        """Who stands in the logs of what is moved."""
        try:
            return getpass.getuser()
        except (KeyError, OSError):  # a container without a name for its user
            return "cli"

    def close(self) -> None:
        """The engine is the process's."""

    def runs_named(self, text: str) -> list[str]:
        return runs_named(self._engine, text)

    def now(self) -> int:
        return read_now(self._engine.store)

    # Looking.

    def runs(self, where: Mapping[str, Any], *, cursor: str, limit: int) -> Told:
        found = find(self._engine, Where.parse(where), cursor=cursor, limit=limit)
        return {"runs": found.rows, "cursor": found.cursor, "now": found.now, "warning": found.warning}

    def show(self, run_id: str, *, values: bool = False) -> Told:
        told = show_run(self._engine, run_id, values=values, spelling=self._here.spelling)
        self._add_tracebacks(told)
        return told

    def _add_tracebacks(self, told: Told) -> None:
        """They may hold anything, so a service tells none; who reads the store itself may."""
        failed = {
            error_name(str(step["index"]), step.get("attempt", 0), told["generation"]): step for step in told["steps"] if "error" in step
        }
        for name, error in read_attempt_errors(self._engine.store, told["run_id"], list(failed)).items():
            if error.get("traceback"):
                failed[name]["error"]["traceback"] = error["traceback"]

    def why(self, run_id: str) -> Told:
        return explain_run(self._engine, run_id, spelling=self._here.spelling)

    def events(
        self, run_id: str, *, after: int = 0, follow: bool = False, timeout: float | None = None, away: Away = lambda: None,
    ) -> Iterator[Told]:
        """Where the notices stand is asked before the page, so that none is missed."""
        histories, follower = Histories(self._engine), Follower(self._engine.store, run_id, partition_of(run_id))
        until = _Until(run_id, timeout)
        while True:
            try:
                if follow:
                    follower.begin()
                page = histories.page(run_id, after, _PAGE)
                if page is None:
                    raise UnknownRun(run_id=run_id, namespace=self._engine.store.namespace)
                yield from page.events
                after += len(page.events)
                if page.end is not None or not (follow or len(page.events) == _PAGE):
                    return
                if follow and len(page.events) < _PAGE:
                    if until.over:
                        raise until.error(self.why(run_id)["state"])
                    follower.wait(until.slice)
            except Unreachable:
                if not follow or until.over:
                    raise
                away()
                time.sleep(_LOOK_AGAIN)

    def looks(self, run_id: str, *, timeout: float | None, away: Away) -> Iterator[Told]:
        follower, until = Follower(self._engine.store, run_id, partition_of(run_id)), _Until(run_id, timeout)
        while True:
            try:
                follower.begin()
                yield self.show(run_id)
                if until.over:
                    return
                follower.wait(until.slice)
                time.sleep(_NOT_OFTENER)  # a fan-out says much at once; one picture of it is enough
            except Unreachable:
                if until.over:
                    raise
                away()
                time.sleep(_LOOK_AGAIN)

    def wait(self, run_id: str, timeout: float | None) -> Any:
        return plain(Handle(self._engine, run_id, self._notices.get(run_id, "")).get(timeout))

    def graph(self, workflow: str) -> Told:
        return graph_json(self._here.workflow(workflow).graph)

    # Moving.

    def start(self, workflow: str, input: Any, *, key: str | None, options: Mapping[str, Any]) -> Told:
        flow = self._here.workflow(workflow)
        wanted = chosen(flow.name, key, options)
        payload = flow.encode_input(input, limit=self._here.engine.payload_limit)
        accepted = start_run(self._engine, flow, payload=payload, options=wanted)
        self._notices[accepted.run_id] = accepted.notice
        return {"run_id": accepted.run_id, "workflow": flow.name, "new": accepted.new}

    def cancel(self, run_id: str, *, reason: str, terminate: bool, compensate: bool) -> Told:
        return dict(self._conductor.cancel(run_id, reason=reason, actor=self._actor, terminate=terminate, compensate=compensate))

    def pause(self, run_id: str, *, reason: str) -> Told:
        return self._moved(self._conductor.pause(run_id, reason=reason, actor=self._actor))

    def resume(self, run_id: str) -> Told:
        return self._moved(self._conductor.resume(run_id, actor=self._actor))

    def retry(self, run_id: str) -> Told:
        return self._moved(self._conductor.retry(run_id, actor=self._actor))

    def _moved(self, told: Told) -> Told:
        if told["word"] == "ENDED":
            raise RunFinished(run_id=told["run_id"], state=told["state"])
        if told["word"] == "QUEUED":
            raise RunQueued(run_id=told["run_id"], lane=lane_of(self._engine.store, told["run_id"]))
        return told

    def fork(self, run_id: str, *, from_: str, changes: Mapping[str, Any]) -> Told:
        self._here.need_code()
        started = fork_run(self._engine, run_id, from_=from_, changes=changes)
        self._notices[started.run_id] = started.notice
        return {"run_id": started.run_id, "forked_from": run_id, "from": from_, "effects_repeat": True, "new": started.word == "OK"}

    def signal(self, run: str, name: str, value: Any, *, key: str | None, id: str) -> Told:
        return dict(self._conductor.signal(run, name, value, key=key, id=id))

    def advance(self, run: str, step: str, result: Any, *, key: str | None) -> Told:
        return dict(self._conductor.advance(run, step, result, key=key, actor=self._actor))

    def consent(self, run_id: str, *, on: bool) -> Told:
        self._conductor.grant_run(run_id, on=on)
        return {"run_id": run_id, "consent": on}

    # Many.

    def preview(self, action: str, where: Mapping[str, Any]) -> Told:
        found = batches.preview(self._engine, Action(action), Where.parse(where))
        now = self.now()
        return {"count": found.count, "more": found.more, "runs": rows_of(self._engine, found.examples, now), "now": now}

    def move_many(self, action: str, where: Mapping[str, Any], *, reason: str, rate: float, heard: Heard) -> str:
        """In this process; if it is killed, or must leave it, workers go on."""
        answer = batches.run_here(
            self._engine, Action(action), Where.parse(where), reason=reason, actor=self._actor, rate=rate, heard=heard)
        return answer.operation_id

    def batch(self, batch_id: str) -> Told:
        return batches.standing(self._engine, batch_id)

    def hold(self, scope: str, reason: str) -> Told:
        return pause_scope(self._engine, scope, reason).to_json()

    def lift(self, scope: str) -> Told:
        return resume_scope(self._engine, scope).to_json()

    def queues(self) -> Told:
        return {"queues": queues_json(self._engine), "holds": holds_json(self._engine)}


class _Until:
    """How long something is followed."""

    def __init__(self, run_id: str, timeout: float | None) -> None:
        self._run_id, self._timeout = run_id, timeout
        self._end = None if timeout is None else time.monotonic() + timeout

    @property
    def over(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    @property
    def slice(self) -> float:
        """Until the next look."""
        return _LOOK_AGAIN if self._end is None else max(0.001, min(_LOOK_AGAIN, self._end - time.monotonic()))

    def error(self, state: str) -> GetTimeout:
        return GetTimeout(run_id=self._run_id, seconds=self._timeout, state=state)
