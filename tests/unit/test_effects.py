"""What a verifier may ask and answer, how verdicts add up, and which results are only half a success."""

from __future__ import annotations

import asyncio
import functools
from collections import OrderedDict
from itertools import product
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from conductor import Ctx, DeclarationError, Workflow
from conductor.declare.effects import EffectSpec, Verdict, Verifier, ask, bind_verifier, in_words, overall, unverified


class Params(BaseModel):
    path: str = "a.txt"
    amount: int = 3


CTX = Ctx.for_test(key="k-1")
FIELDS = tuple(Params.model_fields)


def asked(verifier: Verifier, params: Any = None) -> tuple[Verdict, str]:
    bound = bind_verifier(EffectSpec("file", verifier), FIELDS, "capability save")
    return ask(bound, params or Params(), CTX)


def said(answer: object) -> tuple[Verdict, str]:
    return asked(lambda: answer)


# What a verifier is given.


@pytest.mark.spec("EFF-1")
def test_a_verifier_takes_params_ctx_and_single_fields_by_name() -> None:
    seen: dict[str, Any] = {}

    def verifier(amount: int, ctx: Ctx, path: str, params: Params) -> bool:
        seen.update(amount=amount, ctx=ctx, path=path, params=params)
        return True

    params = Params(path="b.txt", amount=7)
    assert asked(verifier, params) == (Verdict.VERIFIED, "")
    assert seen == {"amount": 7, "ctx": CTX, "path": "b.txt", "params": params}


@pytest.mark.spec("EFF-1")
def test_any_callable_is_a_verifier() -> None:
    class Checker:
        def __call__(self, params: Params, *, amount: int) -> bool:
            return params.amount == amount

        def method(self, path: str) -> bool:
            return path == "a.txt"

    def with_more(root: str, path: str, /, ctx: Ctx) -> bool:
        return root == "/" and path == "a.txt" and ctx.key == "k-1"

    for verifier in (Checker(), Checker().method, functools.partial(with_more, "/"), lambda path: path == "a.txt", lambda: True):
        assert asked(verifier) == (Verdict.VERIFIED, ""), verifier


def test_what_has_a_default_and_no_field_keeps_its_default() -> None:
    assert asked(lambda path, tries=3: (path, tries) == ("a.txt", 3)) == (Verdict.VERIFIED, "")


def test_params_means_the_parameters_even_if_a_field_has_that_name() -> None:
    class Named(BaseModel):
        params: int = 1

    bound = bind_verifier(EffectSpec("e", lambda params: isinstance(params, Named)), ("params",), "capability x")
    assert ask(bound, Named(), CTX) == (Verdict.VERIFIED, "")


@pytest.mark.spec("EFF-1")
@pytest.mark.parametrize(
    ("verifier", "words"),
    [
        (lambda pathh: True, ["'pathh'", "did you mean 'path'?", "amount"]), (lambda p: True, ["'p'", "params, ctx, amount, path"]),
        (lambda path, *rest: True, ["'*rest'"]), (lambda **rest: True, ["'**rest'"]),
        (lambda *path: True, ["'*path'"]), (lambda **params: True, ["'**params'"]),
    ],
)
def test_asking_for_what_does_not_exist_is_refused_when_it_is_declared(verifier: Verifier, words: list[str]) -> None:
    with pytest.raises(DeclarationError) as caught:
        bind_verifier(EffectSpec("invoice file", verifier), FIELDS, "capability save")
    for word in ["capability save", "'invoice file'", *words]:
        assert word in str(caught.value)


def test_a_verifier_that_could_only_be_awaited_is_refused() -> None:
    async def later() -> bool:
        return True

    class Later:
        async def __call__(self) -> bool:
            return True

    for verifier in (later, Later()):
        with pytest.raises(DeclarationError, match="'file' is async"):
            bind_verifier(EffectSpec("file", verifier), (), "capability x")


@pytest.mark.spec("WF-4")
def test_so_is_a_verify_of_a_step() -> None:
    """Its coroutine would be taken for what the effect gave: that it happened."""
    flow: Workflow[None] = Workflow("buys")

    @flow.effect
    def charge() -> str:
        return "charged"

    async def check() -> None:
        return None

    with pytest.raises(DeclarationError, match=r"buys\.charge.*: its verify is async"):
        charge.verify(check)


@pytest.mark.parametrize(("name", "verifier"), [("", bool), (" ", bool), (None, bool), ("file", None), ("file", "verified")])
def test_an_effect_needs_a_name_and_something_to_call(name: Any, verifier: Any) -> None:
    with pytest.raises(DeclarationError):
        EffectSpec(name, verifier)


# What it answers.


