"""Finding runs by every filter: what each means, that cursors are ours, and that a page costs the same however many runs there are."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conductor import Workflow
from conductor.declare import registry
from conductor.errors import ArchiveUnreachable, BadInput, NoArchive, PermanentError, TransientError
from conductor.ids import new_run_id
from conductor.records import Attempt, Graph, NewRun, Node, NodeKind, Outcome, OutcomeKind
from conductor.runs.finding import Where, find
from conductor.runs.parking import park
from conductor.runs.retry import retry_run
from conductor.store import Store, Want, connect
from conductor.store.reads import read_graph, read_now, read_run
from tests.conftest import MakeStore
from tests.integration.shop import Shop
from tests.support.crew import engine_of
from tests.support.crowd import gather, replies
from tests.support.leaks import forget
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually

PAIR = Graph.build("order", (Node(0, "reserve", signature="a"), Node(1, "charge", parents=(0,), signature="b")))
FAN = Graph.build("fan", (Node(0, "split", signature="a"), Node(1, "work", NodeKind.EACH, (0,), source=0, max_parallel=99, signature="b")))


class Desk:
    """Runs moved by hand on one store, and what is found of them."""

    def __init__(self, store: Store) -> None:
        self.store, self.engine = store, engine_of(store)
        store.register_code("k", ["a", "b"])

    def begin(self, graph: Graph = PAIR, **options: Any) -> str:
        run_id = new_run_id(self.store.partitions)
        assert self.store.start(NewRun(**({"run_id": run_id, "workflow": graph.workflow, "input": "j1:1", "queue": "q"} | options)), graph).word == "OK"
        return run_id

    def claim(self, limit: int = 1) -> list[Attempt]:
        return self.store.claim(0, Want("q", limit, "k", "w", first=True)).attempts

    def end(self, held: Attempt, kind: OutcomeKind = OutcomeKind.COMPLETED, error: dict[str, str] | None = None, **outcome: Any) -> None:
        after = ",".join(map(str, read_graph(self.store, 0, held.graph).successors[held.index]))
        made = Outcome(held, kind, **({"payload": "j1:1", "total": -1, "error": json.dumps(error) if error else ""} | outcome))
        assert self.store.commit(0, [(made, after)], Want("q", 0, "k", "w")).answers == ["OK"]

    def fail(self, kind: str = "permanent", type: str = "shop.CardError") -> None:
        self.end(self.claim()[0], OutcomeKind.FAILED, {"type": type, "kind": kind}, reason="permanent_error")

    def found(self, limit: int = 50, within: frozenset[str] | None = None, **given: Any) -> set[str]:
        return {row["run_id"] for row in find(self.engine, Where.parse(given), limit=limit, within=within).rows}


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)


@pytest.mark.spec("SVC-1")
def test_a_step_finds_the_runs_that_stand_at_it_or_failed_at_it(desk: Desk) -> None:
    run_id = desk.begin()
    assert desk.found(step="reserve") == {run_id}, "ready"
    assert desk.found(step="charge") == desk.found(step="no-such") == set()
    (held,) = desk.claim()
    assert desk.found(step="reserve") == {run_id}, "running"
    desk.end(held)
    assert desk.found(step="reserve") == set(), "completed"
    assert desk.found(step="charge") == {run_id}
    desk.end(desk.claim()[0], OutcomeKind.RETRY, {"type": "OSError", "kind": "transient"}, reason="transient", delay_ms=60_000)
    assert desk.found(step="charge") == {run_id}, "to be repeated"
    desk.store.cancel(run_id, reason="x")
    assert desk.found(step="charge") == set(), "cancelled with its run"
    failed = desk.begin()
    desk.end(desk.claim()[0])
    desk.fail()
    assert desk.found(step="charge") == {failed}
    assert desk.found(step="charge", status="failed", workflow="order") == {failed}


@pytest.mark.spec("SVC-1")
def test_an_error_kind_finds_what_failed_or_is_repeated_and_not_what_was_made_good(desk: Desk) -> None:
    repeated = desk.begin()
    desk.end(desk.claim()[0], OutcomeKind.RETRY, {"type": "builtins.OSError", "kind": "transient"}, reason="transient", delay_ms=60_000)
    failed = desk.begin()
    desk.fail()
    for kind, right in {
        "transient": {repeated}, "permanent": {failed}, "unknown": set(), "OSError": {repeated}, "CardError": {failed},
        "shop.CardError": {failed}, "store.CardError": set(), "builtins.OSError": {repeated},
    }.items():
        assert desk.found(error_kind=kind) == right, kind
    retry_run(desk.engine, failed)
    assert desk.found(error_kind="CardError") == set(), "it runs again"
    desk.fail("transient", "shop.Busy")
    assert desk.found(error_kind="CardError") == set(), "it failed of something else this time"
    assert desk.found(error_kind="Busy") == {failed}


@pytest.mark.spec("SVC-1")
def test_an_error_kind_looks_at_items_and_at_a_part_of_very_many(desk: Desk) -> None:
    run_id = desk.begin(FAN)
    desk.end(desk.claim()[0], total=3)
    first, *others = desk.claim(3)
    assert desk.found(step="work") == {run_id}
    desk.end(first, OutcomeKind.RETRY, {"type": "x.Slow", "kind": "transient"}, reason="transient", delay_ms=60_000)
    assert desk.found(error_kind="Slow") == {run_id}
    for held in others:
        desk.end(held)
    errors: Any = {f"9:{number}:1": "{}" for number in range(2500)}
    desk.store.client().hset(desk.store.keys.run(run_id, "err"), mapping=errors)
    assert desk.found(error_kind="Never") == set()


@pytest.mark.spec("SVC-1")
def test_a_version_is_the_beginning_of_a_graphs_hash(desk: Desk) -> None:
    pair, fan = desk.begin(), desk.begin(FAN)
    assert desk.found(version=PAIR.hash) == desk.found(version=PAIR.hash[:4]) == {pair}
    assert desk.found(version=FAN.hash[:8]) == {fan}
    assert desk.found(version="0000") == set()


@pytest.mark.spec("SVC-4")
def test_nobody_finds_what_belongs_to_other_sessions(desk: Desk) -> None:
    ann, bob = desk.begin(session="ann"), desk.begin(session="bob")
    none = desk.begin()
    assert desk.found() == {ann, bob, none}
    assert desk.found(within=frozenset({"ann", "eve"})) == {ann}
    assert desk.found(within=frozenset({"ann", "bob"})) == {ann, bob}
    assert desk.found(within=frozenset({"ann"}), session="bob") == desk.found(within=frozenset()) == set()


@pytest.mark.spec("SVC-1", "RUN-9")
def test_rows_are_those_of_the_list_with_all_that_stands_around_them(desk: Desk) -> None:
    run_id = desk.begin(session="ann", tags=("eu",), delay_ms=60_000)
    desk.store.hold("workflow:order", "stop")
    (row,) = find(desk.engine, Where.parse({"tag": "eu"})).rows
    assert (row["run_id"], row["session"], row["held"], row["steps_left"]) == (run_id, "ann", ["workflow:order"], 2)
    assert row["starts_at"] > row["created_at"]


# Cursors.


def pages(engine: Any, where: Where, limit: int) -> Iterator[list[str]]:
    cursor = ""
    while True:
        found = find(engine, where, cursor=cursor, limit=limit)
        yield [row["run_id"] for row in found.rows]
        cursor = found.cursor
        if not cursor:
            return


@pytest.mark.spec("SVC-1", "S17")
def test_a_cursor_goes_on_where_a_page_ended_and_is_good_for_its_search_only(make_store: MakeStore) -> None:
    desk = Desk(make_store(4))
    ids = [desk.begin(tags=("a",)) for _ in range(11)]
    where = Where.parse({"tag": "a"})
    told = list(pages(desk.engine, where, 3))
    assert [len(page) for page in told[:3]] == [3, 3, 3]
    order = {run_id: read_run(desk.store, run_id) for run_id in ids}
    assert [run_id for page in told for run_id in page] == sorted(
        ids, key=lambda one: (order[one].created_at, one), reverse=True)  # type: ignore[union-attr]
    cursor = find(desk.engine, where, limit=3).cursor
    for given, within in ((where, frozenset({"ann"})), (Where.parse({"tag": "b"}), None), (Where(), None)):
        with pytest.raises(BadInput, match="not one that a list of this store gave"):
            find(desk.engine, given, cursor=cursor, within=within)
    later = Where.parse({"tag": "a", "since": 10**11})
    assert find(desk.engine, later, cursor=cursor, limit=3).rows, "a time is another one at each page"


@pytest.mark.spec("S17", "BAD-1")
def test_no_cursor_is_taken_that_was_made_up_or_altered(desk: Desk, make_store: MakeStore) -> None:
    for _ in range(3):
        desk.begin()
    cursor = find(desk.engine, Where(), limit=1).cursor
    raw = base64.urlsafe_b64decode(cursor)
    altered = [base64.urlsafe_b64encode(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]).decode() for at in range(len(raw))]
    mine = f"-1-{new_run_id(1)}"
    forged = ["x", "-1", "0", mine, base64.urlsafe_b64encode(b"0" * 16 + mine.encode()).decode(), cursor + "=", cursor[:-1], "é", cursor * 9,
              cursor.replace("=", "") + "A" * 4, "\0", " " + cursor]
    for one in (*altered, *forged):
        with pytest.raises(BadInput) as refused:
            find(desk.engine, Where(), cursor=one)
        assert refused.value.field == "cursor"
    for limit in (0, -1, 10_001, True, 1.5, "3"):
        with pytest.raises(BadInput) as refused:
            find(desk.engine, Where(), limit=limit)  # type: ignore[arg-type]
        assert refused.value.field == "limit"
    assert find(desk.engine, Where(), cursor=cursor).rows


# What a page costs.


@pytest.fixture
def make_crowd(own_valkey: ValkeyServer, namespace: str) -> Callable[..., Any]:
    """Stores on a server of this test alone, so that nobody else's commands are counted."""
    own_valkey.client().config_set("appendfsync", "no")

    def make(count: int, state: Callable[[int], str] = lambda number: "completed") -> Any:
        forget(own_valkey.client(), namespace)
        store = Store(connect(own_valkey.url()), namespace=namespace, partitions=16)
        gather(store, count, state)
        return engine_of(store)

    return make


