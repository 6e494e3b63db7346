"""What an attempt leaves behind for the next one and for people: checkpoint, progress, and what went wrong."""

from __future__ import annotations

import time

import pytest

from conductor import Ctx, Retry, Workflow
from conductor.declare import registry
from conductor.runs.read import view_run
from conductor.store import Store
from conductor.store.reads import read_errors
from tests.integration.playing import Player
from tests.integration.shift import Shift


class _Killed(BaseException):
    """Ends the body as a killed process would: nobody commits anything."""


@pytest.mark.spec("WF-12")
def test_a_long_step_repeated_after_a_crash_goes_on_where_it_was(store: Store) -> None:
    seen: list[tuple[int, object, str]] = []
    with registry.isolated():
        flow = Workflow("pages")

        @flow.step
        def crawl(ctx: Ctx) -> int:
            done = ctx.last_checkpoint or 0
            seen.append((ctx.attempt, ctx.last_checkpoint, ctx.key))
            for page in range(done + 1, 6):
                ctx.checkpoint(page)
                ctx.progress(page, 5, "pages")
                if page == 3 and not done:
                    raise _Killed
            return done

    shift, play = Shift(store, flow), Player(store)
    run_id = shift.start(flow)
    with pytest.raises(_Killed):
        shift.worker().drain(0, "q")
    told = view_run(store, run_id).steps[0].progress
    assert (told["done"], told["total"], told["note"]) == (3, 5, "pages")
    play.backdate("leases")
    play.look_now()
    assert store.expire_leases(0).count == 1
    shift.worker().drain(0, "q")
    assert shift.state(run_id) == "completed"
    assert [(attempt, found) for attempt, found, _ in seen] == [(1, None), (1, 3)], "a lost worker burns no attempt"
    assert {key for _, _, key in seen} == {f"{run_id}:crawl"}


@pytest.mark.spec("ERR-3")
def test_each_attempt_keeps_what_went_wrong(store: Store) -> None:
    with registry.isolated():
        flow = Workflow("failing")

        @flow.step(retry=Retry(max=1, on=ValueError, backoff="none"))
        def deep(ctx: Ctx) -> None:
            time.sleep(0.02)
            if ctx.attempt == 1:
                raise ValueError("redis://u:secret@host said no")

            def dig(depth: int) -> None:
                if depth == 0:
                    raise RecursionError(f"at the bottom {'x' * 40_000}")
                dig(depth - 1)

            dig(100)

    shift, play = Shift(store, flow), Player(store)
    run_id, drainer = shift.start(flow), shift.worker()
    drainer.drain(0, "q")
    play.due()
    drainer.drain(0, "q")
    assert shift.state(run_id) == "failed"
    first, last = (error for _, error in sorted(read_errors(store, run_id).items()))
    assert (first["type"], first["worker"], last["type"]) == ("builtins.ValueError", "w1", "builtins.RecursionError")
    assert first["message"].endswith("said no")
    assert "secret" not in str(first)
    assert "in deep" in first["traceback"]
    assert first["ran_ms"] >= 20
    assert first["waited_ms"] >= 0
    assert len(last["traceback"]) <= 16_384
    assert last["message"].startswith("at the bottom")
