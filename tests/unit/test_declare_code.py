"""A step as a worker runs it: payloads in, payload out, strictly typed both ways."""

from __future__ import annotations

import math
import timeit
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, computed_field

from conductor import BadResult, Ctx, PayloadMismatch, Results, RunOutcome, ValueTooLarge, Workflow, codec
from conductor.declare import code as code_module
from conductor.declare import registry
from conductor.declare.code import Skip
from conductor.declare.context import RUNNING
from conductor.errors import CorruptPayload, UnknownFormat, WhenFailed

CTX = Ctx.for_test()


class Item(BaseModel):
    name: str
    price: float | None = None
    kind: str = Field(default="x", alias="type")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def label(self) -> str:
        return self.name.upper()


@dataclass
class Box:
    items: list[Item]


def code_of(fn: Any, *, source: Any = None, **options: Any) -> Any:
    """The code of `fn` in a workflow whose only other step is `first`, which gives what `source` says."""
    flow = Workflow("w", input=Item)

    def first() -> Any: ...

    if source is not None:
        first.__annotations__["return"] = source
    flow.add(first)
    step = flow.add(fn, name="s", **options)
    return flow.codes[step.index]


@pytest.mark.spec("WF-1")
def test_input_and_results_arrive_typed() -> None:
    def s(x: Item, first: Box, ctx: Ctx) -> Box:
        assert (type(x), type(first.items[0]), ctx) == (Item, Item, CTX)
        return Box(items=[x, *first.items])

    code = code_of(s, source=Box)
    stored = 'j1:{"items":[{"name":"a","price":null,"kind":"x"}]}'
    given_ = codec.pack('{"name":"b","price":1.5,"kind":"y"}')
    assert code.needs == (0,)
    assert codec.decode(code.run(CTX, given_, {0: stored}, None)) == {
        "items": [{"name": "b", "price": 1.5, "kind": "y"}, {"name": "a", "price": None, "kind": "x"}]
    }


@pytest.mark.spec("WF-10")
@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ('j1:{"items":[{"name":1}]}', "items.0.name"), ('j1:{"item":[]}', "items"), ("j1:[]", "value"),
        ('j1:{"items":[{"price":"1"}]}', "items.0.name"),
    ],
)
def test_a_stored_value_that_no_longer_fits_names_the_field_and_not_the_value(payload: str, field: str) -> None:
    def s(first: Box) -> None:
        raise AssertionError("never reached")

    with pytest.raises(PayloadMismatch) as caught:
        code_of(s, source=Box).run(CTX, None, {0: payload}, None)
    error = caught.value
    assert (error.workflow, error.step, error.parameter, error.field) == ("w", "s", "first", field)
    assert "Box" in str(error)


@pytest.mark.spec("WF-10")
def test_input_and_items_are_checked_as_well() -> None:
    with pytest.raises(PayloadMismatch, match=r"'x' of step s"):
        code_of(_takes_input).run(CTX, "j1:{}", {}, None)
    flow = Workflow("w2")

    @flow.step
    def split() -> list[int]:
        return [1]

    @flow.each(split)
    def part(number: int) -> int:
        return number * 2

    assert flow.codes[1].run(CTX, None, {}, "j1:21") == "j1:42"
    with pytest.raises(PayloadMismatch, match=r"'number' of step part"):
        flow.codes[1].run(CTX, None, {}, 'j1:"21"')


def _takes_input(x: Item) -> None:
    return None


@pytest.mark.spec("WF-1", "BAD-1")
@pytest.mark.parametrize(
    ("returns", "value", "field"),
    [
        (int, "12", "value"), (int, 1.0, "value"), (list[int], [1, "2"], "1"), (Item, cast("Any", Item).model_construct(name=3), "name"),
        (type(None), 1, "value"), (Box, Box(items=[{"name": 1}]), "items.0.name"), (str, None, "value"),  # type: ignore[list-item]
        (float, math.nan, "value"),
        (float | None, math.inf, "value"), (Item, Item(name="a", price=math.nan), "price"), (dict[str, Any], {"a": object()}, "value"),
        (str, "a\0b", "value"), (Any, {"a": math.nan}, "a"),
    ],
)
def test_a_result_that_does_not_fit_is_the_steps_own_permanent_error(returns: Any, value: Any, field: str) -> None:
    def s() -> Any:
        return value

    s.__annotations__["return"] = returns
    with pytest.raises(BadResult) as caught:
        code_of(s).run(CTX, None, {}, None)
    assert (caught.value.step, caught.value.field, caught.value.error_kind) == ("s", field, "permanent")


