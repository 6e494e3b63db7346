"""What follows a failed attempt, and how many steps are claimed at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.plan import Failure, after_failure, backoff_ms, batch_size
from conductor.records import Backoff, RetryPolicy

_JITTER = st.floats(0, 1)
_BACKOFF = st.sampled_from(Backoff)


def failed(kind: str = "transient", *, attempt: int = 1, age_ms: int = 0, names: tuple[str, ...] = (), timed_out: bool = False) -> Failure:
    return Failure(kind, names, attempt, age_ms, timed_out)


@pytest.mark.spec("OP-7")
@pytest.mark.parametrize(("backoff", "seconds"), [
    (Backoff.ADAPTIVE, (10, 20, 45, 90, 120, 120)),
    (Backoff.FIXED_10S, (10, 10, 10, 10, 10, 10)),
    (Backoff.EXPONENTIAL, (10, 20, 40, 80, 120, 120)),
    (Backoff.NONE, (0, 0, 0, 0, 0, 0)),
])
def test_the_pauses_of_each_backoff(backoff: Backoff, seconds: tuple[int, ...]) -> None:
    policy = RetryPolicy(backoff=backoff)
    assert [backoff_ms(policy, attempt, 0) for attempt in range(1, 7)] == [second * 1000 for second in seconds]


@pytest.mark.spec("OP-7")
@given(backoff=_BACKOFF, attempt=st.integers(1, 1000), jitter=_JITTER, cap=st.integers(0, 600_000))
def test_jitter_takes_at_most_a_tenth_off_and_the_cap_holds(backoff: Backoff, attempt: int, jitter: float, cap: int) -> None:
    policy = RetryPolicy(backoff=backoff, cap_ms=cap)
    full, less = backoff_ms(policy, attempt, 0), backoff_ms(policy, attempt, jitter)
    assert full <= cap or full == 0
    assert full * 0.9 - 1 <= less <= full


@given(backoff=_BACKOFF, attempt=st.integers(1, 100))
def test_pauses_never_shrink(backoff: Backoff, attempt: int) -> None:
    policy = RetryPolicy(backoff=backoff)
    assert backoff_ms(policy, attempt, 0) <= backoff_ms(policy, attempt + 1, 0)


@pytest.mark.spec("OP-7", "WF-3")
def test_five_retries_mean_five_replays() -> None:
    decisions = [after_failure(None, failed(attempt=attempt), 0) for attempt in range(1, 7)]
    assert [decision.repeat for decision in decisions] == [True] * 5 + [False]
    assert decisions[-1].reason == "retries_exhausted"


@pytest.mark.spec("WF-3")
@pytest.mark.parametrize("kind", ["permanent", "unknown"])
def test_only_transient_errors_are_repeated_by_default(kind: str) -> None:
    decision = after_failure(None, failed(kind), 0)
    assert (decision.repeat, decision.reason) == (False, f"{kind}_error")
    assert after_failure(None, failed("transient"), 0).repeat


@pytest.mark.spec("WF-3")
def test_on_adds_errors_and_never_wins() -> None:
    names = ("shop.Busy", "builtins.Exception")
    assert after_failure(RetryPolicy(on=("shop.Busy",)), failed("unknown", names=names), 0).repeat
    assert not after_failure(RetryPolicy(on=("shop.Other",)), failed("unknown", names=names), 0).repeat
    both = RetryPolicy(on=("shop.Busy",), never=("builtins.Exception",))
    assert not after_failure(both, failed("transient", names=names), 0).repeat


def test_a_timeout_is_repeated_unless_never_names_it() -> None:
    assert after_failure(None, failed("unknown", timed_out=True), 0).repeat
    refused = after_failure(RetryPolicy(never=("builtins.TimeoutError",)), failed(names=("builtins.TimeoutError",), timed_out=True), 0)
    assert (refused.repeat, refused.reason) == (False, "timed_out")


@pytest.mark.spec("OP-7")
def test_age_is_judged_when_an_attempt_failed() -> None:
    assert after_failure(None, failed(age_ms=1_790_000), 0).repeat
    late = after_failure(None, failed(age_ms=1_790_001), 0)
    assert (late.repeat, late.reason) == (False, "retry_age_exceeded")


@given(most=st.integers(0, 20), attempt=st.integers(1, 40), age=st.integers(0, 3_600_000), backoff=_BACKOFF, jitter=_JITTER)
def test_a_decision_repeats_with_a_pause_or_fails_with_a_reason(most: int, attempt: int, age: int, backoff: Backoff, jitter: float) -> None:
    policy = RetryPolicy(max=most, backoff=backoff)
    decision = after_failure(policy, failed(attempt=attempt, age_ms=age), jitter)
    assert decision.repeat == (not decision.reason)
    if decision.repeat:
        assert attempt <= most
        assert age + decision.delay_ms <= policy.max_age_ms
    else:
        assert decision.delay_ms == 0


@given(seconds=st.just(0.0) | st.floats(1e-9, 100))
def test_a_batch_has_one_to_ten_steps_and_takes_some_twenty_ms(seconds: float) -> None:
    size = batch_size(seconds)
    assert 1 <= size <= 10
    assert size == 1 or size * seconds <= 0.02


@given(quick=st.floats(1e-6, 1), slow=st.floats(1e-6, 1))
def test_slower_steps_never_make_a_greater_batch(quick: float, slow: float) -> None:
    low, high = sorted((quick, slow))
    assert batch_size(high) <= batch_size(low)


def test_without_a_measurement_one_step_is_claimed() -> None:
    assert batch_size(0) == 1
    assert batch_size(0.0001) == 10
    assert batch_size(1) == 1
