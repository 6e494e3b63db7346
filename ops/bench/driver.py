"""The client side of one system, in a process of its own: `python -m ops.bench.driver MODULE`. The same code drives ours and the peers.

It reads one JSON request a line and writes one JSON answer a line. Every verb checks the answers of the work it measured.
Standard library only: it also runs in the peers' environment.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
import traceback
from typing import Any

from ops.bench.works import Plug, Work, expected

__all__ = ["Desk", "main"]


class WrongAnswer(Exception):
    """A system lost, doubled or changed work."""


class Desk:
    """The verbs of the driver."""

    def __init__(self, plug: Plug) -> None:
        self._plug = plug
        self._kept: list[tuple[Work, int, Any]] = []

    def series(self, work: dict[str, Any], count: int, timeout: float = 120.0, pause: float = 0.0) -> dict[str, Any]:
        """One after the other: seconds of each, start and waiting included."""
        asked, seconds, answers = Work(**work), [], []
        self._plug.begin(many=False)
        for number in range(count):
            began = time.perf_counter()
            answer = self._plug.result(self._plug.start(asked, number), timeout)
            seconds.append(time.perf_counter() - began)
            answers.append(self._check(asked, number, answer))
            if pause:
                time.sleep(pause)
        return {"seconds": seconds, "answers": answers if expected(asked, 0) is None else []}

    def burst(self, work: dict[str, Any], count: int, timeout: float = 300.0) -> dict[str, Any]:
        """All at once: seconds from the first start to the last answer."""
        self._plug.begin(many=True)
        asked, began = Work(**work), time.perf_counter()
        handles = [self._plug.start(asked, number) for number in range(count)]
        answers = [self._plug.result(handle, timeout) for handle in handles]
        seconds = time.perf_counter() - began
        for number, answer in enumerate(answers):
            self._check(asked, number, answer)
        return {"seconds": seconds}

    def accept(self, work: dict[str, Any], count: int) -> dict[str, Any]:
        """Only start, and keep the handles: seconds until all are accepted, and when the first was asked for."""
        self._plug.begin(many=True)
        asked, at = Work(**work), time.monotonic()
        handles = [self._plug.start(asked, number) for number in range(count)]
        seconds = time.monotonic() - at
        self._kept += [(asked, number, handle) for number, handle in enumerate(handles)]
        return {"seconds": seconds, "began": at}

    def fill(self, work: dict[str, Any], count: int, timeout: float = 3600.0) -> dict[str, Any]:
        """Leave finished work behind, a thousand at a time, each thousand checked."""
        for done in range(0, count, 1000):
            self.accept(work, min(1000, count - done))
            self.settle(timeout)
            self.verify()
        return {"count": count}

    def settle(self, timeout: float = 600.0) -> dict[str, Any]:
        """Wait until nothing is outstanding, in two looks; the moment is that of the first."""
        until = time.monotonic() + timeout
        empty_at: float | None = None
        while time.monotonic() < until:
            if self._plug.outstanding() > 0:
                empty_at = None
            elif empty_at is not None:
                return {"ended": empty_at}
            else:
                empty_at = time.monotonic()
            time.sleep(0.02)
        raise WrongAnswer(f"{self._plug.outstanding()} pieces of work still open after {timeout} s")

    def verify(self, timeout: float = 60.0) -> dict[str, Any]:
        """Every kept piece of work has its right answer."""
        kept, self._kept = self._kept, []
        answers = self._plug.results([handle for _, _, handle in kept], timeout)
        if len(answers) != len(kept):
            raise WrongAnswer(f"{len(kept)} pieces of work accepted, {len(answers)} answered")
        for (work, number, _), answer in zip(kept, answers, strict=True):
            self._check(work, number, answer)
        return {"count": len(kept)}

    def custom(self, verb: str, **options: Any) -> dict[str, Any]:
        """What only one system can be asked for, such as an idle look of a sweep."""
        found = getattr(self._plug, verb)(**options)
        return found if isinstance(found, dict) else {"value": found}

    @staticmethod
    def _check(work: Work, number: int, answer: Any) -> Any:
        right = expected(work, number)
        if right is not None and answer != right:
            raise WrongAnswer(f"{work} number {number} answered {answer!r} instead of {right!r}")
        return answer


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library that prints must not end up among the answers
    desk = Desk(importlib.import_module(sys.argv[1]).connect())
    gc.disable()  # a collection in the middle of one system's round and not of another's would be noise
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(desk, request.pop("do"))(**request)
        except Exception as problem:
            answer = {"error": f"{type(problem).__name__}: {problem}", "trace": traceback.format_exc()}
        gc.collect()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
