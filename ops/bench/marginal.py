"""Does a step cost the same when there is more of everything? Longer chains, wider fan-outs, fuller stores, each against its own smallest.

A chain and a fan-out time themselves from body to body, so start, first poke and waiting for the answer are not in it. One worker process:
with two, a wide fan-out would look cheaper only because it is shared. Fan-outs are compared by slope, (T(n₂) − T(n₁)) / (n₂ − n₁).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import pairwise

from ops.bench.bed import Bed
from ops.bench.rows import Layout, Row, Size
from ops.bench.works import one, timed_chain, timed_fan

__all__ = ["LARGE", "ROWS"]

LARGE = (("BENCH_LARGE", "1"),)
CHAINS = {10: 100, 100: 30, 1_000: 7, 10_000: 3}
FANS = {10: 100, 100: 50, 1_000: 15, 10_000: 5, 100_000: 2}
STORES = (10, 1_000, 10_000, 100_000)
MILLION = 1_000_000


def _chain_costs(bed: Bed) -> dict[int, float]:
    """Microseconds per step by length."""
    return bed.once("chains", lambda: {
        length: 1e6 * statistics.median(bed.answers(timed_chain(length), count)) / (length - 1) for length, count in CHAINS.items()
    })


def _fan_costs(bed: Bed) -> dict[int, float]:
    """Microseconds per item between one width and the next."""

    def measure() -> dict[int, float]:
        seconds = {width: statistics.median(bed.answers(timed_fan(width), count)) for width, count in FANS.items()}
        return {wide: 1e6 * (seconds[wide] - seconds[narrow]) / (wide - narrow) for narrow, wide in pairwise(FANS)}

    return bed.once("fans", measure)


def _store_costs(bed: Bed, size: Size) -> dict[int, float]:
    """Microseconds per step of a chain of 100 by the number of runs in the store."""

    def measure() -> dict[int, float]:
        costs, standing = {}, 0
        for runs in (*STORES, MILLION) if size.million else STORES:
            bed.ask("fill", work=one.doc(), count=runs - standing, patience=7200)
            standing = runs
            costs[runs] = 1e6 * statistics.median(bed.answers(timed_chain(100), 40)) / 99
        return costs

    return bed.once("stores", measure)


def _spread(costs: dict[int, float]) -> float:
    return max(costs.values()) / min(costs.values())


def chain_spread(bed: Bed, size: Size) -> float:
    return _spread(_chain_costs(bed))


def fan_spread(bed: Bed, size: Size) -> float:
    return _spread(_fan_costs(bed))


def store_spread(bed: Bed, size: Size) -> float:
    return _spread(_store_costs(bed, size))


def _chain_cost(length: int) -> Callable[[Bed, Size], float]:
    return lambda bed, size: _chain_costs(bed)[length]


def _fan_cost(width: int) -> Callable[[Bed, Size], float]:
    return lambda bed, size: _fan_costs(bed)[width]


def _store_cost(runs: int) -> Callable[[Bed, Size], float]:
    return lambda bed, size: _store_costs(bed, size)[runs]


def _row(name: str, work: str, measure: Callable[[Bed, Size], float], layout: Layout, *, most: float | None = None) -> Row:
    unit = "slowest/fastest" if most is not None else "µs/step"
    return Row(name, work, unit, measure, more_is_better=False, most=most, layout=layout, slow=True)


_ALONE = Layout(processes=1, fresh="marginal", env=LARGE)
_FULL = Layout(processes=1, fresh="full store")

ROWS = [
    *(_row(f"marginal-chain-{n}", f"a step in a chain of {n:,}", _chain_cost(n), _ALONE) for n in CHAINS),
    _row("marginal-chain", "a step in a chain of 10 … 10,000", chain_spread, _ALONE, most=1.5),
    *(_row(f"marginal-fan-{n}", f"an item in a fan-out of up to {n:,}", _fan_cost(n), _ALONE) for n in list(FANS)[1:]),
    _row("marginal-fan", "an item in a fan-out of 10 … 100,000", fan_spread, _ALONE, most=1.5),
    *(_row(f"marginal-store-{n}", f"a step with {n:,} runs in the store", _store_cost(n), _FULL) for n in STORES),
    _row("marginal-store", "a step with 10 … 100,000 runs in the store (1,000,000 with --full)", store_spread, _FULL, most=1.5),
]
