"""Asking verifiers, with a limit: one that hangs must not hold its operation, and a slot of the worker, for ever.

A verifier is anybody's code and may stand in a call that nothing can interrupt. It is therefore asked in a thread of its own, made for this
one question, and after the limit nobody waits for it any more: what it would have said is not known, which is a verdict. The thread is told
to end as soon as it runs Python again; what it says too late is not heard, so a verdict never changes after it was acted upon.
"""

from __future__ import annotations

import contextvars
import ctypes
import threading
import time
from collections.abc import Callable

from conductor.declare.effects import Verdict
from conductor.declare.judging import Judged

__all__ = ["asked_within"]

_LISTEN = 0.05  # a timeout or a shutdown is raised in the waiting thread, which hears it only between two waits


class _Unheard(BaseException):
    """Ends a thread that nobody waits for; no verifier catches it by mistake."""


def asked_within(seconds: float, ask: Callable[[], Judged]) -> Judged:
    """What `ask` answers; indeterminate if it takes longer."""
    said: list[Judged | BaseException] = []
    context, over = contextvars.copy_context(), threading.Event()

    def work() -> None:
        try:
            said.append(context.run(ask))
        except _Unheard:
            return
        except BaseException as error:  # what ends the process is for the thread that works, not for this one
            said.append(error)
        finally:
            over.set()

    thread = threading.Thread(target=work, name="conductor-verifier", daemon=True)
    thread.start()
    try:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not over.wait(min(_LISTEN, left)):
            pass
    finally:
        if not over.is_set():
            _end(thread)
    answer = said[0] if said else None
    if isinstance(answer, BaseException):
        raise answer
    return answer or Judged(Verdict.INDETERMINATE, reason=f"its verifier did not answer within {seconds:g} s (conductor_verify_seconds)")


def _end(thread: threading.Thread) -> None:
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Unheard))
