"""One attempt, from claim to outcome: feeds the code, runs it, and says what its end means. Never touches the store's records itself."""

from __future__ import annotations

import json
import random
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from conductor import codec, failpoints
from conductor.classify import classify_error, is_in_doubt, retry_after_ms
from conductor.declare.code import Code, Skip, TooLate
from conductor.declare.context import Ctx, key_of
from conductor.declare.feeding import OUTCOME
from conductor.declare.judging import UNASKED, Judged
from conductor.errors import BadResult, OperationPending, PayloadMismatch, StaleAttempt, StepTimeout, WaitTimeout, WhenFailed, redact
from conductor.plan import Failure, after_failure
from conductor.records import Attempt, FailurePolicy, Graph, Node, NodeKind, Outcome, OutcomeKind
from conductor.runs.asking import asked_within
from conductor.runs.children import ENDED, Children
from conductor.runs.doubt import OVER, Doubt
from conductor.runs.failures import failures
from conductor.runs.gate import Gate
from conductor.runs.inputs import CHUNK, INLINE_CHARS, INLINE_ITEMS, Inputs, Value, staged_ref
from conductor.runs.undoing import fed_for_undo, key_of_undo, make_plan, undone_attempt
from conductor.sessions.current import as_session
from conductor.store import Store
from conductor.store.reads import error_name

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["Attempts", "Watching"]

Call = Callable[[Ctx, str, Mapping[str, Any]], Any]
"""Runs a capability for a step that called it."""

_REASONS: dict[type[BaseException], str] = {BadResult: "bad_result", WhenFailed: "when_failed"}
_NOBODY = nullcontext()
_LAST = (NodeKind.ON_FAILURE, NodeKind.ON_FINISH)
_TRACEBACK = 16_384
_MESSAGE = 2_000


@dataclass(frozen=True)
class Watching:
    """What a running body may ask about its worker."""

    is_cancelled: Callable[[Attempt], bool]
    is_stopping: Callable[[], bool]


