"""Which types fit between steps, and that decorators keep types for checkers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Optional, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from conductor.declare.fitting import fits
from conductor.declare.hints import MISSING, accepts_none, describe, without_none


class Base(BaseModel):
    id: int


class Sub(Base):
    more: int


class Typed(TypedDict):
    id: int


Name = NewType("Name", str)
T = TypeVar("T")

FIT = [
    (int, int), (Sub, Base), (int, float), (int, Any), (MISSING, str), (str, MISSING), (str, object), (str, str | None), (None, str | None),
    (list[Sub], list[Base]), (list[int], Sequence[int]), (list[int], Iterable[float]), (list, list[int]), (list[int], list), (Name, str),
    (str, Name), (Annotated[int, Field(gt=0)], int), (Literal["a"], str), (Literal["a"], Literal["a", "b"]), (str, Literal["a"]),
    (int | str, int | str | None), (dict[str, int], Mapping[str, int]), (Typed, Typed), (Typed, dict), (Typed, Mapping[str, Any]),
    (tuple[int, str], tuple[int, str]), (T, int), (datetime, datetime), (list[int | None], list[Optional[int]]),  # noqa: UP045
]
MISFIT = [
    (int, str), (float, int), (Base, Sub), (str | None, str), (list[str], list[int]), (list[int], int), (tuple[int], list[int]),
    (dict[str, str], dict[str, int]), (bool, int), (int, bool), (Literal["c"], Literal["a"]), (Literal[1], str), (int | str, int),
    (datetime, date), (dict[str, Any], Typed), (dict[str, Any], Base), (Typed, Base), (None, int), (list[int | None], list[int]),
]


@pytest.mark.spec("WF-2")
@pytest.mark.parametrize(("given_", "wanted"), FIT)
def test_fits(given_: Any, wanted: Any) -> None:
    assert fits(given_, wanted)


@pytest.mark.spec("WF-2")
@pytest.mark.parametrize(("given_", "wanted"), MISFIT)
def test_does_not_fit(given_: Any, wanted: Any) -> None:
    assert not fits(given_, wanted)


simple = st.sampled_from([int, str, float, bool, Base, Sub, type(None), Typed, datetime])
types = st.recursive(
    simple, lambda inner: st.builds(lambda one: list[one], inner) | st.builds(lambda a, b: a | b, inner, inner), max_leaves=4  # type: ignore[valid-type]
)


@given(types)
def test_every_type_fits_itself_any_and_its_optional(one: Any) -> None:
    assert fits(one, one)
    assert fits(one, Any)
    assert fits(one, one | None)
    assert accepts_none(one | None)
    assert describe(one) == describe(one)


def test_none_is_taken_off_and_types_are_said_without_modules() -> None:
    assert without_none(list[int] | None) == list[int]
    assert describe(dict[str, list[Sub] | None]) == "dict[str, list[Sub] | None]"
    assert describe(tuple[int, ...]) == "tuple[int, ...]"
    assert describe(Literal["a", 1]) == "Literal['a', 1]"


PROGRAM = '''
from conductor import Ctx, Retry, Workflow
from pydantic import BaseModel

class Order(BaseModel):
    id: int

flow = Workflow("order", input=Order)
plain = Workflow("plain")

@flow.step
def one(order: Order) -> list[str]: return []

@flow.effect(retry=Retry(max=3), timeout=5)
def two(one: list[str], ctx: Ctx) -> int: return 1

@flow.each(one, max_parallel=3)
def three(part: str) -> bytes: return b""

reveal_type(flow)
reveal_type(plain)
reveal_type(one(Order(id=1)))
reveal_type(two)
reveal_type(three("a"))
flow.delay(Order(id=1))
flow.delay(3)
one("no")
flow.step(retires=3)
'''


@pytest.mark.spec("WF-9")
def test_a_type_checker_sees_through_the_decorators(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    root = Path(__file__).parents[2]
    pytest.importorskip("mypy")
    options = ["--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={tmp_path}/cache"]
    found = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(program)], cwd=root, capture_output=True, text=True, check=False,
    ).stdout
    for expected in (
        '"conductor.declare.workflow.Workflow[program.Order]"', '"conductor.declare.workflow.Workflow[None]"',
        'Revealed type is "list[str]"', "Step[[one: list[str], ctx: conductor.declare.context.Ctx], int]", 'Revealed type is "bytes"',
        'Argument 1 to "delay" of "Workflow" has incompatible type "int"', 'Argument 1 to "__call__" of "Step" has incompatible type "str"',
        'Unexpected keyword argument "retires"',
    ):
        assert expected in found.replace("builtins.", ""), found
