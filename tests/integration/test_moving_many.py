"""Batches: one action on every run that a filter names, recorded, paced, taken up again after a kill, and never done twice to one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from conductor import Workflow
from conductor.declare import registry
from conductor.errors import ArchiveUnreachable, BadInput, UnknownOperation
from conductor.operations import batches
from conductor.operations.answers import Completed
from conductor.operations.read import find
from conductor.runs import batching
from conductor.runs.batching import Action
from conductor.runs.filters import Where
from conductor.runs.fsck import fsck
from conductor.runs.parking import park
from conductor.store.reads import read_events, read_now, read_run
from tests.integration.shop import Order, Shop
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually

FAILED = Where.parse({"workflow": "cli_orders", "status": "failed"})


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it, so the lease stays behind."""


class Decision(BaseModel):
    yes: bool


class Floor(Shop):
    """A shop with many runs, and batches on them."""

    def declare(self) -> None:
        super().declare()
        registry.register_capability(batches.batch, registry.place_of_caller())
        flow: Workflow[Any] = Workflow("deciding")
        flow.wait("decision", Decision)
        outer: Workflow[Any] = Workflow("outer", input=Order)
        outer.call(registry.declared["cli_orders"], name="inner")
        undone: Workflow[Any] = Workflow("undone", on_failure="compensate")

        @undone.step
        def book() -> int:
            return 1

        @book.undo
        def unbook(result: int | None) -> None: ...

        @undone.step
        def bill(book: int) -> int:
            raise ValueError("no")


    def failing(self, count: int, **options: Any) -> list[str]:
        flow = registry.declared["cli_orders"]
        ids = [str(flow.apply_async(Order(number=number, bad=True), **options).id) for number in range(count)]
        self.settle(ids, "failed")
        return ids

    def waiting(self, count: int, **options: Any) -> list[str]:
        ids = [str(registry.declared["deciding"].apply_async(**options).id) for _ in range(count)]
        self.settle(ids, "waiting_signal")
        return ids

    def settle(self, ids: list[str], state: str) -> None:
        eventually(lambda: self.drain() or all(self.state(run_id) == state for run_id in ids), 20, what=f"all are {state}")

    def lives(self, run_id: str) -> int:
        return sum(1 for event in read_events(self.engine.store, run_id) if event.kind == "reopened")

    def by(self, run_id: str, kind: str) -> list[str]:
        return [event.actor for event in read_events(self.engine.store, run_id) if event.kind == kind]

    def here(self, action: Action, where: Where, **how: Any) -> Any:
        return batches.run_here(self.engine, action, where, **{"rate": 10_000.0, "actor": "ann", "reason": "fixed", **how})

    def submit(self, action: Action, where: Where, **how: Any) -> str:
        return batches.submit(self.engine, action, where, **{"rate": 10_000.0, "actor": "ann", "reason": "fixed", **how})

    def lose(self, batch_id: str) -> None:
        """Its worker is gone, and its lease has ended."""
        store, partition = self.engine.store, int(batch_id[-2:], 16)
        assert store.client().zadd(store.keys.of(partition, "leases"), {f"{batch_id}:0": 1}, xx=True, ch=True)
        store.client().hset(store.keys.head(partition), mapping={"look": read_now(store), "calm": 0})
        store.expire_leases(partition)

    def end(self, batch_id: str) -> dict[str, Any]:
        """Let workers go on until it has ended."""

        def over() -> Any:
            for partition in range(2):
                self.engine.poke(self.engine.store.fire_due(partition).pokes)
            self.drain()
            told = batches.standing(self.engine, batch_id)
            return told if told["state"] not in ("running", "queued") else None

        found: dict[str, Any] = eventually(over, 20, what=lambda: str(batches.standing(self.engine, batch_id)))
        return found

    def sound(self) -> None:
        assert [str(one) for one in fsck(self.engine)] == []


@pytest.fixture
def floor(valkey: ValkeyServer, namespace: str, tmp_path: Path) -> Iterator[Floor]:
    from tests.support.leaks import forget

    with registry.isolated():
        yield Floor(valkey.url(), namespace, archive_url=f"sqlite:///{tmp_path}/archive.db", park_after_minutes=10_000)
    forget(valkey.client(), namespace)


def counts(told: dict[str, Any]) -> tuple[int, int, int, int]:
    return told["done"], told["changed"], told["unchanged"], told["failed"]


