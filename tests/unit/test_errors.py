"""One tree of errors: each says what happened, has a stable code, and survives a trip between processes."""

from __future__ import annotations

import pickle

import pytest

from conductor import errors
from conductor.errors import ConductorError, PermanentError, RunFailed, StepTimeout, StoreUnreachable, TransientError, UnknownRun

ALL = [found for name in errors.__all__ if isinstance(found := getattr(errors, name), type) and issubclass(found, ConductorError)]


@pytest.mark.spec("ERR-2")
def test_the_message_is_the_docstring_with_the_details() -> None:
    error = UnknownRun(run_id="r-1", namespace="shop")
    assert str(error) == "unknown run r-1: no such run in namespace shop; it may have been purged"
    assert (error.code, error.run_id, dict(error.details)) == ("unknown_run", "r-1", {"run_id": "r-1", "namespace": "shop"})


@pytest.mark.spec("ERR-2")
@pytest.mark.parametrize("kind", ALL)
def test_every_error_has_words_even_without_details(kind: type[ConductorError]) -> None:
    error = kind()
    assert str(error)
    assert "\n" not in str(error)
    assert kind.__doc__
    assert error.error_kind in {"transient", "permanent", "unknown"}


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in ALL]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("kind", ALL)
def test_errors_travel_between_processes(kind: type[ConductorError]) -> None:
    error = kind(run_id="r", what="x", size=2, limit=1, workflow="w", step="s", reason="because", url="redis://h", steps=["a"])
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), dict(copy.details)) == (kind, str(error), dict(error.details))


@pytest.mark.spec("ERR-2")
def test_credentials_never_show() -> None:
    error = StoreUnreachable(url="rediss://admin:hunter2@db:6379/0", problem="redis://:hunter2@db refused")
    assert "hunter2" not in str(error)
    assert "rediss://***@db:6379/0" in str(error)
    assert "secret" not in str(TransientError("cannot reach amqp://u:secret@host"))


@pytest.mark.spec("ERR-1")
def test_kinds_say_whether_a_repeat_can_help() -> None:
    assert TransientError("busy").error_kind == "transient"
    assert PermanentError("declined").error_kind == "permanent"
    assert isinstance(StepTimeout(step="s", run_id="r", seconds=1), TimeoutError)


def test_a_users_own_subclass_has_its_own_code_and_words() -> None:
    class CardDeclined(PermanentError):
        """card {card} was declined"""

    assert str(CardDeclined(card="4242")) == "card 4242 was declined"
    assert CardDeclined.code == "card_declined"


def test_an_unknown_detail_is_named() -> None:
    with pytest.raises(AttributeError, match="RunFailed has no detail 'nope'"):
        RunFailed(run_id="r").nope
