"""The fault tools themselves: a campaign is worth as much as the proof that its faults land."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.ledger import Ledger
from tests.support.processes import Process, Processes, children_of, shifted
from tests.support.proxy import Rule, ValkeyProxy, command, script
from tests.support.server import BROKER_DB, ValkeyServer
from tests.support.waiting import NeverHappened, eventually

BUMP = "return redis.call('INCR', KEYS[1])"


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    one = ValkeyServer().start()
    yield one
    one.stop()


@pytest.fixture
def proxy(server: ValkeyServer) -> Iterator[ValkeyProxy]:
    with ValkeyProxy(server.port) as one:
        yield one


def through(proxy: ValkeyProxy, timeout: float = 5) -> redis.Redis:
    return redis.Redis(
        port=proxy.port, decode_responses=True, socket_timeout=timeout, socket_connect_timeout=timeout, retry=Retry(NoBackoff(), 0)
    )


def test_eventually_returns_the_value_and_tells_the_last_one() -> None:
    values = iter([0, 0, 7])
    assert eventually(lambda: next(values)) == 7
    with pytest.raises(NeverHappened, match=r"three appears; last value: \[\]"):
        eventually(list, timeout=0.05, what="three appears")


def test_a_killed_server_comes_back_with_what_it_acknowledged(server: ValkeyServer) -> None:
    for number in range(50):
        server.client().rpush("acknowledged", number)
    server.kill()
    server.restart()
    assert server.client().llen("acknowledged") == 50


def test_the_broker_database_can_be_wiped_alone(server: ValkeyServer) -> None:
    server.client().set("state", 1)
    server.client(BROKER_DB).lpush("celery", "message")
    assert server.flush_broker() == 1
    assert server.client().get("state") == "1" and server.client(BROKER_DB).dbsize() == 0


def test_a_lost_reply_is_an_executed_call(proxy: ValkeyProxy, server: ValkeyServer) -> None:
    client = through(proxy)
    proxy.lose_reply(script(), nth=2)
    assert client.eval(BUMP, 1, "n") == 1
    with pytest.raises(redis.ConnectionError):
        client.eval(BUMP, 1, "n")
    assert server.client().get("n") == "2"
    assert client.eval(BUMP, 1, "n") == 3
    assert [one.action for one in proxy.landed] == ["lose_reply"]
    assert sum(count for label, count in proxy.seen.items() if label.startswith("SCRIPT:")) == 3


def test_a_lost_request_was_never_executed(proxy: ValkeyProxy, server: ValkeyServer) -> None:
    client = through(proxy)
    client.ping()
    proxy.add(Rule("lose_request", command("INCRBY")))
    with pytest.raises(redis.ConnectionError):
        client.incr("n")
    assert server.client().get("n") is None
    assert client.incr("n") == 1


def test_a_blackhole_swallows_and_heals(proxy: ValkeyProxy) -> None:
    client = through(proxy, timeout=0.3)
    client.ping()
    proxy.blackhole()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    proxy.blackhole(False)
    assert client.ping()


def test_a_slow_link_delays_replies_and_pipelines_stay_in_order(proxy: ValkeyProxy) -> None:
    client = through(proxy)
    pipeline = client.pipeline(transaction=False)
    for number in range(200):
        pipeline.set(f"k{number}", "x" * number)
        pipeline.get(f"k{number}")
    assert pipeline.execute()[1::2] == ["x" * number for number in range(200)]
    proxy.slow(0.1)
    begun = time.monotonic()
    client.ping()
    assert time.monotonic() - begun >= 0.1


def test_a_cut_reaches_every_open_connection(proxy: ValkeyProxy) -> None:
    clients = [through(proxy) for _ in range(3)]
    for client in clients:
        client.ping()
    assert proxy.cut_all() == 3
    eventually(lambda: not proxy._links, what="the connections are gone")


def test_the_ledger_counts_bodies_and_keeps_an_effect_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.note("begin", "run:a", 1)
    assert ledger.open()[0].key == "run:a"
    ledger.note("end", "run:a", 1)
    ledger.note("begin", "run:a", 2)
    assert ledger.effect("run:a") and not ledger.effect("run:a", 2)
    assert ledger.begun() == {"run:a": 2} and ledger.effects() == {"run:a"}
    assert [line.attempt for line in ledger.lines("repeat")] == [2]


def test_a_shifted_process_has_a_wrong_date_and_a_right_monotonic_clock(tmp_path: Path) -> None:
    code = "import time, datetime; print(time.time(), datetime.datetime.now().timestamp(), time.monotonic())"
    answer = subprocess.run([sys.executable, "-c", code], env={**os.environ, **shifted(7200)}, capture_output=True, text=True, check=True)
    wall, date, monotonic = map(float, answer.stdout.split())
    assert abs(wall - time.time() - 7200) < 5 and abs(date - time.time() - 7200) < 5
    assert abs(monotonic - time.monotonic()) < 5


def test_processes_are_found_struck_and_ended_by_pid(tmp_path: Path) -> None:
    processes = Processes(tmp_path, {})
    code = "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE); print('up', flush=True); child.wait()"
    one: Process = processes.python("parent", ["-c", code], ready="up", wait=True)
    (child,) = children_of(one.pid)
    assert one.signal_children(signal.SIGKILL) == [child]
    assert one.wait(5) == 0
    two = processes.python("again", ["-c", code], ready="up", wait=True)
    (child,) = two.children
    two.stop_whole()
    processes.close()
    eventually(lambda: not two.alive and not os.path.exists(f"/proc/{child}"), what="nobody is left")
