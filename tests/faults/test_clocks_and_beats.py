"""Wrong clocks, too many beats and none: leases, retries and timers follow the store's clock, and sweeps run anyway."""

from __future__ import annotations

import pytest

from tests.faults.test_workers import assert_ran_once, lost
from tests.support.processes import shifted
from tests.support.site import Site

SLACK_MS = 3000


def naps(site: Site) -> list[int]:
    """How long each sleep of 200 ms took on the store's clock."""
    took = []
    for run in site.began:
        log = site.record(run.run_id).log
        asleep = next((entry.at for entry in log if entry.code == "c" and entry.index == "0"), None) if run.workflow == "timed" else None
        if asleep is not None:
            (woken,) = (entry.at for entry in log if entry.code == "u" and entry.index == "1")
            took.append(woken - asleep)
    return took


def assert_on_time(site: Site) -> None:
    took = naps(site)
    assert took and min(took) >= 200 and max(took) <= 200 + SLACK_MS, f"sleeps of 200 ms took {sorted(took)} ms"


@pytest.mark.spec("RUN-2", "ACT-5", "WF-5")
@pytest.mark.parametrize("runs", [24, pytest.param(200, marks=pytest.mark.faults)])
def test_worker_clocks_two_hours_off_change_nothing(site: Site, runs: int, seed: int) -> None:
    site.worker(env=shifted(7200)), site.worker(env=shifted(-7200))
    site.start_mix(runs, seed, hold=0.02)
    site.wait_for_all(60)
    assert_on_time(site)
    assert not lost(site)
    assert_ran_once(site)
    site.verdict()


@pytest.mark.spec("STK-2", "REC-3", "WF-5")
@pytest.mark.parametrize("runs", [16, pytest.param(200, marks=pytest.mark.faults)])
def test_three_beats_at_once_do_everything_once(site: Site, runs: int, seed: int) -> None:
    for _ in range(3):
        site.beat()
    site.worker(), site.worker(queues=["celery", "conductor.sweeps"])
    site.start_mix(runs, seed)
    site.start("timed", 5)
    site.wait_for_all(60)
    assert_on_time(site)
    assert not lost(site)
    assert_ran_once(site)
    site.verdict()


@pytest.mark.spec("REC-5", "WF-5")
@pytest.mark.parametrize("runs", [16, pytest.param(200, marks=pytest.mark.faults)])
def test_without_a_beat_timers_and_retries_are_on_time(site: Site, runs: int, seed: int) -> None:
    site.worker()
    for number in range(runs):
        site.start("timed", number)
    site.wait_for_all(60)
    assert_on_time(site)
    assert_ran_once(site)
    site.verdict()
