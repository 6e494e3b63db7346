"""Clients that follow runs while the service is killed and started again and the network between them cuts, stalls and half-opens: each
run's end is reported once, and right. And each code that is no end of the run, from the real service."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from conductor.client import AsyncClient, Backoff, Budget, Client, Code, Event, Result, StillRunning
from conductor.errors import LaneBusy
from conductor.ids import partition_of
from conductor.runs.erasing import erase_run
from conductor.runs.scopes import pause_scope, resume_scope
from tests.support import works
from tests.support.processes import Process
from tests.support.server import STATE_DB, free_port
from tests.support.site import Site
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import eventually

BUDGET = Budget(interval=0.3, quiet=1, stall=2, answer=2)
BACKOFF = Backoff(first=0.1, most=1, total=120, call_total=120)
QUICK = {"CONDUCTOR_STREAM_HEARTBEAT_SECONDS": "0.5"}


class Service:
    """The service process of a site, always on the same port."""

    def __init__(self, site: Site, app: str = "tests.support.app") -> None:
        self.site, self.port, self.app = site, free_port(), app
        self.process: Process | None = None
        self.kills = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, wait: bool = True) -> Service:
        number = self.kills
        arguments = ["-m", "celery", "-A", self.app, "conductor", "serve", "--port", str(self.port)]
        self.process = self.site.processes.python(f"serve{number}", arguments, QUICK, ready=f":{self.port}", wait=wait)
        return self

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.kills += 1


@pytest.fixture
def service(site: Site) -> Service:
    return Service(site).start()


@dataclass
class Followed:
    """What one follower was told."""

    n: int
    workflow: str
    run_id: str = ""
    numbers: list[int] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    def heard(self, event: Event) -> None:
        self.numbers.append(event.number)

    def wrong(self, site: Site, cancelled: set[str]) -> Iterator[str]:
        """Every way in which it was told something else than the truth."""
        if len(self.results) != 1:
            yield f"{self.run_id}: {len(self.results)} results"
            return
        result, record = self.results[0], site.record(self.run_id)
        right = Code.CANCELLED if self.run_id in cancelled else Code.FAILED if self.workflow == "brittle" else Code.COMPLETED
        if (result.code, site.state(self.run_id)) != (right, right.value):
            yield f"{self.run_id} ({self.workflow}) was told {result.code}, is {site.state(self.run_id)}, should be {right}: {result}"
        elif right is Code.COMPLETED and result.value != works.expected(self.workflow, self.n):
            yield f"{self.run_id} ({self.workflow}) gave {result.value}"
        if self.numbers != list(range(1, len(record.log) + 1)):
            yield f"{self.run_id}: events {self.numbers} of {len(record.log)}"


class Callers:
    """Followers of both kinds: every third is synchronous, in a thread of its own, the others are tasks of one loop."""

    def __init__(self, url: str, hold: float) -> None:
        self.url, self.hold = url, hold
        self.followed: list[Followed] = []
        self._threads: list[threading.Thread] = []
        self._client = Client(url, budget=BUDGET, backoff=BACKOFF)
        self._loop = asyncio.new_event_loop()
        self._running = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._running.start()
        self._other = asyncio.run_coroutine_threadsafe(self._make(), self._loop).result(10)
        self._tasks: list[Any] = []
        self._errors: list[str] = []

    async def _make(self) -> AsyncClient:
        return AsyncClient(self.url, budget=BUDGET, backoff=BACKOFF)

    def begin(self, n: int, workflow: str) -> None:
        one = Followed(n, workflow)
        self.followed.append(one)
        if n % 3 == 0:
            thread = threading.Thread(target=self._follow, args=(one,), daemon=True)
            self._threads.append(thread)
            thread.start()
        else:
            self._tasks.append(asyncio.run_coroutine_threadsafe(self._follow_async(one), self._loop))

    def _input(self, one: Followed) -> dict[str, Any]:
        return works.Job(n=one.n, hold=self.hold).model_dump()

    def _follow(self, one: Followed) -> None:
        try:
            handle = self._client.start(one.workflow, self._input(one))
            one.run_id = handle.id
            one.results.append(handle.follow(one.heard))
        except Exception as error:
            self._errors.append(f"{one.n} {one.run_id}: {error!r}")

    async def _follow_async(self, one: Followed) -> None:
        try:
            handle = await self._other.start(one.workflow, self._input(one))
            one.run_id = handle.id
            one.results.append(await handle.follow(one.heard))
        except Exception as error:
            self._errors.append(f"{one.n} {one.run_id}: {error!r}")

    @property
    def open(self) -> int:
        return sum(not one.results for one in self.followed) - len(self._errors)

    @property
    def under_way(self) -> list[str]:
        return [one.run_id for one in self.followed if one.run_id and not one.results]

    def wait(self, timeout: float) -> None:
        eventually(lambda: not self.open, timeout, every=0.1, what=lambda: f"{self.open} of {len(self.followed)} still follow: {self._stuck()}")
        assert not self._errors, self._errors[:5]

    def _stuck(self) -> list[tuple[str, str, int]]:
        return [(one.run_id, one.workflow, len(one.numbers)) for one in self.followed if not one.results][:5]

    def close(self) -> None:
        self._client.close()
        asyncio.run_coroutine_threadsafe(self._other.aclose(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._running.join(5)


@pytest.mark.spec("CLI-1", "CLI-2")
@pytest.mark.parametrize(("runs", "kills", "least"), [
    (20, 3, 6), pytest.param(200, 20, 25, marks=[pytest.mark.faults, pytest.mark.timeout(1200)]),
])
def test_every_end_is_reported_once_and_right_whatever_breaks(site: Site, runs: int, kills: int, least: int, seed: int) -> None:
    """At every break and every kill at least so many follow a run they know of; others are met while they start."""
    site.worker(), site.worker(), site.beat()
    service, choose = Service(site).start(), random.Random(seed)
    numbers, cancelled, met = itertools.count(), set[str](), list[int]()

    def crowded() -> int:
        """How many follow; those that have ended are replaced, so that the last kill meets as many as the first."""
        while callers.open < least + least // 4:
            callers.begin(next(numbers), choose.choice(("chain", "diamond", "fan", "timed", "brittle")))
        return (follow := len(callers.under_way)) >= least and follow

    with TcpProxy(service.port) as proxy:
        callers = Callers(f"http://127.0.0.1:{proxy.port}", hold=0.3)
        try:
            for kill in range(kills):
                eventually(crowded, 30, what=f"{least} follow a run before break {kill}")
                cancelled |= _cancel_some(site, callers, choose)
                _break(proxy, choose, kill)
                met.append(eventually(crowded, 30, what=f"{least} follow a run before kill {kill}"))
                service.kill()
                service.start()
            while len(callers.followed) < runs:
                callers.begin(next(numbers), "chain")
            callers.wait(180)
        finally:
            callers.close()
        assert {"cut", "stalled", "half_open"} <= set(proxy.struck)
    assert service.kills == kills == len(met)
    assert min(met) >= least, met
    wrong = [line for one in callers.followed for line in one.wrong(site, cancelled)]
    assert not wrong, f"{len(wrong)} wrong: " + "\n".join(wrong[:10])
    assert len({one.run_id for one in callers.followed}) == len(callers.followed) >= runs, "a lost reply made two runs of one, or one of two"
    assert _in_store(site) == {one.run_id for one in callers.followed}
    print(Counter(one.results[0].code.value for one in callers.followed), dict(proxy.struck), f"followed at each kill: {met}")


def _break(proxy: TcpProxy, choose: random.Random, kill: int) -> None:
    """A strike between two kills; each kind in turn, at a moment nobody chose."""
    pause = threading.Event()
    pause.wait(choose.uniform(0.1, 0.8))
    kind = ("cut", "half_open", "stall")[kill % 3]
    if kind == "cut":
        proxy.cut()
    elif kind == "half_open":
        proxy.half_open()
    else:
        proxy.stall()
        pause.wait(choose.uniform(0.2, 3.0))
        proxy.stall(False)


def _cancel_some(site: Site, callers: Callers, choose: random.Random) -> set[str]:
    """Somebody else cancels a few of the runs; those that had ended are left as they are."""
    under_way = callers.under_way
    chosen = choose.sample(under_way, min(2, len(under_way)))
    return {run_id for run_id in chosen if site.conductor.run(run_id).cancel().word == "OK"}


def _in_store(site: Site) -> set[str]:
    client = site.server.client()
    return {run_id for key in client.scan_iter(f"conductor:{{{site.namespace}:*}}:runs") for run_id in client.zrange(key, 0, -1)}


# Each code by itself, from the real service.


@pytest.fixture
def own_service(own_site: Site) -> Service:
    return Service(own_site).start()


def caller(service: Service, **more: Any) -> Client:
    budget = Budget(**({"interval": 0.2, "quiet": 0.5, "stall": 3, "answer": 8, "settle": 2} | more))
    return Client(service.url, budget=budget, backoff=Backoff(first=0.1, most=0.5, total=3, call_total=5))


@pytest.mark.spec("CLI-1", "CLI-2")
def test_a_wiped_store_is_conductor_restarted_and_a_purged_run_is_not_found(own_service: Service) -> None:
    site = own_service.site
    with caller(own_service) as client:
        purged, wiped = client.start("patient", {"n": 1}), client.start("patient", {"n": 2})
        assert purged.status() == "running"
        saved = client.pending()
        purged.cancel()
        eventually(lambda: purged.status() == "cancelled", 5)
        erase_run(site.engine, purged.id)
        assert purged.follow().code is Code.RUN_NOT_FOUND
        assert wiped.follow(timeout=1.0).code is Code.TIMED_OUT
        site.server.client(STATE_DB).flushdb()
        result = wiped.follow()
        assert (result.code, result.state) == (Code.CONDUCTOR_RESTARTED, "not_found")
    with caller(own_service) as restarted:
        assert {one.result.code for one in restarted.resume(saved)} == {Code.CONDUCTOR_RESTARTED}  # type: ignore[union-attr]
        assert restarted.pending() == []


@pytest.mark.spec("CLI-1")
def test_without_a_service_it_is_unreachable_and_without_a_store_unrecoverable(own_service: Service) -> None:
    site = own_service.site
    with caller(own_service, total=2, attempts=3) as client:
        handle = client.start("patient", {"n": 1})
        site.server.kill()
        assert handle.follow(lambda event: None).code is Code.UNRECOVERABLE
        site.server.restart()
        own_service.kill()
        began = time.monotonic()
        assert handle.follow().code is Code.CONDUCTOR_UNREACHABLE
        assert time.monotonic() - began < 10
        saved = client.pending()
        assert [one["run_id"] for one in saved] == [handle.id]
    own_service.start()
    with caller(own_service) as restarted:
        found = restarted.resume(saved)[0]
        assert isinstance(found, StillRunning)
        assert found.handle.follow(timeout=0.5).code is Code.TIMED_OUT


@pytest.mark.spec("CLI-1")
def test_a_run_that_nobody_works_on_is_downstream_lost_and_one_that_waits_is_not(site: Site, service: Service) -> None:
    with caller(service, lost_after=1.5) as client:
        alone = client.start("chain", {"n": 1})
        result = alone.follow(lambda event: None, timeout=20)
        assert (result.code, result.state) == (Code.DOWNSTREAM_LOST, "gave_up")
        site.worker()
        waiting = client.start("patient", {"n": 1})
        eventually(lambda: waiting.status() == "waiting_signal", 20)
        assert waiting.follow(timeout=3.0).code is Code.TIMED_OUT
        assert alone.get(timeout=20) == works.expected("chain", 1)


@pytest.mark.spec("CLI-1")
def test_a_run_that_waits_for_the_clock_is_not_lost(service: Service) -> None:
    with caller(service, lost_after=1.0) as client:
        assert client.start("chain", {"n": 1}, countdown=3600).follow(timeout=3.0).code is Code.TIMED_OUT


@pytest.mark.spec("CLI-1")
@pytest.mark.parametrize("scope", ["all", "workflow:chain", "queue:celery"])
def test_a_run_that_somebody_holds_is_not_lost(site: Site, service: Service, scope: str) -> None:
    site.worker()
    pause_scope(site.engine, scope)
    with caller(service, lost_after=1.0) as client:
        held = client.start("chain", {"n": 1})
        assert held.follow(timeout=3.0).code is Code.TIMED_OUT
        resume_scope(site.engine, scope)
        assert held.get(timeout=20) == works.expected("chain", 1)


@pytest.mark.spec("CLI-1", "LANE-3")
def test_a_run_that_waits_for_its_limit_is_not_lost(site: Site) -> None:
    site.processes.app = "tests.support.lane_app"
    site.worker()
    with caller(Service(site, "tests.support.lane_app").start(), lost_after=1.0) as client:
        runs = [client.start("metered") for _ in range(2)]
        eventually(lambda: "completed" in [run.status() for run in runs], 20)
        (waits,) = (run for run in runs if run.status() == "running")
        assert waits.follow(timeout=3.0).code is Code.TIMED_OUT


@pytest.mark.spec("CLI-1")
def test_a_dead_workers_lease_is_no_live_one(site: Site, service: Service) -> None:
    with caller(service, lost_after=1.0) as client:
        worker = site.worker()
        handle = client.start("long", {"n": 1, "hold": 60})
        eventually(lambda: any(event.kind == "claimed" for event in site.conductor.run(handle.id).events()), 20)
        worker.kill_whole()
        leases = site.engine.store.keys.of(partition_of(handle.id), "leases")
        for member in site.server.client().zrange(leases, 0, -1):
            site.server.client().zadd(leases, {member: 1})
        assert handle.follow(timeout=4.0).code is Code.DOWNSTREAM_LOST


@pytest.mark.spec("CLI-1")
def test_a_lane_that_has_no_place_is_busy_or_full(site: Site) -> None:
    service = Service(site, "tests.support.lane_app").start()
    with caller(service) as client:
        first, second = client.start("narrow"), client.start("narrow")
        assert (first.status(), second.status()) == ("waiting_signal", "queued")
        result = client.perform("narrow")
        assert (result.code, result.run_id) == (Code.LANE_FULL, "")
        store, home = site.engine.store, partition_of(second.id)
        store.client().zadd(store.keys.of(home, "due"), {f"lane:{second.id}": 1})
        store.fire_due(home)
        assert second.follow(timeout=10).code is Code.LANE_BUSY
        with pytest.raises(LaneBusy, match="narrow"):
            second.get()
        first.cancel()
