"""Signals and agents' answers: what was sent is checked against the wait's own type, and only then does a script decide what becomes of it.

The type is code, so a process that does not have the workflow's code refuses and says who can take it: nothing unchecked is ever written.
The script gives one of a few words; the errors here are what those mean to whoever asked.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conductor import codec
from conductor.declare.binding import did_you_mean
from conductor.declare.code import Code
from conductor.declare.shapes import Misfit, refuse
from conductor.errors import (
    AlreadyAdvanced,
    ArchivedRunCorrupt,
    ArchiveUnreachable,
    BadInput,
    CodeNotHere,
    NotWaiting,
    RunFinished,
    TooManySignals,
    UnknownKey,
    UnknownRun,
    UnknownSignal,
    UnknownStep,
    WaitOver,
)
from conductor.ids import is_run_id
from conductor.records import Graph, Node, NodeKind
from conductor.runs.archived import archived_row
from conductor.runs.parking import awake, run_or_stub
from conductor.state import StepState
from conductor.store.reads import RunRecord, read_graph
from conductor.store.waiting import EARLY_SIGNALS

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["Answer", "advance", "run_of_key", "signal"]

_TRIES = 3
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:@/+-]{0,127}\Z")


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a signal or an answer: `taken` by a step, `kept` for a later one, or `repeated` (it had come before)."""

    run_id: str
    word: str
    step: str
    state: str
    signal_id: str = ""

    def to_json(self) -> dict[str, Any]:
        told = {"run_id": self.run_id, "word": self.word, "step": self.step or None, "state": self.state}
        return told | ({"id": self.signal_id} if self.signal_id else {})


def signal(engine: Engine, run_id: str, name: str, value: Any = None, *, signal_id: str = "") -> Answer:
    """Send a signal. The same `signal_id` again is no news; without one each call is a signal of its own."""
    run, graph = _found(engine, run_id)
    waits = graph.waits_for(name)
    if not waits:
        known = sorted({node.signal for node in graph.nodes if node.signal})
        raise UnknownSignal(
            run_id=run_id, workflow=run.workflow, signal=name, known=", ".join(known) or "no signals", close=did_you_mean(str(name), known))
    if signal_id and not (isinstance(signal_id, str) and _ID.match(signal_id)):
        raise BadInput(what=f"signal {name}", field="id", problem="it is not 1 to 128 letters, digits or any of . _ : @ / + -")
    payload = _checked(engine, run, graph.nodes[waits[0]], value, f"signal {name} of run {run_id}")
    chosen = signal_id or uuid.uuid4().hex
    payload = engine.store.offloaded(run_id, f"signal-{name}", payload)
    told = engine.store.signal(run_id, name=name, signal_id=chosen, payload=payload, waits=waits)
    if told.word == "UNKNOWN":
        raise UnknownRun(run_id=run_id, namespace=engine.store.namespace)
    if told.word == "ENDED":
        raise RunFinished(run_id=run_id, state=told.state)
    if told.word == "OVER":
        raise WaitOver(run_id=run_id, signal=name, steps=", ".join(graph.nodes[index].name for index in waits))
    if told.word == "FULL":
        raise TooManySignals(run_id=run_id, signal=name, limit=EARLY_SIGNALS)
    engine.poke(told.pokes)
    word = {"OK": "taken", "KEPT": "kept", "ALREADY": "repeated"}[told.word]
    return Answer(run_id, word, "" if told.index is None else graph.nodes[told.index].name, told.state, chosen)


