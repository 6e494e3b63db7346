"""What people see: a table of every row, also those where the peer is ahead, and the same as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["print_table", "write_json"]


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _spread(value: list[float] | None) -> str:
    return f" [dim]{_number(value[0])}…{_number(value[1])}[/]" if value and value[0] != value[1] else ""


def _verdict(line: dict[str, Any]) -> str:
    if line["error"]:
        return f"[red]failed[/] {line['error']}"
    if line["holds"] is None:
        return "[dim]shown[/]"
    return "[green]yes[/]" if line["holds"] else "[red]no[/]"


def print_table(lines: list[dict[str, Any]], console: Console) -> None:
    table = Table(title="Conductor and its peers: medians, spread beside them", title_justify="left")
    for name in ("work", "durability", "ours", "peer", "its value", "unit", "ratio", "must", "holds"):
        table.add_column(name, justify="right" if name in ("ours", "its value", "ratio") else "left", overflow="fold")
    for line in lines:
        ratio = "–" if line["ratio"] is None else f"{line['ratio']:.2f}×"
        table.add_row(
            line["work"], line["durability"], _number(line["ours"]) + _spread(line["ours_spread"]), line["peer"] or "–",
            _number(line["peer_value"]) + _spread(line["peer_spread"]), line["unit"], ratio, line["must"] or "–", _verdict(line),
        )
    console.print(table)
    judged = [line for line in lines if line["holds"] is not None]
    console.print(f"{sum(line['holds'] for line in judged)} of {len(judged)} musts hold")


def write_json(lines: list[dict[str, Any]], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(lines, indent=1, ensure_ascii=False) + "\n")