@pytest.mark.spec("SVC-1")
def test_a_page_costs_the_same_of_a_thousand_runs_and_of_a_hundred_thousand(own_valkey: ValkeyServer, make_crowd: Callable[..., Any]) -> None:
    """Measured in commands that the server executes, not in seconds: those of 100,000 runs may be no more than those of 1,000."""
    asked = [{}, {"workflow": "crowd"}, {"status": "failed"}, {"session": "ann"}, {"step": "work", "status": "failed"}, {"error_kind": "CardError"}]

    def cost(engine: Any, given: dict[str, str]) -> int:
        found, executed = replies(own_valkey.client(), lambda: find(engine, Where.parse(given), limit=100))
        assert len(found.rows) == 100
        return executed

    def costs(count: int) -> list[int]:
        engine = make_crowd(count, lambda number: "failed" if number % 2 else "completed")
        find(engine, Where(), limit=1)
        return [cost(engine, given) for given in asked]

    small, large = costs(1_000), costs(100_000)
    print(f"commands for 100 of 1,000: {small}, of 100,000: {large}")
    assert all(after <= before + 40 for before, after in zip(small, large, strict=True))
    assert large[0] < 300, "16 partitions, 100 records with their logs, and little more"


@pytest.mark.spec("SVC-1")
def test_a_rare_filter_looks_at_so_many_and_goes_on_by_cursor(own_valkey: ValkeyServer, make_crowd: Callable[..., Any]) -> None:
    engine = make_crowd(45_000)
    oldest = engine.store.client().zrange(engine.store.keys.of(0, "runs"), 0, 0)[0]
    engine.store.client().hset(engine.store.keys.run(oldest), "tg", "needle")
    where, cursor, found, costs = Where.parse({"tag": "needle"}), "", [], []
    while True:
        page, cost = replies(own_valkey.client(), lambda cursor=cursor: find(engine, where, cursor=cursor, limit=10))  # type: ignore[misc]
        found += [row["run_id"] for row in page.rows]
        costs.append(cost)
        cursor = page.cursor
        if not cursor:
            break
    assert found == [oldest]
    assert len(costs) == 3
    assert max(costs) < 2 * 20_500 + 500, "a record and the length of its log for each run that is looked at"


