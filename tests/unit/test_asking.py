"""A verifier that hangs is not waited for: what it would have said is not known."""

from __future__ import annotations

import threading
import time
from contextvars import ContextVar

import pytest

from conductor.declare.effects import Verdict
from conductor.declare.judging import Judged
from conductor.runs.asking import asked_within
from tests.support.waiting import eventually

WORD: ContextVar[str] = ContextVar("word", default="")


def asking() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "conductor-verifier"]


def test_an_answer_in_time_counts_and_the_verifier_sees_its_context() -> None:
    WORD.set("seen")
    assert asked_within(5, lambda: Judged(Verdict.VERIFIED, value=WORD.get(), has_value=True)).value == "seen"


@pytest.mark.spec("EFF-1", "EFF-2")
def test_a_verifier_that_hangs_is_indeterminate_and_its_thread_is_ended() -> None:
    began, late = time.monotonic(), []

    def hang() -> Judged:
        while True:
            time.sleep(0.01)
            late.append(1)

    judged = asked_within(0.1, hang)
    assert judged.verdict is Verdict.INDETERMINATE
    assert "did not answer within 0.1 s (conductor_verify_seconds)" in judged.reason
    assert time.monotonic() - began < 2
    eventually(lambda: not asking(), what="the thread of the question is over")


def test_what_the_verifier_raises_is_raised_where_it_was_asked() -> None:
    def leave() -> Judged:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        asked_within(5, leave)


def test_a_timeout_of_the_attempt_is_heard_while_its_verifier_hangs() -> None:
    """As the pulse does: the error is raised in the waiting thread, which must not sit in one long wait."""
    import ctypes

    begun, free, caught = threading.Event(), threading.Event(), []

    def verify() -> Judged:
        begun.set()  # a thread that is only being made would catch what is meant for its maker
        return Judged(Verdict.VERIFIED) if free.wait(30) else Judged(Verdict.ABSENT)

    def wait() -> None:
        try:
            asked_within(30, verify)
        except TimeoutError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert begun.wait(10), "the verifier is being asked"

    def raised() -> bool:
        """One that arrives while the interpreter collects garbage is lost: CPython prints it and goes on."""
        if not caught:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(TimeoutError))
        thread.join(0.5)
        return not thread.is_alive()

    eventually(raised, what="the waiting thread has heard it")
    free.set()
    assert len(caught) == 1
