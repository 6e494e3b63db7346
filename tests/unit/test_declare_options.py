"""The options of steps and workflows: what reaches the stored graph, and what is refused."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from conductor import DeclarationError, EffectSpec, Retry, TransientError, Workflow, capability
from conductor.declare.operation import operation_flow
from conductor.records import Backoff, FailurePolicy, RetryPolicy


class Declined(Exception):
    pass


def body() -> int:
    return 1


@pytest.mark.spec("WF-3")
def test_options_reach_the_graph() -> None:
    flow = Workflow("w", on_failure="continue")
    flow.add(
        body, name="a", retry=Retry(max=2, on=TimeoutError, never=(Declined,), backoff="exponential", cap=60, max_age=timedelta(hours=1)),
        queue="gpu", priority=0, timeout=timedelta(minutes=2), lease_seconds=30, on_failure="pause", result=True,
    )
    flow.add(body, name="b")
    a, b = flow.graph.nodes
    assert (a.queue, a.priority, a.timeout_ms, a.lease_ms, a.policy, a.result) == ("gpu", 0, 120_000, 30_000, FailurePolicy.PAUSE, True)
    assert a.retry == RetryPolicy(2, ("builtins.TimeoutError",), (f"{__name__}.Declined",), Backoff.EXPONENTIAL, 60_000, 3_600_000)
    assert (b.queue, b.priority, b.timeout_ms, b.lease_ms, b.policy, b.result) == ("", None, 0, 0, FailurePolicy.CONTINUE, False)
    assert b.retry is None


@pytest.mark.spec("WF-4", "RUN-4")
def test_effects_and_steps_with_a_timeout_are_claimed_alone() -> None:
    flow = Workflow("w")
    flow.effect(body)
    flow.add(body, name="timed", timeout=1)
    flow.add(body, name="plain")
    assert [node.alone for node in flow.graph.nodes] == [True, True, False]


@pytest.mark.spec("OP-7")
def test_the_defaults_of_retry() -> None:
    assert Retry().policy == RetryPolicy(5, (), (), Backoff.ADAPTIVE, 120_000, 1_800_000)
    assert Retry(3) == Retry(max=3) != Retry(max=4)
    assert Retry(on=(TransientError,)).policy.on == ("conductor.errors.TransientError",)


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize(
    "wrong",
    [
        {"max": -1}, {"max": 1001}, {"max": True}, {"max": 1.5}, {"max": "3"}, {"on": ("TimeoutError",)}, {"on": (KeyboardInterrupt,)},
        {"never": (3,)}, {"backoff": "fibonacci"}, {"cap": -1}, {"cap": math.nan}, {"max_age": math.inf}, {"cap": 10**400},
        {"max_age": "1h"},
    ],
)
def test_a_wrong_retry_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError, match="Retry"):
        Retry(**wrong)


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize(
    "wrong",
    [
        {"queue": "a;b"}, {"queue": ""}, {"queue": "a b"}, {"queue": 3}, {"priority": 10}, {"priority": -1}, {"priority": True},
        {"priority": "5"}, {"timeout": 0}, {"timeout": -1}, {"timeout": math.nan}, {"timeout": timedelta(days=31)},
        {"timeout": "5"}, {"lease_seconds": 0},
        {"lease_seconds": 10**9}, {"on_failure": "explode"}, {"retry": 3}, {"result": 1}, {"when": True}, {"when": lambda nothing: nothing},
        {"when": lambda *args: True}, {"retires": 3}, {"after": 3}, {"after": [None]}, {"using": {"x": "a"}},
    ],
)
def test_a_wrong_option_is_refused_and_names_the_step(wrong: dict[str, Any]) -> None:
    flow = Workflow("w")
    with pytest.raises(DeclarationError, match=r"^w\.s: "):
        flow.add(body, name="s", **wrong)
    flow.add(body, name="s")  # nothing of the refused step is left


@pytest.mark.spec("WF-2", "ERR-2")
def test_an_unknown_option_is_told_with_the_function_and_the_nearest_name() -> None:
    flow: Any = Workflow("w")

    def charge() -> int:
        return 1

    known = "(known: after, idempotent, lease_seconds, limit, name, on_failure, priority, queue, result, retry, timeout, using, when)"
    for declare in (flow.step, flow.effect):
        with pytest.raises(DeclarationError) as caught:
            declare(prioriti=3)(charge)
        assert str(caught.value) == f"w.charge: unknown option 'prioriti', did you mean 'priority'? {known}"
    with pytest.raises(DeclarationError, match=r"^w\.charge: unknown option 'colour' \(known: "):
        flow.add(charge, colour="red")
    with pytest.raises(DeclarationError, match=r"^w\.charge: a last step takes no when"):
        flow.on_failure(when=lambda: True)(charge)
    with pytest.raises(DeclarationError, match=r"^w\.charge: priority is 11"):
        flow.step(priority=11)(charge)
    assert flow.effect(effect=False)(charge).name == "charge", "an effect is one, whatever is said beside it"


@pytest.mark.spec("RET-1", "BAD-1")
def test_retention_and_policy_of_a_workflow() -> None:
    assert (Workflow("a").retain_completed_ms, Workflow("a2").retain_failed_ms) == (None, None)
    both = Workflow("b", retention=timedelta(hours=1))
    assert (both.retain_completed_ms, both.retain_failed_ms) == (3_600_000, 3_600_000)
    two = Workflow("c", retention=(60, timedelta(days=1)))
    assert (two.retain_completed_ms, two.retain_failed_ms) == (60_000, 86_400_000)
    with pytest.raises(DeclarationError, match="d: retention"):
        Workflow("d", retention=-1)
    with pytest.raises(DeclarationError, match="e: on_failure is 'explode'; known are fail, continue, pause"):
        Workflow("e", on_failure="explode")


@pytest.mark.spec("RUN-4", "EFF-2")
@pytest.mark.parametrize(
    ("options", "alone"),
    [({}, True), ({"retry": "verify_first", "effects": (EffectSpec("written", lambda: True),)}, True), ({"retry": "replay"}, False), ({"retry": "replay", "consent": True}, True),
     ({"retry": "replay", "effects": (EffectSpec("written", lambda: True),)}, True)])
def test_a_capability_that_may_not_be_repeated_at_will_is_claimed_alone(options: Any, alone: bool) -> None:
    """As a step as it is as an operation: a lost worker would leave all of a batch in doubt, begun or not."""

    @capability("charge", **options)
    def charge(n: int) -> int:
        return n

    flow = Workflow("flow")
    flow.step(charge, name="one", params={"n": 1})
    (node,) = flow.graph.nodes
    assert (node.alone, operation_flow(charge).graph.nodes[0].alone) == (alone, alone)
