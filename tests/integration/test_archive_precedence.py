"""Which of all puts of one run stays: decided by what they say, never by the order in which processes put them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conductor.archive import Archive, ArchivedRun, ArchiveFilter, Kind
from conductor.ids import new_run_id
from conductor.state import RunState
from tests.support.archived import finished, parked
from tests.support.postgres import PostgresServer

ENDED = [RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED]
OPEN = [RunState.RUNNING, RunState.WAITING_SIGNAL, RunState.PAUSED]
forms = st.one_of(
    st.tuples(st.just(Kind.FINISHED), st.sampled_from(ENDED)),
    st.tuples(st.just(Kind.PARKED), st.just(RunState.WAITING_SIGNAL)),
    st.tuples(st.just(Kind.CHECKPOINT), st.sampled_from(ENDED + OPEN)),
)


@st.composite
def versions(draw: st.DrawFn) -> dict[str, Any]:
    kind, state = draw(forms)
    return {
        "kind": kind, "state": state, "generation": draw(st.integers(1, 3)), "n": draw(st.integers(0, 4)), "progress_at_ms": draw(st.integers(0, 2)),
        "tags": tuple(draw(st.sets(st.sampled_from("abc")))), "snapshot": draw(st.binary(max_size=3)),
    }


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archive]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('archive')}/archive.db"
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.database()
    with Archive.open(url, "shop") as archive:
        yield archive


@pytest.mark.spec("REC-6")
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(puts=st.lists(versions(), min_size=1, max_size=5), data=st.data())
def test_any_order_of_puts_gives_the_same_row(shared: Archive, puts: list[dict[str, Any]], data: st.DataObject) -> None:
    orders = [puts, data.draw(st.permutations(puts)), data.draw(st.permutations(puts + puts))]
    kept = []
    for order in orders:
        run_id = new_run_id(16)
        cuts = data.draw(st.integers(1, len(order)))
        for start in range(0, len(order), cuts):  # alone, in batches, or all in one transaction
            shared.put([finished(run_id=run_id, **values) for values in order[start : start + cuts]])
        run = shared.get(run_id, with_snapshot=True)
        assert run is not None
        for tag in "abc":
            assert shared.count(ArchiveFilter(run_id_prefix=run_id, tag=tag)) == int(tag in run.tags)
        kept.append(replace(run, run_id=""))
    assert kept[0] == kept[1] == kept[2]
    assert order_of(kept[0]) == max(order_of(finished(**values)) for values in puts)


def order_of(run: ArchivedRun) -> tuple[int, ...]:
    """The rule, told a second time."""
    return (run.generation, int(run.state in ENDED), run.n, run.progress_at_ms, ["checkpoint", "parked", "finished"].index(run.kind))


@pytest.mark.spec("REC-6")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (finished(generation=1, n=90), parked(generation=2, n=3)),  # a retry is a new life
        (parked(n=90), finished(n=3)),  # within a generation the end is the end
        (parked(n=4), parked(n=5)),
        (parked(n=5, kind=Kind.CHECKPOINT), parked(n=5)),  # Redis has deleted the keys of the parked one
        (finished(kind=Kind.CHECKPOINT), finished()),
    ],
)
def test_the_greater_wins(shared: Archive, first: ArchivedRun, second: ArchivedRun) -> None:
    for order in ((first, second), (second, first)):
        run_id = new_run_id(16)
        for run in order:
            shared.put([replace(run, run_id=run_id)])
        assert shared.get(run_id, with_snapshot=True) == replace(second, run_id=run_id)
