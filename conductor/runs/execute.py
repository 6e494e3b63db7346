"""A worker drains: a poke made it look into one queue of one partition; it claims, runs, commits and claims the next in one call.

Authority: the store. States: claimed → running → outcome (see `holding.py` for who touches what). Trust window: a body begins only within
250 ms after its claim was asked for, or after a heartbeat has confirmed it, so that a cancel acknowledged meanwhile is honoured. Failure:
whatever happens to this process, its leases run out and a sweep puts the steps back; nothing here needs to be tidy for that.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from conductor import failpoints
from conductor.declare.code import Code
from conductor.declare.context import RUNNING
from conductor.declare.operation import operation_flow
from conductor.errors import StepTimeout
from conductor.ids import partition_of
from conductor.plan import batch_size
from conductor.records import Attempt, Graph, Outcome, OutcomeKind
from conductor.runs.attempts import Attempts, Watching
from conductor.runs.gate import Gate
from conductor.runs.holding import BEGIN_WITHIN, Holding, Pulse
from conductor.runs.limiting import Limiting
from conductor.runs.lingering import Lingering
from conductor.store import Batch, Want

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["Drainer", "Performed", "StepEvent", "code_table"]

logger = logging.getLogger(__name__)

_SAYS = {OutcomeKind.COMPLETED: "succeeded", OutcomeKind.SKIPPED: "skipped", OutcomeKind.RETRY: "retried", OutcomeKind.FAILED: "failed"}


@dataclass(frozen=True, slots=True)
class StepEvent:
    """What a dashboard is told of an attempt."""

    kind: str
    run_id: str
    workflow: str
    step: str
    item: int | None
    attempt: int
    fence: int
    ran_ms: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Performed:
    """How an attempt ended, whether the store took it (`OK`), and whether a disabled capability was found working again."""

    outcome: Outcome
    word: str
    recovered: bool


def _is_own_process() -> bool:
    """Prefork and solo run steps in the main thread; in a pool of threads, stopping the process would take the neighbours along."""
    return threading.current_thread() is threading.main_thread()


def error_line(outcome: Outcome) -> str:
    """Type and message of what went wrong, as a dashboard shows it; else the reason."""
    if not outcome.error:
        return outcome.reason
    told = json.loads(outcome.error)
    return f"{str(told.get('type', '')).rpartition('.')[2]}: {told.get('message', '')}"


def code_table(engine: Engine) -> dict[str, Code]:
    """What this process can run, by signature: the steps of its workflows, and its capabilities."""
    flows: list[Any] = [*engine.workflows.values(), *(operation_flow(found) for found in engine.capabilities.values())]
    return {code.signature: code for flow in flows for code in flow.codes.values()}


def limits_of(engine: Engine) -> dict[str, str]:
    """What this process's code says of each limit: its terms by its name."""
    graphs: list[Graph] = [flow.graph for flow in engine.workflows.values()]
    graphs += [operation_flow(found).graph for found in engine.capabilities.values()]
    return {node.limit: node.limit_terms for graph in graphs for node in graph.nodes if node.limit}


