"""Lists of operations by pages: every operation once, a bounded look, and cursors that nobody can make up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conductor.errors import BadInput
from conductor.operations import listing
from conductor.operations.listing import list_operations
from conductor.operations.read import OpFilter
from tests.integration.front import Front, opened
from tests.support.server import ValkeyServer

pytestmark = pytest.mark.spec("SVC-1", "OP-11")


@pytest.fixture
def front(valkey: ValkeyServer, namespace: str) -> Iterator[Front]:
    with opened(valkey, namespace) as one:
        yield one


def lent(front: Front, number: int, session: str = "ada") -> list[str]:
    return [str(front.conductor.submit("lend", {"title": f"book {at}"}, session=session).operation_id) for at in range(number)]


def retrying(front: Front, number: int) -> set[str]:
    """Steps of runs that wait for a retry."""
    front.away = True
    runs = [front.conductor.start("cli_books", {"number": at}, session="ada").id for at in range(number)]
    front.drain()
    return {f"{run_id}:close" for run_id in runs}


def commands(front: Front) -> int:
    return int(front.engine.store.client().info("stats")["total_commands_processed"])


def pages(front: Front, wanted: OpFilter, limit: int) -> list[list[str]]:
    cursor, found = "", []
    while True:
        page = list_operations(front.engine, wanted, cursor=cursor, limit=limit)
        found.append([one.operation_id for one in page])
        cursor = page.cursor
        if not cursor:
            return found


@pytest.mark.parametrize("limit", [1, 3, 7, 50])
def test_pages_show_every_operation_once_newest_first_then_steps(front: Front, limit: int) -> None:
    steps = retrying(front, 3)
    alone = lent(front, 9)
    found = [one for page in pages(front, OpFilter(), limit) for one in page]
    times = [front.conductor.operation(one).created_at for one in found[:9]]
    assert (set(found[:9]), set(found[9:]), len(found)) == (set(alone), steps, 12)
    assert times == sorted(times, reverse=True)
    assert {one for page in pages(front, OpFilter(state="queued_retry"), limit) for one in page} == steps
    assert {one for page in pages(front, OpFilter(state="queued_deferred_submit"), limit) for one in page} == set(alone)


def test_a_look_is_bounded_and_its_cursor_goes_on(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    (rare,) = lent(front, 1, "eve")
    lent(front, 300)
    monkeypatch.setattr(listing, "_LOOK_AT_MOST", 100)
    wanted = OpFilter(session="eve")
    first = list_operations(front.engine, wanted)
    assert (list(first), bool(first.cursor)) == ([], True)
    found = pages(front, wanted, 50)
    assert [one for page in found for one in page] == [rare]
    assert len(found) == 4
    assert [one.operation_id for one in list_operations(front.engine, wanted, patient=True)] == [rare]
    assert rare in front.ok("ops", "list", "--session", "eve", "--json")


def test_a_filter_that_matches_nothing_costs_looks_at_records_only(front: Front) -> None:
    """An operation that its record rules out is not read further; one that must be read whole counts for many."""
    lent(front, 400)
    for wanted in (OpFilter(capability="slow"), OpFilter(state="failed"), OpFilter(session="eve"), OpFilter(older_than_ms=60_000)):
        before = commands(front)
        assert list(list_operations(front.engine, wanted)) == []
        assert commands(front) - before < 2 * 400 + 100, wanted
    before = commands(front)
    found = list_operations(front.engine, OpFilter(error_kind="transient"))
    assert (list(found), bool(found.cursor)) == ([], True)
    assert commands(front) - before < 6 * 400 + 900


def test_the_status_of_some_sessions_looks_at_open_operations_only(front: Front) -> None:
    lent(front, 50)
    with front.working():
        front.told("POST", "/call", {"capability": "lend", "params": {"title": "x"}})
    front.drain()
    steps = retrying(front, 2)
    (mine,) = lent(front, 1, "ada")
    lent(front, 3, "bob")
    told = front.told("GET", "/operations/status", who="ada")
    assert (told["queued"]["deferred_submit"], told["queued"]["retry_steps"], told["running"]) == (1, len(steps), 0)
    assert front.told("GET", "/named/operations/last", who="ada")["ids"] == [mine]


def test_over_http_a_cursor_is_given_back(front: Front) -> None:
    ids = lent(front, 5)
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        told = front.told("GET", f"/operations?limit=2{f'&cursor={cursor}' if cursor else ''}")
        seen += [one["operation_id"] for one in told["operations"]]
        cursor = told["cursor"]
    assert sorted(seen) == sorted(ids)
    assert len(seen) == 5


@pytest.mark.spec("SVC-4")
def test_a_cursor_is_good_for_its_search_and_its_asker_only(front: Front) -> None:
    lent(front, 3)
    cursor = front.told("GET", "/operations?limit=1")["cursor"]
    runs_cursor = front.told("GET", "/runs?limit=1", status=200)["cursor"] or "x"
    altered = cursor[:-2] + ("AA" if cursor[-2:] != "AA" else "BB")
    cases: list[tuple[str, dict[str, Any]]] = [
        (f"cursor={cursor}&state=queued", {}), (f"cursor={altered}", {}), (f"cursor={runs_cursor}", {}), ("cursor=x", {}), ("cursor=%F0", {}),
        (f"cursor={cursor}", {"who": "ada"}),
    ]
    for query, more in cases:
        assert front.refused("GET", f"/operations?limit=1&{query}", status=422, code="bad_input", **more)["details"]["field"] == "cursor"
    assert front.told("GET", f"/operations?limit=1&cursor={cursor}&older_than=0")["operations"]


@pytest.mark.parametrize("limit", [0, -1, 10_001, True, "5"])
def test_a_limit_that_is_none_is_refused(front: Front, limit: Any) -> None:
    with pytest.raises(BadInput, match="limit"):
        list_operations(front.engine, limit=limit)