class Attempts:
    """Runs attempts for one worker thread."""

    def __init__(
        self, store: Store, codes: Mapping[str, Code], *, worker: str, watching: Watching, max_payload: int, gate: Gate, call: Call,
        may_begin: Callable[[Attempt], bool], verify_seconds: float, engine: Engine,
    ) -> None:
        self._store, self._codes, self._worker, self._watching = store, codes, worker, watching
        self._verify_seconds = verify_seconds
        self._max_payload = max_payload
        self.gate, self._call, self._may_begin = gate, call, may_begin
        self.doubt = Doubt(store, self._told, max_payload)
        self.inputs = Inputs(store)
        self.children = Children(engine, self._told)

    def run(self, held: Attempt, graph: Graph, sent: Sequence[str | None]) -> Outcome:
        """The outcome of one attempt. One that came too late, or whose run is not in the store, goes back."""
        try:
            return self._outcome(held, graph, graph.nodes[held.index], sent)
        except TooLate:
            return Outcome(held, OutcomeKind.GIVEN_BACK, reason="late")

    def _outcome(self, held: Attempt, graph: Graph, node: Node, sent: Sequence[str | None]) -> Outcome:
        """A step that needs no code ends by its flags alone."""
        if "!" in held.flags:
            return Outcome(held, OutcomeKind.FAILED, reason="poison", policy=node.policy, error=self._poison(held))
        if "s" in held.flags or "u" in held.flags:
            return Outcome(held, OutcomeKind.SKIPPED, reason="upstream_failed" if "u" in held.flags else "upstream_skipped")
        if node.kind is NodeKind.SLEEP:
            return Outcome(held, OutcomeKind.COMPLETED, payload=codec.NULL, total=-1)
        if node.kind in (NodeKind.WAIT, NodeKind.AGENT):
            return self._awaited(held, graph, node)
        if node.kind is NodeKind.EACH and held.item is None:
            return Outcome(held, OutcomeKind.COMPLETED, payload=codec.encode([]), total=-1)
        if node.kind is NodeKind.CALL and ENDED in held.flags.partition("w")[0]:
            return self._kept(self.children.ended(held, node), node)
        if node.kind is NodeKind.UNDO and node.undoes is None:
            return make_plan(self._store, held, graph)
        return self._kept(self._run_code(held, graph, node, sent), node)

    def _awaited(self, held: Attempt, graph: Graph, node: Node) -> Outcome:
        """What was waited for has come and stands in the store, or its time is over: then the default, or a failure."""
        answered = "v" in held.flags.partition("w")[0]
        if answered and not graph.feeds_each(node.index):
            return Outcome(held, OutcomeKind.COMPLETED, total=-1, how="answered")
        payload = self.inputs.own(held) if answered else node.default
        if payload is not None:
            return replace(self._completed(held, graph, payload, 0), how="answered" if answered else "default")
        error = WaitTimeout(run_id=held.run_id, step=node.name, signal=node.signal, seconds=node.delay_ms / 1000)
        text = self._told(held, error, "permanent", 0)
        return Outcome(held, OutcomeKind.FAILED, reason="wait_timeout", policy=node.policy, error=text)

    def _run_code(self, held: Attempt, graph: Graph, node: Node, sent: Sequence[str | None]) -> Outcome:
        code, began = self._codes[node.signature], time.monotonic()
        ctx = self._ctx(held, node) if node.undoes is None else replace(self._ctx(held, node), key=key_of_undo(held, graph, node))
        fed: tuple[Any, ...] = ()
        try:
            if node.undoes is not None:
                undone = self._fed_for_undo(held, graph, node, code)
                if undone is None:
                    return Outcome(held, OutcomeKind.SKIPPED, reason="absent", ran_ms=_ms_since(began), policy=node.policy)
                fed = undone
            else:
                fed = self._fed(held, graph, node, sent)
            if code.guarded and (early := self.doubt.before(held, node, code, lambda: self._ask(held, code, ctx, fed))):
                return early
            if code.capability is not None:
                self.gate(held, code.capability)
            if "1" in held.flags.partition("w")[0]:
                self._store.note(held, "begun", "")  # if this worker is lost too, its code had begun: that counts towards poison
            failpoints.hit("body.before")
            with as_session(held.session) if held.session or code.guarded else _NOBODY:
                payload = code.run(ctx, *fed, limit=self._max_payload, begin=lambda: self._may_begin(held))
            failpoints.hit("body.after")
            if code.calls is not None:
                return self.children.call(held, node, code.calls, payload, _ms_since(began))
            return self._completed(held, graph, payload, _ms_since(began))
        except Skip:
            return Outcome(held, OutcomeKind.SKIPPED, reason="when", ran_ms=_ms_since(began), policy=node.policy)
        except (TooLate, StepTimeout):
            raise  # said by whoever measured it, who knows step, run and seconds
        except OperationPending as waiting:
            # Not a failure of this step: an operation it called has not ended, and the step looks again when it has.
            return Outcome(held, OutcomeKind.RETRY, reason="operation_pending", delay_ms=waiting.delay_ms, ran_ms=_ms_since(began))
        except (Exception, SystemExit) as error:
            _unless_meant_for_the_process(error)
            settled = self.doubt.after(held, node, code, error, lambda: self._ask(held, code, ctx, fed), _ms_since(began)) if fed else None
            return settled or self.failed(held, node, error, _ms_since(began))

    def _kept(self, outcome: Outcome, node: Node) -> Outcome:
        """The outcome, its payload in the blob store if it is large. A blob store that is away is a failure that may pass."""
        if outcome.kind is not OutcomeKind.COMPLETED or not codec.has_blobs():
            return outcome
        held = outcome.attempt
        place = f"{held.index}" if held.item is None else f"{held.index}-{held.item}"
        try:
            return replace(outcome, payload=self._store.offloaded(held.run_id, f"result-{place}", outcome.payload))
        except Exception as error:
            return self.failed(held, node, error, outcome.ran_ms)

    def timed_out(self, held: Attempt, graph: Graph, sent: Sequence[str | None] | None, seconds: float) -> Outcome:
        """It ran too long, and may have taken effect. `sent` is None where nobody can be asked now: if it was the last attempt, another one
        asks, and does no more."""
        node = graph.nodes[held.index]
        code, ran_ms = self._codes[node.signature], int(seconds * 1000)
        error = StepTimeout(step=node.name, run_id=held.run_id, seconds=round(seconds, 1))
        settled = None
        if sent is not None and code.guarded:
            ctx = self._ctx(held, node)
            asked = sent
            settled = self.doubt.after(
                held, node, code, error, lambda: self._ask(held, code, ctx, self._fed(held, graph, node, asked)), ran_ms)
        outcome = settled or self.failed(held, node, error, ran_ms)
        if sent is None and code.guarded and outcome.kind is OutcomeKind.FAILED:
            told = json.dumps(json.loads(outcome.error) | {OVER: outcome.reason})
            return replace(outcome, kind=OutcomeKind.RETRY, reason="unasked", delay_ms=0, doubt=True, error=told)
        return outcome

    def _fed(self, held: Attempt, graph: Graph, node: Node, sent: Sequence[str | None]) -> tuple[Any, ...]:
        """What the code's arguments are made from."""
        item = self.inputs.item(held, node) if held.item is not None else None
        return self.inputs.start(held) if node.wants_input else None, self._values(held, graph, node, sent), item

    def _fed_for_undo(self, held: Attempt, graph: Graph, node: Node, code: Code) -> tuple[Any, ...] | None:
        assert node.undoes is not None
        of, before = graph.nodes[node.undoes], undone_attempt(held, node)
        target = self._codes.get(of.signature)

        def ask() -> Judged:
            if target is None:
                return UNASKED
            return self._ask(before, target, self._ctx(before, of), self._fed(before, graph, of, ()))

        return fed_for_undo(self._store, self.inputs, held, graph, code, target, ask, self._max_payload)

    def _ask(self, held: Attempt, code: Code, ctx: Ctx, fed: tuple[Any, ...]) -> Judged:
        if code.judge is None:
            return UNASKED
        with as_session(held.session):
            return asked_within(self._verify_seconds, lambda: code.ask(ctx, *fed))

    def _values(self, held: Attempt, graph: Graph, node: Node, sent: Sequence[str | None]) -> dict[int, Value]:
        # The run may be on an older graph where this step reads from other indexes; a signature fixes their order.
        wanted = self._codes[node.signature].needs
        values: dict[int, Value] = dict(zip(wanted, self.inputs.values(held, graph, node, sent), strict=True)) if wanted else {}
        if node.kind in _LAST:
            values[OUTCOME] = self._run_outcome(held, graph)
        return values

    def _run_outcome(self, held: Attempt, graph: Graph) -> str:
        """How the run is about to end, for a last step."""
        state, reason = self._store.values(self._store.keys.run(held.run_id), ["oc", "ow"])
        return codec.encode({"state": state or "failed", "reason": reason or "", "failed": list(failures(self._store, held.run_id, graph))})

    def _ctx(self, held: Attempt, node: Node) -> Ctx:
        deadline = datetime.fromtimestamp(held.deadline / 1000, UTC) if held.deadline else None
        return Ctx(
            key=key_of(held.run_id, node.name, held.item), run_id=held.run_id, workflow=held.workflow, step=node.name, item=held.item,
            attempt=held.attempt, session=held.session, deadline=deadline,
            repeated=held.attempt > 1 or not {"1", "d", "o"}.isdisjoint(held.flags.partition("w")[0]),
            is_cancelled=lambda: self._watching.is_cancelled(held), is_stopping=self._watching.is_stopping,
            on_progress=lambda done, total, note: self._note(
                held, node, "live", json.dumps({"done": done, "total": total, "note": note, "at": int(time.time() * 1000)})),
            save_checkpoint=lambda payload: self._note(held, node, "cp", payload),
            load_checkpoint=lambda: self._store.checkpoint_of(held),
            load_origin=lambda: self.inputs.origin(held.run_id),
            load_once=lambda name: self._store.once_of(held, name),
            save_once=lambda name, payload: self._note(held, node, "once", payload, name),
            on_call=self._call, held=held, life=str(held.generation) if node.kind in _LAST and held.generation > 1 else "",
        )

    def _note(self, held: Attempt, node: Node, kind: str, text: str, name: str = "") -> None:
        if kind in ("cp", "once"):
            text = self._store.offloaded(held.run_id, f"{kind}-{held.index}", text)
        if self._store.note(held, kind, text, name) != "OK" and kind != "live":
            raise StaleAttempt(run_id=held.run_id, step=node.name)

    def _completed(self, held: Attempt, graph: Graph, payload: str, ran_ms: int) -> Outcome:
        total = -1
        if held.item is None and graph.feeds_each(held.index):
            members = codec.split_list(payload)
            total = len(members)
            if total > INLINE_ITEMS or len(payload) > INLINE_CHARS:
                payload = self._stage(held, members)
        node = graph.nodes[held.index]
        if node.kind is NodeKind.UNDO:
            return Outcome(held, OutcomeKind.COMPLETED, total=-1, ran_ms=ran_ms, policy=node.policy, how="undone")
        how = "recovered" if node.capability and self.gate.recovered else ""
        return Outcome(held, OutcomeKind.COMPLETED, payload=payload, total=total, ran_ms=ran_ms, policy=node.policy, how=how)

    def _stage(self, held: Attempt, members: list[str]) -> str:
        """Write a long list in chunks before the commit that names it; a lost fence leaves them to the sweep."""
        for number, first in enumerate(range(0, len(members), CHUNK)):
            chunk = codec.join_list(members[first : first + CHUNK])
            if self._store.stage(held, number, self._store.offloaded(held.run_id, f"list-{held.index}-{number}", chunk)) != "OK":
                break  # the commit will be refused as well
        return staged_ref(held.fence, len(members))

    def failed(self, held: Attempt, node: Node, error: BaseException, ran_ms: int) -> Outcome:
        """What an error means: a durable retry, or the end of the step."""
        if isinstance(error, PayloadMismatch):
            return Outcome(
                held, OutcomeKind.FAILED, reason="payload_mismatch", policy=FailurePolicy.PAUSE, ran_ms=ran_ms,
                error=self._told(held, error, "permanent", ran_ms))
        doubt = self._codes[node.signature].guarded and is_in_doubt(error)
        # An effect that was found absent, or may be repeated, is queued again, whatever its error is called.
        kind = "transient" if doubt and not isinstance(error, StepTimeout) else classify_error(error)
        names = tuple(f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__)
        failure = Failure(kind, names, held.attempt, self._age(held, ran_ms), timed_out=isinstance(error, StepTimeout))
        decision = after_failure(node.retry, failure, random.random())
        text = self._told(held, error, kind, ran_ms)
        after = retry_after_ms(error)
        if decision.repeat:
            return Outcome(
                held, OutcomeKind.RETRY, reason=kind, delay_ms=max(after, decision.delay_ms), error=text, ran_ms=ran_ms, doubt=doubt,
                retry_after_ms=after)
        reason = _REASONS.get(type(error), decision.reason)
        return Outcome(held, OutcomeKind.FAILED, reason=reason, policy=node.policy, error=text, ran_ms=ran_ms, doubt=doubt,
                       retry_after_ms=after)

    def _age(self, held: Attempt, ran_ms: int) -> int:
        """Time from the failure of the first attempt to this one's, on the store's clock; 0 for the first."""
        if held.attempt <= 1:
            return 0
        place = str(held.index) if held.item is None else f"{held.index}:{held.item}"
        first = self._store.values(self._store.keys.run(held.run_id, "err"), [error_name(place, 1, held.generation)])[0]
        return held.at + ran_ms - int(json.loads(first)["at"]) if first else 0

    def _told(self, held: Attempt, error: BaseException, kind: str, ran_ms: int) -> str:
        # Redacted before it is cut: a cut may leave half a secret that no longer looks like one.
        trace = redact("".join(traceback.format_exception(error)))
        return json.dumps({
            "type": f"{type(error).__module__}.{type(error).__qualname__}", "message": redact(str(error))[:_MESSAGE], "kind": kind,
            "traceback": trace[-_TRACEBACK:], "worker": self._worker, "waited_ms": held.waited_ms, "ran_ms": ran_ms, "at": held.at + ran_ms,
        })

    def _poison(self, held: Attempt) -> str:
        message = "its worker was lost three times while this step was running alone; find out why before you retry the run"
        return json.dumps({
            "type": "poison", "message": message, "kind": "permanent", "traceback": "", "worker": self._worker,
            "waited_ms": held.waited_ms, "ran_ms": 0, "at": held.at,
        })


def _unless_meant_for_the_process(error: BaseException) -> None:
    """`sys.exit` of the step's own code is an error of its attempt. Celery ends a worker by classes of its own, and what a signal to a pool
    process raises carries its number less 256; those go on and end the process."""
    if isinstance(error, SystemExit) and (type(error) is not SystemExit or (isinstance(error.code, int) and -256 < error.code <= -192)):
        raise error


def _ms_since(began: float) -> int:
    return int((time.monotonic() - began) * 1000)
