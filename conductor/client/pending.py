"""Runs whose end this caller has not been told yet: what to save, and what became of it after a restart.

`Ledger` is what a client remembers; `resolving` asks once for each run it is given and sorts the answers into the four that there are.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from conductor.client import calls, facts
from conductor.client.asking import Conversation, Manners, Pause
from conductor.client.facts import Finish, PollOutcome
from conductor.client.following import Following, State
from conductor.client.reading import poll_fact
from conductor.client.results import Outcome, Result
from conductor.errors import BadInput

__all__ = ["Ledger", "NoAnswer", "NotFound", "Pending", "Resolved", "StillRunning", "Terminal", "read_pending", "resolving"]


@dataclass(frozen=True, slots=True)
class Pending:
    """A run as its caller last knew it."""

    run_id: str
    epoch: str = ""
    last_event: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "epoch": self.epoch, "last_event": self.last_event}


@dataclass(frozen=True, slots=True)
class Terminal:
    """It has ended; `result` says how."""

    run_id: str
    result: Result


@dataclass(frozen=True, slots=True)
class StillRunning:
    """It goes on; `handle` follows it from where the caller was."""

    run_id: str
    outcome: Outcome
    handle: Any = None


@dataclass(frozen=True, slots=True)
class NotFound:
    """Nobody knows it. `result.code` says whether the store is another one (`conductor_restarted`) or not (`run_not_found`)."""

    run_id: str
    result: Result


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Nobody could say. It stays pending: ask again."""

    run_id: str
    problem: str


Resolved = Terminal | StillRunning | NotFound | NoAnswer


class Ledger:
    """The runs one client has started or followed and whose end it has not reported. Many threads write."""

    def __init__(self) -> None:
        self._runs: dict[str, Pending] = {}
        self._lock = threading.Lock()

    def know(self, run_id: str, epoch: str, last_event: int = 0) -> None:
        """A run is under way, so far."""
        with self._lock:
            self._runs[run_id] = Pending(run_id, epoch, last_event)

    def told(self, run_id: str) -> None:
        """Its end was reported."""
        with self._lock:
            self._runs.pop(run_id, None)

    def to_json(self) -> list[dict[str, Any]]:
        with self._lock:
            return [one.to_json() for one in self._runs.values()]


def read_pending(told: Iterable[Pending | Mapping[str, Any]]) -> list[Pending]:
    """What `pending()` gave, perhaps by way of a file."""
    found = []
    for one in told:
        if isinstance(one, Pending):
            found.append(one)
            continue
        if not isinstance(one, Mapping) or not isinstance(one.get("run_id"), str) or not isinstance(one.get("last_event", 0), int):
            raise BadInput(what="resume", field="pending", problem=f"not an entry of pending(): {str(one)[:200]}")
        found.append(Pending(one["run_id"], str(one.get("epoch") or ""), one.get("last_event", 0)))
    return found


def resolving(pending: list[Pending], manners: Manners) -> Conversation[list[Resolved]]:
    """What became of each. Those that get no answer are asked for again together until the time of one call is over; while nobody answers
    at all, one question stands for all of them."""
    began, tries = manners.clock(), 0
    machines = {one.run_id: _machine(one, manners) for one in pending}
    found: dict[str, Resolved] = {}
    left = pending
    while left:
        again: list[Pending] = []
        for at, one in enumerate(left):
            reply = yield calls.outcome(one.run_id)
            assert reply is not None
            fact = poll_fact(1, reply)
            found[one.run_id] = answer = _resolved(one, fact, machines[one.run_id], manners)
            if isinstance(answer, NoAnswer):
                again.append(one)
                if isinstance(fact, facts.Unreachable):
                    found |= {rest.run_id: found.get(rest.run_id, answer) for rest in left[at + 1 :]}
                    again += left[at + 1 :]
                    break
        left = again
        pause = manners.backoff.pause(tries, manners.random)
        tries += 1
        if left and manners.clock() - began + pause >= manners.backoff.call_total:
            break
        if left:
            yield Pause(pause)
    return [_named(found[one.run_id], one.run_id) for one in pending]


def _named(answer: Resolved, run_id: str) -> Resolved:
    """What was said of one run that nobody answers for is true of the next."""
    return NoAnswer(run_id, answer.problem) if isinstance(answer, NoAnswer) else answer


def _machine(one: Pending, manners: Manners) -> Following:
    return Following(
        one.run_id, random=manners.random, epoch=one.epoch, after=one.last_event, events=False, budget=manners.budget,
        backoff=manners.backoff, url=manners.url)


def _resolved(one: Pending, fact: facts.Fact, machine: Following, manners: Manners) -> Resolved:
    """One answer, judged by the same machine that follows runs."""
    now = manners.clock()
    question = next(command.number for command in machine.begin(now) if isinstance(command, PollOutcome))
    told = machine.receive(replace(fact, number=question) if not isinstance(fact, (facts.Stopped, facts.Passed)) else fact, now)
    finish = next((command for command in told if isinstance(command, Finish)), None)
    if finish is not None and finish.error is not None:
        raise finish.error
    if finish is not None and finish.result is not None:
        if machine.state is State.GAVE_UP:
            return NoAnswer(one.run_id, finish.result.problem)
        return NotFound(one.run_id, finish.result) if machine.state is State.NOT_FOUND else Terminal(one.run_id, finish.result)
    if machine.outcome is not None:
        return StillRunning(one.run_id, machine.outcome)
    return NoAnswer(one.run_id, getattr(fact, "problem", "") or "the run is unknown, and whether the store is another one is too")
