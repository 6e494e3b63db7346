"""How long one caller waits on an idle system: from the call of `delay` to the return of `get`."""

from __future__ import annotations

import statistics

from ops.bench.bed import Bed
from ops.bench.rows import Row, Size
from ops.bench.works import chain, one

__all__ = ["ROWS"]

_PAUSE = 0.005  # between two pieces of work, so that the system is idle again


def one_step(bed: Bed, size: Size) -> float:
    return 1000 * statistics.median(bed.series(one, size.pick(300, 50), pause=_PAUSE))


def three_steps(bed: Bed, size: Size) -> float:
    return 1000 * statistics.median(bed.series(chain(3), size.pick(200, 30), pause=_PAUSE))


ROWS = [
    Row(
        "one-p50", "one-step run on an idle system, p50", "ms", one_step, {"celery": 1.2, "huey": None, "dbos-postgres": None},
        share=True, more_is_better=False, always=True, quick=True,
    ),
    Row(
        "three-p50", "three-step run on an idle system, p50", "ms", three_steps, {"celery": 0.5, "huey": None, "dbos-postgres": None},
        share=True, more_is_better=False, always=True, quick=True,
    ),
]
