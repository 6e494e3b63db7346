"""Executed and the reply lost, by a real broken network: a proxy reads the server's whole answer and cuts the client's connection.

Every script meets a lost reply in a scenario that needs it. In the graphs, those that wait, call, queue, park and undo included, the n-th
call is struck for every n; the same calls are also lost before the server sees them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest

from conductor.store.scripts import load, names
from tests.faults.points import REACHED
from tests.faults.sweep import Sweep
from tests.support.ledger import Ledger
from tests.support.proxy import Action, Match, Rule, ValkeyProxy, script
from tests.support.resp import Request
from tests.support.server import ValkeyServer

GRAPHS = ("chain", "diamond", "fan", "timed")
LATER = ("waited", "gated", "called", "undone", "parked")  # wait and agent, lane and limit, child, undo, parking and waking
SCRIPTS = {name: load(name).sha for name in names()}
SHAS = {sha: name for name, sha in SCRIPTS.items()}
BESIDE = 6
NEVER = 10**9
NOT_LANDED = "the fault did not land"

Strike = tuple[str, Sequence[Rule]]  # a scenario and what is struck in it


@pytest.fixture(scope="module")
def sweep() -> Iterator[Sweep]:
    """On a server that knows every script: else the first reply that is lost might be that it does not."""
    server = ValkeyServer().start()
    for name in SCRIPTS:
        assert server.client().script_load(load(name).text) == SCRIPTS[name]
    one = Sweep(server)
    yield one
    server.stop()
    one.close()


def reads(request: Request) -> bool:
    """What the engine asks without a script: inputs, graphs, glances, locks, registrations."""
    return request.name not in ("HELLO", "AUTH", "SELECT", "CLIENT", "SCRIPT") and request.sha not in SHAS


def played(sweep: Sweep, strikes: Sequence[Strike], strict: bool = True) -> tuple[Counter[str], list[str]]:
    """Play each once through a proxy with its rules, some side by side: what was really struck, and what went wrong."""
    struck: Counter[str] = Counter()
    wrong: list[str] = []
    for some in _by(strikes, BESIDE):
        with ExitStack() as open_ones:
            proxies = [open_ones.enter_context(ValkeyProxy(sweep.server.port, SHAS)) for _ in some]
            for proxy, (_, rules) in zip(proxies, some, strict=True):
                for rule in rules:
                    proxy.add(rule)
            plays = [(f"{scenario}-{rules[0].action}-{rules[0].nth}", scenario, proxy.port)
                     for proxy, (scenario, rules) in zip(proxies, some, strict=True)]
            for proxy, (scenario, rules), (ground, found) in zip(proxies, some, sweep.play_beside(plays, not strict), strict=True):
                struck.update(one.label for one in proxy.landed)
                if any(rule.nth < NEVER for rule in rules) and len(proxy.landed) < len(rules):
                    found = [*found, NOT_LANDED]
                if not strict:
                    found = [*found, *burnt(ground.ledger)]
                what = f"{scenario} {rules[0].action} {[rule.nth for rule in rules]} {[one.label for one in proxy.landed]}"
                wrong += [f"{what}: {one}" for one in found]
    return struck, wrong


def _by(strikes: Sequence[Strike], count: int) -> Iterator[Sequence[Strike]]:
    return (strikes[first : first + count] for first in range(0, len(strikes), count))


def passings(sweep: Sweep, scenario: str, match: Match) -> int:
    """How many requests of an undisturbed play match."""
    rule = Rule("delay", match, NEVER)
    assert played(sweep, [(scenario, [rule])]) == (Counter(), [])
    assert rule.seen >= 5
    return rule.seen


def burnt(ledger: Ledger) -> list[str]:
    """Attempts that a broken connection has cost: a step's own failures are counted, those of the network are not."""
    return [
        f"{line.key} was attempted {line.attempt} times" for line in ledger.lines("begin")
        if line.attempt > (2 if line.key.endswith(":flaky") else 1)
    ]


