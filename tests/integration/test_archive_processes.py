"""The archive between processes: opened at once, written in parallel, killed in the middle, cut off, forked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event

from conductor.archive import Archive, ArchiveFilter, Kind
from conductor.archive.tables import marks
from conductor.classify import classify_error
from conductor.errors import ArchiveUnreachable
from tests.support.archived import finished, parked
from tests.support.postgres import PostgresServer
from tests.support.server import die_with_parent

ACTOR = Path(__file__).with_name("archive_actor.py")
ROOT = ACTOR.parents[2]


@contextmanager
def actor(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is ready and waits for the word to begin."""
    process = subprocess.Popen(
        [sys.executable, str(ACTOR), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, preexec_fn=die_with_parent,  # noqa: PLW1509
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


@pytest.mark.spec("RET-1")
@pytest.mark.parametrize("attempt", range(3))
def test_processes_that_open_a_new_archive_at_once_all_succeed(archive_url: str, attempt: int) -> None:
    with actor("open", archive_url) as one, actor("open", archive_url) as two, actor("open", archive_url) as three:
        for process in (one, two, three):
            begin(process)
        assert [process.wait(60) for process in (one, two, three)] == [0, 0, 0]
    with Archive.open(archive_url, "shop") as archive:
        assert archive.count() == 3


def test_threads_that_open_at_once_all_succeed(archive_url: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        archives = list(pool.map(lambda _: Archive.open(archive_url, "shop"), range(8)))
    for archive in archives:
        archive.put([finished()])
    assert archives[0].count() == 8
    for archive in archives:
        archive.close()


def test_threads_that_open_different_new_archives_at_once_do_not_mix_them_up(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        archives = list(pool.map(lambda number: Archive.open(f"sqlite:///{tmp_path}/{number}.db", "shop"), range(8)))
    for archive in archives:
        assert (archive.put([finished()]), archive.count()) == (1, 1)
        archive.close()


@pytest.mark.spec("REC-6")
def test_fifty_parallel_puts_of_the_same_runs_leave_the_greatest(archive: Archive, seed: int) -> None:
    import random

    shuffled = random.Random(seed)
    batch = [parked() for _ in range(20)]

    def put(number: int) -> int:
        versions = [replace(run, n=number, tags=(f"n{number}",), snapshot=str(number).encode()) for run in batch]
        shuffled.shuffle(versions)
        return archive.put(versions)

    with ThreadPoolExecutor(50) as pool:
        written = list(pool.map(put, shuffled.sample(range(50), 50)))
    assert sum(written) >= 20
    for run in batch:
        kept = archive.get(run.run_id, with_snapshot=True)
        assert kept is not None
        assert (kept.n, kept.tags, kept.snapshot) == (49, ("n49",), b"49")
    assert archive.count(ArchiveFilter(tag="n49")) == 20
    assert sum(archive.count(ArchiveFilter(tag=f"n{number}")) for number in range(49)) == 0


@pytest.mark.spec("RET-1")
@pytest.mark.parametrize("kill_after", [1, 3, 6])
def test_a_put_that_is_killed_leaves_all_of_its_batch_or_nothing(archive_url: str, kill_after: int) -> None:
    with actor("flood", archive_url, "40") as process:
        begin(process)
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(kill_after)]
        process.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in process.stdout.read().split()]
        process.wait()
    with Archive.open(archive_url, "shop") as archive:
        archive.put([finished(key="after")])  # nobody left a lock behind
        numbers = Counter(run.key for page in walk(archive) for run in page)
        assert numbers.pop("after") == 1
        assert set(numbers.values()) == {40}
        assert set(map(str, acknowledged)) <= set(numbers)
        for number in numbers:
            (run, *_) = archive.search(ArchiveFilter(tag=f"batch{number}"), limit=1).runs
            whole = archive.get(run.run_id, with_snapshot=True)
            assert whole is not None
            assert whole.snapshot == number.encode() * 20_000
            assert archive.count(ArchiveFilter(tag=f"batch{number}")) == 40
        with archive._connections.reading() as connection:
            assert len(connection.execute(marks.select().where(marks.c.value == "flood")).all()) == 40 * len(numbers)


def walk(archive: Archive) -> Iterator[tuple[object, ...]]:
    cursor = None
    while True:
        page = archive.search(limit=1000, cursor=cursor)
        yield page.runs
        if (cursor := page.cursor) is None:
            return


@pytest.mark.spec("RET-1")
def test_a_retry_that_comes_between_keeps_its_run_from_the_purge(archive: Archive) -> None:
    """The purge has chosen the run; before it deletes, the run is put again in a new generation."""
    run = finished(delete_after_ms=10)
    again = replace(run, generation=2, delete_after_ms=None, kind=Kind.CHECKPOINT)
    archive.put([run])
    puts: list[Future[int]] = []

    def retry(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("DELETE FROM conductor_archive_runs") and not puts:
            puts.append(pool.submit(archive.put, [again]))
            wait(puts, timeout=0.5)  # it would end within that time if nothing held it back

    with ThreadPoolExecutor(1) as pool:
        event.listen(archive._connections._engine, "before_cursor_execute", retry)
        archive.purge(100)
    assert [put.result() for put in puts] == [1]
    assert archive.get(run.run_id, with_snapshot=True) == again
    assert archive.count(ArchiveFilter(tag="eu")) == 1


def test_a_child_of_a_fork_has_connections_of_its_own(archive: Archive) -> None:
    archive.put([finished()])
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            archive.put([finished() for _ in range(20)])
            os._exit(0 if archive.count() >= 21 else 3)
        except BaseException:
            os._exit(4)
    for _ in range(20):
        archive.put([finished()])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert archive.count() == 41
    archive.put([finished()])
    assert archive.count() == 42


@pytest.fixture
def own_postgres(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A server that the test may kill; there is one if the shared one could be started."""
    server = PostgresServer().start()
    yield server
    server.stop()


@pytest.mark.spec("ERR-2")
def test_a_lost_server_is_transient_and_the_call_may_be_repeated(own_postgres: PostgresServer) -> None:
    url = own_postgres.database()
    run = finished()
    with Archive.open(url, "shop") as archive:
        archive.put([run])
        own_postgres.kill()
        calls = [
            lambda: archive.put([run]), lambda: archive.get(run.run_id), archive.search, archive.count, lambda: archive.delete([]) or archive.purge(0),
            lambda: list(archive.unfinished()), lambda: archive.ship(0, 1, 1), archive.moments, lambda: archive.purge_matching(at_ms=0, tag="x"),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(ArchiveUnreachable, match=r"cannot be reached: .*; see that the server runs.* may be repeated") as caught:
                call()
            assert classify_error(caught.value) == "transient"
            assert "unasked" not in str(caught.value)
        told = archive.examine()
        assert (told.reachable, told.dialect) == (False, "postgresql")
        assert "cannot be reached" in told.problem
        with pytest.raises(ArchiveUnreachable):
            Archive.open(url, "shop")
        own_postgres.restart()
        assert archive.put([run]) == 0
        for call in calls:
            call()


@pytest.mark.spec("ERR-2")
def test_a_connection_cut_in_the_middle_of_a_put_writes_nothing_and_the_repeat_does(own_postgres: PostgresServer) -> None:
    import psycopg

    url = own_postgres.database()
    batch = [finished() for _ in range(5)]
    with Archive.open(url, "shop") as archive:

        def cut(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            if statement.startswith("INSERT INTO conductor_archive_marks"):
                with psycopg.connect(own_postgres.url(), autocommit=True) as other:
                    other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'conductor'")

        event.listen(archive._connections._engine, "before_cursor_execute", cut)
        with pytest.raises(ArchiveUnreachable):
            archive.put(batch)
        event.remove(archive._connections._engine, "before_cursor_execute", cut)
        assert archive.count() == 0
        assert archive.put(batch) == 5
