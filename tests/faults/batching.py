"""A batch retry that is struck anywhere and taken up again: each run is retried exactly once, although it has failed again meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from conductor.declare import registry
from conductor.operations import batches
from conductor.runs.batching import Action
from conductor.runs.filters import Where

if TYPE_CHECKING:
    from tests.faults.lean import Lean

__all__ = ["batched"]

Right = dict[str, str]
NAMES = ("one", "two", "three")


def batched(lean: Lean) -> Right:
    """Three runs that fail whatever one does, in two pages; a slice of the batch is over after each of them."""
    batches._PAGE, batches._SLICE = 2, 0.0
    registry.bind(SimpleNamespace(engine=lean.engine))  # type: ignore[arg-type]
    for number, name in enumerate(NAMES):
        lean.start(name, "brittle", n=number)
    lean.drive(lean.ended(*NAMES), "all have failed")
    where = Where.parse({"workflow": "brittle", "status": "failed"})
    lean.runs["batch"] = batches.submit(lean.engine, Action.RETRY, where, reason="again", actor="test", rate=10_000.0, key="batch")
    lean.answers["batch"] = {"done": 3, "changed": 3, "unchanged": 0, "failed": 0, "errors": [], "total": 3}  # type: ignore[assignment]
    _forsake(lean)
    lean.drive(lean.ended("batch"), "the batch ends")
    lean.drive(lean.ended(*NAMES), "all have failed again")
    lives = [sum(entry.startswith("g;") for entry in lean.truth.lrange(lean.store.keys.run(lean.runs[name], "log"), 0, -1)) for name in NAMES]
    assert lives == [1, 1, 1], f"runs were retried so often: {lives}"
    return dict.fromkeys(NAMES, "failed") | {"batch": "completed"}


def _forsake(lean: Lean) -> None:
    """Whoever worked on it before this process is dead: the quarter of a minute that its lease still has is not waited for."""
    run_id = lean.runs["batch"]
    lean.truth.zadd(lean.store.keys.of(int(run_id[-2:], 16), "leases"), {f"{run_id}:0": 1}, xx=True)
