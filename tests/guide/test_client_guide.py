"""docs/client.md: its blocks of Python run as they stand against a real service, its table and its diagram are those of the code."""

from __future__ import annotations

import ast
import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from conductor import Workflow
from conductor.client import Backoff, Budget, Client, Code
from conductor.client.following import TABLE, mermaid
from conductor.declare import registry
from tests.integration.shop import Shop
from tests.support.streaming import Served

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
TEXT = PAGE.read_text()


class Whom(BaseModel):
    name: str


class Desk(Shop):
    """A shop that greets, and a worker of its own in a thread."""

    def declare(self) -> None:
        super().declare()
        greeting: Workflow[Any] = Workflow("greeting", input=Whom)

        @greeting.step
        def greet(whom: Whom) -> str:
            return f"Hello {whom.name}"


@pytest.fixture
def url(redis_url: str, namespace: str, clean_keys: None) -> Iterator[str]:
    with registry.isolated():
        desk = Desk(redis_url, namespace)
        served, over = Served(desk.conductor).start(), threading.Event()

        def work() -> None:
            while not over.wait(0.02):
                desk.drain()

        worker = threading.Thread(target=work)
        worker.start()
        yield f"http://127.0.0.1:{served.port}"
        over.set()
        worker.join(10)
        served.close()


def blocks() -> list[tuple[int, str]]:
    found = re.finditer(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return [(TEXT.count("\n", 0, one.start(1)), one[1]) for one in found]


@pytest.mark.spec("CLI-1", "CLI-2")
def test_every_block_runs_as_it_stands(url: str) -> None:
    """The page, from top to bottom."""
    said: list[tuple[Any, ...]] = []
    names: dict[str, Any] = {"url": url, "print": lambda *words: said.append(words), "__name__": "guide"}
    for line, code in blocks():
        tree = ast.increment_lineno(ast.parse(code), line)
        exec(compile(tree, str(PAGE), "exec"), names)
        if "async def main" in code:
            assert asyncio.run(names["main"]()) == "Hello Bob"
    assert ("Hello Ada",) in said
    assert (1, "started") in said
    names["client"].close(), names["patient"].close()


def test_the_diagram_is_generated() -> None:
    shown = TEXT.partition("<!-- following:begin")[2].partition("-->\n")[2].partition("<!-- following:end -->")[0]
    assert shown.strip() == f"```mermaid\n{mermaid()}\n```", "run `python -m conductor.client.following` and put it between the markers"


def test_the_table_names_every_code_and_the_state_it_ends_in() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", TEXT, re.MULTILINE))
    assert set(rows) == set(Code)
    assert set(rows.values()) == {state for state, row in TABLE.items() if not row}


def test_the_numbers_on_the_page_are_the_defaults() -> None:
    for kind, shown in re.findall(r"`((?:Backoff|Budget))\(([^`]*)\)`", TEXT):
        made = {"Backoff": Backoff, "Budget": Budget}[kind]()
        for name, value in re.findall(r"(\w+)=([\d.]+)", shown):
            assert getattr(made, name) == float(value), (kind, name)


def test_everything_the_page_names_is_there() -> None:
    named = re.search(r"`handle\.(status\(\) [^`]*)`", TEXT)
    assert named
    from conductor.client import Handle

    assert all(hasattr(Handle, name.rstrip("()")) for name in named[1].split())
    assert all(hasattr(Client, name) for name in ("call", "submit", "operation", "operations", "inbox", "acknowledge", "batch", "runs", "perform"))
