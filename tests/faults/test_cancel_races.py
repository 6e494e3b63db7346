"""Cancel against claim and commit, again and again: after the acknowledgement nothing is claimed, nothing is taken, nothing begins."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pytest

from tests.support.site import Site

MAY_STILL_BEGIN = 0.25
AT_ONCE = 4


@pytest.mark.spec("CAN-1", "CAN-2", "CAN-4")
@pytest.mark.parametrize("races", [200, pytest.param(2000, marks=pytest.mark.faults)])
def test_after_an_acknowledged_cancel_nothing_is_claimed_or_committed(site: Site, races: int, seed: int) -> None:
    site.worker(), site.worker()
    choose = random.Random(seed)
    acknowledged: dict[str, float] = {}
    words: Counter[str] = Counter()
    waiting: list[tuple[float, str]] = []
    done = threading.Event()
    spread = 0.05  # cancels come within so many seconds of a start; as long as a run takes, however busy this machine is

    def cancel_when_due() -> None:
        nonlocal spread
        while waiting or not done.is_set():
            if not waiting or waiting[0][0] > time.monotonic():
                time.sleep(0.0005)
                continue
            _, run_id = waiting.pop(0)
            word = site.engine.store.cancel(run_id, reason="race", actor="test").word
            words[word] += 1
            spread = min(2, spread * 1.05) if word == "OK" else max(0.005, spread * 0.8)
            if word == "OK":
                acknowledged[run_id] = time.monotonic()

    canceller = threading.Thread(target=cancel_when_due)
    canceller.start()
    for number in range(races):
        run_id = site.start(choose.choice(("chain", "diamond", "fan")), number, hold=choose.choice((0, 0.002, 0.01)))
        waiting.append((time.monotonic() + choose.uniform(0, spread), run_id))
        while len(waiting) >= AT_ONCE:  # more would only queue up, and every cancel would come before the first claim
            time.sleep(0.0005)
    done.set()
    canceller.join(120)
    site.wait_for_all(60)
    assert words["OK"] >= races * 0.1 and words["ENDED"] >= races * 0.02, f"the race was one-sided: {words}"
    late = [
        (line.key, round(line.at - acknowledged[line.key.partition(":")[0]], 3))
        for line in site.ledger.lines("begin") if line.at > acknowledged.get(line.key.partition(":")[0], float("inf")) + MAY_STILL_BEGIN
    ]
    assert not late, f"bodies began too long after the acknowledgement: {late[:5]}"
    site.verdict(cancelled=set(acknowledged))


@pytest.mark.spec("CAN-2", "CAN-4")
def test_cancel_works_with_no_worker_up_and_says_so_twice(site: Site) -> None:
    run_id = site.start("chain", 1)
    store = site.engine.store
    assert store.cancel(run_id, reason="changed my mind").word == "OK"
    assert store.cancel(run_id, reason="again").word == "ALREADY"
    site.worker()
    other = site.start("chain", 2)
    site.wait_for_all(20)
    assert not [key for key in site.ledger.begun() if key.startswith(run_id)]
    assert site.state(other) == "completed"
    site.verdict(cancelled={run_id})
