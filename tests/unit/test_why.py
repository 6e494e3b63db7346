"""`conductor why`: a sentence for every state and reason, and the right one where several things are true."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import conductor
from conductor.plan import Failure, after_failure
from conductor.records import Graph, Node, NodeKind
from conductor.runs.read import RunView, StepView, to_json
from conductor.runs.why import REASONS, STEP_REASONS, Spelling, lifts, moment, why
from conductor.state import RunState, StepState
from conductor.store.reads import EachRecord, RunRecord

NOW = 1_795_000_000_000
RUN = RunRecord("01a1ee60-4676-70b2-bd26-4c1de90cf400", "order", "h", RunState.RUNNING, queue="celery", created_at=NOW - 60_000)
GRAPH = Graph.build("order", (Node(0, "charge", capability="pay"),))


def view(
    *steps: StepView, holds: dict[str, str] | None = None, unanswered: dict[str, int] | None = None, at: int = 0,
    busy: set[str] | None = None, actor: str = "", **run: Any,
) -> RunView:
    return RunView(replace(RUN, **run), GRAPH, NOW, steps, holds or {}, unanswered or {}, at, frozenset(busy or ()), actor)


def step(state: StepState, name: str = "charge", **fields: Any) -> StepView:
    return StepView(0, name, NodeKind.STEP, state, **({"queue": "gpu", "since": NOW - 42_000} | fields))


COMBINATIONS = [(state, reason) for state in RunState for reason in (*REASONS[state], "some words of a person")]


@pytest.mark.spec("CLI-5")
@pytest.mark.parametrize(("state", "reason"), COMBINATIONS)
def test_every_state_and_reason_has_a_sentence(state: RunState, reason: str) -> None:
    failed = step(StepState.FAILED, reason="poison", error={"type": "CardError", "message": "declined"})
    found = why(view(failed, state=state, reason=reason, ended_at=NOW, deadline=NOW))
    assert re.match(r"run 01a1ee60-4676 of order \w", found.sentence)
    assert "{" not in found.sentence + found.command
    assert state in (RunState.COMPLETED, RunState.CANCELLED) or found.command
    if reason == "some words of a person" and state in (RunState.PAUSED, RunState.FAILED, RunState.CANCELLED):
        assert reason in found.sentence


@pytest.mark.spec("CLI-5")
def test_the_table_knows_every_reason_that_scripts_give() -> None:
    lua = "\n".join(path.read_text() for path in (Path(conductor.__file__).parent / "store" / "lua").rglob("*.lua"))
    paused = set(re.findall(r"emit\(run, 'p', '(\w+)'", lua))
    failed = set(re.findall(r"settle\(run, '(\w+)'", lua)) | {"last_step_failed"}
    cancelled = set(re.findall(r"emit\(run, 'K', '(\w+)'", lua))
    assert paused <= set(REASONS[RunState.PAUSED])
    assert failed <= set(REASONS[RunState.FAILED])
    assert cancelled <= set(REASONS[RunState.CANCELLED])
    assert paused and failed and cancelled


def test_the_table_knows_every_reason_a_decision_gives() -> None:
    old, late = 10**9, 99
    given = {
        after_failure(None, Failure(kind, (), attempt, age, timed), 0).reason
        for kind in ("transient", "permanent", "unknown") for attempt in (1, late) for age in (0, old) for timed in (False, True)
    }
    assert given - {""} <= set(STEP_REASONS)


ERROR = {"type": "TimeoutError", "message": "no answer"}


@pytest.mark.spec("CLI-5")
@pytest.mark.parametrize(("seen", "words", "command"), [
    (view(step(StepState.READY), unanswered={"gpu": 9_000}), "no worker consumes queue gpu: charge has been ready there for 42 s", "-Q gpu"),
    (view(step(StepState.READY), busy={"gpu"}), "all workers are busy", "conductor queues"),
    (view(step(StepState.READY), busy={"gpu"}, unanswered={"gpu": 9_000}), "all workers are busy", "conductor queues"),
    (view(step(StepState.READY), busy={"cpu"}), "has been ready for 42 s and nobody has taken it yet", "celery -A workers worker -Q gpu"),
    (view(step(StepState.READY, since=NOW - 100)), "a worker has been woken", "watch"),
    (view(step(StepState.READY, aside=True)), "no worker present has the code of charge", "-Q gpu"),
    (view(step(StepState.RUNNING, worker="w1@host", attempt=2)), "is running charge on w1@host for 42 s, attempt 2", "watch"),
    (view(step(StepState.RUNNING, progress={"done": 3, "total": 9, "note": "pages"})), "3 of 9 done (pages)", "watch"),
    (view(step(StepState.RUNNING, worker="w1", lease_until=NOW - 3_000)), "has lost the worker of charge (w1, lease over for 3.0 s)", "watch"),
    (view(step(StepState.RUNNING, each=EachRecord(total=10, done=4, active=2))), "4 of 10 items done, 2 running", "watch"),
    (view(step(StepState.RETRY_PENDING, attempt=3, max_attempts=6, due_at=NOW + 42_000, error=ERROR)),
     "waits for retry 3/5 of charge in 42 s after TimeoutError: no answer", "show"),
    (view(step(StepState.WAITING, "nap", due_at=NOW + 7_200_000)), "sleeps in nap until", ""),
    (view(at=NOW + 60_000), "has not begun: it starts at", "cancel"),
    (view(), "has nothing that could move it", "fsck"),
    (view(step(StepState.READY), holds={"all": "upgrade"}), "everything is paused (upgrade)", "resume --all"),
    (view(step(StepState.READY), holds={"workflow:order": ""}), "workflow order is paused", "resume --workflow order"),
    (view(step(StepState.READY), holds={"queue:gpu": "hot"}), "queue gpu is paused (hot)", "resume --queue gpu"),
    (view(step(StepState.READY), holds={"capability:pay": "down"}), "capability pay is paused (down) and charge", "resume --capability pay"),
    (view(step(StepState.RUNNING, each=EachRecord(total=9, cursor=3, done=3, failed=0, active=0, listed=1)), holds={"all": "x"}),
     "everything is paused (x) and charge stands ready", "resume --all"),
    (view(step(StepState.RUNNING, each=EachRecord(total=9, cursor=3, done=1, failed=0, active=2, listed=1)), holds={"all": "x"}),
     "1 of 9 items done, 2 running", "watch"),
    (view(step(StepState.READY, "other", queue="cpu"), step(StepState.READY), holds={"queue:gpu": "hot"}), "and charge stands ready", "--queue gpu"),
    (view(step(StepState.FAILED, error=ERROR), phase="F", active=2), "is failing because step charge failed", "watch"),
    (view(step(StepState.FAILED, error=ERROR), phase="U", active=1), "is about to pause", "watch"),
    (view(step(StepState.RUNNING, "tidy"), phase="H", outcome="failed"), "is finishing as failed: is running tidy", "watch"),
    (view(step(StepState.FAILED, reason="items_failed", each=EachRecord(total=9, bad=(2, 5))), state=RunState.FAILED, reason="step_failed"),
     "step charge (items 2, 5) failed: items of it failed", "retry"),
    (view(step(StepState.READY, error={"type": "PayloadMismatch", "message": "order.total: a number was expected"}), state=RunState.PAUSED,
          reason="payload_mismatch"), "order.total: a number was expected", "resume"),
])
def test_the_nearest_cause_is_told(seen: RunView, words: str, command: str) -> None:
    found = why(seen)
    assert words in found.sentence
    assert command in found.command


def test_a_view_can_be_printed_as_json() -> None:
    import json

    told = json.loads(json.dumps(to_json(view(step(StepState.RUNNING, each=EachRecord(total=3)), ended_at=0))))
    assert told["duration_ms"] == 60_000
    assert told["progress"] == {"running": 1}
    assert told["steps"][0]["items"]["total"] == 3


@pytest.mark.spec("CLI-5")
@pytest.mark.parametrize("reason", ["permanent_error", "unknown_error", "when_failed", "poison"])
def test_what_would_fail_again_is_to_be_corrected_first(reason: str) -> None:
    failed = step(StepState.FAILED, reason=reason, error=ERROR)
    for state, word in ((RunState.FAILED, "retry"), (RunState.PAUSED, "resume")):
        found = why(view(failed, state=state, reason="step_failed"))
        assert found.sentence.endswith(f"; correct the cause, then {word} it")
        assert found.command == f"conductor {word} {RUN.run_id}"
    passing = step(StepState.FAILED, reason="retries_exhausted", error=ERROR)
    assert "correct the cause" not in why(view(passing, state=RunState.FAILED, reason="step_failed")).sentence


@pytest.mark.spec("CLI-5")
def test_a_result_that_does_not_fit_has_its_own_sentence() -> None:
    error = {"type": "conductor.errors.BadResult", "message": "step charge returned something that is not int"}
    found = why(view(step(StepState.FAILED, reason="permanent_error", error=error), state=RunState.FAILED, reason="step_failed"))
    assert "failed: its result does not fit its type, BadResult: step charge returned" in found.sentence


@pytest.mark.spec("CLI-5")
def test_an_error_of_several_lines_is_told_in_one() -> None:
    error = {"type": "x.CardError", "message": "refused\n  by the bank\n" + "x" * 3000}
    found = why(view(step(StepState.FAILED, reason="permanent_error", error=error), state=RunState.FAILED, reason="step_failed"))
    assert "CardError: refused by the bank xxx" in found.sentence
    assert "\n" not in found.sentence
    assert len(found.sentence) < 1000


@pytest.mark.spec("CLI-5")
def test_a_cancelled_run_names_who_did_it_and_the_way_to_begin_anew() -> None:
    found = why(view(state=RunState.CANCELLED, reason="a mistake", ended_at=NOW, actor="eve"))
    assert f"was cancelled (a mistake) by eve at {moment(NOW, NOW)}" in found.sentence
    assert found.command == f"conductor fork {RUN.run_id} --from charge"
    assert " by " not in why(view(state=RunState.CANCELLED, reason="requested", ended_at=NOW)).sentence


@pytest.mark.spec("CLI-5")
def test_commands_are_spelled_as_the_user_calls_them() -> None:
    spelling = Spelling("conductor -A shop", "celery -A shop worker")
    assert why(view(state=RunState.PAUSED, reason="requested"), spelling).command == f"conductor -A shop resume {RUN.run_id}"
    aside = step(StepState.READY, aside=True, queue="a b")
    assert why(view(aside), spelling).command == "celery -A shop worker -Q 'a b'"
    assert why(view(aside, state=RunState.PAUSED, reason="code_missing"), spelling).command == "celery -A shop worker"
    assert (lifts("all"), lifts("workflow:it's")) == ("resume --all", """resume --workflow 'it'"'"'s'""")


def test_a_time_has_its_date_only_on_another_day() -> None:
    noon = 1_795_003_220_500  # 2026-11-18
    assert moment(noon, noon + 1000) == "12:00:20 UTC"
    assert moment(noon, noon + 86_400_000) == "2026-11-18 12:00:20 UTC"
    assert moment(noon, noon, fine=True) == "12:00:20.500 UTC"
