"""Measures Conductor beside its peers and prints every row. `python -m ops.bench --help`.

Rounds are interleaved: in each round every row is measured for ours, then for each peer, before the next row begins. Rows of equal layout
share a bed in a round; the peers' beds stand still while another system is measured. Ours stays awake, because to its watchdog standing
still would be a fault: what it does while idle is at the peers' expense only by a look into Redis every half second.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from ops.bench import calls, latency, marginal, memory, scaling, throughput
from ops.bench.bed import Bed, BedFailed
from ops.bench.postgres import postgres_programs
from ops.bench.processes import ROOT
from ops.bench.rows import Layout, Readings, Row, Size, report
from ops.bench.systems import OURS, SYSTEMS
from ops.bench.table import print_table, write_json

__all__ = ["ROWS", "main", "measure"]

Durability = Literal["always", "everysec"]

ROWS: list[Row] = [*throughput.ROWS, *latency.ROWS, *memory.ROWS, *calls.ROWS, *marginal.ROWS, *scaling.ROWS]


class Beds:
    """The beds of one round and layout, started when first wanted."""

    def __init__(self, layout: Layout, appendfsync: Durability) -> None:
        self._layout, self._appendfsync = layout, appendfsync
        self._beds: dict[str, Bed] = {}
        self._broken: dict[str, str] = {}

    def get(self, system: str) -> Bed:
        """This system's bed, awake, the other peers' asleep."""
        for name, bed in self._beds.items():
            if name not in (system, OURS, *self._broken):
                bed.rest()
        if system in self._broken:
            raise BedFailed(self._broken[system])
        if system not in self._beds:
            layout = self._layout
            bed = Bed(SYSTEMS[system], self._appendfsync, processes=layout.processes, delay_ms=layout.delay_ms, env=dict(layout.env))
            self._beds[system] = bed
            try:
                bed.start()
            except Exception as problem:
                self._broken[system] = str(problem)
                raise
        self._beds[system].wake()
        return self._beds[system]

    def stop(self) -> None:
        for bed in self._beds.values():
            bed.stop()


def measure(
    rows: Sequence[Row], *, rounds: int, size: Size, durabilities: Iterable[Durability], systems: frozenset[str], console: Console,
) -> list[Readings]:
    """All readings of these rows."""
    found: list[Readings] = []
    for appendfsync in durabilities:
        chosen = [row for row in rows if (row.always or appendfsync != "always") and systems & {OURS, *row.peers}]
        readings = {row.name: Readings(row, appendfsync) for row in chosen}
        found += readings.values()
        for number in range(rounds):
            for layout in dict.fromkeys(row.layout for row in chosen):
                group = [row for row in chosen if row.layout == layout and (number == 0 or not row.slow)]
                if group:
                    console.print(f"[dim]round {number + 1} of {rounds}, appendfsync {appendfsync}[/]")
                    _round(group, Beds(layout, appendfsync), readings, size, systems, console)
    return found


def _round(rows: Sequence[Row], beds: Beds, readings: dict[str, Readings], size: Size, systems: frozenset[str], console: Console) -> None:
    try:
        for row in rows:
            for system in (name for name in (OURS, *row.peers) if name in systems):
                _read(row, system, beds, readings[row.name], size, console)
    finally:
        beds.stop()


def _read(row: Row, system: str, beds: Beds, readings: Readings, size: Size, console: Console) -> None:
    try:
        value = row.measure(beds.get(system), size)
    except Exception as problem:  # one failed row must not hide the others
        readings.errors[system] = str(problem)
        console.print(f"  {row.name:<24} {system:<14} [red]failed[/]: {problem}", markup=True)
        return
    readings.add(system, value)
    console.print(f"  {row.name:<24} {system:<14} {value:,.4g} {row.unit}")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="conductor bench", description="Measure Conductor beside its peers; every row is printed.")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (3)")
    parser.add_argument("--quick", action="store_true", help="under a minute: few rows, small numbers, a third of each factor")
    parser.add_argument("--full", action="store_true", help="stores of 1,000,000 runs instead of 100,000")
    parser.add_argument("--only", action="append", metavar="ROW", default=[], help="a row by name, or the beginning of names; repeatable")
    parser.add_argument("--system", action="append", choices=sorted(SYSTEMS), default=[], help="measure only these systems; repeatable")
    parser.add_argument("--durability", action="append", choices=("everysec", "always"), default=[], help="repeatable; default both")
    parser.add_argument("--out", type=Path, default=ROOT / "bench.json", help="where the JSON goes")
    parser.add_argument("--list", action="store_true", help="name the rows and end")
    return parser.parse_args(argv)


def _chosen(options: argparse.Namespace) -> list[Row]:
    rows = [row for row in ROWS if row.quick] if options.quick and not options.only else ROWS
    return [row for row in rows if not options.only or any(row.name.startswith(part) for part in options.only)]


def _systems(options: argparse.Namespace, console: Console) -> frozenset[str]:
    chosen = set(options.system or ((OURS, "celery") if options.quick else SYSTEMS))
    if postgres_programs() is None and "dbos-postgres" in chosen:
        console.print("no PostgreSQL server on this machine: DBOS is measured on SQLite only, its PostgreSQL rows stay empty and fail")
        chosen.discard("dbos-postgres")
    return frozenset(chosen)


def _end(number: int, frame: object) -> None:
    """Told to end: as an exception, so that every process that was started is ended too."""
    raise SystemExit(128 + number)


def main(argv: Sequence[str] | None = None) -> int:
    """0 if every must of the measured rows holds, 1 if not, 2 if the question was wrong."""
    options, console = _arguments(argv), Console(stderr=True)
    rows = _chosen(options)
    signal.signal(signal.SIGTERM, _end)
    if options.list or not rows:
        for row in ROWS:
            print(f"{row.name:<24} {row.work}")
        return 0 if options.list else 2
    quick, systems = bool(options.quick), _systems(options, console)
    found = measure(
        rows, rounds=1 if quick else options.rounds, size=Size(quick, bool(options.full)), systems=systems, console=console,
        durabilities=options.durability or (("everysec",) if quick else ("everysec", "always")),
    )
    lines: list[dict[str, Any]] = [line for readings in found for line in report(readings, quick) if line["peer"] in (None, *systems)]
    write_json(lines, options.out)
    print_table(lines, Console(width=200) if not sys.stdout.isatty() else Console())
    return 0 if all(line["holds"] is not False and not line["error"] for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