class Drainer:
    """One per process, or per thread of a threads pool."""

    def __init__(
        self, engine: Engine, *, worker_name: str, stopping: Callable[[], bool] = lambda: False,
        overdue: Callable[[], bool] = lambda: False, on_step: Callable[[StepEvent], None] | None = None,
        hears: Callable[[str], bool] = lambda kind: True, may_stop_process: bool | None = None, leave_when_over: bool = False,
    ) -> None:
        self._engine, self._store, self._stopping, self._on_step, self._hears = engine, engine.store, stopping, on_step, hears
        self._codes = code_table(engine)
        self.signatures = sorted(self._codes)
        self._code_id = hashlib.blake2b(",".join(self.signatures).encode(), digest_size=6).hexdigest()
        self._tag = os.urandom(4).hex()
        self._queue = ""
        self._asked = 0.0
        self._holding = Holding()
        self._attempts = Attempts(
            self._store, self._codes, worker=worker_name, max_payload=engine.payload_limit,
            watching=Watching(self._holding.is_gone, stopping), gate=Gate(engine.store, engine.needs), call=engine.call,
            may_begin=self._may_begin, verify_seconds=engine.settings.verify_seconds, engine=engine)
        for flow in engine.workflows.values():
            self._attempts.inputs.know(flow.graph)
        self._average = 0.0
        self._lingering = Lingering(self._store, lambda: self._want(0), engine.poke)
        self._limiting = Limiting(
            self._store, limits_of(engine), want=lambda: self._want(1), poke=engine.poke, run=self._run_permitted,
            again=lambda: self._register(anew=True), heartbeat_seconds=engine.settings.heartbeat_seconds,
            stall_sweep_seconds=engine.settings.stall_sweep_seconds)
        self._last: Outcome | None = None
        self._registered_at = 0.0
        self._name = worker_name
        self._pulse = Pulse(
            self._store, self._holding, lambda: self._want(0), heartbeat_seconds=engine.settings.heartbeat_seconds, give_up_after=overdue,
            on_timeout=self._timed_out, poke=engine.poke,
            may_stop=_is_own_process() if may_stop_process is None else may_stop_process, leave_when_over=leave_when_over,
            on_long_body=self._lingering.leave, on_beat=self._limiting.renew)

    def drain(self, partition: int, queue: str) -> None:
        """Work until nothing is ready, the budget is spent or the worker stops; what remains has been poked by then."""
        if self._stopping():
            return
        failpoints.hit("drain.begin")
        self._settle_leftovers()
        self._queue = queue.partition("!")[0]
        self._register()
        self._pulse.wake()
        until = time.monotonic() + self._engine.settings.drain_seconds
        try:
            if "!" in queue:
                self._limiting.drain(partition, queue, until, self._engine.settings.drain_steps, self._stopping)
                return
            worked = self._drain(partition, until)
            if worked and self._lingering.worth_while():
                for another in self._lingering.partitions(until):
                    if self._stopping():
                        break
                    self._lingering.worked(self._drain(another, until, attends=True))
            self._lingering.leave()
            self._lingering.gone()
        finally:
            self._pulse.rest()
        failpoints.hit("drain.end")

    @property
    def tag(self) -> str:
        """Under which name claims of this drainer stand."""
        return self._tag

    def perform(self, held: Attempt, graph: Graph) -> Performed:
        """Run one attempt that the caller holds already, and commit it: a call in the caller's own process. What these hands could not tell
        before (the store was away) is told first, so that the answer is to this attempt."""
        self._settle_leftovers()
        partition = partition_of(held.run_id)
        self._attempts.inputs.know(graph)
        if graph.nodes[held.index].signature not in self._codes:
            self._codes.update(code_table(self._engine))  # declared after these hands were made
        self._pulse.wake()
        try:
            self._asked = time.monotonic()
            self._holding.take([held], self._asked)
            self._holding.begin(held, graph.nodes[held.index].timeout_ms / 1000)
            outcome = self._run(held, graph, ())
            batch = self._commit(partition, 0)
        finally:
            self._pulse.rest()
        self._engine.poke(batch.pokes)
        return Performed(outcome, batch.answers[0] if batch.answers else "LOST", self._attempts.gate.recovered)

    def end(self) -> None:
        """These hands are not used any more."""
        self._pulse.end()

    def _settle_leftovers(self) -> None:
        """A drain before this one ended early: what it had finished is told now, what it had not begun goes back, in its own partition."""
        self._holding.abandon()
        if self._holding.finished:
            self._pulse.tell(self._holding.collect())

    def _drain(self, partition: int, until: float, *, attends: bool = False) -> int:
        """Until nothing is ready here; tells how many steps were. A drain that attends leaves single runs that come one after the other to
        its next look, which finds several; what follows in a run it does at once."""
        if self._stopping():  # what it claimed now it could only give back
            return 0
        budget = most = self._engine.settings.drain_steps
        asked = time.monotonic()
        batch = self._store.claim(partition, replace(self._want(self._size()), first=True, attends=attends))
        while True:
            self._engine.poke(batch.pokes)
            if batch.word == "NO_CODE":
                self._register(anew=True)
                batch = self._store.claim(partition, self._want(0 if self._stopping() else 1))
                self._engine.poke(batch.pokes)
            if not batch.attempts:
                return most - budget
            self._work(partition, batch, asked)
            budget -= len(batch.attempts)
            go_on = budget > 0 and time.monotonic() < until and not self._stopping()
            go_on = go_on and (not attends or len(batch.attempts) > 1 or self._holding.followed)
            asked = time.monotonic()
            batch = self._commit(partition, self._size() if go_on else 0)

    def _commit(self, partition: int, limit: int) -> Batch:
        outcomes = self._holding.collect(partition)
        if not outcomes and not limit:
            return Batch("OK", 0, [], [], [])
        try:
            batch = self._store.commit(partition, outcomes, self._want(limit))
        except Exception:
            self._holding.put_back(outcomes)
            raise
        for (outcome, _), word in zip(outcomes, batch.answers, strict=True):
            if word != "OK":
                logger.info("the outcome of %s was not taken: %s", outcome.attempt.ref, word.lower())
        return batch

    def _work(self, partition: int, batch: Batch, asked: float) -> None:
        self._asked = asked
        self._holding.take(batch.attempts, asked)
        shared: dict[tuple[str, int], tuple[str | None, ...]] = {}
        for held in batch.attempts:
            # Results that several items need travel with the first of them only.
            sent = shared.setdefault((held.run_id, held.index), held.needs) if held.item is not None else held.needs
            try:
                graph = self._attempts.inputs.graph(held)
            except LookupError:
                self._holding.drop(held)  # its run was purged meanwhile: whatever became of this attempt, nobody would take it
                continue
            node = graph.nodes[held.index]
            if self._stopping() or not self._may_begin(held):
                self._give_back(held)
                continue
            default = self._engine.settings.default_step_timeout or 0
            if not self._holding.begin(held, node.timeout_ms / 1000 or default):
                continue
            self._run(held, graph, sent)

    def _run_permitted(self, partition: int, held: Attempt, asked: float) -> Outcome | None:
        """One attempt that a limit has permitted, to its commit; what follows it in the ordinary queue is poked for."""
        self._last = None
        self._work(partition, Batch("OK", 0, [], [], [held]), asked)
        self._engine.poke(self._commit(partition, 0).pokes)
        return self._last

    def _may_begin(self, held: Attempt) -> bool:
        """Late since the claim was asked for: a cancel may have been acknowledged meanwhile, so ask before beginning. An answer that took
        too long is as old as no answer."""
        if time.monotonic() - self._asked < BEGIN_WITHIN:
            return True
        asked = time.monotonic()
        ours = self._store.heartbeat(partition_of(held.run_id), [held])[0] == "OK"
        return ours and time.monotonic() - asked < BEGIN_WITHIN

    def _give_back(self, held: Attempt) -> None:
        failpoints.hit("give_back.before")
        if self._holding.begin(held, 0):
            self._holding.finish(Outcome(held, OutcomeKind.GIVEN_BACK, reason="shutdown" if self._stopping() else "late"), "")

    def _run(self, held: Attempt, graph: Graph, sent: tuple[str | None, ...]) -> Outcome:
        began = time.monotonic()
        try:
            self._tell("started", held, graph)  # inside: the clock of its timeout runs since it was begun
            outcome = self._attempts.run(held, graph, sent)
            self._holding.end_body()
        except StepTimeout:
            if RUNNING.get() is not None and not self._holding.raised_at:  # the time that is over is that of the step which made this call
                self._abandon(held)
                raise
            self._holding.end_body()
            outcome = self._attempts.timed_out(held, graph, sent, time.monotonic() - began)
        took = time.monotonic() - began
        self._last = outcome
        self._average = took if not self._average else 0.7 * self._average + 0.3 * took
        self._holding.finish(outcome, graph.following[held.index])
        self._tell(_SAYS.get(outcome.kind, ""), held, graph, outcome)
        return outcome

    def _abandon(self, held: Attempt) -> None:
        """It was interrupted in the middle, and burns no attempt: a worker takes it up, and asks first what it has done."""
        self._holding.end_body()
        self._holding.finish(Outcome(held, OutcomeKind.GIVEN_BACK, reason="caller_timed_out", doubt=True), "")
        self._engine.poke(self._commit(partition_of(held.run_id), 0).pokes)

    def _timed_out(self, held: Attempt, seconds: float) -> tuple[Outcome, str]:
        """Said by the pulse, while the body does not listen: nothing is asked here, the repeat will."""
        graph = self._attempts.inputs.graph(held)
        outcome = self._attempts.timed_out(held, graph, None, seconds)
        return outcome, graph.following[held.index]

    def _tell(self, kind: str, held: Attempt, graph: Graph, outcome: Outcome | None = None) -> None:
        if self._on_step is None or not kind or not self._hears(kind):
            return
        name = graph.nodes[held.index].name
        error, ran = (error_line(outcome), outcome.ran_ms) if outcome else ("", 0)
        self._on_step(StepEvent(kind, held.run_id, held.workflow, name, held.item, held.attempt, held.fence, ran, error))

    def _want(self, limit: int) -> Want:
        return Want(self._queue, limit, self._code_id, self._tag)

    def _size(self) -> int:
        return batch_size(self._average)

    def _register(self, *, anew: bool = False) -> None:
        """Say what this kind of worker can run: at first, each ten minutes, and when the store has forgotten."""
        now = time.monotonic()
        if anew or not self._registered_at or now - self._registered_at > 600:
            self._store.register_code(self._code_id, self.signatures)
            self._store.register_worker(self._tag, self._name)
            for name, terms in self._limiting.terms.items():
                self._engine.poke(self._store.set_limit(name, terms, by_hand=False, gap_ms=self._limiting.gap_ms)[1])
            self._registered_at = now