@pytest.mark.spec("CLI-4", "SVC-1")
def test_a_dry_run_counts_and_writes_nothing(floor: Floor) -> None:
    ids, kept = floor.failing(7), floor.start()
    keys = floor.engine.store.client().dbsize()
    told = batches.preview(floor.engine, Action.RETRY, FAILED)
    assert (told.count, told.more) == (7, False)
    assert [run.run_id for run in told.examples] == sorted(ids, reverse=True)[:5]
    assert batches.preview(floor.engine, Action.CANCEL, Where.parse({"workflow": "cli_orders"})).count == 1
    assert floor.engine.store.client().dbsize() == keys
    assert [floor.lives(run_id) for run_id in ids] == [0] * 7
    assert floor.state(kept) == "running"


@pytest.mark.spec("CLI-4", "SVC-1")
def test_a_batch_retries_what_was_meant_and_says_who_and_why(floor: Floor) -> None:
    ids, other = floor.failing(5), floor.failing(1, tags=("other",))
    floor.mended = True
    heard: list[dict[str, Any]] = []
    answer = floor.here(Action.RETRY, Where.parse({"status": "failed", "until": read_run(floor.engine.store, ids[-1]).created_at}),  # type: ignore[union-attr]
                        heard=lambda batch_id, told: heard.append({**told, "batch_id": batch_id}))
    assert isinstance(answer, Completed)
    assert counts(answer.result) == (5, 5, 0, 0)
    floor.settle(ids, "completed")
    assert floor.state(other[0]) == "failed"
    assert [floor.lives(run_id) for run_id in ids] == [1] * 5
    assert floor.by(ids[0], "reopened") == [f"ann, batch {answer.operation_id}"]
    assert (heard[-1]["batch_id"], heard[-1]["done"], heard[-1]["total"]) == (answer.operation_id, 5, 5)
    told = batches.standing(floor.engine, answer.operation_id)
    assert (told["state"], told["action"], told["actor"], told["reason"], told["total"]) == ("completed", "retry", "ann", "fixed", 5)
    assert find(floor.engine, answer.operation_id).params["where"]["status"] == ["failed"]
    floor.sound()


@pytest.mark.spec("CLI-4")
def test_cancel_pause_and_resume_by_filter_reach_parked_runs_too(floor: Floor) -> None:
    ids = floor.waiting(4)
    assert park(floor.engine, ids[:2], read_now(floor.engine.store)) == ids[:2]
    where = Where.parse({"workflow": "deciding"})
    assert counts(floor.here(Action.PAUSE, where).result) == (4, 4, 0, 0)
    assert [floor.state(run_id) for run_id in ids] == ["paused"] * 4
    assert counts(floor.here(Action.RESUME, where).result) == (4, 4, 0, 0)
    floor.settle(ids, "waiting_signal")
    assert park(floor.engine, ids[2:], read_now(floor.engine.store)) == ids[2:]
    assert counts(floor.here(Action.CANCEL, where).result) == (4, 4, 0, 0)
    assert [floor.state(run_id) for run_id in ids] == ["cancelled"] * 4
    assert floor.by(ids[0], "paused")[0].startswith("ann, batch ")
    assert floor.by(ids[0], "resumed")[0].startswith("ann, batch ")
    assert floor.by(ids[0], "cancelled")[0].startswith("ann, batch ")
    assert counts(floor.here(Action.CANCEL, where).result) == (0, 0, 0, 0)