@pytest.mark.spec("RUN-10")
def test_a_result_over_the_limit_names_size_and_limit() -> None:
    def s() -> str:
        return "x" * 100

    with pytest.raises(ValueTooLarge, match=r"result of w.s has 102 bytes, the limit is 50"):
        code_of(s).run(CTX, None, {}, None, limit=50)


@given(st.recursive(st.none() | st.integers() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=10))
def test_unannotated_steps_carry_any_json(value: Any) -> None:
    with registry.isolated():
        flow = Workflow("w")
        flow.add(lambda: value, name="first")
        flow.add(lambda first: first, name="second")
        one = flow.codes[0].run(CTX, None, {}, None)
        assert codec.decode(flow.codes[1].run(CTX, None, {0: one}, None)) == value


@pytest.mark.spec("WF-3")
def test_a_condition_sees_the_steps_parameters_and_decides() -> None:
    ran = []

    def s(x: Item, first: int) -> str:
        ran.append(first)
        return "ran"

    code = code_of(s, source=int, when=lambda first, x: first > 3 and x.name == "a")
    item = codec.pack('{"name":"a"}')
    assert code.run(CTX, item, {0: "j1:4"}, None) == 'j1:"ran"'
    with pytest.raises(Skip):
        code.run(CTX, item, {0: "j1:3"}, None)
    assert ran == [4]


@pytest.mark.spec("WF-3")
def test_a_condition_that_raises_fails_the_step_for_good() -> None:
    def boom(first: int) -> bool:
        raise ConnectionError("no")

    with pytest.raises(WhenFailed, match=r"condition of step s .* raised ConnectionError: no") as caught:
        code_of(lambda first: 1, source=int, when=boom).run(CTX, None, {0: "j1:1"}, None)
    assert caught.value.error_kind == "permanent"
    assert isinstance(caught.value.__cause__, ConnectionError)


@pytest.mark.spec("WF-3")
def test_a_skipped_input_is_none_or_the_default() -> None:
    def s(first: int | None) -> str:
        return repr(first)

    def t(first: int = 7) -> str:
        return repr(first)

    assert code_of(s, source=int).run(CTX, None, {0: None}, None) == 'j1:"None"'
    with registry.isolated():
        assert code_of(t, source=int).run(CTX, None, {0: None}, None) == 'j1:"7"'


@pytest.mark.spec("WF-6")
def test_a_join_receives_a_list_or_lazy_results_in_order() -> None:
    flow = Workflow("w")

    @flow.step
    def split() -> list[int]:
        return [1, 2, 3]

    @flow.each(split)
    def part(number: int) -> Item:
        return Item(name=str(number))

    @flow.step
    def eager(part: list[Item]) -> list[str]:
        assert type(part) is list
        return [item.name for item in part]

    @flow.step
    def lazy(part: Results[Item]) -> list[str]:
        assert isinstance(part, Results)
        return [item.name for item in part]

    flow.add(lambda part: len(part), name="untyped")
    payloads = [codec.pack(f'{{"name":"{n}"}}') for n in range(3)]
    joined: list[Any] = [Results.of(payloads), codec.join_list(payloads)]
    for value in joined:
        for index, expected in ((2, ["0", "1", "2"]), (3, ["0", "1", "2"]), (4, 3)):
            assert codec.decode(flow.codes[index].run(CTX, None, {1: value}, None)) == expected
    broken: Results[Item] = Results.of([payloads[0], "j1:{}"])
    for index in (2, 3):
        with pytest.raises(PayloadMismatch, match=r"name: Field required"):
            flow.codes[index].run(CTX, None, {1: broken}, None)


