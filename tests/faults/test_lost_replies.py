"""Executed and the reply lost, by a real broken network: a proxy reads the server's whole answer and cuts the client's connection.

The n-th call is struck for every n, in every reference graph; the same calls are also lost before the server sees them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conductor.store.scripts import load, names
from tests.faults.sweep import Sweep
from tests.support.ledger import Ledger
from tests.support.proxy import Action, Match, Rule, ValkeyProxy, script
from tests.support.resp import Request
from tests.support.server import ValkeyServer

GRAPHS = ("chain", "diamond", "fan", "timed")


@pytest.fixture(scope="module")
def sweep() -> Iterator[Sweep]:
    server = ValkeyServer().start()
    one = Sweep(server)
    yield one
    server.stop()
    one.close()


def reads(request: Request) -> bool:
    """What the engine asks without a script: inputs, graphs, glances, locks, registrations."""
    return request.name not in ("HELLO", "AUTH", "SELECT", "CLIENT", "SCRIPT") and request.sha not in SHAS


NOT_LANDED = "the fault did not land"
SHAS = {load(name).sha: name for name in names()}


def play_through(sweep: Sweep, scenario: str, rule: Rule, strict: bool = True) -> list[str]:
    """Play once through a proxy with this rule; tells what went wrong."""
    with ValkeyProxy(sweep.server.port, SHAS) as proxy:
        proxy.add(rule)
        ground, wrong = sweep.play_one(f"{scenario}-{rule.action}-{rule.nth}", scenario, proxy.port, may_stumble=not strict)
        if rule.nth < NEVER and not proxy.struck(rule.action):
            wrong.append(NOT_LANDED)
        if not strict:
            wrong += burnt(ground.ledger)
        struck = [one.label for one in proxy.landed]
        return [f"{scenario} {rule.action} {rule.nth} {struck}: {one}" for one in wrong]


NEVER = 10**9


def passings(sweep: Sweep, scenario: str, match: Match) -> int:
    """How many requests of an undisturbed play match."""
    rule = Rule("delay", match, NEVER)
    assert not play_through(sweep, scenario, rule)
    assert rule.seen >= 5
    return rule.seen


def burnt(ledger: Ledger) -> list[str]:
    """Attempts that a broken connection has cost: a step's own failures are counted, those of the network are not."""
    return [
        f"{line.key} was attempted {line.attempt} times" for line in ledger.lines("begin")
        if line.attempt > (2 if line.key.endswith(":flaky") else 1)
    ]


@pytest.mark.spec("RUN-5", "RUN-2", "RUN-3")
@pytest.mark.parametrize("action", ["lose_reply", "lose_request"])
@pytest.mark.parametrize("scenario", GRAPHS)
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.faults)])
def test_losing_the_nth_script_call_changes_nothing(sweep: Sweep, scenario: str, action: Action, every: int, seed: int) -> None:
    """How many calls there are depends on time (sweeps, sizes of batches), so the last ones may not come; most must land."""
    wrong, places = [], range(1 + seed % every, passings(sweep, scenario, script(*SHAS)) - 2, every)
    for nth in places:
        wrong += play_through(sweep, scenario, Rule(action, script(*SHAS), nth))
    missed = [one for one in wrong if one.endswith(NOT_LANDED)]
    assert len(missed) == len(wrong), "\n".join(wrong)
    assert 2 * len(missed) <= len(places), f"{len(missed)} of {len(places)} faults did not land"


@pytest.mark.spec("RUN-5", "RUN-2")
@pytest.mark.parametrize("scenario", ["diamond", "fan"])
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.faults)])
def test_losing_the_nth_read_fails_no_step(sweep: Sweep, scenario: str, every: int, seed: int) -> None:
    """Reads change nothing, so their loss must not look like a failure of the step, cost an attempt, or leave leases to run out."""
    wrong = []
    for nth in range(1 + seed % every, passings(sweep, scenario, reads) - 4, every):
        wrong += play_through(sweep, scenario, Rule("lose_reply", reads, nth), strict=False)
    assert not wrong, "\n".join(wrong)
