"""Starting: input and options are checked before anything is handed on."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any, cast

import pytest
from pydantic import BaseModel, ConfigDict, Field

from conductor import BadInput, NoConductor, SettingsError, ValueTooLarge, Workflow, codec
from conductor.declare import registry
from conductor.declare.starting import StartOptions, start_options


class Line(BaseModel):
    sku: str
    count: int = 1


class Order(BaseModel):
    id: int
    lines: list[Line] = Field(default_factory=list)
    placed_at: datetime | None = None
    price: float | None = None


class Other(BaseModel):
    id: int


class Recorder:
    def __init__(self) -> None:
        self.started: list[tuple[str, str, StartOptions]] = []

    def start(self, flow: Workflow[Any], *, payload: str, options: StartOptions) -> Any:
        self.started.append((flow.name, payload, options))
        return f"handle-{len(self.started)}"


@pytest.fixture
def recorder() -> Recorder:
    found = Recorder()
    registry.bind(found)
    return found


@pytest.fixture
def flow() -> Workflow[Order]:
    made = Workflow("order", input=Order)
    made.add(lambda: 1, name="only")
    return made


@pytest.mark.spec("WF-9")
def test_a_start_hands_on_the_payload_and_the_checked_options(flow: Workflow[Order], recorder: Recorder) -> None:
    handle: Any = flow.delay(Order(id=1))
    assert handle == "handle-1"
    eta = datetime(2030, 1, 1, tzinfo=UTC)
    flow.apply_async(
        {"id": 2}, key="order-2", eta=eta, expires=60, priority=0, tags=["vip", "eu", "vip"], deadline=timedelta(hours=1),
        session="s", queue="q",
    )
    flow.apply_async({"id": 3}, countdown=1.5)
    (_, payload, plain), (_, _, full), (_, _, later) = recorder.started
    assert payload == 'j1:{"id":1,"lines":[],"placed_at":null,"price":null}'
    assert plain == StartOptions()
    assert full == StartOptions("order-2", "s", "q", 0, ("vip", "eu"), 0, 1_893_456_000_000, 60_000, 3_600_000)
    assert later.delay_ms == 1500


@pytest.mark.spec("WF-9")
def test_times_may_be_moments(flow: Workflow[Order], recorder: Recorder) -> None:
    flow.apply_async({"id": 1}, expires=datetime.now(UTC) + timedelta(minutes=1), deadline=datetime.now(UTC) + timedelta(hours=1))
    options = recorder.started[0][2]
    assert 59_000 < options.expires_ms <= 60_000
    assert 3_599_000 < options.deadline_ms <= 3_600_000


@pytest.mark.spec("WF-9")
def test_without_a_conductor_the_remedy_is_named(flow: Workflow[Order]) -> None:
    registry.bind(None)
    with pytest.raises(NoConductor, match=r"workflow order cannot be started.*Conductor\(app\)"):
        flow.delay({"id": 1})


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"id": "12"}, "id"), ({"id": True}, "id"), ({"id": 1.0}, "id"), ({}, "id"), ({"id": 1, "lins": []}, "lins"),
        ({"id": 1, "lines": [{"sku": "a", "cuont": 2}]}, "lines.0.cuont"), ({"id": 1, "lines": [{"sku": 3}]}, "lines.0.sku"),
        (None, "value"), (7, "value"), ("{}", "value"), (Other(id=1), "value"), ({"id": 1, "price": math.nan}, "price"),
        (Order(id=1, price=math.inf), "price"), ({"id": 1, "lines": [{"sku": "a\0"}]}, "lines.0.sku"),
        (cast("Any", Order).model_construct(id="x"), "id"), ({"id": object()}, "value"),
        ([("id", 1)], "value"),
    ],
)
def test_wrong_input_is_refused_by_field_and_nothing_is_started(
    flow: Workflow[Order], recorder: Recorder, value: Any, field: str
) -> None:
    with pytest.raises(BadInput, match=r"input of workflow order refused") as caught:
        flow.delay(value)
    assert caught.value.field == field
    assert recorder.started == []


@pytest.mark.spec("BAD-1", "ERR-2")
@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"id": "12"}, "id: Input should be a valid integer, text was given; types are strict"),
        ({"id": 1.0}, "id: Input should be a valid integer, a number with a decimal point was given; types are strict"),
        ({"id": 1, "price": "x", "lines": {}},
         "lines: Input should be a valid array, an object was given; price: Input should be a valid number, text was given; types are strict"),
        ({}, "id: Field required"),
        ({"lines": [{"sku": 1}, {"sku": 2}, {"sku": 3}, {}]},
         ("id: Field required; lines.0.sku: Input should be a valid string, a whole number was given; "
          "lines.1.sku: Input should be a valid string, a whole number was given; and 2 more; types are strict")),
        (None, "value: nothing was given; Order was expected, which needs id"),
        ([], "value: Input should be an object, a list was given; types are strict"),
    ],
)
def test_a_refusal_says_what_kind_was_given_for_up_to_three_fields(flow: Workflow[Order], value: Any, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        flow.encode_input(value)
    assert str(caught.value) == f"input of workflow order refused: {says}"


@dataclass
class Data:
    id: int
    note: str = ""
    tags: list[str] = field(default_factory=list)


@pytest.mark.spec("BAD-1", "ERR-2")
@pytest.mark.parametrize(("model", "says"), [(Data, "Data was expected, which needs id"), (int, "int was expected")])
def test_an_input_that_is_missing_is_told_with_what_it_needs(model: Any, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        Workflow("w", input=model).encode_input()
    assert str(caught.value) == f"input of workflow w refused: value: nothing was given; {says}"


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize("character", ["\x01", "\x07", "\b", "\f", "\x1b", "\x7f", "\x9b"])
def test_control_characters_in_an_input_are_refused(flow: Workflow[Order], character: str) -> None:
    for value in ({"id": 1, "lines": [{"sku": f"a{character}b"}]}, Order(id=1, lines=[Line(sku=character)])):
        with pytest.raises(BadInput, match=r"lines\.0\.sku: it holds a control character"):
            flow.encode_input(value)


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize("text", ["a\tb\r\nc", "a\\bc", "\\u0007", "\\f"])
def test_tabs_line_breaks_and_spellings_of_control_characters_are_taken(flow: Workflow[Order], text: str) -> None:
    payload = flow.encode_input({"id": 1, "lines": [{"sku": text}]})
    assert codec.decode(payload)["lines"][0]["sku"] == text


@pytest.mark.spec("BAD-1", "ERR-2")
def test_a_refusal_never_repeats_the_value() -> None:
    flow = Workflow("w", input=Order)
    with pytest.raises(BadInput) as caught:
        flow.encode_input({"id": "4111-1111-1111-1111"})
    assert "4111" not in str(caught.value)


@pytest.mark.spec("BAD-1")
def test_known_fields_are_listed_for_an_unknown_one(flow: Workflow[Order]) -> None:
    with pytest.raises(BadInput, match=r"lins: no such field \(known: id, lines, placed_at, price\)"):
        flow.encode_input({"id": 1, "lins": []})


@pytest.mark.spec("BAD-1", "RUN-10")
def test_large_input_is_refused(flow: Workflow[Order]) -> None:
    with pytest.raises(ValueTooLarge, match=r"input of workflow order has .* bytes, the limit is 1048576"):
        flow.encode_input({"id": 1, "lines": [{"sku": "x" * 1_100_000}]})


@pytest.mark.spec("RUN-1")
def test_an_instance_and_its_plain_form_give_the_same_payload(flow: Workflow[Order]) -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    plain = {"placed_at": when.isoformat(), "id": 1, "lines": [{"sku": "a"}]}
    assert flow.encode_input(Order(id=1, lines=[Line(sku="a")], placed_at=when)) == flow.encode_input(plain)


def test_a_model_that_takes_extra_fields_keeps_them() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        id: int

    flow = Workflow("w", input=Open)
    assert flow.encode_input({"id": 1, "more": 2}) == flow.encode_input(Open.model_validate({"id": 1, "more": 2})) == 'j1:{"id":1,"more":2}'


def test_aliases_are_understood_and_names_are_stored() -> None:
    class Aliased(BaseModel):
        order_id: int = Field(alias="orderId")

    flow = Workflow("w", input=Aliased)
    forms = [{"orderId": 1}, {"order_id": 1}, Aliased(orderId=1)]
    assert {flow.encode_input(form) for form in forms} == {'j1:{"order_id":1}'}


def test_a_workflow_without_input_takes_none(recorder: Recorder) -> None:
    flow = Workflow("w")
    flow.delay()
    assert recorder.started[0][1] == "j1:null"
    with pytest.raises(BadInput, match=r"takes no input"):
        flow.delay({"id": 1})


def test_a_dataclass_of_another_class_is_refused() -> None:
    @dataclass
    class A:
        id: int

    @dataclass
    class B:
        id: int

    flow = Workflow("w", input=A)
    assert flow.encode_input(A(1)) == 'j1:{"id":1}'
    with pytest.raises(BadInput, match=r"it is a .*B, not a A"):
        flow.encode_input(B(1))


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("key", ""), ("key", "x" * 513), ("key", "a\0"), ("key", "a\nb"), ("key", 5), ("session", "\x1b[31m"), ("session", "x" * 257),
        ("queue", "a;b"), ("queue", ""), ("priority", 10), ("priority", -1), ("priority", "5"), ("priority", True),
        ("tags", "vip"), ("tags", [1]),
        ("tags", ["a\n"]), ("tags", ["eu,west"]), ("tags", ["x" * 129]), ("tags", [str(n) for n in range(33)]), ("tags", 7), ("countdown", -1),
        ("countdown", math.nan),
        ("countdown", "5"), ("countdown", True), ("countdown", 10**400), ("eta", datetime(2030, 1, 1)), ("eta", "2030-01-01"),  # noqa: DTZ001
        ("eta", 5), ("expires", 0),
        ("expires", datetime(2030, 1, 1)), ("expires", datetime(2020, 1, 1, tzinfo=UTC)), ("deadline", -5),  # noqa: DTZ001
        ("deadline", math.inf),
    ],
)
def test_wrong_options_are_refused_by_name_and_nothing_is_started(
    flow: Workflow[Order], recorder: Recorder, option: str, value: Any
) -> None:
    with pytest.raises(BadInput, match=r"start of workflow order refused") as caught:
        flow.apply_async({"id": 1}, **{option: value})
    assert caught.value.field == option
    assert recorder.started == []


@pytest.mark.spec("BAD-1", "ERR-2")
def test_an_unknown_option_of_a_start_is_told_with_the_nearest_name(flow: Workflow[Order]) -> None:
    with pytest.raises(BadInput) as caught:
        start_options("order", prioriti=3)
    known = "(known: countdown, deadline, eta, expires, key, lane, priority, queue, session, tags)"
    said = "prioriti: no such option, did you mean 'priority'?"
    assert str(caught.value) == f"start of workflow order refused: {said} {known}"


@pytest.mark.spec("ERR-2")
@pytest.mark.parametrize(("option", "value", "says"), [
    ("priority", 11, "priority: it is 11; a whole number from 0 (first) to 9 was expected"),
    ("queue", "a b", "queue: 'a b' is not 1 to 128 letters, digits or any of . _ : / @ # + -"),
])
def test_no_word_of_a_refusal_stands_twice(flow: Workflow[Order], option: str, value: Any, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        flow.apply_async({"id": 1}, **{option: value})
    assert str(caught.value) == f"start of workflow order refused: {says}"


def test_countdown_and_eta_together_are_refused(flow: Workflow[Order], recorder: Recorder) -> None:
    with pytest.raises(BadInput, match=r"one of them says when"):
        flow.apply_async({"id": 1}, countdown=1, eta=datetime.now(UTC))


@pytest.mark.spec("WF-9")
def test_on_commit_checks_at_once_and_starts_later(flow: Workflow[Order], recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[Callable[[], Any]] = []
    django, db = ModuleType("django"), ModuleType("django.db")
    transaction: Any = ModuleType("django.db.transaction")
    transaction.on_commit = lambda call, using=None: waiting.append(call)
    db.transaction = transaction  # type: ignore[attr-defined]
    for name, module in (("django", django), ("django.db", db), ("django.db.transaction", transaction)):
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(BadInput):
        flow.delay_on_commit({"id": "1"})
    with pytest.raises(BadInput):
        flow.delay_on_commit({"id": 1}, priority=11)
    flow.delay_on_commit({"id": 1}, key="k")
    assert recorder.started == []
    waiting[0]()
    assert recorder.started[0][2].key == "k"
    assert len(waiting) == 1


def test_without_django_the_way_out_is_named(flow: Workflow[Order], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "django.db", None)
    with pytest.raises(SettingsError, match=r"Django is not installed"):
        flow.delay_on_commit({"id": 1})
