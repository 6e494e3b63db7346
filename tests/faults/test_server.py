"""The server itself: killed and restarted with its append-only file, standing still, forgetting its scripts, cutting connections."""

from __future__ import annotations

import threading
import time

import pytest

from conductor.errors import StoreUnreachable
from tests.faults.test_workers import assert_ran_once, lost
from tests.support.server import STATE_DB
from tests.support.site import Site
from tests.support.waiting import eventually


def start_despite_everything(site: Site, count: int, seed: int, pause: float = 0.02) -> None:
    """A client that repeats an unanswered start under the same key until it is acknowledged."""
    names = ("chain", "diamond", "fan", "timed")
    for number in range(count):
        while True:
            try:
                site.start(names[(number + seed) % 4], number, 0.02, key=f"k{number}")
                break
            except StoreUnreachable:
                continue
        time.sleep(pause)


@pytest.mark.spec("REC-6", "RUN-1", "RUN-5")
@pytest.mark.parametrize(("runs", "kills"), [(30, 1), pytest.param(300, 10, marks=pytest.mark.faults)])
def test_a_killed_server_that_comes_back_loses_nothing_acknowledged(own_site: Site, runs: int, kills: int, seed: int) -> None:
    workers = [own_site.worker(), own_site.worker()]
    client = threading.Thread(target=start_despite_everything, args=(own_site, runs, seed))
    client.start()
    share = runs // (kills + 1)
    for number in range(1, kills + 1):
        eventually(lambda number=number: len(own_site.began) >= number * share, 60, what="the load has begun")
        assert own_site.open_runs(), "the server was killed when nothing was under way"
        own_site.server.kill()
        time.sleep(0.3)  # the time it is away, not a wait for something
        own_site.server.restart()
    client.join(120)
    assert not client.is_alive() and len(own_site.began) == runs

    def all_ended() -> bool:
        """As a supervisor does: kombu ends a worker whose broker dies while messages of it wait to be acknowledged."""
        for number, one in enumerate(workers):
            if not one.alive:
                assert one.returncode == 1 and "Unrecoverable error: AttributeError" in one.text(), one.text()[-3000:]
                workers[number] = own_site.worker()
        return not own_site.open_runs()

    eventually(all_ended, 90, every=0.1, what="all runs end")
    own_site.verdict()


@pytest.mark.spec("REC-3", "REC-6")
@pytest.mark.parametrize("seconds", [3, pytest.param(20, marks=pytest.mark.faults)])
def test_a_server_that_stood_still_takes_no_lease_from_the_living(own_site: Site, seconds: float, seed: int) -> None:
    own_site.worker(), own_site.worker()
    own_site.start_mix(20, seed, hold=0.3)
    eventually(lambda: own_site.ledger.open(), what="bodies run")
    own_site.server.pause()
    time.sleep(seconds)  # the time it stands still
    own_site.server.resume()
    own_site.wait_for_all(60)
    assert not lost(own_site), "a holder that could not renew was taken for dead"
    assert_ran_once(own_site)
    own_site.verdict()


@pytest.mark.spec("RUN-5")
@pytest.mark.parametrize("runs", [30, pytest.param(200, marks=pytest.mark.faults)])
def test_forgotten_scripts_and_cut_connections_are_not_errors(own_site: Site, runs: int, seed: int) -> None:
    own_site.worker(), own_site.worker()
    client = threading.Thread(target=start_despite_everything, args=(own_site, runs, seed))
    client.start()
    strikes = 0
    while client.is_alive() or own_site.open_runs():
        strikes += cut_state_connections(own_site)
        time.sleep(0.3)  # the pace of the strikes
    client.join()
    assert strikes >= 5
    assert not lost(own_site)
    assert_ran_once(own_site)
    own_site.verdict()


def cut_state_connections(site: Site) -> int:
    """Forget all scripts and cut every connection to the state; the broker's are left alone, since Celery needs seconds to come back."""
    server = site.server.client()
    server.script_flush()
    mine = server.client_id()
    ids = [one["id"] for one in server.client_list(_type="normal") if one["db"] == str(STATE_DB) and one["id"] != str(mine)]
    return sum(int(server.client_kill_filter(_id=number)) for number in ids)
