"""More workers on sleeping steps, a sweep that finds nothing, and how long a script holds the server."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from ops.bench.bed import Bed
from ops.bench.marginal import LARGE
from ops.bench.memory import valkey
from ops.bench.rows import Layout, Row, Size
from ops.bench.works import NAP_SECONDS, chain, fan, nap_fan

__all__ = ["ROWS"]

SCRIPTS = ("evalsha", "eval", "fcall")


def share_of_linear(bed: Bed, size: Size) -> float:
    """Time that sleeping alone takes on so many workers, divided by the time it took. 1 is perfect; start and join are in it."""
    items = 100 * bed.processes
    return NAP_SECONDS * items / bed.processes / statistics.median(bed.series(nap_fan(items), 2))


def _idle_sweep(bed: Bed, runs: int, what: str) -> float:
    """Milliseconds, with so many active runs that wait and nothing due: of the idle `sweep`, or of the `look` before all sweeps."""
    found = bed.once(f"idle {runs}", lambda: bed.ask("custom", verb="idle_sweeps", runs=runs, looks=200, patience=7200))
    return float(statistics.median(found[what]))


def _waits(what: str, *, many: bool) -> Callable[[Bed, Size], float]:
    return lambda bed, size: _idle_sweep(bed, 10 if not many else 1_000_000 if size.million else 100_000, what)


def _latencies(bed: Bed, run: Callable[[], object]) -> dict[str, dict[str, float]]:
    """Percentiles (µs) of each command since just before `run`."""
    client = valkey(bed)
    client.config_resetstat()
    run()
    found = client.info("latencystats")
    return {name.removeprefix("latency_percentiles_usec_"): values for name, values in found.items()}


def _mixed(bed: Bed) -> None:
    bed.series(chain(1000), 3)
    bed.burst(chain(100), 50)
    bed.series(fan(1000), 3)
    bed.series(fan(10_000), 1, timeout=300)
    bed.sustained(3000)


def _scripts(bed: Bed) -> dict[str, dict[str, float]]:
    found = bed.once("scripts", lambda: _latencies(bed, lambda: _mixed(bed)))
    return {name: values for name, values in found.items() if name in SCRIPTS}


def script_p99(bed: Bed, size: Size) -> float:
    return max(values["p99"] for values in _scripts(bed).values()) / 1000


def script_worst(bed: Bed, size: Size) -> float:
    return max(values["p100"] for values in _scripts(bed).values()) / 1000


def wide_fan_worst(bed: Bed, size: Size) -> float:
    """The longest the server was busy with any one command, scripts and plain reads alike, while 100,000 items ran."""
    found = _latencies(bed, lambda: bed.series(fan(100_000), 1, timeout=600))
    return max(values["p100"] for values in found.values()) / 1000


_SWEPT = Layout(fresh="sweep")
_HELD = Layout(fresh="scripts", env=LARGE)

ROWS = [
    *(
        Row(
            f"scale-{count}", f"{count} workers on steps of 50 ms, share of linear", "share", share_of_linear, {"celery": None}, least=0.9,
            layout=Layout(processes=count, fresh="scale"), slow=True,
        )
        for count in (2, 4, 8)
    ),
    *(
        Row(
            f"{what}{'' if many else '-10'}", f"{work}, {'100,000 active runs (1,000,000: --full)' if many else '10 active runs'}", "ms",
            _waits(what, many=many), more_is_better=False, most=1.0 if many else None, layout=_SWEPT, slow=True,
        )
        for many in (False, True)
        for what, work in (("sweep", "an idle sweep with nothing due"), ("look", "the look of all sweeps with nothing due"))
    ),
    Row(
        "script-p99", "time a script holds the server, p99 over mixed work", "ms", script_p99, more_is_better=False, most=5.0,
        layout=_HELD, slow=True,
    ),
    Row("script-worst", "time a script holds the server, longest", "ms", script_worst, more_is_better=False, layout=_HELD, slow=True),
    Row(
        "fan-100000-worst", "longest single command during 1 → 100,000 → 1", "ms", wide_fan_worst, more_is_better=False, most=50.0,
        layout=_HELD, slow=True,
    ),
]