@pytest.mark.spec("EFF-1")
@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (True, Verdict.VERIFIED), (False, Verdict.ABSENT), (None, Verdict.ABSENT), *((verdict, verdict) for verdict in Verdict),
        *((verdict.value, verdict) for verdict in Verdict),
    ],
)
def test_the_answers_that_count(answer: object, verdict: Verdict) -> None:
    found, reason = said(answer)
    assert found is verdict
    assert bool(reason) is (verdict is Verdict.INDETERMINATE)


@pytest.mark.spec("EFF-1")
@pytest.mark.parametrize("answer", [1, 0, 1.0, "", "yes", "VERIFIED", b"verified", [], [True], {"verified": True}, object(), Verdict])
def test_any_other_answer_is_indeterminate_and_says_so(answer: object) -> None:
    verdict, reason = said(answer)
    assert verdict is Verdict.INDETERMINATE
    assert "no verdict" in reason


class Odd(BaseException):
    """Not even an Exception."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


class Shifty:
    """An answer that breaks when it is looked at."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("do not look")


@pytest.mark.spec("EFF-1")
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionError("the bridge\n  is away"), "ConnectionError: the bridge is away"), (KeyError(), "KeyError"),
        (Odd("x"), "Odd: x"), (asyncio.CancelledError(), "CancelledError"), (GeneratorExit(), "GeneratorExit"), (Unprintable(), "Unprintable"),
        (ExceptionGroup("g", [OSError("x")]), "ExceptionGroup: g (1 sub-exception)"),
        (OSError("no answer from https://ann:secret@bank.test/x"), "OSError: no answer from https://***@bank.test/x"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_an_error_is_indeterminate_with_type_and_message(error: BaseException, reason: str) -> None:
    def verifier() -> None:
        raise error

    assert asked(verifier) == (Verdict.INDETERMINATE, reason)


def test_an_answer_that_breaks_when_looked_at_is_indeterminate() -> None:
    verdict, reason = said(Shifty())
    assert (verdict, reason) == (Verdict.INDETERMINATE, "RuntimeError: do not look")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_passes(error: type[BaseException]) -> None:
    def verifier() -> None:
        raise error

    with pytest.raises(error):
        asked(verifier)


def test_a_field_that_the_parameters_do_not_have_is_indeterminate() -> None:
    bound = bind_verifier(EffectSpec("file", lambda gone: True), ("gone",), "capability x")
    verdict, reason = ask(bound, Params(), CTX)
    assert verdict is Verdict.INDETERMINATE and "gone" in reason


@given(st.text("abc:/@ ", max_size=40), st.integers(200, 400))
def test_a_reason_is_short_and_never_holds_a_password(noise: str, length: int) -> None:
    reason = in_words(OSError("x" * length + f" https://ann:hunter2@bank.test/ {noise}"))
    assert len(reason) <= 300 and "hunter" not in reason


# How verdicts add up.


@pytest.mark.spec("EFF-1")
@pytest.mark.parametrize("verdicts", [combination for length in range(4) for combination in product(Verdict, repeat=length)])
def test_overall(verdicts: tuple[Verdict, ...]) -> None:
    if not verdicts or Verdict.INDETERMINATE in verdicts:
        expected = Verdict.INDETERMINATE
    elif all(verdict is Verdict.VERIFIED for verdict in verdicts):
        expected = Verdict.VERIFIED
    elif all(verdict is Verdict.ABSENT for verdict in verdicts):
        expected = Verdict.ABSENT
    else:
        expected = Verdict.PARTIAL
    assert overall(verdicts) is overall(iter(verdicts)) is expected


# A result that tells of its own effects.


@pytest.mark.spec("EFF-3")
@pytest.mark.parametrize(
    ("result", "names"),
    [
        ({"verified": {"row": True, "file": False}}, ["file"]), ({"verified": {"row": True, "file": "verified"}}, []),
        ({"verified": {"a": 1, "b": "True", "c": None, "d": "partial", "e": {}, "f": Verdict.VERIFIED}}, ["a", "b", "c", "d", "e"]),
        ({"verified": MappingProxyType({"a": 0})}, ["a"]), (OrderedDict(verified={1: False}), ["1"]), ({"status": "ok", "verified": {"a": "absent"}}, ["a"]),
        ({"verified": {}}, []), ({"verified": True}, []), ({"verified": False}, []), ({"verified": ["file"]}, []), ({"status": "ok"}, []),
        ({}, []), (None, []), ("verified", []), ([{"verified": {"a": False}}], []), (Params(), []),
    ],
)
def test_what_a_result_leaves_unverified(result: object, names: list[str]) -> None:
    assert unverified(result) == names


@pytest.mark.spec("EFF-3")
@given(st.dictionaries(st.text(max_size=4), st.sampled_from([True, "verified", False, 1, None, "absent", 1.0, "Verified", "indeterminate"])))
def test_only_true_and_the_word_count(verified: dict[str, Any]) -> None:
    good = [name for name, value in verified.items() if repr(value) in ("True", "'verified'")]
    assert sorted(unverified({"verified": verified}) + good) == sorted(verified)