@pytest.mark.spec("CLI-4", "RUN-2")
@pytest.mark.parametrize("at", [1, 7, 12])
def test_after_its_process_is_lost_a_worker_goes_on_and_retries_nothing_twice(floor: Floor, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """The runs fail again at once, so a page that is worked through again finds them as it found them before: failed."""
    monkeypatch.setattr(batches, "_PAGE", 5)
    ids = floor.failing(12)
    batch_id = _killed(floor, monkeypatch, at)
    assert sum(floor.lives(run_id) for run_id in ids) == at
    floor.settle(ids, "failed")
    assert batches.standing(floor.engine, batch_id)["state"] == "running"
    floor.lose(batch_id)
    told = floor.end(batch_id)
    assert (told["state"], counts(told)) == ("completed", (12, 12, 0, 0)), "what it did before it was lost is counted as its own"
    floor.settle(ids, "failed")
    assert [floor.lives(run_id) for run_id in ids] == [1] * 12
    floor.sound()


def _killed(floor: Floor, monkeypatch: pytest.MonkeyPatch, after: int) -> str:
    """A batch in this process that dies right after it has moved so many runs, and before it has said so."""
    seen, done = list[str](), list[str]()
    real = batches.perform

    def perform(engine: Any, deed: Any, member: Any, tally: Any, *, again: bool) -> None:
        seen.append(deed.by.rpartition(" ")[2])
        real(engine, deed, member, tally, again=again)
        done.append(member.run_id)
        if len(done) == after:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(batches, "perform", perform)
        with pytest.raises(Killed):
            floor.here(Action.RETRY, FAILED)
    return seen[0]


@pytest.mark.spec("CLI-4", "RUN-2")
def test_a_page_that_is_repeated_leaves_alone_what_others_have_done_since(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = floor.waiting(3)
    real = batches.perform

    def perform(engine: Any, deed: Any, member: Any, tally: Any, *, again: bool) -> None:
        real(engine, deed, member, tally, again=again)
        if member.run_id == ids[0]:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(batches, "perform", perform)
        with pytest.raises(Killed):
            floor.here(Action.PAUSE, Where.parse({"workflow": "deciding"}))
    assert [floor.state(run_id) for run_id in ids] == ["paused"] * 3
    floor.conductor.resume(ids[0], actor="bob")
    floor.settle([ids[0]], "waiting_signal")
    (batch_id,) = [one.operation_id for one in floor.conductor.operations()]
    floor.lose(batch_id)
    assert counts(floor.end(batch_id)) == (3, 3, 0, 0)
    assert floor.state(ids[0]) == "waiting_signal", "a person let it go on, and that stands"


@pytest.mark.spec("CLI-4")
def test_two_workers_on_one_page_retry_each_run_once(floor: Floor) -> None:
    """A worker that has lost its lease and does not know it works on beside the one that took over."""
    ids = floor.failing(6)
    at = read_now(floor.engine.store)
    where = batching.narrowed(Action.RETRY, FAILED, now=at)
    page = batching.select(floor.engine, Action.RETRY, where, at=at, place="", limit=10, within=None)
    assert len(page.members) == 6
    deed, tallies = batching.Deed(Action.RETRY, "ann, batch x"), [batching.Tally(), batching.Tally()]
    for number, member in enumerate(page.members):
        first, second = (tallies[0], tallies[1]) if number % 2 else (tallies[1], tallies[0])
        batching.perform(floor.engine, deed, member, first, again=False)
        floor.settle([member.run_id], "failed")
        batching.perform(floor.engine, deed, member, second, again=False)
    assert [floor.lives(run_id) for run_id in ids] == [1] * 6
    assert sum(tally.changed for tally in tallies) == sum(tally.unchanged for tally in tallies) == 6


@pytest.mark.spec("CLI-4")
def test_a_batch_does_not_meet_what_it_brings_about(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run that is retried fails again, and each starts another that fails: the batch ends all the same, with those it was meant for."""
    monkeypatch.setattr(batches, "_PAGE", 2)
    ids, late = floor.failing(5), list[str]()
    real = batches.perform

    def perform(engine: Any, deed: Any, member: Any, tally: Any, *, again: bool) -> None:
        real(engine, deed, member, tally, again=again)
        late.extend(floor.failing(1))

    monkeypatch.setattr(batches, "perform", perform)
    assert counts(floor.here(Action.RETRY, FAILED).result) == (5, 5, 0, 0)
    assert [floor.lives(run_id) for run_id in ids] == [1] * 5
    assert [floor.lives(run_id) for run_id in late] == [0] * 5


@pytest.mark.spec("CLI-4")
def test_on_a_worker_it_works_in_slices_and_burns_no_attempt(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_SLICE", 0.0)
    ids = floor.failing(4)
    batch_id = floor.submit(Action.RETRY, FAILED)
    floor.drain()
    told = batches.standing(floor.engine, batch_id)
    assert (told["state"], told["done"], told["total"]) == ("running", 1, 4)
    told = floor.end(batch_id)
    assert (told["state"], counts(told)) == ("completed", (4, 4, 0, 0))
    found = find(floor.engine, batch_id)
    assert (found.attempt, found.retry_history) == (1, ())
    assert [floor.lives(run_id) for run_id in ids] == [1] * 4
    floor.sound()


@pytest.mark.spec("CLI-4", "WF-7")
def test_a_child_is_retried_with_its_parent_and_what_was_undone_not_at_all(floor: Floor) -> None:
    parent = str(registry.declared["outer"].apply_async(Order(number=1, bad=True)).id)
    undone = str(registry.declared["undone"].apply_async().id)
    floor.settle([parent, undone], "failed")
    where = Where.parse({"status": "failed"})
    assert len(floor.json("runs", "--state", "failed")["runs"]) == 3, "the parent, its child, and the one that was undone"
    assert [run.run_id for run in batches.preview(floor.engine, Action.RETRY, where).examples] == [parent]
    floor.mended = True
    assert counts(floor.here(Action.RETRY, where).result) == (1, 1, 0, 0)
    floor.settle([parent], "completed")
    assert floor.state(undone) == "failed"
    floor.sound()


@pytest.mark.spec("CLI-4")
def test_it_keeps_to_its_pace(floor: Floor) -> None:
    floor.failing(6)
    began = time.monotonic()
    assert counts(floor.here(Action.RETRY, FAILED, rate=20.0).result) == (6, 6, 0, 0)
    assert 0.25 <= time.monotonic() - began < 3


@pytest.mark.spec("CLI-4")
def test_a_cancelled_batch_moves_nothing_more(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_SLICE", 0.0)
    ids = floor.failing(4)
    batch_id = floor.submit(Action.RETRY, FAILED)
    floor.drain()
    floor.conductor.cancel_operation(batch_id, reason="enough", actor="bob")
    told = floor.end(batch_id)
    assert (told["state"], told["done"]) == ("cancelled", 1)
    assert sum(floor.lives(run_id) for run_id in ids) == 1


@pytest.mark.spec("CLI-4", "ERR-2")
def test_one_run_that_cannot_be_moved_keeps_nobody_else(floor: Floor) -> None:
    ids = floor.failing(4)
    store = floor.engine.store
    log = store.keys.run(ids[1], "log")
    kept = store.client().lrange(log, 0, -1)
    store.client().hset(store.keys.run(ids[1]), "0", "this is no record")
    told = floor.here(Action.RETRY, FAILED).result
    assert counts(told) == (4, 3, 0, 1)
    assert [(one["run_id"], one["code"]) for one in told["errors"]] == [(ids[1], "unexpected")]
    assert store.client().lrange(log, 0, -1) == kept


@pytest.mark.spec("SVC-4", "CLI-4")
def test_the_batch_of_a_session_moves_its_own_runs_only(floor: Floor) -> None:
    mine, others = floor.failing(2, session="ann"), [*floor.failing(2, session="bob"), *floor.failing(1)]
    assert batches.preview(floor.engine, Action.RETRY, FAILED, session="ann").count == 2
    assert counts(floor.end(floor.submit(Action.RETRY, FAILED, session="ann"))) == (2, 2, 0, 0)
    forged = Where.parse({"status": "failed", "session": "bob"})
    assert counts(floor.end(floor.submit(Action.RETRY, forged, session="ann"))) == (0, 0, 0, 0)
    assert [floor.lives(run_id) for run_id in mine] == [1, 1]
    assert [floor.lives(run_id) for run_id in others] == [0, 0, 0]


@pytest.mark.spec("CLI-4")
def test_while_the_archive_is_away_a_batch_waits_rather_than_leave_parked_runs_out(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_TROUBLE_MS", 50)
    ids = floor.waiting(2)
    park(floor.engine, ids[:1], read_now(floor.engine.store))
    real, asked = floor.engine.archive.open, list[int]()

    def away() -> Any:
        asked.append(1)
        if len(asked) < 4:
            raise ArchiveUnreachable(url="sqlite:////away", problem="gone for a moment")
        return real()

    monkeypatch.setattr(floor.engine.archive, "open", away)
    batch_id = floor.submit(Action.CANCEL, Where.parse({"workflow": "deciding"}))
    assert counts(floor.end(batch_id)) == (2, 2, 0, 0)
    assert len(asked) > 4


@pytest.mark.spec("CLI-4", "BAD-1")
@pytest.mark.parametrize(("action", "given", "field"), [
    (Action.RETRY, {}, "where"), (Action.RETRY, {"status": "completed"}, "status"), (Action.CANCEL, {"status": "failed"}, "status"),
    (Action.PAUSE, {"status": "paused"}, "status"), (Action.RESUME, {"status": "running", "workflow": "x"}, "status"),
    (Action.CANCEL, {"archived": True}, "archived"), (Action.CANCEL, {"wrkflow": "x"}, "wrkflow"),
])
def test_what_means_nothing_is_refused_before_anything_is_written(floor: Floor, action: Action, given: dict[str, Any], field: str) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: batches.preview(floor.engine, action, Where.parse(given)),
        lambda: floor.submit(action, Where.parse(given)),
        lambda: floor.conductor.call(batches.batch, {"action": action.value, "where": given}),
    ]
    for call in calls:
        with pytest.raises(BadInput) as refused:
            call()
        assert refused.value.field == field
    assert floor.conductor.operations() == []


@pytest.mark.spec("SVC-1")
def test_only_a_batch_is_a_batch(floor: Floor) -> None:
    run_id = floor.start()
    for one in (run_id, f"{run_id}:charge", "nonsense"):
        with pytest.raises(UnknownOperation):
            batches.standing(floor.engine, one)
    batch_id = floor.submit(Action.RETRY, FAILED, key="k1")
    assert floor.submit(Action.RETRY, FAILED, key="k1") == batch_id
    assert batches.standing(floor.engine, batch_id)["state"] == "queued"