def where_needed() -> dict[str, list[str]]:
    """For each script the scenarios that cannot do without it."""
    return {name: [scenario for scenario, places in REACHED.items() if f"{name}.sent" in places] for name in SCRIPTS}


def fewest() -> dict[str, list[str]]:
    """Few scenarios that need all scripts between them, and which of the scripts each is to meet."""
    left, chosen = set(SCRIPTS), dict[str, list[str]]()
    needed = where_needed()
    while left:
        best = max(REACHED, key=lambda scenario: sum(scenario in needed[name] for name in left))
        chosen[best] = sorted(name for name in left if best in needed[name])
        assert chosen[best], f"no scenario needs {sorted(left)}"
        left -= set(chosen[best])
    return chosen


def assert_met(struck: Counter[str]) -> None:
    print("replies lost:", ", ".join(f"{name} {struck[name]}" for name in sorted(SCRIPTS)))
    assert not set(SCRIPTS) - set(struck), f"no reply of these was lost: {sorted(set(SCRIPTS) - set(struck))}"


@pytest.mark.spec("RUN-5")
def test_every_script_loses_a_reply_and_nothing_changes(sweep: Sweep) -> None:
    """The short form: the first reply of each script, in as few plays as need them all."""
    struck, wrong = played(sweep, [
        (scenario, [Rule("lose_reply", script(SCRIPTS[name])) for name in some]) for scenario, some in fewest().items()])
    assert not wrong, "\n".join(wrong)
    assert_met(struck)


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.spec("RUN-5")
def test_every_script_loses_replies_wherever_it_is_needed(sweep: Sweep) -> None:
    """Each script in each scenario that needs it: its first reply, then its second, if there is one."""
    strikes = [
        (scenario, [Rule("lose_reply", script(SCRIPTS[name]), nth)])
        for name, scenarios in where_needed().items() for scenario in scenarios for nth in (1, 2)
    ]
    struck, wrong = played(sweep, strikes)
    late = [one for one in wrong if one.endswith(NOT_LANDED)]
    assert len(late) == len(wrong), "\n".join(wrong)
    assert 2 * len(late) <= len(strikes)
    assert_met(struck)


@pytest.mark.spec("RUN-5", "RUN-2", "RUN-3")
@pytest.mark.parametrize("action", ["lose_reply", "lose_request"])
@pytest.mark.parametrize(("scenario", "every"), [
    *((name, 5) for name in GRAPHS), *(pytest.param(name, 1, marks=[pytest.mark.faults, pytest.mark.timeout(1800)]) for name in GRAPHS + LATER),
])
def test_losing_the_nth_script_call_changes_nothing(sweep: Sweep, scenario: str, action: Action, every: int, seed: int) -> None:
    """How many calls there are depends on time (sweeps, sizes of batches), so the last ones may not come; most must land."""
    places = range(1 + seed % every, passings(sweep, scenario, script(*SHAS)) - 2, every)
    _, wrong = played(sweep, [(scenario, [Rule(action, script(*SHAS), nth)]) for nth in places])
    missed = [one for one in wrong if one.endswith(NOT_LANDED)]
    assert len(missed) == len(wrong), "\n".join(wrong)
    assert 2 * len(missed) <= len(places), f"{len(missed)} of {len(places)} faults did not land"


@pytest.mark.spec("RUN-5", "RUN-2")
@pytest.mark.parametrize("scenario", ["diamond", "fan"])
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.faults)])
def test_losing_the_nth_read_fails_no_step(sweep: Sweep, scenario: str, every: int, seed: int) -> None:
    """Reads change nothing, so their loss must not look like a failure of the step, cost an attempt, or leave leases to run out."""
    places = range(1 + seed % every, passings(sweep, scenario, reads) - 4, every)
    _, wrong = played(sweep, [(scenario, [Rule("lose_reply", reads, nth)]) for nth in places], strict=False)
    assert not wrong, "\n".join(wrong)
