"""Payloads: what goes in comes out, and what JSON cannot carry faithfully is refused before it is stored."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from conductor import codec
from conductor.errors import BadInput, ConductorError, CorruptPayload, UnknownFormat, ValueTooLarge

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)
anything = st.recursive(
    st.none() | st.floats() | st.text(max_size=5) | st.binary(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4) | st.tuples(inner),
    max_leaves=15,
)


class Price(BaseModel):
    amount: float | None = None
    token: SecretStr | None = None


@dataclass
class Point:
    x: float


@pytest.fixture
def own_codecs() -> Iterator[None]:
    kept, writer = dict(codec._codecs), codec._writer
    yield
    codec._codecs.clear()
    codec._codecs.update(kept)
    codec._writer = writer


class Backwards:
    def encode(self, text: str) -> str:
        return base64.b64encode(text.encode()[::-1]).decode()

    def decode(self, body: str) -> str:
        return base64.b64decode(body, validate=True)[::-1].decode()


@pytest.mark.spec("RUN-10")
@given(plain)
def test_what_goes_in_comes_out(value: Any) -> None:
    payload = codec.encode(value)
    assert payload.startswith("j1:")
    assert codec.decode(payload) == value


@given(anything)
def test_whatever_is_written_can_be_read(value: Any) -> None:
    try:
        payload = codec.encode(value)
    except ConductorError:
        return
    again = codec.decode(payload)
    assert codec.decode(codec.encode(again)) == again
    assert "NaN" not in codec.canonical(again).replace('"NaN"', "")


@given(st.lists(plain, max_size=6))
def test_lists_split_and_join(values: list[Any]) -> None:
    members = codec.split_list(codec.encode(values))
    assert [codec.decode(member) for member in members] == values
    assert codec.decode(codec.join_list(members)) == values


@given(st.dictionaries(texts, plain, max_size=5))
def test_canonical_text_ignores_the_order_of_keys(value: dict[str, Any]) -> None:
    turned = dict(reversed(list(value.items())))
    assert codec.canonical(value) == codec.canonical(turned)


@pytest.mark.spec("RUN-1")
@given(st.dictionaries(texts, plain, max_size=5), texts)
def test_equal_values_have_one_fingerprint_and_others_another(value: dict[str, Any], more: str) -> None:
    turned = dict(reversed(list(value.items())))
    told = codec.fingerprint(codec.encode(value), more)
    assert told == codec.fingerprint(codec.encode(turned), more)
    assert told != codec.fingerprint(codec.encode({**value, "\t": 1}), more)
    assert told != codec.fingerprint(codec.encode(value), f"{more}x")


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize(
    ("value", "field"),
    [
        (math.nan, "value"), ({"a": [1, math.inf]}, "a.1"), (Price(amount=math.nan), "amount"), ([Price(amount=-math.inf)], "0.amount"),
        (Point(math.nan), "x"), ({"p": {"value": math.nan}}, "p.value"), ((number for number in [math.nan]), "value"),
    ],
)
def test_nan_is_refused_wherever_it_hides(value: Any, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        codec.encode(value, what="result of a.b")
    assert caught.value.field == field
    assert "result of a.b" in str(caught.value)


@pytest.mark.spec("BAD-1")
def test_nul_is_refused_but_its_spelling_is_not() -> None:
    with pytest.raises(BadInput, match=r"name: it holds a NUL"):
        codec.encode({"name": "a\0b"})
    with pytest.raises(BadInput, match=r"NUL"):
        codec.encode({"a\0": 1})
    assert codec.decode(codec.encode("a\\u0000b")) == "a\\u0000b"


@pytest.mark.spec("RUN-10", "BAD-1")
def test_size_is_counted_in_bytes_and_both_numbers_are_named() -> None:
    assert codec.encode("é" * 10, limit=22)
    with pytest.raises(ValueTooLarge, match=r"result of a.b has 24 bytes, the limit is 22"):
        codec.encode("é" * 11, limit=22, what="result of a.b")


@pytest.mark.spec("BAD-1")
def test_depth_is_bounded_and_circles_are_found() -> None:
    def nested(depth: int) -> list[Any]:
        value: list[Any] = []
        for _ in range(depth - 1):
            value = [value]
        return value

    assert codec.decode(codec.encode(nested(codec.MAX_DEPTH))) == nested(codec.MAX_DEPTH)
    assert codec.encode(["[" * 500])  # brackets inside a text are no depth
    for depth in (codec.MAX_DEPTH + 1, 5000):
        with pytest.raises(ConductorError, match=r"levels"):
            codec.encode(nested(depth))
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(BadInput, match=r"contains itself"):
        codec.encode(circle)


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize("value", [object(), [10**5000], ["\ud800"], b"\xff", Price(token=SecretStr("s3cret"))])
def test_what_json_cannot_carry_is_refused(value: Any) -> None:
    with pytest.raises(BadInput) as caught:
        codec.encode(value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.spec("RUN-10", "BAD-1")
@pytest.mark.parametrize("payload", ["", "null", "j2:null", "{}", "J1:null", "pickle:gASV", ":null", "j1"])
def test_an_unknown_format_is_never_guessed(payload: str) -> None:
    with pytest.raises(UnknownFormat):
        codec.decode(payload)


@pytest.mark.parametrize("payload", ["j1:", "j1:{", "j1:nul", "j1:NaN", "j1:1 2", "j1:" + "[" * 300])
def test_a_broken_payload_says_so(payload: str) -> None:
    with pytest.raises(CorruptPayload):
        codec.decode(payload)


@pytest.mark.spec("RUN-10")
def test_a_users_codec_writes_new_payloads_and_old_ones_stay_readable(own_codecs: None) -> None:
    old = codec.encode({"a": 1})
    codec.register_codec("x1", Backwards())
    new = codec.encode({"a": 1})
    assert new.startswith("x1:")
    assert '"a"' not in new
    assert codec.decode(old) == codec.decode(new) == {"a": 1}
    assert codec.decode(codec.encode(None)) is None
    assert codec.encode(None).startswith("x1:")
    with pytest.raises(CorruptPayload, match=r"its codec raised"):
        codec.decode("x1:???")


@pytest.mark.parametrize("prefix", ["j1", "b1", "", "a:b", "A1", "a" * 17, "ü"])
def test_a_codecs_name_is_checked(prefix: str, own_codecs: None) -> None:
    with pytest.raises(BadInput):
        codec.register_codec(prefix, Backwards())


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize("value", ["", "a\0", "a\n", "a\x7f", "a\u2028", "a\x9b", "x" * 11, 7, None, b"a"])
def test_text_of_ids_and_keys_is_checked(value: Any) -> None:
    with pytest.raises(BadInput, match=r"key"):
        codec.check_text(value, "key", 10)


def test_printable_text_passes_and_half_characters_do_not() -> None:
    with pytest.raises(BadInput):
        codec.check_text("a\ud800", "key", 10)
    assert codec.check_text("Bestellung №1", "key", 20) == "Bestellung №1"
