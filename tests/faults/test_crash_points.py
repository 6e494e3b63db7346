"""The sweep of crash points: every named place is struck in every scenario that reaches it, and every run still ends right, once.

A struck process is killed with SIGKILL, or loses the reply of a call that the server has executed. Another process takes over.
Judged are: the state and answer of each run, one end per step and item and generation, fences, effects, the store's own recount, and
that no key is left without owner. A fault that did not land fails its case.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from conductor import failpoints
from tests.faults.points import REACHED, Case, cases, short_cases
from tests.faults.sweep import Sweep, Verdict
from tests.support.server import ValkeyServer

MOST = int(os.environ.get("CONDUCTOR_TEST_PASSINGS", "2"))
REPLAY = os.environ.get("CONDUCTOR_TEST_CASES", "")


@pytest.fixture(scope="module")
def sweep() -> Iterator[Sweep]:
    server = ValkeyServer().start()
    one = Sweep(server)
    yield one
    server.stop()
    one.close()


@pytest.fixture(scope="module")
def passings(sweep: Sweep) -> dict[str, dict[str, int]]:
    """How often each scenario passes each place, counted once per session."""
    return {scenario: sweep.count(scenario, failpoints.NAMES) for scenario in REACHED}


def told(verdicts: list[Verdict]) -> str:
    wrong = [verdict for verdict in verdicts if verdict.wrong]
    names = ",".join(str(verdict.case) for verdict in wrong)
    text = "\n".join(map(str, wrong[:20]))
    return f"{len(wrong)} of {len(verdicts)} cases went wrong; replay: CONDUCTOR_TEST_CASES={names}\n{text}"


def assert_right(verdicts: list[Verdict]) -> None:
    assert verdicts and not any(verdict.wrong for verdict in verdicts), told(verdicts)


def test_every_place_is_known_and_reached(passings: dict[str, dict[str, int]]) -> None:
    """The table of places is the truth about the code: nothing unlisted is reached, nothing listed is out of reach."""
    assert {name: frozenset(found) ^ REACHED[name] for name, found in passings.items()} == dict.fromkeys(REACHED, frozenset())
    assert frozenset().union(*REACHED.values()) == failpoints.NAMES


@pytest.mark.spec("RUN-1", "RUN-2", "RUN-3", "RUN-5", "RUN-9")
@pytest.mark.timeout(300)
def test_each_place_once(sweep: Sweep, passings: dict[str, dict[str, int]], seed: int) -> None:
    """The short form: each place killed and each reply lost once, somewhere."""
    chosen = [Case.parse(text) for text in REPLAY.split(",")] if REPLAY else short_cases(list(cases(passings, MOST)), seed)
    assert_right(sweep.play(chosen))


@pytest.mark.faults
@pytest.mark.spec("RUN-1", "RUN-2", "RUN-3", "RUN-5", "RUN-9", "RUN-11", "CAN-4", "RUN-14")
@pytest.mark.parametrize("scenario", sorted(REACHED))
def test_every_place_in_every_scenario(sweep: Sweep, passings: dict[str, dict[str, int]], scenario: str) -> None:
    """The long form: the first `CONDUCTOR_TEST_PASSINGS` (2) passings of every place."""
    assert_right(sweep.play(cases({scenario: passings[scenario]}, MOST)))
