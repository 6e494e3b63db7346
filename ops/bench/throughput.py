"""Steps and runs a second: chains, fan-outs, one-step runs, and the same beside real steps and a real network."""

from __future__ import annotations

import statistics

from ops.bench.bed import Bed
from ops.bench.rows import Layout, Row, Size
from ops.bench.works import chain, fan, nap_chain, nap_fan, op

__all__ = ["ROWS"]

PARALLEL = "max_parallel 64, slots 2"


def chain_100(bed: Bed, size: Size) -> float:
    return 100 / statistics.median(bed.series(chain(100), size.pick(20, 5)))


def chains_50(bed: Bed, size: Size) -> float:
    return 50 * 100 / bed.burst(chain(100), 50)


def chain_1000(bed: Bed, size: Size) -> float:
    return 1000 / statistics.median(bed.series(chain(1000), size.pick(3, 1)))


def fan_1000(bed: Bed, size: Size) -> float:
    return statistics.median(bed.series(fan(1000), size.pick(5, 2)))


def fan_10000(bed: Bed, size: Size) -> float:
    return statistics.median(bed.series(fan(10_000), 1, timeout=300))


def _many(bed: Bed, size: Size) -> int:
    """How many one-step runs: fewer where each waits for the disk, so that a round ends within minutes."""
    return size.pick(5_000 if bed.appendfsync == "always" else 20_000, 1_000)


def _drained(bed: Bed, size: Size) -> tuple[float, float]:
    count = _many(bed, size)
    accepted, drained = bed.once("drained", lambda: bed.drained(count))
    return count / accepted, count / drained


def drained(bed: Bed, size: Size) -> float:
    return _drained(bed, size)[1]


def operations(bed: Bed, size: Size) -> float:
    count = size.pick(10_000, 1_000)
    return count / bed.drained(count, op)[1]


def accepted(bed: Bed, size: Size) -> float:
    return _drained(bed, size)[0]


def sustained(bed: Bed, size: Size) -> float:
    count = _many(bed, size)
    return count / bed.sustained(count)


def slow_chain(bed: Bed, size: Size) -> float:
    return 20 / statistics.median(bed.series(nap_chain(20), size.pick(3, 1)))


def slow_fan(bed: Bed, size: Size) -> float:
    return statistics.median(bed.series(nap_fan(200), 1))


FAR = Layout(delay_ms=1.0)

ROWS = [
    Row(
        "chain-100", "chain of 100, one run", "steps/s", chain_100, {"celery": 8, "dbos-postgres": 8, "dbos-sqlite": None, "huey": None},
        always=True, under_always={"celery": 5, "dbos-postgres": 5}, quick=True,
    ),
    Row(
        "chains-50", "50 chains of 100 at once", "steps/s", chains_50, {"celery": 10, "huey": 3, "dbos-postgres": None}, always=True,
        quick=True,
    ),
    Row("chain-1000", "chain of 1,000", "steps/s", chain_1000, {"celery": 20}, always=True),
    Row(
        "fan-1000", f"1 → 1,000 → 1 ({PARALLEL})", "s", fan_1000, {"celery": 10, "huey": None}, more_is_better=False, always=True,
        quick=True,
    ),
    Row("fan-10000", f"1 → 10,000 → 1 ({PARALLEL})", "s", fan_10000, {"celery": 20, "huey": None}, more_is_better=False),
    Row(
        "drain", "20,000 one-step runs (5,000 under always), drained", "runs/s", drained, {"celery": 4, "huey": 1}, always=True, quick=True,
        quick_work="1,000 one-step runs, drained",
    ),
    Row(
        "operations", "10,000 due retries of operations, drained", "ops/s", operations, {"celery": 2}, quick=True,
        quick_work="1,000 due retries of operations, drained",
    ),
    Row("start", "start accepted, durable", "runs/s", accepted, {"celery": 2, "huey": None}, always=True, quick=True),
    Row(
        "sustained", "20,000 one-step runs (5,000 under always), enqueued while drained", "runs/s", sustained,
        {"celery": 3, "huey": None}, always=True, quick=True, quick_work="1,000 one-step runs, enqueued while drained",
    ),
    Row("chain-50ms", "chain of 20 steps of 50 ms", "steps/s", slow_chain, {"celery": None}),
    Row("fan-50ms", f"1 → 200 steps of 50 ms → 1 ({PARALLEL})", "s", slow_fan, {"celery": None, "huey": None}, more_is_better=False),
    Row("chain-100-far", "chain of 100, 1 ms of network to Redis", "steps/s", chain_100, {"celery": None}, layout=FAR),
    Row("chains-50-far", "50 chains of 100, 1 ms of network to Redis", "steps/s", chains_50, {"celery": None}, layout=FAR),
    Row(
        "fan-1000-far", f"1 → 1,000 → 1, 1 ms of network to Redis ({PARALLEL})", "s", fan_1000, {"celery": None}, more_is_better=False,
        layout=FAR,
    ),
]
