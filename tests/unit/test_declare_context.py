"""`Ctx`, `Results` and the registry."""

from __future__ import annotations

import importlib
import logging
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor import BadInput, Ctx, DeclarationError, Results, ValueTooLarge, Workflow, codec
from conductor.declare import registry
from conductor.declare.context import key_of


@pytest.mark.spec("WF-4", "WF-12")
def test_the_key_is_run_step_and_index() -> None:
    assert key_of("r", "charge") == "r:charge"
    assert key_of("r", "encode", 7) == "r:encode:7"
    assert Ctx.for_test(run_id="r", step="encode", item=7).key == "r:encode:7"
    assert Ctx.for_test("mine").key == "mine"


@pytest.mark.spec("WF-12")
def test_cancelled_and_stopping_are_asked_each_time() -> None:
    state = {"cancelled": False, "stopping": False}
    ctx = Ctx.for_test(is_cancelled=lambda: state["cancelled"], is_stopping=lambda: state["stopping"])
    assert (ctx.cancelled, ctx.stopping) == (False, False)
    state.update(cancelled=True, stopping=True)
    assert (ctx.cancelled, ctx.stopping) == (True, True)


@pytest.mark.spec("WF-12")
def test_a_checkpoint_is_found_by_the_next_attempt() -> None:
    saved: dict[str, str] = {}

    def attempt(number: int) -> Ctx:
        return Ctx(
            key="k", run_id="r", attempt=number, save_checkpoint=lambda payload: saved.update(cp=payload),
            load_checkpoint=lambda: saved.get("cp"),
        )

    first = attempt(1)
    assert first.last_checkpoint is None
    first.checkpoint({"page": 7})
    assert first.last_checkpoint == {"page": 7}
    assert saved == {"cp": 'j1:{"page":7}'}
    second = attempt(2)
    assert second.last_checkpoint == {"page": 7}
    second.checkpoint({"page": 8})
    assert second.last_checkpoint == {"page": 8}
    second.checkpoint({"page": 7})
    with pytest.raises(ValueTooLarge, match="checkpoint of step"):
        first.checkpoint("x" * 2_000_000)
    with pytest.raises(BadInput):
        first.checkpoint(math.nan)
    assert attempt(3).last_checkpoint == {"page": 7}


@pytest.mark.spec("WF-12")
def test_progress_is_told_in_finite_numbers() -> None:
    told: list[Any] = []
    ctx = Ctx.for_test(on_progress=lambda *args: told.append(args))
    ctx.progress(1)
    ctx.progress(2.5, 10, "n" * 1000)
    assert told == [(1, None, ""), (2.5, 10, "n" * 500)]
    wrong: list[tuple[Any, Any]] = [(math.nan, 1), (1, math.inf), ("1", 2), (True, 2)]
    for done, total in wrong:
        with pytest.raises(BadInput, match="progress of step"):
            ctx.progress(done, total)


@pytest.mark.spec("WF-12")
def test_the_log_names_run_step_and_attempt(caplog: pytest.LogCaptureFixture) -> None:
    ctx = Ctx.for_test(run_id="r-1", step="charge", attempt=2)
    with caplog.at_level(logging.INFO, "conductor.step"):
        ctx.log.info("charged %s", 3, extra={"amount": 3})
    record: Any = caplog.records[0]
    assert record.getMessage() == "[r-1 charge #2] charged 3"
    assert (record.run_id, record.step, record.attempt, record.amount) == ("r-1", "charge", 2, 3)


class Pages:
    """A store of results that counts how often it was asked."""

    def __init__(self, values: Sequence[int]) -> None:
        self.payloads = [codec.encode(value) for value in values]
        self.asked: list[tuple[int, int]] = []

    def __call__(self, start: int, stop: int) -> list[str | None]:
        self.asked.append((start, stop))
        return list(self.payloads[start:stop])


@pytest.mark.spec("WF-6")
@given(st.lists(st.integers(), max_size=30), st.integers(1, 7), st.integers(-35, 35), st.slices(30))
def test_results_behave_like_the_list(values: list[int], page: int, index: int, part: slice) -> None:
    results: Results[int] = Results(Pages(values), len(values), page=page)
    assert (list(results), len(results), results == values, results[part]) == (values, len(values), True, values[part])
    assert list(reversed(results)) == values[::-1]
    if -len(values) <= index < len(values):
        assert results[index] == values[index]
    else:
        with pytest.raises(IndexError):
            results[index]


@pytest.mark.spec("WF-6")
def test_results_are_read_page_by_page_and_only_when_looked_at() -> None:
    pages = Pages(range(25))
    results: Results[int] = Results(pages, 25, page=10)
    assert len(results) == 25
    assert pages.asked == []
    assert results[3] == 3
    assert results[24] == 24
    assert pages.asked == [(0, 10), (20, 25)]
    pages.asked.clear()
    assert sum(results) == 300
    assert pages.asked == [(0, 10), (10, 20), (20, 25)]


@pytest.mark.spec("WF-6")
def test_a_page_that_is_not_whole_is_an_error_not_a_shorter_list() -> None:
    results: Results[int] = Results(lambda start, stop: ["j1:1"], 3)
    with pytest.raises(LookupError, match="1 of 3 were read"):
        list(results)


def test_a_skipped_item_is_none() -> None:
    assert list(Results.of(["j1:1", None, "j1:3"])) == [1, None, 3]


@pytest.mark.spec("WF-2")
def test_two_places_may_not_share_a_name() -> None:
    Workflow("same")
    with pytest.raises(DeclarationError) as caught:
        Workflow("same")
    assert str(caught.value).count("test_declare_context.py") == 2


def test_the_same_place_again_replaces() -> None:
    first, second = [Workflow("loop") for _ in range(2)]
    assert registry.declared["loop"] is second is not first


def test_a_reloaded_module_replaces_its_workflows_even_if_lines_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = tmp_path / "reloaded_flows.py"
    module.write_text("from conductor import Workflow\nflow = Workflow('reloaded')\n")
    imported = importlib.import_module("reloaded_flows")
    first = imported.flow
    module.write_text("from conductor import Workflow\n\n\n# a line more\nflow = Workflow('reloaded')\n")
    importlib.invalidate_caches()
    importlib.reload(imported)
    assert registry.declared["reloaded"] is imported.flow is not first
    module.write_text("from conductor import Workflow\nflow = Workflow('reloaded')\nagain = Workflow('reloaded')\n")
    with pytest.raises(DeclarationError, match="declared in two places"):
        importlib.reload(imported)


def test_importing_the_package_is_light() -> None:
    import subprocess

    program = "import sys, conductor; print([m for m in sys.modules if m.split('.')[0] in ('celery', 'kombu', 'redis', 'django')])"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True).stdout.strip() == "[]"
