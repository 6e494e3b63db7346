"""An ended run that only the archive has is brought back for those who go on from it; whoever speaks to it is told how it ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from conductor import Lane, Workflow
from conductor.cli import exits
from conductor.declare import registry
from conductor.errors import (
    ArchivedRunCorrupt,
    ArchiveUnreachable,
    NotFailed,
    RunFinished,
    Superseded,
    UnknownRun,
)
from conductor.runs.fork import fork_run
from conductor.runs.fsck import fsck
from conductor.runs.parking import park
from conductor.runs.retry import retry_run
from conductor.runs.waiting import advance, signal
from conductor.store.lanes import read_lane
from conductor.sweeps.archiving import sweep_archive
from tests.integration.shop import Shop
from tests.support.server import ValkeyServer

BAD = {"number": 3, "bad": True}


class Office(Shop):
    """A shop with a workflow that waits, and one in a lane."""

    def declare(self) -> None:
        super().declare()
        asked: Workflow[Any] = Workflow("asked_twice", idle_timeout=timedelta(days=1))
        one = asked.agent("one", str)
        asked.agent("two", str, after=[one])
        asked.wait("word", str)
        laned: Workflow[Any] = Workflow("laned_once", lane=Lane("desk", 1))

        @laned.step
        def work() -> None:
            if not self.mended:
                raise ValueError("not yet")

    def archived(self, workflow: str = "cli_orders", value: Any = None) -> str:
        """A run that has ended and is in the archive only."""
        run_id = self.start(workflow, value)
        self.drain()
        client, home = self.engine.store.client(), int(run_id[-2:], 16)
        client.zadd(self.engine.store.keys.of(home, f"ended:{self.state(run_id)}"), {run_id: 1})
        assert sweep_archive(self.engine).count == 1
        assert not self.is_there(run_id)
        return run_id

    def is_there(self, run_id: str) -> bool:
        return bool(self.engine.store.client().exists(self.engine.store.keys.run(run_id)))

    def sound(self) -> None:
        assert [str(one) for one in fsck(self.engine)] == []


@pytest.fixture
def shop(valkey: ValkeyServer, namespace: str, clean_keys: None, tmp_path: Path) -> Iterator[Office]:
    with registry.isolated():
        yield Office(valkey.url(), namespace, archive_url=f"sqlite:///{tmp_path}/archive.db")


@pytest.mark.spec("RUN-11")
def test_an_archived_run_is_retried(shop: Office) -> None:
    run_id = shop.archived(value=BAD)
    length = shop.engine.archive.open().get(run_id).n
    shop.mended = True
    assert shop.json("retry", run_id)["run_id"] == run_id
    shop.drain()
    assert shop.state(run_id) == "completed"
    log = shop.engine.store.log_of(run_id)
    assert log[length].startswith("g;")
    assert [entry.split(";")[2] for entry in log if entry.startswith("k;")] == ["0", "1", "1"], "what had completed ran again"
    shop.sound()
    client = shop.engine.store.client()
    client.zadd(shop.engine.store.keys.of(int(run_id[-2:], 16), "ended:completed"), {run_id: 1})
    assert sweep_archive(shop.engine).count == 1
    row = shop.engine.archive.open().get(run_id)
    assert (row.state, row.generation) == ("completed", 2)


@pytest.mark.spec("RUN-11")
def test_what_cannot_be_retried_stays_in_the_archive_and_says_why(shop: Office) -> None:
    done, failed = shop.archived(), shop.archived(value=BAD)
    with pytest.raises(NotFailed, match="completed"):
        retry_run(shop.engine, done)
    with pytest.raises(Superseded):
        retry_run(shop.engine, failed, only=7)
    assert not shop.is_there(done) and not shop.is_there(failed)
    unknown = done[:-12] + "000000000000"
    with pytest.raises(UnknownRun):
        retry_run(shop.engine, unknown)
    assert shop.call("retry", done).exit_code == exits.FAILED
    assert shop.call("retry", unknown).exit_code == exits.NOT_FOUND
    parked = shop.start("asked_twice")
    shop.drain()
    assert park(shop.engine, [parked], int(shop.engine.store._now())) == [parked]
    with pytest.raises(NotFailed, match="waiting_signal"):
        retry_run(shop.engine, parked)


@pytest.mark.spec("RUN-11", "LANE-2")
def test_a_retry_from_the_archive_asks_its_lane_for_a_place(shop: Office) -> None:
    run_id = shop.archived("laned_once")
    home = int(run_id[-2:], 16)
    assert read_lane(shop.engine.store, home, "desk") is None
    other = shop.start("laned_once")
    assert retry_run(shop.engine, run_id).state == "queued"
    lane = read_lane(shop.engine.store, home, "desk")
    assert lane is not None and (list(lane.active), list(lane.queue)) == ([other], [run_id])
    shop.mended = True
    shop.drain()
    shop.drain()
    assert (shop.state(other), shop.state(run_id)) == ("completed", "completed")
    shop.sound()


@pytest.mark.spec("RUN-11")
def test_an_archived_run_is_forked_and_taken_away_again(shop: Office) -> None:
    run_id = shop.archived(value=BAD)
    shop.mended = True
    forked = shop.json("fork", run_id, "--from", "charge")["run_id"]
    shop.drain()
    assert shop.state(forked) == "completed"
    assert (shop.state(run_id), shop.is_there(run_id)) == ("failed", True)
    shop.sound()
    client, ended = shop.engine.store.client(), shop.engine.store.keys.of(int(run_id[-2:], 16), "ended:failed")
    assert client.zscore(ended, run_id) >= int(shop.engine.store._now()) + 500_000  # nobody takes it away under whoever asked
    client.zadd(ended, {run_id: 1})
    assert sweep_archive(shop.engine).count == 1
    assert not shop.is_there(run_id)
    shop.sound()


@pytest.mark.spec("RUN-11")
def test_a_parked_run_is_woken_to_be_forked(shop: Office) -> None:
    run_id = shop.start("asked_twice")
    shop.drain()
    assert park(shop.engine, [run_id], int(shop.engine.store._now())) == [run_id]
    assert fork_run(shop.engine, run_id, from_="one").word == "OK"
    shop.sound()


@pytest.mark.spec("RUN-11")
def test_two_bring_it_back_and_one_retries_it(shop: Office) -> None:
    run_id = shop.archived(value=BAD)
    told: list[str] = []

    def retry() -> None:
        try:
            told.append(retry_run(shop.engine, run_id).word)
        except NotFailed:
            told.append("NotFailed")

    threads = [threading.Thread(target=retry) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(told) == ["NotFailed"] * 3 + ["OK"]
    assert shop.engine.store.client().hget(shop.engine.store.keys.run(run_id), "g") == "2"
    shop.sound()


@pytest.mark.spec("WF-5")
def test_who_speaks_to_an_archived_run_is_told_how_it_ended(shop: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = shop.archived()
    with pytest.raises(RunFinished, match="completed"):
        signal(shop.engine, run_id, "word", "x")
    with pytest.raises(RunFinished, match="completed"):
        advance(shop.engine, run_id, "one", "x")

    def away(*_: Any, **__: Any) -> Any:
        raise ArchiveUnreachable(url="sqlite", problem="away", remedy="wait")

    monkeypatch.setattr(type(shop.engine.archive.open()), "get", away)
    with pytest.raises(UnknownRun):
        signal(shop.engine, run_id, "word", "x")
    with pytest.raises(ArchiveUnreachable):
        retry_run(shop.engine, run_id)  # it may well be there


@pytest.mark.spec("WF-5", "IDLE-6")
def test_an_answer_that_nobody_could_take_is_not_called_repeated(shop: Office) -> None:
    run_id = shop.start("asked_twice")
    shop.drain()
    assert park(shop.engine, [run_id], int(shop.engine.store._now())) == [run_id]
    archive = shop.engine.archive.open()
    row = archive.get(run_id, with_snapshot=True)
    archive.delete([run_id])
    with pytest.raises(ArchivedRunCorrupt, match="nothing was taken"):
        advance(shop.engine, run_id, "two", "x")
    archive.put([row])
    shop.conductor.resume(run_id)
    assert advance(shop.engine, run_id, "one", "x").word == "taken"
    shop.sound()
