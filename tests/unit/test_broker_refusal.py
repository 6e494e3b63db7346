"""Forged, foreign and malformed messages for our tasks."""

from __future__ import annotations

import logging
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.message import Message

from conductor.broker import refusal
from conductor.broker.refusal import checked_arguments, checked_poke, json_only
from conductor.broker.run_commands import cancel_run, start_run
from conductor.errors import BadInput


@pytest.mark.spec("BAD-1", "ACT-4")
@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        ((), {}, "expected namespace, partition and queue"),
        (("shop", 1), {}, "expected namespace"),
        (("shop", 1, "q", 2), {}, "expected namespace"),
        (("shop", 1, "q"), {"x": 1}, "expected namespace"),
        (("other", 1, "q"), {}, "'other' is not 'shop'"),
        ((None, 1, "q"), {}, "None is not 'shop'"),
        (("shop", "1", "q"), {}, "'1' is not a number from 0 to 15"),
        (("shop", True, "q"), {}, "True is not a number"),
        (("shop", -1, "q"), {}, "-1 is not a number"),
        (("shop", 16, "q"), {}, "16 is not a number"),
        (("shop", 1.0, "q"), {}, "1.0 is not a number"),
        (("shop", 1, ""), {}, "is not the name of a queue"),
        (("shop", 1, "a\nb"), {}, "is not the name of a queue"),
        (("shop", 1, "q" * 300), {}, "is not the name of a queue"),
        (("shop", 1, ["q"]), {}, "is not the name of a queue"),
    ],
)
def test_a_message_that_is_no_poke_of_ours_is_refused(args: tuple[Any, ...], kwargs: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=r"message for conductor.execute refused") as refused:
        checked_poke(args, kwargs, "shop", 16)
    assert told in str(refused.value)


def test_a_poke_is_taken() -> None:
    assert checked_poke(("shop", 15, "gpu"), {}, "shop", 16) == (15, "gpu")


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize(
    ("function", "args", "kwargs", "told"),
    [
        (cancel_run, (), {}, "missing a required argument: 'run_id'"),
        (cancel_run, (7,), {}, "7 is not of type str"),
        (cancel_run, ("x",), {"terminate": 1}, "1 is not of type bool"),
        (cancel_run, ("x",), {"resaon": "y"}, "unexpected keyword argument 'resaon'"),
        (start_run, ({"a": 1},), {}, "is not of type str"),
    ],
)
def test_a_command_with_wrong_arguments_is_refused(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput) as refused:
        checked_arguments("conductor.x", function, args, kwargs)
    assert told in str(refused.value)


@pytest.mark.spec("BAD-1")
def test_a_pickle_is_refused_before_it_is_decoded_even_where_the_project_accepts_pickles(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    passed: list[Message] = []
    monkeypatch.setattr(refusal, "celery_strategy", lambda *_a, **_o: lambda message, *_rest: passed.append(message))
    channel = SimpleNamespace(no_ack_consumers=None, basic_reject=lambda tag, requeue: passed.append(tag), decode_body=None)

    def message(content_type: str, body: Any, tag: Any = 1) -> Message:
        return Message(
            body, tag, content_type, "binary", None, {}, {"id": "1"}, channel=channel, accept={"application/x-python-serialize", "application/json"})

    handle = json_only(SimpleNamespace(name="conductor.execute"), None, SimpleNamespace(connection_errors=()))  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        handle(message("application/x-python-serialize", pickle.dumps(_Bomb())), None, None, None, ())
    assert "only application/json is taken" in caplog.text
    assert [one for one in passed if isinstance(one, Message)] == []
    handle(message("application/json", b"[[], {}, {}]"), None, None, None, ())
    assert len([one for one in passed if isinstance(one, Message)]) == 1


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("the pickle was decoded",))
