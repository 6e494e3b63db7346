"""Consent, the inbox and the current session as a program uses them; the store is in this process."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import fakeredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor import codec
from conductor.errors import BadInput, ConductorError, ConsentRequired, ValueTooLarge
from conductor.sessions import consent, inbox
from conductor.sessions.current import as_session, originating_session
from conductor.store import Store
from conductor.store.sessions import in_key


@pytest.fixture
def store() -> Store:
    return Store(fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=True), namespace="unit", partitions=2)


# Consent.


@pytest.mark.spec("SES-1", "ERR-2")
def test_a_missing_grant_names_what_to_grant(store: Store) -> None:
    with pytest.raises(ConsentRequired) as raised:
        consent.require(store, "anna", "pay", "op-1")
    assert str(raised.value) == (
        "capability pay needs the consent of session anna: grant it with `conductor grant anna pay` (once, for a time, or always)"
    )
    assert (raised.value.code, raised.value.error_kind) == ("consent_required", "permanent")
    assert dict(raised.value.details) == {"capability": "pay", "session": "anna"}


@pytest.mark.spec("SES-1", "ERR-2")
def test_without_a_session_nobody_can_consent(store: Store) -> None:
    consent.grant(store, "anna", "pay", "always")
    with pytest.raises(ConsentRequired, match="no session was given") as raised:
        consent.require(store, "", "pay", "op-1")
    assert (raised.value.session, raised.value.capability) == ("", "pay")
    assert "conductor grant SESSION pay" in str(raised.value)


@pytest.mark.spec("SES-1")
def test_a_consented_op_never_fails_for_consent_when_it_is_replayed(store: Store) -> None:
    consent.grant(store, "anna", "pay")
    for _ in range(5):
        consent.require(store, "anna", "pay", "op-1")
    with pytest.raises(ConsentRequired):
        consent.require(store, "anna", "pay", "op-2")


@pytest.mark.spec("SES-1")
def test_every_call_grants_one_use_unless_it_repeats_an_id(store: Store) -> None:
    first = consent.grant(store, "anna", "pay", by="bert")
    assert consent.grant(store, "anna", "pay", grant_id=first) == first
    assert [(entry.grant_id, entry.granted_by) for entry in consent.granted(store, "anna")] == [(first, "bert")]
    assert consent.grant(store, "anna", "pay") != first
    assert len(consent.granted(store, "anna")) == 2


@pytest.mark.spec("SES-1")
@pytest.mark.parametrize(("lasting", "ms"), [(timedelta(hours=1), 3_600_000), (90, 90_000), (0.0015, 2)])
def test_a_grant_lasts_as_long_as_was_said(store: Store, lasting: Any, ms: int) -> None:
    consent.grant(store, "anna", "pay", "until", lasting=lasting)
    stored = store.client().hget(store.keys.of(store._home("anna")[0], "grants:anna"), "grant:pay")
    until, at, _ = str(stored).split(";")
    assert int(until) - int(at) == ms


@pytest.mark.spec("SES-1", "BAD-1")
@pytest.mark.parametrize("call", [
    lambda store: consent.grant(store, "anna", "pay", "until"),
    lambda store: consent.grant(store, "anna", "pay", "until", lasting=0),
    lambda store: consent.grant(store, "anna", "pay", "until", lasting=-1),
    lambda store: consent.grant(store, "anna", "pay", "until", lasting=float("nan")),
    lambda store: consent.grant(store, "anna", "pay", "until", lasting=1e18),
    lambda store: consent.grant(store, "anna", "pay", "until", lasting="1h"),
    lambda store: consent.grant(store, "anna", "pay", "always", lasting=60),
    lambda store: consent.grant(store, "anna", "pay", "once", lasting=60),
    lambda store: consent.grant(store, "anna", "pay", "forever"),
    lambda store: consent.grant(store, "anna", ""),
    lambda store: consent.grant(store, "anna", "a\nb"),
    lambda store: consent.grant(store, "", "pay"),
    lambda store: consent.grant(store, "anna", "pay", by="a\nb;1;2"),
    lambda store: consent.grant(store, "anna", "pay", grant_id="g\n"),
    lambda store: consent.require(store, "anna", "pay", ""),
    lambda store: consent.require(store, "anna", "pay", "op\n"),
])
def test_what_is_wrong_is_refused_before_anything_is_written(store: Store, call: Callable[[Store], Any]) -> None:
    with pytest.raises(BadInput):
        call(store)
    assert store.client().keys("*") == []


@pytest.mark.spec("SES-1")
def test_revoking_takes_a_grant_back_before_the_next_attempt(store: Store) -> None:
    consent.grant(store, "anna", "pay", "always")
    consent.grant(store, "anna", "ship")
    consent.require(store, "anna", "pay", "op-1")
    consent.revoke(store, "anna", "pay")
    with pytest.raises(ConsentRequired):
        consent.require(store, "anna", "pay", "op-1")
    assert [entry.capability for entry in consent.granted(store, "anna")] == ["ship"]
    consent.revoke(store, "anna")
    assert consent.granted(store, "anna") == []


@given(st.text(min_size=1), st.text(min_size=1))
def test_every_name_has_one_spelling_in_keys_and_none_has_a_colon(one: str, other: str) -> None:
    try:
        codec.check_text(one, "name", 256)
        codec.check_text(other, "name", 256)
    except ConductorError:
        return
    assert (in_key(one) == in_key(other)) == (one == other)
    assert unquote(in_key(one)) == one
    assert not set(in_key(one)) & set(":;{}*?[]\n ")


# The inbox.


@pytest.mark.spec("SES-3")
def test_a_message_is_read_as_it_was_delivered(store: Store) -> None:
    body = {"result": {"id": 42, "tags": [], "none": None}, "text": "ü😀\n"}
    assert inbox.deliver(store, "anna", id="op:1:retry_success", kind="retry_success", operation_id="op", body=body) is True
    assert inbox.deliver(store, "anna", id="op:1:retry_success", kind="retry_success", operation_id="op", body={}) is False
    [message] = inbox.read(store, "anna")
    assert (message.id, message.kind, message.operation_id, message.body) == ("op:1:retry_success", "retry_success", "op", body)
    assert message.to_dict()["body"] == body
    assert inbox.acknowledge(store, "anna", message.id) is True
    assert inbox.acknowledge(store, "anna", message.id) is True
    assert inbox.acknowledge(store, "anna", "other") is False
    assert inbox.read(store, "anna") == []


@pytest.mark.spec("SES-3", "BAD-1")
@pytest.mark.parametrize(("fields", "error"), [
    ({"kind": ""}, BadInput), ({"kind": "Retry Success"}, BadInput), ({"kind": "a\n"}, BadInput), ({"id": ""}, BadInput),
    ({"id": "a\nb"}, BadInput), ({"operation_id": "a\x1bb"}, BadInput), ({"body": {"x": float("nan")}}, BadInput),
    ({"body": {"x": "a" * 2_000_000}}, ValueTooLarge),
])
def test_a_message_that_cannot_be_carried_is_refused(store: Store, fields: dict[str, Any], error: type[ConductorError]) -> None:
    with pytest.raises(error):
        inbox.deliver(store, "anna", **({"id": "m", "kind": "a", "operation_id": "op", "body": {}} | fields))
    assert store.client().keys("*") == []


@pytest.mark.parametrize("timeout", [-1, float("nan"), "x", None])
def test_a_wait_has_a_length(store: Store, timeout: Any) -> None:
    with pytest.raises(BadInput, match="timeout"):
        inbox.wait(store, "anna", "", timeout)


# The current session.


@pytest.mark.spec("SES-5")
def test_the_originating_session_is_set_while_code_runs_for_it() -> None:
    assert originating_session() == ""
    with as_session("anna"):
        assert originating_session() == "anna"
        with as_session("bert"):
            assert originating_session() == "bert"
        assert originating_session() == "anna"
    assert originating_session() == ""


@pytest.mark.spec("SES-5")
def test_the_session_is_as_before_when_the_code_fails() -> None:
    with pytest.raises(ZeroDivisionError), as_session("anna"):
        1 / 0
    assert originating_session() == ""


@pytest.mark.spec("SES-5")
def test_threads_do_not_see_each_others_session_unless_it_is_taken_along() -> None:
    seen: list[str] = []
    with as_session("anna"):
        taken = contextvars.copy_context()
        for target in (lambda: seen.append(originating_session()), lambda: taken.run(lambda: seen.append(originating_session()))):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join(10)
    assert seen == ["", "anna"]