@pytest.mark.spec("WF-6", "RUN-10")
def test_a_list_that_is_fanned_out_is_bounded_by_member(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Workflow("w")
    made: list[Any] = []

    @flow.step
    def split() -> Any:
        return made[0]

    flow.each(split, name="part")(lambda x: x)
    run = flow.codes[0].run
    made[:] = [["x" * 40] * 50]  # long as a whole, each member short
    assert len(codec.split_list(run(CTX, None, {}, None, limit=100))) == 50
    made[:] = [["x", "y" * 200]]
    with pytest.raises(ValueTooLarge, match=r"item 1 of result of w.split"):
        run(CTX, None, {}, None, limit=100)
    for wrong in (None, "text", {"a": 1}, 3):
        made[:] = [wrong]
        with pytest.raises(BadResult, match=r"a list was expected because a later step runs for each member"):
            run(CTX, None, {}, None)
    monkeypatch.setattr(code_module, "MAX_ITEMS", 2)
    made[:] = [[1, 2, 3]]
    with pytest.raises(ValueTooLarge, match=r"3 items, the limit is 2"):
        run(CTX, None, {}, None)
    made[:] = [[]]
    assert run(CTX, None, {}, None) == "j1:[]"


@pytest.mark.spec("WF-17")
def test_a_last_step_is_told_the_outcome() -> None:
    flow = Workflow("w")
    flow.add(lambda: 1, name="a")
    told: list[RunOutcome] = []

    @flow.on_finish
    def last(outcome: RunOutcome) -> None:
        told.append(outcome)

    outcome = RunOutcome(state="failed", reason="step_failed", failed=({"step": "a", "reason": "boom", "items": (1, 2)},))
    assert flow.codes[1].run(CTX, None, {-1: codec.encode(outcome)}, None) == codec.NULL
    assert told == [outcome]
    assert not told[0].ok


def test_formats_nobody_knows_are_not_guessed() -> None:
    code = code_of(lambda first: first)
    with pytest.raises(UnknownFormat):
        code.run(CTX, None, {0: "zz:1"}, None)
    with pytest.raises((CorruptPayload, PayloadMismatch)):
        code.run(CTX, None, {0: "j1:{"}, None)


@pytest.mark.spec("WF-9")
def test_the_running_step_is_known_while_it_runs_and_only_then() -> None:
    seen: list[Ctx | None] = []
    code_of(lambda: seen.append(RUNNING.get())).run(CTX, None, {}, None)
    assert seen == [CTX]
    with registry.isolated(), pytest.raises(ZeroDivisionError):
        code_of(lambda: 1 / 0).run(CTX, None, {}, None)
    assert RUNNING.get() is None


def test_keyword_only_and_positional_only_parameters_work() -> None:
    def s(first: int, /, x: Item, *, times: int = 2, ctx: Ctx) -> int:
        return first * times

    code = code_of(s, source=int)
    assert code.run(CTX, 'j1:{"name":"a"}', {0: "j1:4"}, None) == "j1:8"


def test_a_step_costs_microseconds() -> None:
    def s(first: int) -> None:
        return None

    code = code_of(s, source=int)
    values = {0: "j1:1"}
    best = min(timeit.repeat(lambda: code.run(CTX, None, values, None), number=2000, repeat=5)) / 2000
    assert best < 20e-6


@pytest.mark.spec("WF-1")
def test_the_result_of_a_run_is_its_only_leaf_or_a_dict() -> None:
    flow = Workflow("w")

    @flow.step
    def split() -> list[int]:
        return [1]

    @flow.each(split)
    def part(number: int) -> Item:
        return Item(name="a")

    assert flow.result_of({"part": Results.of(['j1:{"name":"a"}'])}) == [Item(name="a")]
    assert flow.result_of({"part": 'j1:[{"name":"a"}]'}) == [Item(name="a")]
    assert flow.result_of({"split": "j1:[1]", "part": None}) == {"split": [1], "part": None}
    assert flow.result_of({"gone": 'j1:{"a":1}'}) == {"a": 1}
    with pytest.raises(PayloadMismatch):
        flow.result_of({"part": "j1:[{}]"})