# Parked and archived.


class Waiting(Shop):
    """A shop whose workflow waits for a signal, after a step that may fail while the rest goes on."""

    def declare(self) -> None:
        super().declare()
        flow: Workflow[Any] = Workflow("approve", on_failure="continue")
        flow.wait("approval")

        @flow.step
        def aside() -> int:
            raise PermanentError("no") if self.mended else TransientError("never")

    def parked(self, **options: Any) -> str:
        run_id: str = registry.declared["approve"].apply_async(**options).id
        eventually(lambda: self.drain() or self.state(run_id) == "waiting_signal", 10, what="it waits")
        assert park(self.engine, [run_id], read_now(self.engine.store)) == [run_id]
        return run_id

    def found(self, **given: Any) -> set[str]:
        return {row["run_id"] for row in find(self.engine, Where.parse(given)).rows}


@pytest.fixture
def shop(valkey: ValkeyServer, namespace: str, clean_keys: None, tmp_path: Path) -> Iterator[Waiting]:
    with registry.isolated():
        made = Waiting(valkey.url(), namespace, archive_url=f"sqlite:///{tmp_path}/archive.db", park_after_minutes=10_000)
        made.mended = True
        yield made


@pytest.mark.spec("IDLE-7", "SVC-1")
def test_parked_runs_answer_every_filter_as_the_others_do(shop: Waiting) -> None:
    run_id = shop.parked(session="ann", tags=("eu",), key="k1")
    version = read_graph(shop.engine.store, int(run_id[-2:], 16), registry.declared["approve"].graph.hash).hash
    for given in (
        {}, {"status": "waiting_signal"}, {"workflow": "approve"}, {"session": "ann"}, {"tag": "eu"}, {"key": "k1"}, {"idle": True},
        {"idle_duration_gt": 0}, {"waiting_for": "approval"}, {"step": "approval"}, {"step": "aside"}, {"error_kind": "permanent"},
        {"error_kind": "PermanentError"}, {"version": version[:6]}, {"since": 10**11},
    ):
        assert shop.found(**given) == {run_id}, given
    for given in (
        {"status": "running"}, {"session": "bob"}, {"idle": False}, {"idle_duration_gt": 9_000}, {"waiting_for": "other"}, {"step": "price"},
        {"error_kind": "transient"}, {"error_kind": "CardError"}, {"version": "0000"}, {"until": 10**11},
    ):
        assert shop.found(**given) == set(), given
    assert {row["run_id"] for row in find(shop.engine, Where(), within=frozenset({"bob"})).rows} == set()
    assert {row["run_id"] for row in find(shop.engine, Where(), within=frozenset({"ann"})).rows} == {run_id}


