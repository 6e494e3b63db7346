"""The works every system is given, and what each must answer. No system may be faster by doing less: a wrong answer fails the row.

This module is imported in the peers' environment too: standard library only.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any, Protocol

__all__ = [
    "NAP_SECONDS", "Plug", "Work", "chain", "expected", "fan", "nap_chain", "nap_fan", "one",
    "op", "span", "timed_chain", "timed_fan"]

NAP_SECONDS = 0.05


@dataclass(frozen=True)
class Work:
    """What is asked for. Kinds: `one`, `op`, `chain`, `fan`, `nap_chain`, `nap_fan`, `timed_chain`, `timed_fan`."""

    kind: str
    size: int = 1

    def doc(self) -> dict[str, Any]:
        return asdict(self)


one = Work("one")
op = Work("op")  # a stand-alone operation whose retry is due; to a peer that knows none, its ordinary task


def chain(size: int) -> Work:
    """Steps in a row; each adds one to what the step before gave, so the answer counts the steps."""
    return Work("chain", size)


def fan(size: int) -> Work:
    """1 → size → 1: a head, `size` items that answer their own number, a join that adds them."""
    return Work("fan", size)


def nap_chain(size: int) -> Work:
    """A chain whose steps sleep 50 ms."""
    return Work("nap_chain", size)


def nap_fan(size: int) -> Work:
    """A fan-out whose items sleep 50 ms."""
    return Work("nap_fan", size)


def timed_chain(size: int) -> Work:
    """A chain that answers how many seconds passed between its first and its last step, so that start and first poke do not count."""
    return Work("timed_chain", size)


def timed_fan(size: int) -> Work:
    """A fan-out that answers how many seconds passed between its first and its last item."""
    return Work("timed_fan", size)


def expected(work: Work, number: int) -> Any:
    """The only right answer to the `number`-th piece of this work; None where the answer is a measurement."""
    match work.kind:
        case "one" | "op":
            return number
        case "chain" | "nap_chain":
            return work.size
        case "fan" | "nap_fan":
            return work.size * (work.size - 1) // 2
        case _:
            return None


def span(since: float) -> float:
    """Seconds since `since` on the machine's monotonic clock, which all processes share."""
    return time.monotonic() - since


class Plug(Protocol):
    """How the driver talks to a system. `connect()` of a system's module gives one."""

    def begin(self, many: bool) -> None:
        """Told before a measurement: whether many pieces come at once, for systems that offer two roads."""

    def start(self, work: Work, number: int) -> Any:
        """Begin one piece of work; return its handle once the system has accepted it."""

    def result(self, handle: Any, timeout: float) -> Any:
        """Wait for the answer as a user of this system would."""

    def outstanding(self) -> int:
        """How much accepted work is not finished: cheap, so that watching costs nothing."""

    def results(self, handles: list[Any], timeout: float) -> list[Any]:
        """The answers of work that is finished."""
