"""Parking: idle runs leave the store's memory and come back exactly once, whoever moves them, with everything they were."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from conductor import Workflow
from conductor.archive import Kind
from conductor.declare import registry
from conductor.errors import AlreadyAdvanced, ArchivedRunCorrupt, ArchiveUnreachable, RunCancelled, RunFinished, WaitOver
from conductor.runs.fsck import fsck
from conductor.runs.parking import park, wake, why_not_parking
from conductor.runs.waiting import advance, signal
from conductor.store.stubs import read_stub
from conductor.sweeps import parked as sweeping
from conductor.sweeps.idle import sweep_idle
from conductor.sweeps.overdue import run_overdue
from conductor.sweeps.parked import sweep_parked
from tests.integration.shop import Shop
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually

HOUR = 3_600_000


class Approval(BaseModel):
    by: str


class Waiting(Shop):
    """A shop whose workflows wait."""

    def declare(self) -> None:
        super().declare()
        self.undone: list[int | None] = []
        flow: Workflow[Any] = Workflow("approve")

        @flow.step
        def begin() -> str:
            return "x" * 2000

        first = flow.wait("approval", Approval, timeout=timedelta(hours=1), default=Approval(by="nobody"), after=[begin])
        second = flow.wait("release", Approval, after=[first])

        @flow.step(after=[second])
        def finish(approval: Approval, release: Approval, begin: str) -> str:
            return f"{approval.by} {release.by} {len(begin)}"

        trip: Workflow[Any] = Workflow("trip")

        @trip.step
        def book() -> int:
            return 7

        @book.undo
        def unbook(result: int | None) -> None:
            self.undone.append(result)

        trip.wait("departure", Approval, after=[book])
        asked: Workflow[Any] = Workflow("asked", idle_timeout=timedelta(days=1))
        asked.agent("draft", Approval, instructions="write it")

    def approve(self, **options: Any) -> str:
        run_id: str = registry.declared["approve"].apply_async(**options).id
        self.drain()
        assert self.state(run_id) == "waiting_signal"
        return run_id

    def parked(self, workflow: str = "approve", **options: Any) -> str:
        run_id: str = registry.declared[workflow].apply_async(**options).id
        self.drain()
        assert park(self.engine, [run_id], self.now()) == [run_id]
        assert not self.is_there(run_id)
        return run_id

    def now(self) -> int:
        return int(self.engine.store._now())

    def is_there(self, run_id: str) -> bool:
        return bool(self.engine.store.client().exists(self.engine.store.keys.run(run_id)))

    def key(self, run_id: str, tail: str) -> str:
        return str(self.engine.store.keys.of(int(run_id[-2:], 16), tail))

    def say(self, run_id: str, name: str, by: str, **more: Any) -> str:
        return signal(self.engine, run_id, name, {"by": by}, **more).word

    def turned(self) -> None:
        """What workers do by themselves."""
        sweep_parked(self.engine)
        run_overdue(self.engine)
        self.drain()

    def ends(self, run_id: str, state: str = "completed") -> None:
        def over() -> bool:
            self.turned()
            return self.state(run_id) == state

        eventually(over, 10, what=lambda: f"{run_id} is {self.state(run_id)}")

    def sound(self) -> None:
        assert [str(one) for one in fsck(self.engine)] == []


@pytest.fixture
def shop(valkey: ValkeyServer, namespace: str, clean_keys: None, tmp_path: Path) -> Iterator[Waiting]:
    with registry.isolated():
        yield Waiting(valkey.url(), namespace, archive_url=f"sqlite:///{tmp_path}/archive.db")


@pytest.fixture
def eager(valkey: ValkeyServer, namespace: str, clean_keys: None, tmp_path: Path) -> Iterator[Waiting]:
    """Its runs are parked as soon as they are idle."""
    with registry.isolated():
        yield Waiting(valkey.url(), namespace, archive_url=f"sqlite:///{tmp_path}/archive.db", park_after_minutes=0.00001)


@pytest.mark.spec("IDLE-6")
def test_an_idle_run_is_parked_and_woken_by_its_signal(eager: Waiting) -> None:
    shop = eager
    run_id, busy = shop.approve(key="one", tags=("eu",)), shop.start()
    before = shop.engine.store.log_of(run_id)
    due = shop.engine.store.client().zscore(shop.key(run_id, "due"), f"lapse:{run_id}:1")
    assert f"{run_id} parked" in sweep_parked(shop.engine).causes
    assert not shop.is_there(run_id)
    assert shop.is_there(busy)
    assert shop.state(run_id) == "waiting_signal"
    row = shop.engine.archive.open().get(run_id)
    assert row is not None
    assert (row.kind, row.waiting_for, row.tags) == (Kind.PARKED, ("approval",), ("eu",))
    shop.sound()
    assert registry.declared["approve"].apply_async(key="one").id == run_id
    assert shop.say(run_id, "approval", "ada", signal_id="s1") == "taken"
    assert shop.say(run_id, "approval", "ada", signal_id="s1") == "repeated"
    assert wake(shop.engine, run_id)[0] == "OK"
    assert shop.engine.store.log_of(run_id)[: len(before)] == before
    assert due is not None
    assert shop.say(run_id, "release", "eve") == "kept"
    shop.ends(run_id)
    assert shop.conductor.run(run_id).get(timeout=5) == "ada eve 2000"
    shop.sound()


@pytest.mark.spec("IDLE-6")
def test_what_is_said_to_a_parked_run_is_done_in_order(shop: Waiting) -> None:
    run_id = shop.parked()
    assert shop.say(run_id, "release", "early") == "kept"
    assert shop.say(run_id, "approval", "first") == "taken"
    with pytest.raises(WaitOver):
        shop.say(run_id, "approval", "second")
    shop.sound()
    shop.ends(run_id)
    assert shop.conductor.run(run_id).get(timeout=5) == "first early 2000"
    shop.sound()


@pytest.mark.spec("IDLE-6")
def test_a_signal_that_is_over_is_known_to_the_stub(shop: Waiting) -> None:
    run_id = shop.approve()
    shop.say(run_id, "approval", "ada", signal_id="taken-before")
    shop.drain()
    assert park(shop.engine, [run_id], shop.now()) == [run_id]
    with pytest.raises(WaitOver):
        shop.say(run_id, "approval", "late")
    assert shop.say(run_id, "release", "eve") == "taken"
    shop.ends(run_id)


@pytest.mark.spec("IDLE-6")
def test_a_timeout_keeps_its_time(shop: Waiting) -> None:
    run_id = shop.approve()
    client, lapse = shop.engine.store.client(), f"lapse:{run_id}:1"
    before = client.zscore(shop.key(run_id, "due"), lapse)
    assert park(shop.engine, [run_id], shop.now()) == [run_id]
    assert client.zscore(shop.key(run_id, "due"), lapse) is None
    assert client.zscore(shop.key(run_id, "wake"), run_id) == before
    shop.turned()
    assert not shop.is_there(run_id), "it is not time yet"
    word, _ = wake(shop.engine, run_id)
    assert word == "OK"
    assert client.zscore(shop.key(run_id, "due"), lapse) == before
    assert park(shop.engine, [run_id], shop.now()) == [run_id]
    client.zadd(shop.key(run_id, "wake"), {run_id: shop.now() - 1})
    sweep_parked(shop.engine)
    assert client.zscore(shop.key(run_id, "due"), lapse) == before
    client.zadd(shop.key(run_id, "due"), {lapse: shop.now() - 1})
    eventually(lambda: shop.turned() or _completed(shop, run_id, 1), 10, what="it lapses")
    assert shop.say(run_id, "release", "eve") == "taken"
    shop.ends(run_id)
    assert shop.conductor.run(run_id).get(timeout=5) == "nobody eve 2000"
    shop.sound()


def _completed(shop: Waiting, run_id: str, index: int) -> bool:
    return str(shop.engine.store.client().hget(shop.engine.store.keys.run(run_id), str(index)) or "").startswith("C")


@pytest.mark.spec("IDLE-6", "CAN-3")
def test_a_parked_run_is_cancelled_at_once(shop: Waiting) -> None:
    run_id = shop.parked(key="one")
    told = shop.conductor.cancel(run_id, reason="not wanted", actor="ada")
    assert (told["word"], told["state"]) == ("OK", "cancelled")
    assert shop.conductor.cancel(run_id)["word"] == "ALREADY"
    assert shop.state(run_id) == "cancelled"
    with pytest.raises(RunCancelled, match="not wanted"):
        shop.conductor.run(run_id).get(timeout=1)
    with pytest.raises(RunFinished):
        shop.say(run_id, "approval", "late")
    sweep_parked(shop.engine)
    assert shop.is_there(run_id)
    assert shop.state(run_id) == "cancelled"
    assert "by ada" in shop.ok("show", run_id)
    shop.sound()


@pytest.mark.spec("IDLE-6", "CAN-5")
def test_a_parked_run_that_is_to_be_undone_is_woken_for_it(shop: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id, other = shop.parked("trip"), shop.parked()

    def away() -> Any:
        raise ArchiveUnreachable(url="postgresql://away", problem="away", remedy="bring it back")

    with monkeypatch.context() as patch:
        patch.setattr(shop.engine.archive, "open", away)
        with pytest.raises(ArchiveUnreachable):
            shop.conductor.cancel(run_id, compensate=True)
        assert shop.state(run_id) == "waiting_signal", "nothing was said to it"
    told = shop.conductor.cancel(run_id, reason="not wanted", actor="ada", compensate=True)
    assert (told["word"], told["state"]) == ("OK", "compensating")
    assert shop.conductor.cancel(run_id, compensate=True)["word"] == "COMPENSATING"
    with pytest.raises(WaitOver):
        shop.say(run_id, "departure", "late")
    shop.ends(run_id, "cancelled")
    assert shop.undone == [7]
    assert shop.conductor.run(other).cancel(compensate=True).state == "cancelled", "it has nothing to undo with"
    shop.sound()


@pytest.mark.spec("IDLE-6")
def test_a_parked_run_without_its_row_is_not_cancelled_half(shop: Waiting) -> None:
    run_id = shop.parked("trip")
    shop.engine.archive.open().delete([run_id])
    with pytest.raises(ArchivedRunCorrupt, match="without undoing"):
        shop.conductor.cancel(run_id, compensate=True)
    assert shop.state(run_id) == "paused"
    assert shop.conductor.cancel(run_id)["word"] == "OK"


@pytest.mark.spec("IDLE-6")
def test_a_run_is_not_parked_while_something_bound_to_it_has_not_ended(shop: Waiting) -> None:
    run_id, bound = shop.approve(), shop.start()
    client, key = shop.engine.store.client(), shop.engine.store.keys.run(run_id)
    client.hset(key, "op", "1")
    client.sadd(f"{key}:ops", bound)
    client.hset(shop.key(run_id, "active"), bound, "running;cli_orders;1;;;")
    assert park(shop.engine, [run_id], shop.now()) == []
    client.hdel(shop.key(run_id, "active"), bound)
    assert park(shop.engine, [run_id], shop.now()) == [run_id]


@pytest.mark.spec("IDLE-6")
def test_an_agents_answer_wakes_it_and_the_first_one_wins(shop: Waiting) -> None:
    run_id = shop.parked("asked")
    assert advance(shop.engine, run_id, "draft", {"by": "bot"}).word == "taken"
    assert advance(shop.engine, run_id, "draft", {"by": "bot"}).word == "repeated"
    with pytest.raises(AlreadyAdvanced):
        advance(shop.engine, run_id, "draft", {"by": "other"})
    shop.ends(run_id)
    assert shop.conductor.run(run_id).get(timeout=5).by == "bot"
    shop.sound()


@pytest.mark.spec("IDLE-6")
def test_a_parked_orphan_is_expired_in_its_time(shop: Waiting) -> None:
    run_id = shop.approve()
    orphan = registry.declared["asked"].apply_async().id
    client = shop.engine.store.client()
    due = client.zscore(shop.key(orphan, "orphans:due"), orphan)
    assert park(shop.engine, [orphan, run_id], shop.now()) == [orphan, run_id]
    assert client.zscore(shop.key(orphan, "wake"), orphan) == due
    client.zadd(shop.key(orphan, "wake"), {orphan: 1})
    sweep_parked(shop.engine)
    assert client.zscore(shop.key(orphan, "orphans:due"), orphan) == due
    client.zadd(shop.key(orphan, "orphans:due"), {orphan: 1})
    assert sweep_idle(shop.engine).count == 1
    assert shop.state(orphan) == "cancelled"
    shop.sound()


@pytest.mark.spec("IDLE-4", "IDLE-5")
def test_parked_orphans_are_in_the_idle_index_and_seen_by_a_threshold_of_a_call(shop: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are: those behind them are met in the same sweep."""
    monkeypatch.setattr("conductor.sweeps.idle._BATCH", 1)
    client = shop.engine.store.client()
    away, live = [shop.parked("asked") for _ in range(5)], registry.declared["asked"].apply_async().id
    waits = shop.parked()
    for orphan in [*away, live]:
        client.zincrby(shop.key(orphan, "orphans"), -2 * 3_600_000, orphan)
        client.hincrby(shop.engine.store.keys.run(orphan), "pg", -2 * 3_600_000) if orphan == live else None
    shop.sound()
    assert sweep_idle(shop.engine, older_than_hours=3).count == 0
    assert sweep_idle(shop.engine, older_than_hours=1, dry_run=True).count > 0
    assert all(not shop.is_there(orphan) for orphan in away)
    assert sweep_idle(shop.engine, older_than_hours=1).causes == (f"{live} idle_timeout",)  # those that were parked had not been idle that long
    report = sweep_idle(shop.engine, older_than_hours=0)
    assert sorted(report.causes) == sorted(f"{orphan} idle_timeout" for orphan in away)
    assert {shop.state(orphan) for orphan in away} == {"cancelled"}
    assert not shop.is_there(waits)
    shop.sound()


