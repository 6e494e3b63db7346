"""What a row is, and how readings become what is printed: medians, spread, ratio, whether the must holds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ops.bench.bed import Bed
from ops.bench.systems import OURS, SYSTEMS

__all__ = ["Layout", "Readings", "Row", "Size", "report"]


@dataclass(frozen=True)
class Size:
    """How much work a measurement does: `pick(full, quick)` chooses; `million` asks for the largest stores."""

    quick: bool = False
    million: bool = False

    def pick(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True)
class Layout:
    """The bed a row wants: rows of equal layout share one in a round. `fresh` names a bed of its own."""

    processes: int = 2
    delay_ms: float = 0.0
    fresh: str = ""
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Row:
    """One line of the comparison; `measure` is the same code for ours and for every peer.

    `peers` gives the factor that must hold beside each peer, None where the number is only shown. With `share` the ratio is ours/peer and
    must not exceed the factor, otherwise it is how many times better ours is and must reach it. `most` and `least` bound ours alone.
    Under `always` half of a factor must hold, unless `under_always` says otherwise.
    """

    name: str
    work: str
    unit: str
    measure: Callable[[Bed, Size], float]
    peers: Mapping[str, float | None] = field(default_factory=dict)
    more_is_better: bool = True
    share: bool = False
    most: float | None = None
    least: float | None = None
    always: bool = False
    under_always: Mapping[str, float] = field(default_factory=dict)
    layout: Layout = Layout()
    quick: bool = False
    quick_work: str = ""  # what the quick form does, where that is less than `work` says
    slow: bool = False  # one round is enough: the measurement is long, or counts what noise cannot move

    def factor(self, peer: str, appendfsync: str, quick: bool) -> float | None:
        """The ratio that must hold. In the quick form a third is enough: it looks for a collapse, not for a regression."""
        factor = self.peers[peer]
        if factor is None:
            return None
        if appendfsync == "always":
            factor = self.under_always.get(peer, factor * 2 if self.share else factor / 2)
        if quick:
            factor = factor * 3 if self.share else factor / 3
        return factor

    def ratio(self, ours: float, peer: float) -> float:
        if self.share:
            return ours / peer
        return ours / peer if self.more_is_better else peer / ours


@dataclass
class Readings:
    """What was read for one row under one durability: a list of values, or an error, by system."""

    row: Row
    appendfsync: str
    values: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def add(self, system: str, value: float) -> None:
        self.values.setdefault(system, []).append(value)


def report(readings: Readings, quick: bool = False) -> list[dict[str, Any]]:
    """The printed rows: one per peer, and one for the bound on ours if there is one."""
    row = readings.row
    lines = [_versus(readings, peer, quick) for peer in row.peers]
    if row.most is not None or row.least is not None or not row.peers:
        lines.append(_bounded(readings, quick))
    return lines


def _versus(readings: Readings, peer: str, quick: bool) -> dict[str, Any]:
    row = readings.row
    line = _line(readings, peer, quick)
    factor = row.factor(peer, readings.appendfsync, quick)
    if factor is not None:
        line["must"] = f"{'≤' if row.share else '≥'} {factor:.3g}×"
    if line["ours"] is not None and line["peer_value"] is not None:
        line["ratio"] = row.ratio(line["ours"], line["peer_value"])
        if factor is not None:
            line["holds"] = line["ratio"] <= factor if row.share else line["ratio"] >= factor
    elif factor is not None:
        line["holds"] = False
    return line


def _bounded(readings: Readings, quick: bool) -> dict[str, Any]:
    row = readings.row
    line = _line(readings, None, quick)
    bounds = [f"≤ {row.most:g}"] if row.most is not None else []
    bounds += [f"≥ {row.least:g}"] if row.least is not None else []
    line["must"] = ", ".join(bounds) or None
    if bounds:
        value = line["ours"]
        line["holds"] = value is not None and (row.most is None or value <= row.most) and (row.least is None or value >= row.least)
    return line


def _line(readings: Readings, peer: str | None, quick: bool) -> dict[str, Any]:
    row = readings.row
    durability = SYSTEMS[OURS].durability(readings.appendfsync)
    if peer is not None and SYSTEMS[peer].durability(readings.appendfsync) != durability:
        durability += f" / {SYSTEMS[peer].durability(readings.appendfsync)}"
    errors = [readings.errors[name] for name in (OURS, peer) if name in readings.errors]
    return {
        "row": row.name, "work": (quick and row.quick_work) or row.work, "unit": row.unit, "ours": _median(readings, OURS), "peer": peer,
        "peer_value": _median(readings, peer), "ratio": None, "must": None, "holds": None, "durability": durability,
        "ours_spread": _spread(readings, OURS), "peer_spread": _spread(readings, peer), "error": "; ".join(errors) or None,
    }


def _median(readings: Readings, system: str | None) -> float | None:
    """No median where any round failed: a row with lost work is a failed row."""
    found = readings.values.get(system or "")
    return statistics.median(found) if found and system not in readings.errors else None


def _spread(readings: Readings, system: str | None) -> list[float] | None:
    found = readings.values.get(system or "")
    return [min(found), max(found)] if found else None
