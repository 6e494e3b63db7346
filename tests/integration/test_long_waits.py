"""A wait of three days, whatever passes over it: idle sweeps, parking, lost indexes, a wiped store. Its days pass by moving records back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from conductor import Workflow
from conductor.declare import registry
from conductor.runs.fsck import fsck
from conductor.runs.parking import park, wake
from conductor.runs.recover import recover
from conductor.runs.waiting import signal
from conductor.store import Store
from conductor.store.stubs import Stub, read_stub
from conductor.sweeps.checkpoints import lag_ms, sweep_checkpoints
from conductor.sweeps.idle import sweep_idle
from conductor.sweeps.overdue import run_overdue
from tests.integration.shop import Shop
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually

HOUR = 3_600_000
THREE_DAYS = 72 * HOUR


class Patience(Shop):
    """A shop with a run that waits three days for a word, and one that waits for an agent who is due within a day."""

    def declare(self) -> None:
        super().declare()
        self.settled: list[str] = []
        slow: Workflow[Any] = Workflow("slow")

        @slow.step
        def asks() -> str:
            return "asked"

        word = slow.wait("word", str, timeout=timedelta(days=3), after=[asks])

        @slow.step(after=[word])
        def settles(asks: str, word: str) -> str:
            self.settled.append(word)
            return f"{asks}, {word}"

        left: Workflow[Any] = Workflow("left", idle_timeout=timedelta(days=1))
        left.agent("draft", str)

    def waiting(self) -> str:
        run_id: str = registry.declared["slow"].delay().id
        self.drain()
        assert self.state(run_id) == "waiting_signal"
        return run_id

    def key(self, run_id: str, tail: str) -> str:
        return str(self.engine.store.keys.of(int(run_id[-2:], 16), tail))

    def passed(self, run_id: str, hours: int) -> None:
        """So many hours have passed for this run: its record, its log and its places in the indexes are as much older."""
        client, run, back = self.engine.store.client(), self.engine.store.keys.run(run_id), hours * HOUR
        for field in ("t", "pg", "is"):
            client.hincrby(run, field, -back)
        for number, line in enumerate(client.lrange(f"{run}:log", 0, -1)):
            code, at, *rest = line.split(";")
            client.lset(f"{run}:log", number, ";".join([code, str(int(at) - back), *rest]))
        client.zincrby(self.key(run_id, "runs"), -back, run_id)
        state, workflow, progress, idle_since, *more = client.hget(self.key(run_id, "active"), run_id).split(";")
        line = ";".join([state, workflow, str(int(progress) - back), str(int(idle_since) - back), *more])
        client.hset(self.key(run_id, "active"), run_id, line)
        for tail, member in (("due", f"lapse:{run_id}:1"), ("orphans", run_id), ("orphans:due", run_id)):
            if client.zscore(self.key(run_id, tail), member) is not None:
                client.zincrby(self.key(run_id, tail), -back, member)

    def deadline(self, run_id: str) -> float | None:
        """When its wait is over, be it in the store or parked."""
        client = self.engine.store.client()
        found = client.zscore(self.key(run_id, "due"), f"lapse:{run_id}:1") or client.zscore(self.key(run_id, "wake"), run_id)
        return None if found is None else float(found)

    def copied(self) -> None:
        def all_is() -> bool:
            sweep_checkpoints(self.engine)
            return lag_ms(self.engine) == 0

        eventually(all_is, 5, what="checkpoints catch up")

    def turned(self) -> bool:
        run_overdue(self.engine)
        self.drain()
        return True


@pytest.fixture
def shop(own_valkey: ValkeyServer, namespace: str, tmp_path: Path) -> Iterator[Patience]:
    """On a server of its own, which is wiped."""
    with registry.isolated():
        yield Patience(own_valkey.url(), namespace, archive_url=f"sqlite:///{tmp_path}/archive.db")


@pytest.mark.spec("IDLE-4", "IDLE-6", "REC-1", "REC-6")
@pytest.mark.parametrize("parked", [False, True], ids=["in-the-store", "parked"])
def test_a_wait_of_three_days_outlives_sweeps_and_recoveries(shop: Patience, own_valkey: ValkeyServer, parked: bool) -> None:
    """After sixty hours, a sweep, lost indexes or parking, and a wiped store the same word is waited for until the same moment."""
    began = int(shop.engine.store._now())
    run_id, late, doomed = shop.waiting(), shop.waiting(), registry.declared["left"].delay().id
    for one in (run_id, late, doomed):
        shop.passed(one, 60)
    until, late_until = shop.deadline(run_id), shop.deadline(late)
    assert until is not None
    assert 0 <= until - (began - 60 * HOUR + THREE_DAYS) < 60_000
    assert sweep_idle(shop.engine).causes == (f"{doomed} idle_timeout",), "it took an agent's run whose day was over, and nothing else"
    if parked:
        assert park(shop.engine, [run_id], shop.engine.store._now()) == [run_id]
    else:
        for tail in ("active", "runs"):
            shop.engine.store.client().delete(shop.key(run_id, tail))
        assert recover(shop.engine).recovered >= 1
    assert sweep_idle(shop.engine, older_than_hours=1).causes == ()
    shop.copied()
    own_valkey.client().flushall()
    told = recover(shop.engine)
    assert (told.wiped, told.restored, told.expired, told.errors) == (True, 2, 0, [])
    assert (shop.deadline(run_id), shop.deadline(late)) == (until, late_until)
    assert sweep_idle(shop.engine, older_than_hours=1).causes == ()
    shop.turned()
    assert [shop.state(one) for one in (run_id, late)] == ["waiting_signal"] * 2

    assert signal(shop.engine, run_id, "word", "yes", signal_id="s").word == "taken"
    eventually(lambda: shop.turned() and shop.state(run_id) == "completed", 10, what="the word ends it")
    assert shop.conductor.run(run_id).get(timeout=5) == "asked, yes"
    shop.passed(late, 12)
    eventually(lambda: shop.turned() and shop.state(late) == "failed", 10, what="the three days of the other are over")
    assert [line.split(";")[-1] for line in shop.engine.store.log_of(late) if line.startswith("f;")] == ["wait_timeout"]
    assert shop.settled == ["yes"]
    assert [str(one) for one in fsck(shop.engine)] == []


@pytest.mark.spec("IDLE-6", "WF-5")
def test_a_word_that_comes_in_the_moment_of_waking_is_heard(shop: Patience, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record was not there, and now its stub is not: it is not unknown for that."""
    run_id = shop.waiting()
    assert park(shop.engine, [run_id], shop.engine.store._now()) == [run_id]

    def too_late(store: Store, asked: str) -> Stub | None:
        monkeypatch.undo()
        assert wake(shop.engine, asked)[0] == "OK"
        return read_stub(store, asked)

    monkeypatch.setattr("conductor.runs.parking.read_stub", too_late)
    assert signal(shop.engine, run_id, "word", "yes", signal_id="s").word == "taken"
    eventually(lambda: shop.turned() and shop.state(run_id) == "completed", 10, what="the word ends it")
