"""docs/operations.md as the tests read it: its blocks of Python, run as they stand on a real server, and its table of answers."""

from __future__ import annotations

import ast
import json
import re
import time
from pathlib import Path
from typing import Any

from conductor.sweeps.outbox import sweep_outbox
from conductor.sweeps.retries import sweep_retries
from tests.integration.shop import Shop

__all__ = ["BLOCKS", "TEXT", "Guide", "table", "written"]

_PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
TEXT = _PAGE.read_text()


def _sections() -> dict[str, list[tuple[int, str]]]:
    """The blocks of Python under each heading, with the line each begins at."""
    found: dict[str, list[tuple[int, str]]] = {}
    for part in re.finditer(r"^## (?P<title>[^\n]+)$|^```python\n(?P<code>.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        if title := part["title"]:
            found[title] = []
        else:
            found[list(found)[-1]].append((TEXT.count("\n", 0, part.start("code")), part["code"]))
    return found


BLOCKS = _sections()


class Guide(Shop):
    """The page, on a server. `run` executes blocks; what they leave behind is in `names`."""

    def __init__(self, redis_url: str, namespace: str) -> None:
        super().__init__(redis_url, namespace)
        self.names: dict[str, Any] = {"conductor": self.conductor, "__name__": "guide", "print": lambda *said: self.said.append(said)}
        self.said: list[tuple[Any, ...]] = []

    def run(self, title: str, *which: int) -> dict[str, Any]:
        for number, (line, code) in enumerate(BLOCKS[title]):
            if not which or number in which:
                tree = ast.increment_lineno(ast.parse(code), line)
                exec(compile(tree, str(_PAGE), "exec"), self.names)
        return self.names

    def move(self, tail: str) -> None:
        """What stands in this index lies in the past now."""
        client, keys = self.engine.store.client(), self.engine.store.keys
        for number in range(self.engine.store.partitions):
            for member in client.zrange(keys.of(number, tail), 0, -1):
                client.zadd(keys.of(number, tail), {member: 1})

    def pass_time(self) -> None:
        """Every retry is due, is taken by a worker, and what is owed is told."""
        self.move("due")
        sweep_retries(self.engine)
        self.drain()
        sweep_outbox(self.engine)

    def lose_workers(self) -> None:
        """Every lease has ended, and the stall sweep comes."""
        store = self.engine.store
        self.move("leases")
        for number in range(store.partitions):
            store.client().hset(store.keys.head(number), "look", int(time.time() * 1000))
            store.expire_leases(number)
        self.drain()


def table() -> list[tuple[str, dict[str, Any]]]:
    rows = re.findall(r"^\| `(\w+)` \| `(\{.*?\})` \|", TEXT, re.MULTILINE)
    return [(name, json.loads(told)) for name, told in rows]


def written(answer: Any) -> dict[str, Any]:
    """The row that is this answer: what the page says of it, its dots filled with what it says itself."""
    told = answer.to_json()
    row = next(row for name, row in table() if name == type(answer).__name__ and row.keys() == told.keys() and all(
        row[word] == told[word] for word in ("status", "reason", "error_kind", "queue_reason") if word in row and row[word] != "a mistake"))
    return {word: _filled(shown, told[word]) for word, shown in row.items()}


def _filled(shown: Any, told: Any) -> Any:
    if isinstance(shown, dict) and isinstance(told, dict):
        return {word: _filled(value, told[word]) for word, value in shown.items()}
    return told if shown in ("…", 1795004807037) else shown
