"""`conductor ops why`: a sentence for every state and reason of an operation, and the right one where several things are true."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from conductor.operations.read import Operation
from conductor.operations.why import OP_REASONS, why
from conductor.records import Graph, Node, NodeKind
from conductor.runs.read import RunView, StepView
from conductor.state import OPERATION, OpState, RunState, StepState, terminal
from conductor.store.reads import RunRecord

NOW = 1_795_000_000_000
ID = "01a1ee60-4676-70b2-bd26-4c1de90cf400"
RUN = RunRecord(ID, "op:pay", "h", RunState.RUNNING, queue="bank", created_at=NOW - 60_000)
GRAPH = Graph.build("op:pay", (Node(0, "pay"),))
STEPS = {
    OpState.QUEUED: StepState.READY, OpState.RUNNING: StepState.RUNNING, OpState.COMPLETED: StepState.COMPLETED,
    OpState.FAILED: StepState.FAILED, OpState.EXHAUSTED: StepState.FAILED, OpState.CANCELLED: StepState.CANCELLED,
}
ERROR = {"at": NOW - 42_000, "error_kind": "transient", "type": "bank.Timeout", "error": "no answer", "worker": "w1"}


def operation(state: OpState = OpState.QUEUED, *, history: tuple[dict[str, Any], ...] = (), **fields: Any) -> Operation:
    given = {
        "operation_id": ID, "capability": "pay", "state": state, "queued": state is OpState.QUEUED, "queued_for_retry": False,
        "status": state, "queue_reason": "retry", "created_at": NOW - 60_000, "max_retries": 5, "retry_history": history,
    }
    return Operation(**(given | fields))


def view(found: Operation, *, step: StepState | None = None, holds: dict[str, str] | None = None, unanswered: int = 0, busy: bool = False,
         **fields: Any) -> RunView:
    state = step or STEPS[found.state]
    one = StepView(0, found.step or "pay", NodeKind.STEP, state, **({"queue": "bank", "since": NOW - 42_000} | fields))
    run = replace(RUN, state=RunState.PAUSED) if found.step else RUN
    return RunView(
        run, GRAPH, NOW, (one,), holds or {}, {"bank": unanswered} if unanswered else {}, busy=frozenset({"bank"} if busy else ()))


@pytest.mark.spec("CLI-5")
@pytest.mark.parametrize(("state", "reason"), [(state, reason) for state in OpState for reason in (*OP_REASONS[state], "words of a person")])
def test_every_state_and_reason_has_a_sentence(state: OpState, reason: str) -> None:
    found = operation(state, reason=reason, attempt=1, history=(ERROR,), ended_at=NOW)
    said = why(found, view(found))
    assert re.match(r"operation 01a1ee60-4676 of pay \w", said.sentence)
    assert "{" not in said.sentence + said.command
    assert said.command or state in (OpState.COMPLETED, OpState.CANCELLED)
    if reason == "words of a person" and state in terminal(OPERATION) - {OpState.COMPLETED}:
        assert reason in said.sentence


def test_the_table_knows_every_reason_of_a_step() -> None:
    from conductor.runs.why import STEP_REASONS

    assert set(STEP_REASONS) <= {reason for reasons in OP_REASONS.values() for reason in reasons}


RETRY = operation(attempt=1, retry_at=NOW + 42_000, history=(ERROR,))
BUDGET = operation(attempt=1, retry_at=NOW + 42_000, reason="retry_budget", history=(ERROR,))
DEFERRED = operation(queue_reason="deferred_submit")
BUSY = operation(OpState.RUNNING, holder="w1@host", attempt=2, lease_until=NOW + 9_000)
ASKED = ({**ERROR, "type": "conductor.errors.ConsentRequired"},)
STEP = {"step": "charge", "operation_id": f"{ID}:charge"}
DOUBT = operation(OpState.FAILED, reason="effect_in_doubt")
STEP_DOUBT = operation(OpState.FAILED, **STEP)


@pytest.mark.spec("CLI-5")
@pytest.mark.parametrize(("found", "seen", "words", "command"), [
    (RETRY, view(RETRY), "waits for retry 1/5 in 42 s after Timeout: no answer", f"ops retry {ID}"),
    (BUDGET, view(BUDGET), "has used its retry budget of this minute; the next try is in 42 s", "watch"),
    (DEFERRED, view(DEFERRED, since=NOW - 100), "was submitted and waits on queue bank; a worker has been woken", "watch"),
    (DEFERRED, view(DEFERRED, unanswered=9_000), "no worker consumes queue bank, where it has been ready for 42 s", "-Q bank"),
    (DEFERRED, view(DEFERRED, busy=True, unanswered=9_000), "all workers are busy", "conductor queues"),
    (DEFERRED, view(DEFERRED), "nobody has taken it yet", "-Q bank"),
    (DEFERRED, view(DEFERRED, aside=True), "no worker present has the code of capability pay", "-Q bank"),
    (DEFERRED, view(DEFERRED, holds={"capability:pay": "audit"}), "capability pay is paused (audit)", "resume --capability pay"),
    (DEFERRED, view(DEFERRED, holds={"all": ""}), "everything is paused", "resume --all"),
    (BUSY, view(BUSY), "is running on w1@host for 42 s, attempt 2", "watch"),
    (BUSY, view(BUSY, progress={"done": 3, "total": 9, "note": "pages"}), "3 of 9 done (pages)", "watch"),
    (lost := operation(OpState.RUNNING, holder="w1", lease_until=NOW - 3_000), view(lost), "has lost its worker on w1 (lease over for 3.0 s)", "watch"),
    (later := operation(retry_at=NOW + 60_000), view(later), "has not begun: it starts in 60 s", "ops cancel"),
    (DOUBT, view(DOUBT), "nobody can tell whether its effect happened", f"conductor resolve {ID} --landed VALUE, or --absent"),
    (STEP_DOUBT, view(STEP_DOUBT, reason="effect_in_doubt"), "nobody can tell", f"conductor resolve {ID} charge --landed VALUE, or --absent"),
    (asked := operation(OpState.FAILED, history=ASKED, originating_session_id="ada"), view(asked), "session ada has not granted it",
     f"conductor grant ada pay && conductor ops retry {ID}"),
    (nobody := operation(OpState.FAILED, history=ASKED), view(nobody), "called without one", "conductor call pay --session SESSION"),
    (waits := operation(**STEP), view(waits, step=StepState.PENDING), "waits with its run, which is paused", f"conductor why {ID}"),
    (gone := operation(OpState.CANCELLED, **STEP), view(gone), "was cancelled with its run", f"conductor why {ID}"),
    (healed := operation(OpState.COMPLETED, result={"post_write_recovery": True}, ended_at=NOW), view(healed), "its effects were found in place", ""),
    (left := operation(OpState.COMPLETED, **STEP), view(left, step=StepState.SKIPPED), "was skipped", ""),
])
def test_the_nearest_cause_is_told(found: Operation, seen: RunView, words: str, command: str) -> None:
    said = why(found, seen)
    assert words in said.sentence
    assert command in said.command
