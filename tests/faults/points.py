"""Which named places each scenario passes. The table is verified: a place that is reached and not listed, or listed and not reached, fails.

A place that no scenario reaches would be one that nobody has ever seen break, so every name of `conductor.failpoints` is reached by one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["REACHED", "Case", "cases", "short_cases"]


def _calls(*names: str) -> frozenset[str]:
    return frozenset(f"{name}.{place}" for name in names for place in ("before", "sent"))


_EVERY = _calls("start_run", "claim", "commit", "register", "set_limit", "poke") | {
    "body.before", "body.after", "drain.begin", "drain.end", "sweep.begin", "sweep.end",
}
REACHED: dict[str, frozenset[str]] = {
    "chain": _EVERY,
    "diamond": _EVERY,
    "fan": _EVERY,
    "timed": _EVERY | _calls("fire_due", "cancel_run"),
    "paused": _EVERY | _calls("pause_run", "resume_run", "hold", "unhold"),
    "mended": _EVERY | _calls("reopen_run", "purge_run"),
    "sharded": _EVERY | _calls("reopen_run", "reopen_items"),
    "long": _EVERY | _calls("heartbeat", "note", "stage", "drop_staged"),
    "operated": _EVERY | _calls(
        "hasten", "resolve", "reopen_run", "fire_due", "deliver", "acknowledge", "told", "leave_call"),
    "consented": _EVERY | _calls("grant", "use_grant", "revoke", "blanket"),
    "scheduled": _EVERY | _calls("put_job", "seen_job", "tick_job", "pause_job", "drop_job"),
    "remembered": _EVERY | _calls("note", "fire_due"),
    "called_anew": _EVERY | _calls("renew", "reopen_run", "note", "fire_due"),
    "waited": _EVERY | _calls("signal", "advance", "expire_idle", "fire_due", "told"),
    "gated": _EVERY | _calls("ask", "permit", "take", "keep_permit", "heartbeat", "fire_due"),
    "batched": _EVERY | _calls("reopen_run", "note", "fire_due"),
    "undone": _EVERY | _calls("stage_undo", "cancel_run"),
    "called": _EVERY | _calls("fire_due"),
    "erased": _EVERY | _calls("mend_run"),
    "parked": _EVERY | _calls(
        "signal", "advance", "cancel_run", "fire_due", "purge_run", "mark_parking", "park_run", "read_parts", "restore_part", "restore_run",
        "lose_stub"),
    "recovered": _EVERY | _calls(
        "signal", "advance", "fire_due", "read_parts", "restore_part", "restore_run", "recover_run", "drop_run", "mend_run", "expire_idle"),
    "unlucky": _EVERY | _calls("repoke", "expire_leases", "take_back", "note") | {"give_back.before"},
}


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """Strike the `nth` passing of `point` in `scenario`. `kill` is SIGKILL; `lost` is a reply lost after the server executed the call."""

    scenario: str
    point: str
    action: str
    nth: int

    def __str__(self) -> str:
        return f"{self.scenario}-{self.point}-{self.action}-{self.nth}"

    @classmethod
    def parse(cls, text: str) -> Case:
        scenario, point, action, nth = text.split("-")
        return cls(scenario, point, action, int(nth))


def cases(passings: Mapping[str, Mapping[str, int]], most: int = 2) -> Iterator[Case]:
    """Every reached place, struck at its first `most` passings, as far as the scenario passes it that often."""
    for scenario, counted in passings.items():
        for point in sorted(counted):
            for nth in range(1, min(most, counted[point]) + 1):
                yield Case(scenario, point, "kill", nth)
                if point.endswith(".sent") and point != "poke.sent":
                    yield Case(scenario, point, "lost", nth)


def short_cases(everything: list[Case], seed: int) -> list[Case]:
    """A few dozens: each place and action once, in a scenario and at a passing that the seed chooses."""
    choose = random.Random(seed)
    by_place: dict[tuple[str, str], list[Case]] = {}
    for case in everything:
        by_place.setdefault((case.point, case.action), []).append(case)
    return sorted(choose.choice(found) for _, found in sorted(by_place.items()))