def advance(engine: Engine, run_id: str, step: str, result: Any = None, *, actor: str = "") -> Answer:
    """Answer for an agent. The first answer wins; the same one again gets the same reply, another one `already_advanced`."""
    run, graph = _found(engine, run_id)
    index = graph.index_of(step)
    agents = [node.name for node in graph.nodes if node.kind is NodeKind.AGENT]
    if index is None:
        raise UnknownStep(run_id=run_id, workflow=run.workflow, step=step, known=", ".join(agents) or "no agent steps")
    node = graph.nodes[index]
    if node.kind is not NodeKind.AGENT:
        problem = f"it waits for no agent (agents: {', '.join(agents) or 'none'})" + (f"; send signal {node.signal}" if node.signal else "")
        raise BadInput(what=f"answer for step {step} of run {run_id}", field="step", problem=problem)
    payload = _checked(engine, run, node, result, f"answer for step {step} of run {run_id}")
    digest = codec.fingerprint(payload)
    payload = engine.store.offloaded(run_id, f"answer-{index}", payload)
    told = engine.store.advance(run_id, index, digest=digest, payload=payload, actor=actor)
    for _ in range(_TRIES):  # it may be parked again before it is told
        if told.word != "PARKED":
            break
        is_back = awake(engine, run_id)
        told = engine.store.advance(run_id, index, digest=digest, payload=payload, actor=actor)
        if not is_back:
            break
    if told.word == "PARKED":
        problem = "it is parked and does not come back, so nobody can say whether this step still waits; nothing was taken; resume it first"
        raise ArchivedRunCorrupt(run_id=run_id, prefix="archive", problem=problem)
    if told.word == "UNKNOWN":
        raise UnknownRun(run_id=run_id, namespace=engine.store.namespace)
    if told.word == "ENDED":
        raise RunFinished(run_id=run_id, state=told.state)
    if told.word == "TAKEN":
        raise AlreadyAdvanced(run_id=run_id, step=step)
    if told.word == "NOT_WAITING":
        raise NotWaiting(run_id=run_id, step=step, state=told.step_state or StepState.PENDING, run_state=told.state)
    engine.poke(told.pokes)
    return Answer(run_id, "taken" if told.word == "OK" else "repeated", step, told.state)


def run_of_key(engine: Engine, workflow: str, key: str) -> str:
    """The id of the run that has this key: in the lane of its workflow, if that has one, else in none."""
    flow = engine.workflows.get(workflow)
    lane = flow.lane.name if flow is not None and flow.lane is not None else ""
    found: str = engine.store.run_of_key(workflow, key, lane) or (engine.store.run_of_key(workflow, key) if lane else "")
    if not found:
        raise UnknownKey(workflow=workflow, key=key, namespace=engine.store.namespace)
    return found


def _found(engine: Engine, run_id: str) -> tuple[RunRecord, Graph]:
    run = run_or_stub(engine, run_id) if is_run_id(run_id) else None
    if run is None and (state := _ended_in_archive(engine, run_id)):
        raise RunFinished(run_id=run_id, state=state)
    if run is None or run.queue_reason:
        raise UnknownRun(run_id=run_id, namespace=engine.store.namespace)
    return run, read_graph(engine.store, run.partition, run.graph)


def _ended_in_archive(engine: Engine, run_id: str) -> str:
    """How a run ended that only the archive has; empty if it has none, or cannot be asked."""
    try:
        row = archived_row(engine, run_id)
    except ArchiveUnreachable:
        return ""
    return row.state if row is not None and row.is_terminal else ""


def _checked(engine: Engine, run: RunRecord, node: Node, value: Any, what: str) -> str:
    """The payload of a value that fits the wait's type."""
    code = _code(engine, run, node)
    if code is None and run.ended:
        raise RunFinished(run_id=run.run_id, state=run.state)
    if code is None:
        raise CodeNotHere(what=what, workflow=run.workflow, step=node.name)
    try:
        return code.accept(value, limit=engine.payload_limit, what=what)
    except Misfit as misfit:
        raise refuse(misfit, what) from None


def _code(engine: Engine, run: RunRecord, node: Node) -> Code | None:
    """The code of this very step: a run may be on an older graph, in which the wait had another type."""
    flow = engine.workflows.get(run.workflow)
    return next((code for code in flow.codes.values() if code.signature == node.signature), None) if flow is not None else None