@pytest.mark.spec("IDLE-7")
def test_a_page_ends_where_the_search_for_parked_runs_ended(shop: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of parked runs that do not match are looked at in bounded number too; what lies behind them is found from the cursor on."""
    ids = [shop.parked(tags=("old",) if number < 2 else ()) for number in range(8)]
    monkeypatch.setattr("conductor.runs.listing._PAGES", 1)
    monkeypatch.setattr("conductor.runs.listing._ROWS", 3)
    monkeypatch.setattr("conductor.runs.listing.ArchiveFilter", _blind_to_tags)
    told = list(pages(shop.engine, Where.parse({"tag": "old"}), 5))
    assert len(told) > 1
    assert [run_id for page in told for run_id in page] == [ids[1], ids[0]]
    assert [run_id for page in pages(shop.engine, Where(), 2) for run_id in page] == ids[::-1]


def _blind_to_tags(**given: Any) -> Any:
    from conductor.archive import ArchiveFilter

    return ArchiveFilter(**{**given, "tag": ""})


@pytest.mark.spec("SVC-1", "RET-1")
def test_archived_runs_are_found_by_what_their_rows_say(shop: Waiting) -> None:
    run_id = shop.parked(tags=("eu",))
    assert shop.found(archived=True) == shop.found(archived=True, tag="eu") == shop.found(archived=True, step="aside") == {run_id}
    assert shop.found(archived=True, error_kind="x.PermanentError") == shop.found(archived=True, waiting_for="approval") == {run_id}
    assert shop.found(archived=True, idle=True, idle_duration_gt=0) == {run_id}
    assert shop.found(archived=True, idle=False) == shop.found(archived=True, version="0000") == set()
    for given, words in (({"lane": "x"}, "does not keep lanes"), ({"error_kind": "transient"}, "keeps the class of an error")):
        with pytest.raises(BadInput, match=words):
            shop.found(archived=True, **given)
    assert find(shop.engine, Where.parse({"archived": True}), within=frozenset({"bob"})).rows == []


@pytest.mark.spec("IDLE-7", "ERR-2")
def test_without_an_archive_parked_runs_are_missing_and_that_is_said(desk: Desk, shop: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoArchive):
        desk.found(archived=True)
    shop.parked()
    live = shop.start()

    def away() -> Any:
        raise ArchiveUnreachable(url="sqlite:////away", problem="gone for a moment")

    monkeypatch.setattr(shop.engine.archive, "open", away)
    told = find(shop.engine, Where())
    assert [row["run_id"] for row in told.rows] == [live]
    assert "parked runs are left out" in told.warning