@pytest.mark.spec("IDLE-4", "IDLE-5")
def test_a_parked_orphan_that_was_answered_cancelled_or_lost_is_none_any_more(shop: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    answered, cancelled, away, unread = (shop.parked("asked") for _ in range(4))
    advance(shop.engine, answered, "draft", {"by": "bot"})
    shop.conductor.cancel(cancelled)
    archive = shop.engine.archive.open()
    row = archive.get(away, with_snapshot=True)
    archive.delete([away])

    def gone(*_: Any, **__: Any) -> Any:
        raise ArchiveUnreachable(url="sqlite", problem="away", remedy="wait")

    with monkeypatch.context() as patched:
        patched.setattr(type(archive), "get", gone)
        assert sweep_idle(shop.engine, older_than_hours=0).count == 0  # what cannot be read is left, and stays due
    assert sweep_idle(shop.engine, older_than_hours=0).causes == (f"{unread} idle_timeout",)
    assert (shop.state(unread), shop.state(away)) == ("cancelled", "paused")
    shop.ends(answered)
    assert shop.state(cancelled) == "cancelled"
    archive.put([row])
    shop.conductor.resume(away)
    sweep_parked(shop.engine)
    assert sweep_idle(shop.engine, older_than_hours=0).causes == (f"{away} idle_timeout",)
    shop.sound()


Meanwhile = Callable[[Waiting, str], Any]
_MOVES: dict[str, Meanwhile] = {
    "signal": lambda shop, run_id: shop.say(run_id, "approval", "ada"),
    "cancel": lambda shop, run_id: shop.conductor.cancel(run_id),
    "early signal": lambda shop, run_id: shop.say(run_id, "release", "eve"),
    "consent": lambda shop, run_id: shop.conductor.grant_run(run_id),
    "pause": lambda shop, run_id: shop.conductor.pause(run_id),
}


@pytest.mark.spec("IDLE-6")
@pytest.mark.parametrize("at", ["keep", "park"])
@pytest.mark.parametrize("what", sorted(_MOVES))
def test_whatever_happens_while_it_is_being_parked_wins(shop: Waiting, what: str, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = shop.approve()
    target = shop.engine.archive.open() if at == "keep" else shop.engine.store
    real = getattr(target, at)

    def meanwhile(*given: Any, **named: Any) -> Any:
        _MOVES[what](shop, run_id)
        return real(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(target, at, meanwhile)
        assert park(shop.engine, [run_id], shop.now()) == []
    assert shop.is_there(run_id)
    if what == "consent":
        assert shop.engine.store.client().hget(shop.engine.store.keys.run(run_id), "bl") == "1"
    shop.sound()


@pytest.mark.spec("IDLE-6")
def test_consent_given_to_a_parked_run_is_there_when_it_is_back(shop: Waiting) -> None:
    run_id = shop.parked()
    shop.conductor.grant_run(run_id)
    wake(shop.engine, run_id)
    assert shop.engine.store.client().hget(shop.engine.store.keys.run(run_id), "bl") == "1"
    assert park(shop.engine, [run_id], shop.now()) == [run_id]
    shop.conductor.grant_run(run_id, on=False)
    wake(shop.engine, run_id)
    assert shop.engine.store.client().hget(shop.engine.store.keys.run(run_id), "bl") is None


@pytest.mark.spec("IDLE-6")
def test_of_many_that_wake_one_run_one_does(shop: Waiting) -> None:
    run_id = shop.parked()
    shop.say(run_id, "approval", "ada")
    barrier, words = threading.Barrier(6), list[str]()

    def work() -> None:
        barrier.wait()
        words.append(wake(shop.engine, run_id)[0])

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(words) == ["OK", *["UNKNOWN"] * 5]
    assert shop.engine.store.log_of(run_id).count("r") == 0
    assert sum(entry.startswith("v;") for entry in shop.engine.store.log_of(run_id)) == 1
    shop.sound()


@pytest.mark.spec("IDLE-6")
def test_a_waker_that_dies_half_way_leaves_nothing_that_anybody_sees(shop: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = shop.parked()
    shop.say(run_id, "approval", "ada")
    real = shop.engine.store._call_bare

    def dies(name: str, *given: Any) -> Any:
        if name == "restore_run":
            raise ArchiveUnreachable(url="x", problem="the process was killed", remedy="")
        return real(name, *given)

    with monkeypatch.context() as patch:
        patch.setattr(shop.engine.store, "_call_bare", dies)
        with pytest.raises(ArchiveUnreachable):
            wake(shop.engine, run_id)
    assert shop.state(run_id) == "waiting_signal"
    assert wake(shop.engine, run_id)[0] == "OK"
    shop.sound()


@pytest.mark.spec("IDLE-6")
def test_without_its_row_a_run_is_paused_and_comes_back_with_it(shop: Waiting) -> None:
    run_id, doomed = shop.parked(), shop.parked()
    archive = shop.engine.archive.open()
    rows = [archive.get(one, with_snapshot=True) for one in (run_id, doomed)]
    archive.delete([run_id, doomed])
    for one in (run_id, doomed):
        assert shop.say(one, "approval", "ada") == "taken"
    sweep_parked(shop.engine)
    assert [read_stub(shop.engine.store, one).reason for one in (run_id, doomed)] == ["archive_missing"] * 2  # type: ignore[union-attr]
    assert shop.state(run_id) == "paused"
    assert "archive" in shop.ok("why", run_id)
    assert sweep_parked(shop.engine).count == 0
    assert shop.conductor.cancel(doomed)["word"] == "OK"
    sweep_parked(shop.engine)
    assert read_stub(shop.engine.store, doomed) is None
    archive.put([row for row in rows if row is not None])
    assert shop.conductor.resume(run_id)["word"] == "OK"
    assert shop.say(run_id, "release", "eve") == "kept"
    shop.ends(run_id)
    shop.sound()


@pytest.mark.spec("IDLE-6")
def test_an_archive_that_is_away_is_asked_again(shop: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = shop.parked()

    def away() -> Any:
        raise ArchiveUnreachable(url="postgresql://away", problem="away", remedy="bring it back")

    with monkeypatch.context() as patch:
        patch.setattr(shop.engine.archive, "open", away)
        assert shop.say(run_id, "approval", "ada") == "taken"
        with pytest.raises(ArchiveUnreachable):
            sweep_parked(shop.engine)
        assert shop.state(run_id) == "waiting_signal"
    sweep_parked(shop.engine)
    assert shop.is_there(run_id)


@pytest.mark.spec("IDLE-6")
def test_a_stub_is_small(own_valkey: ValkeyServer, namespace: str, tmp_path: Path) -> None:
    with registry.isolated():
        shop = Waiting(own_valkey.url(), namespace, archive_url=f"sqlite:///{tmp_path}/archive.db")
        client: Any = own_valkey.client()

        def used() -> int:
            shop.engine.store.client().delete(*(shop.engine.store.keys.of(partition, "notices") for partition in range(2)))
            client.memory_purge()
            return int(client.info("memory")["used_memory_dataset"])

        shop.parked(key="warm")
        begun = used()
        runs = [registry.declared["approve"].apply_async(key=f"order-{number:08}").id for number in range(250)]
        eventually(lambda: shop.drain() or all(shop.state(run_id) == "waiting_signal" for run_id in runs), 30, what="all wait")
        live = (used() - begun) / len(runs)
        assert len(park(shop.engine, runs, shop.now())) == len(runs)
        each = (used() - begun) / len(runs)
        print(f"live {live:.0f} bytes, parked {each:.0f} bytes")
        assert each <= 500
        assert live > 3000


@pytest.mark.spec("IDLE-7")
def test_parked_runs_are_in_lists_and_views(shop: Waiting) -> None:
    run_id, live = shop.parked(tags=("eu",)), shop.approve()
    told = {run["run_id"]: run for run in shop.json("runs")["runs"]}
    assert set(told) == {run_id, live}
    assert told[run_id]["state"] == "waiting_signal"
    assert [waiter["signal"] for waiter in told[run_id]["active_waiters"]] == ["approval"]
    assert told[run_id]["idle_since"] > 0
    assert told[run_id]["idle_ms"] >= 0

    def found(*options: str) -> set[str]:
        return {run["run_id"] for run in shop.json("runs", *options)["runs"]}

    assert found("--idle") == found("--waiting-for", "approval") == {run_id, live}
    assert found("--not-idle") == found("--waiting-for", "release") == found("--idle-longer-than", "1h") == set()
    assert found("--limit", "1") == {live}
    page = shop.json("runs", "--limit", "1")
    assert [run["run_id"] for run in shop.json("runs", "--limit", "1", "--cursor", page["cursor"])["runs"]] == [run_id]
    assert {run["run_id"] for run in shop.json("runs", "--tag", "eu")["runs"]} == {run_id}
    assert {run["run_id"] for run in shop.json("runs", "--state", "waiting_signal", "--workflow", "approve")["runs"]} == {run_id, live}
    assert run_id[:18] in shop.ok("runs")
    shown = shop.json("show", run_id)
    assert (shown["archived"], shown["state"]) == ("parked", "waiting_signal")
    assert "waits for" in shop.ok("why", run_id)
    assert '"started"' in shop.ok("events", run_id, "--json").splitlines()[0]
    wake(shop.engine, run_id)
    assert [run["run_id"] for run in shop.json("runs", "--tag", "eu")["runs"]] == [run_id]


@pytest.mark.spec("IDLE-6", "ACT-2")
def test_one_sweep_parks_and_wakes_some_and_pokes_as_it_goes(eager: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = eager
    monkeypatch.setattr(sweeping, "_AT_MOST", 20)
    monkeypatch.setattr(sweeping, "_BATCH", 5)
    runs = [registry.declared["approve"].apply_async().id for _ in range(60)]
    eventually(lambda: shop.drain() or all(shop.state(run_id) == "waiting_signal" for run_id in runs), 30, what="all wait")
    rounds = 0
    while left := [run_id for run_id in runs if shop.is_there(run_id)]:
        assert 0 < sweep_parked(shop.engine).count <= 24
        assert len(left) - 24 <= sum(map(shop.is_there, runs))
        rounds += 1
    assert rounds >= 3
    for run_id in runs:
        shop.say(run_id, "approval", "ada")
    there: list[int] = []
    monkeypatch.setattr(shop.engine, "poke", lambda pokes: there.append(sum(map(shop.is_there, runs))))
    shop.engine.store.client().delete(*(shop.engine.store.keys.of(partition, "pokes") for partition in range(2)))
    assert sweep_parked(shop.engine).count == 20
    assert there[0] == 1, "the first one's worker is called before the second is back"


@pytest.mark.spec("IDLE-6", "ACT-2")
def test_children_are_not_asked_at_each_look(eager: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    shop, marked = eager, []
    inner: Workflow[Any] = Workflow("inner")
    inner.wait("word", str)
    outer: Workflow[Any] = Workflow("outer")
    outer.call(inner, name="asks")
    for _ in range(5):
        outer.delay()
    eventually(lambda: shop.drain() or len(shop.json("runs", "--workflow", "inner", "--idle")["runs"]) == 5, 10, what="the children wait")
    real = shop.engine.store.mark_parking
    monkeypatch.setattr(shop.engine.store, "mark_parking", lambda *given: (marked.append(given), real(*given))[1])
    alone = shop.approve()
    assert sweep_parked(shop.engine).causes == (f"{alone} parked",)
    assert [run_id for run_id, _ in marked] == [alone]


@pytest.mark.spec("RET-1")
def test_purging_a_parked_run(shop: Waiting) -> None:
    run_id = shop.parked()
    assert shop.call("purge", run_id, "--yes").exit_code == 1
    assert shop.json("purge", run_id, "--yes", "--cancel")["purged"] == 1
    assert shop.engine.archive.open().get(run_id) is None
    assert read_stub(shop.engine.store, run_id) is None
    shop.sound()


@pytest.mark.spec("IDLE-6")
def test_no_run_is_parked_where_not_every_worker_reaches_the_archive(eager: Waiting) -> None:
    shop = eager
    shop.engine.store.register_worker("a", "celery@one")
    assert not why_not_parking(shop.engine)
    shop.engine.store.register_worker("b", "celery@two")
    assert "one, two" in why_not_parking(shop.engine)
    run_id = shop.approve()
    sweep_parked(shop.engine)
    assert shop.is_there(run_id)
    assert "one, two" in shop.call("doctor").stdout
