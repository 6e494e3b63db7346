"""The archive on both servers: what is put is found, by what people search for, without loading it; and it goes when its time is over."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, update

from conductor.archive import Archive, ArchivedRun, ArchiveFilter, Erased, Kind, Moment
from conductor.archive.tables import marks, runs
from conductor.errors import ArchivedRunCorrupt, ArchiveFormatUnknown, BadInput
from conductor.ids import new_run_id
from conductor.state import RunState
from tests.support.archived import finished, parked


def bare(run: ArchivedRun) -> ArchivedRun:
    return replace(run, snapshot=None)


def found(archive: Archive, **wanted: Any) -> set[str]:
    by = ArchiveFilter(**wanted)
    page = archive.search(by, limit=1000)
    assert archive.count(by) == len(page.runs)
    return {run.run_id for run in page.runs}


@pytest.mark.spec("RET-1")
def test_what_is_put_comes_back_whole(archive: Archive) -> None:
    run = finished(reason="Größe: ☃", snapshot=bytes(range(256)) * 500, failed_steps=("charge",), blobs=("b",), n=2**53 + 1)
    assert archive.put([run]) == 1
    assert archive.get(run.run_id, with_snapshot=True) == run
    assert archive.get(run.run_id) == bare(run)
    assert archive.get(new_run_id(16)) is None
    assert archive.get("not a run") is None
    assert archive.get("nul\0") is None


@pytest.mark.spec("RET-1")
def test_putting_twice_is_putting_once(archive: Archive) -> None:
    batch = [finished() for _ in range(3)]
    assert (archive.put(batch), archive.put(batch), archive.put([]), archive.count()) == (3, 0, 0, 3)
    assert archive.put([*batch, finished()]) == 1


def test_snapshots_are_compressed(archive: Archive) -> None:
    run = finished(snapshot=b"same " * 10_000)
    archive.put([run])
    with archive._connections.reading() as connection:
        stored = connection.scalar(runs.select().with_only_columns(runs.c.snapshot))
    assert stored is not None
    assert len(stored) < 1000
    assert zlib.decompress(stored) == run.snapshot


@pytest.mark.spec("RUN-10")
def test_listing_never_loads_snapshots(archive: Archive) -> None:
    archive.put([finished(), parked()])
    asked: list[str] = []
    event.listen(archive._connections._engine, "before_cursor_execute", lambda *call: asked.append(call[2]))
    assert all(run.snapshot is None for run in archive.search().runs)
    assert all(run.snapshot is None for page in archive.unfinished() for run in page)
    archive.count()
    archive.get(new_run_id(16))
    assert len(asked) >= 4
    assert not any("snapshot" in statement for statement in asked)


@pytest.fixture
def four(archive: Archive) -> dict[str, str]:
    """Four runs that differ in everything that is searched for."""
    made = {
        "done": finished(created_at_ms=1_000, ended_at_ms=2_000, workflow="order", key="a", session="ada", tags=("eu",), version="v1"),
        "failed": finished(
            created_at_ms=2_000, ended_at_ms=5_000, workflow="ship", key="b", session="bob", tags=("us", "vip"), version="v2",
            state=RunState.FAILED, failed_steps=("charge", "mail"), error_kind="permanent",
        ),
        "parked": parked(created_at_ms=3_000, key="c", session="ada", tags=("vip",), idle_since_ms=3_500, waiting_for=("approval", "draft"), version="v1"),
        "live": finished(
            created_at_ms=4_000, kind=Kind.CHECKPOINT, state=RunState.RUNNING, ended_at_ms=None, key="d", session="eve", tags=(), version="v1",
        ),
    }
    archive.put(made.values())
    archive.put([])
    return {name: run.run_id for name, run in made.items()}


@pytest.mark.spec("IDLE-7")
@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({}, "done failed parked live"),
        ({"workflow": "ship"}, "failed"),
        ({"states": ("completed", RunState.RUNNING)}, "done live"),
        ({"kinds": (Kind.FINISHED, "parked")}, "done failed parked"),
        ({"key": "c"}, "parked"),
        ({"session": "ada"}, "done parked"),
        ({"tag": "vip"}, "failed parked"),
        ({"tag": "vip", "session": "ada"}, "parked"),
        ({"version": "v2"}, "failed"),
        ({"step": "mail"}, "failed"),
        ({"step": "vip"}, ""),
        ({"error_kind": "permanent"}, "failed"),
        ({"waiting_for": "draft"}, "parked"),
        ({"created_since_ms": 2_000, "created_until_ms": 4_000}, "failed parked"),
        ({"ended_since_ms": 2_000, "ended_until_ms": 5_000}, "done"),
        ({"idle": True}, "parked"),
        ({"idle": False}, "done failed live"),
        ({"idle_longer_than_ms": 500, "now_ms": 4_001}, "parked"),
        ({"idle_longer_than_ms": 500, "now_ms": 4_000}, ""),
        ({"workflow": "no such"}, ""),
    ],
)  # fmt: skip
def test_runs_are_found_by_what_people_ask_for(archive: Archive, four: dict[str, str], wanted: dict[str, Any], names: str) -> None:
    assert found(archive, **wanted) == {four[name] for name in names.split()}


@pytest.mark.spec("IDLE-7")
def test_a_parked_run_says_since_when_it_waits_and_for_what(archive: Archive, four: dict[str, str]) -> None:
    (run,) = archive.search(ArchiveFilter(idle=True)).runs
    assert (run.idle_since_ms, run.waiting_for, run.kind) == (3_500, ("approval", "draft"), Kind.PARKED)


def test_runs_are_found_by_the_beginning_of_their_id(archive: Archive, four: dict[str, str]) -> None:
    for length in (36, 30):
        assert four["done"] in found(archive, run_id_prefix=four["done"][:length])
    assert found(archive, run_id_prefix=four["done"]) == {four["done"]}
    assert found(archive, run_id_prefix="ffff") == set()


@pytest.mark.spec("RET-1")
def test_what_a_run_is_found_by_changes_with_it(archive: Archive) -> None:
    run = parked(tags=("old", "both"), n=5)
    archive.put([run])
    archive.put([replace(run, n=6, tags=("new", "both"), waiting_for=())])
    assert (found(archive, tag="old"), found(archive, waiting_for="approval")) == (set(), set())
    assert found(archive, tag="new") == found(archive, tag="both") == {run.run_id}
    archive.put([run])
    assert found(archive, tag="old") == set()


def test_namespaces_do_not_see_each_other(archive: Archive, archive_url: str) -> None:
    run = finished()
    archive.put([run])
    with Archive.open(archive_url, "other") as other:
        other.put([replace(run, namespace="other", workflow="theirs")])
        other.ship(0, 7, 7)
        assert [one.workflow for one in other.search().runs] == ["theirs"]
        other.purge_matching(at_ms=0, tag="eu")
        other.purge(10**12)
    assert archive.get(run.run_id) == bare(run)
    assert found(archive, tag="eu") == {run.run_id}
    assert archive.moments() == ()


def test_pages_come_newest_first_and_miss_nothing(archive: Archive) -> None:
    batch = [finished(created_at_ms=created) for created in (5, 5, 5, 4, 9, 1, 5, 7) for _ in range(4)]
    archive.put(batch)
    order = [run.run_id for run in sorted(batch, key=lambda run: (run.created_at_ms, run.run_id), reverse=True)]
    for limit in (1, 5, 32, 50):
        assert [run.run_id for page in pages(archive, limit) for run in page] == order


def test_a_page_read_while_others_write_repeats_nothing(archive: Archive) -> None:
    batch = [finished(created_at_ms=created) for created in range(10, 20)]
    archive.put(batch)
    first = archive.search(limit=5)
    archive.put([finished(created_at_ms=99), replace(batch[0], generation=2)])
    second = archive.search(limit=50, cursor=first.cursor)
    assert [run.created_at_ms for run in (*first.runs, *second.runs)] == list(range(19, 9, -1))
    assert second.cursor is None


def test_a_caller_that_used_part_of_a_page_goes_on_behind_it(archive: Archive) -> None:
    archive.put([finished(created_at_ms=created) for created in range(10)])
    by = ArchiveFilter(workflow="order")
    page = archive.search(by, limit=6)
    rest = archive.search(by, cursor=archive.cursor_after(page.runs[1], by))
    assert [run.created_at_ms for run in rest.runs] == list(range(7, -1, -1))


def pages(archive: Archive, limit: int) -> Iterator[tuple[ArchivedRun, ...]]:
    cursor = None
    while True:
        page = archive.search(limit=limit, cursor=cursor)
        yield page.runs
        if (cursor := page.cursor) is None:
            return


@pytest.mark.spec("BAD-1")
def test_a_forged_cursor_is_refused(archive: Archive, archive_url: str, tmp_path: Path) -> None:
    archive.put([finished() for _ in range(3)])
    cursor = archive.search(limit=1).cursor
    assert cursor is not None
    raw = base64.urlsafe_b64decode(cursor)
    body = json.loads(raw[16:])
    moved = base64.urlsafe_b64encode(raw[:16] + json.dumps([9, *body[1:]]).encode()).decode()
    with Archive.open(f"sqlite:///{tmp_path}/elsewhere.db", "shop") as elsewhere, Archive.open(archive_url, "other") as other:
        elsewhere.put([finished() for _ in range(2)])
        other.put([finished(namespace="other") for _ in range(2)])
        strangers = [archive_of.search(limit=1).cursor for archive_of in (elsewhere, other)]
    for forged in ("", "x", "'; DROP TABLE", "é", "\0", cursor[:-2], cursor + "AAAA", moved, cursor.swapcase(), *strangers):
        assert forged is not None
        with pytest.raises(BadInput, match="cursor: it is not one that this archive gave; begin again without a cursor"):
            archive.search(limit=1, cursor=forged)
    with pytest.raises(BadInput, match="another filter"):
        archive.search(ArchiveFilter(workflow="order"), limit=1, cursor=cursor)
    assert archive.search(limit=1, cursor=cursor).runs


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize(
    "wanted",
    [{"states": ("done",)}, {"kinds": ("old",)}, {"run_id_prefix": "%"}, {"run_id_prefix": "0190'"}, {"tag": "a\0"}, {"idle_longer_than_ms": 5}],
)
def test_an_unknown_filter_value_is_an_error_not_ignored(archive: Archive, wanted: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="search refused"):
        archive.search(ArchiveFilter(**wanted))
    with pytest.raises(BadInput):
        archive.count(ArchiveFilter(**wanted))


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_a_page_has_bounds(archive: Archive, limit: int) -> None:
    with pytest.raises(BadInput, match="limit"):
        archive.search(limit=limit)


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize(
    "wrong",
    [
        {"run_id": "x"}, {"run_id": "01900000-0000-7000-8000-0000000000AB"}, {"namespace": "other"}, {"snapshot": None}, {"state": "done"},
        {"kind": "old"}, {"kind": Kind.PARKED}, {"state": RunState.RUNNING}, {"generation": 0}, {"generation": 2**31 - 1}, {"n": -1},
        {"n": 2**63}, {"created_at_ms": -1}, {"delete_after_ms": 2**63},
    ],
)  # fmt: skip
def test_a_wrong_run_is_refused_and_nothing_of_its_batch_is_written(archive: Archive, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="archiving run"):
        archive.put([finished(), finished(**wrong), finished()])
    assert archive.count() == 0


@pytest.mark.spec("BAD-1")
def test_an_unknown_format_is_refused_never_guessed(archive: Archive) -> None:
    with pytest.raises(ArchiveFormatUnknown, match="has format 2, this process reads 1; upgrade"):
        archive.put([finished(format=2)])
    run = parked()
    archive.put([run])
    with archive._connections.writing() as connection:
        connection.execute(update(runs).values(format=2))
    with pytest.raises(ArchiveFormatUnknown, match=run.run_id):
        archive.get(run.run_id, with_snapshot=True)
    assert [one.format for one in archive.search().runs] == [2]  # it is listed, and left alone
    assert [one.format for page in archive.unfinished() for one in page] == [2]


@pytest.mark.spec("REC-1")
def test_a_damaged_row_names_its_run_and_does_not_hide_the_others(archive: Archive) -> None:
    good, bad = parked(), parked()
    archive.put([good, bad])
    with archive._connections.writing() as connection:
        connection.execute(update(runs).where(runs.c.run_id == bad.run_id).values(snapshot=b"damaged"))
    with pytest.raises(ArchivedRunCorrupt, match=f"purge --run {bad.run_id}"):
        archive.get(bad.run_id, with_snapshot=True)
    assert {run.run_id for page in archive.unfinished() for run in page} == {good.run_id, bad.run_id}
    assert archive.get(good.run_id, with_snapshot=True) == good


@pytest.mark.spec("REC-1")
@pytest.mark.parametrize(
    "damage", [{"waiting_for": "{bad"}, {"state": "hibernating"}, {"tags": "7"}], ids=lambda damage: next(iter(damage)))
def test_a_row_that_cannot_be_read_hides_no_other(archive: Archive, damage: dict[str, str]) -> None:
    rows = [parked(created_at_ms=1000 + number) for number in range(5)]
    archive.put(rows)
    bad = sorted(run.run_id for run in rows)[2]
    with archive._connections.writing() as connection:
        connection.execute(update(runs).where(runs.c.run_id == bad).values(**damage))
    good, told = {run.run_id for run in rows} - {bad}, []
    for size in (1, 3, 10):
        pages = archive.unfinished(page_size=size, unreadable=lambda run_id, error: told.append((run_id, str(error))))
        assert {run.run_id for page in pages for run in page} == good
    assert [run_id for run_id, _ in told] == [bad] * 3
    assert all(bad in error for _, error in told)
    for size in (1, 3, 10):
        seen, unreadable, cursor = [], [], None
        while True:
            page = archive.search(limit=size, cursor=cursor)
            seen += [run.run_id for run in page.runs]
            unreadable += page.unreadable
            if (cursor := page.cursor) is None:
                break
        assert seen == [run.run_id for run in reversed(rows) if run.run_id != bad]
        assert unreadable == [bad]
    assert set(archive.positions([run.run_id for run in rows])) == good | {bad}
    assert [one.run_id for one in archive.purge_matching(at_ms=0, run_id=bad)] == [bad]


@pytest.mark.spec("REC-6")
def test_keep_tells_what_may_be_let_go(archive: Archive) -> None:
    same, behind, other, ended, erased = parked(), parked(), parked(), finished(), finished()
    archive.put([replace(behind, n=20), replace(other, snapshot=b"another history"), replace(ended, n=20)])
    archive.purge_matching(at_ms=0, run_id=erased.run_id)
    differs = max((other, replace(other, snapshot=b"another history")), key=lambda run: archive.put([run]) or 0)
    loser = other if differs.snapshot == b"another history" else replace(other, snapshot=b"another history")
    archive.put([differs])
    assert archive.keep([same, behind, loser, ended, erased]) == {same.run_id, ended.run_id, erased.run_id}
    assert archive.keep([same]) == {same.run_id}, "put twice is put once"
    assert archive.keep([]) == set()
    found = archive.positions([behind.run_id, erased.run_id, "nobody"])
    assert found[behind.run_id].order == (1, 0, 20)
    assert found[erased.run_id].erased
    assert len(found) == 2


@pytest.mark.spec("REC-2")
def test_a_later_note_wins_at_one_event_number(archive: Archive) -> None:
    before, noted = parked(progress_at_ms=1_500), parked(kind=Kind.CHECKPOINT, progress_at_ms=1_600)
    noted = replace(noted, run_id=before.run_id)
    for order in ((before, noted), (noted, before)):
        archive.put(order[:1])
        archive.put(order[1:])
        kept = archive.get(before.run_id)
        assert kept is not None
        assert kept.progress_at_ms == 1_600


@pytest.mark.spec("RUN-1")
def test_runs_that_ended_under_a_key_are_found(archive: Archive) -> None:
    late, keyless, early, waits = finished(), finished(key=""), finished(ended_at_ms=10), parked()
    archive.put([late, keyless, early, waits])
    assert [run.run_id for page in archive.keyed(ended_since_ms=1_000) for run in page] == [late.run_id]


def test_a_reason_may_quote_anything(archive: Archive) -> None:
    run = finished(reason="half \ud800, nul \0, \x1b[31m", tags=("t" * 5000, "ok\0"))
    archive.put([run])
    kept = archive.get(run.run_id)
    assert kept is not None
    assert kept.reason == "half ?, nul \ufffd, \x1b[31m"
    assert found(archive, tag="t" * 5000) == {run.run_id}


@pytest.mark.spec("REC-1")
def test_recovery_reads_all_that_has_not_ended_page_by_page(archive: Archive) -> None:
    waiting = [parked() for _ in range(7)]
    live = [finished(kind=Kind.CHECKPOINT, state=RunState.RUNNING, ended_at_ms=None) for _ in range(6)]
    archive.put([*waiting, *live, finished(), finished(kind=Kind.CHECKPOINT)])
    read = list(archive.unfinished(page_size=4))
    assert [len(page) for page in read] == [4, 4, 4, 1]
    assert [run.run_id for page in read for run in page] == sorted(run.run_id for run in (*waiting, *live))
    assert {run for page in archive.unfinished(kinds=["parked"]) for run in page} == {bare(run) for run in waiting}
    rest = [run for page in archive.unfinished(after=read[1][-1].run_id) for run in page]
    assert rest == [run for page in read[2:] for run in page]
    assert list(archive.unfinished(after="f")) == []


@pytest.mark.spec("RET-1")
def test_runs_are_purged_when_their_time_is_over(archive: Archive) -> None:
    old = [finished(delete_after_ms=100 + number, blobs=(f"b{number}",)) for number in range(1203)]
    kept = [finished(delete_after_ms=5_000), parked()]
    archive.put([*old, *kept])
    assert archive.purge(99) == ()
    some = archive.purge(5_000 - 1, at_most=700)
    assert [one.run_id for one in some[:3]] != []
    assert len(some) == 700
    gone = {*some, *archive.purge(5_000 - 1)}
    assert gone == {Erased(run.run_id, run.blobs) for run in old}
    assert archive.purge(5_000 - 1) == ()
    assert found(archive) == {run.run_id for run in kept}
    assert count_marks(archive) == sum(len(run.tags) + len(run.waiting_for) for run in kept)


@pytest.mark.spec("RET-1")
def test_deleted_runs_are_gone_and_may_be_put_again(archive: Archive) -> None:
    batch = [finished(blobs=("x",)) for _ in range(3)]
    archive.put(batch)
    ids = [run.run_id for run in batch[:2]]
    assert {one.run_id for one in archive.delete([*ids, new_run_id(16), "no id"])} == set(ids)
    assert archive.delete(ids) == ()
    assert found(archive) == {batch[2].run_id}
    assert archive.put(batch) == 2


@pytest.mark.spec("RET-1")
@pytest.mark.parametrize("by", ["run_id", "tag", "session"])
def test_erasing_takes_a_run_away_for_good(archive: Archive, by: str) -> None:
    target = parked(tags=("secret",), session="mallory", blobs=("one", "two"))
    other = finished()
    archive.put([target, other])
    value = {"run_id": target.run_id, "tag": "secret", "session": "mallory"}[by]
    assert archive.purge_matching(at_ms=1_000, **{by: value}) == (Erased(target.run_id, ("one", "two")),)  # type: ignore[arg-type]
    assert archive.purge_matching(at_ms=1_000, **{by: value}) == ()  # type: ignore[arg-type]
    # A shipper that read the run before it was erased comes late:
    assert archive.put([target, replace(target, n=50, generation=9)]) == 0
    assert archive.get(target.run_id) is None
    assert archive.delete([target.run_id]) == ()
    assert found(archive) == {other.run_id}
    assert list(archive.unfinished()) == []
    assert dict(archive.examine().rows) == {Kind.FINISHED: 1, Kind.PARKED: 0, Kind.CHECKPOINT: 0}
    assert everything_about(archive, target.run_id) == {target.run_id, "shop", "erased", "[]", ""}
    assert archive.purge(1_000 + 86_400_000) == (Erased(other.run_id),)
    assert everything_about(archive, target.run_id) == set()


def everything_about(archive: Archive, run_id: str) -> set[str]:
    with archive._connections.reading() as connection:
        rows = connection.execute(runs.select().where(runs.c.run_id == run_id)).all()
        rows += connection.execute(marks.select().where(marks.c.run_id == run_id)).all()  # type: ignore[arg-type]
    return {value for row in rows for value in row if isinstance(value, str)}


def count_marks(archive: Archive) -> int:
    with archive._connections.reading() as connection:
        return len(connection.execute(marks.select()).all())


@pytest.mark.spec("RET-1")
def test_a_run_that_is_not_here_yet_can_be_erased_by_its_id(archive: Archive) -> None:
    run = finished()
    assert archive.purge_matching(at_ms=0, run_id=run.run_id) == ()
    assert archive.put([run]) == 0
    assert archive.count() == 0


def test_many_runs_are_erased_by_tag(archive: Archive) -> None:
    archive.put([finished() for _ in range(1100)])
    assert len(archive.purge_matching(at_ms=0, tag="gift")) == 1100
    assert (archive.count(), count_marks(archive)) == (0, 0)


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize("given", [{}, {"tag": ""}, {"tag": "a", "session": "b"}, {"session": "a\0"}, {"run_id": "no id"}])
def test_erasing_needs_exactly_one_thing_to_go_by(archive: Archive, given: dict[str, str]) -> None:
    archive.put([finished(tags=("a",), session="b")])
    with pytest.raises(BadInput):
        archive.purge_matching(at_ms=0, **given)
    assert archive.count() == 1


def test_counting_can_stop_early(archive: Archive) -> None:
    archive.put([finished() for _ in range(30)])
    assert (archive.count(at_most=10), archive.count(at_most=99), archive.count()) == (10, 30, 30)


@pytest.mark.spec("REC-6")
def test_the_moment_of_each_partition_only_grows(archive: Archive) -> None:
    assert (archive.moments(), archive.epoch()) == ((), 0)
    for partition, epoch, at in ((3, 1, 100), (0, 1, 50), (3, 1, 90), (3, 1, 100), (3, 2, 40), (3, 1, 999)):
        archive.ship(partition, epoch, at)
    assert archive.moments() == (Moment(0, 1, 50), Moment(3, 2, 40))
    assert archive.epoch() == 2


@pytest.mark.spec("SET-1")
def test_doctor_learns_what_it_is(archive: Archive, archive_url: str) -> None:
    archive.put([finished(), parked()])
    told = archive.examine()
    assert (told.reachable, told.problem, told.schema, told.newest_schema) == (True, "", "0001", "0001")
    assert told.one_host == archive_url.startswith("sqlite")
    assert told.dialect == archive_url.partition(":")[0]
    assert dict(told.rows) == {Kind.FINISHED: 1, Kind.PARKED: 1, Kind.CHECKPOINT: 0}
    assert told.server
    assert "unasked" not in told.url
