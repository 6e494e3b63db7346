"""The reference capabilities of the fault tests: each leaves one effect under its operation's key in the ledger."""

from __future__ import annotations

import os
from typing import Any

from conductor import Ctx, EffectUncertain, PermanentError, TransientError, Workflow
from conductor.declare.capability import Capability, capability
from conductor.declare.effects import EffectSpec
from conductor.operations.batches import batch
from tests.support.ledger import Ledger

__all__ = ["CAPABILITIES", "FLOWS", "SESSION"]

SESSION = "who-asked"


def _ledger() -> Ledger:
    return Ledger(os.environ["TEST_LEDGER"])


def _body(ctx: Ctx) -> None:
    ledger = _ledger()
    ledger.note("begin", ctx.key, ctx.attempt)
    ledger.effect(ctx.key, ctx.attempt)
    ledger.note("end", ctx.key, ctx.attempt)


@capability("faults_pay", retry="replay", backoff="none", lease_seconds=1)
def pay(n: int, ctx: Ctx) -> int:
    """Works at once, and may be repeated."""
    _body(ctx)
    return n + 1


@capability("faults_flaky", retry="replay", lease_seconds=1)
def flaky(n: int, ctx: Ctx) -> int:
    """Fails the first time for good measure, and is then repeated."""
    _body(ctx)
    if _ledger().effect(f"{ctx.key}:flaked"):
        raise TransientError("the first call always fails")
    return n + 1


def _blind(ctx: Ctx) -> bool:
    raise OSError("nobody can look")


@capability("faults_doubtful", retry="verify_first", lease_seconds=1, effects=(EffectSpec("booking", _blind),))
def doubtful(n: int, ctx: Ctx) -> int:
    """Nobody can tell whether it happened: a person must say it."""
    _body(ctx)
    raise EffectUncertain(key=ctx.key)


@capability("faults_consented", retry="replay", backoff="none", lease_seconds=1, consent=True)
def consented(n: int, ctx: Ctx) -> int:
    """Runs only for a session that has granted it."""
    _body(ctx)
    return n + 1


@capability("faults_refused", retry="replay", backoff="none", lease_seconds=1)
def refused(n: int, ctx: Ctx) -> int:
    """Refuses until it has been mended."""
    if "mended" not in _ledger().effects():
        raise PermanentError("it has not been mended")
    _body(ctx)
    return n + 1


CAPABILITIES: dict[str, Capability[..., Any]] = {one.name: one for one in (pay, flaky, doubtful, consented, refused, batch)}

# A step that remembers what it has done inside.
remembering = Workflow("remembering")


@remembering.step(lease_seconds=float(os.environ.get("TEST_LEASE_SECONDS", "15")))
def remember(ctx: Ctx) -> int:
    ledger = _ledger()
    ledger.note("begin", ctx.key, ctx.attempt)

    def inner(number: int) -> int:
        ledger.note(f"inner{number}", ctx.key)
        return number

    total = sum(ctx.once(f"part-{number}", inner, number) for number in range(3))
    ledger.effect(ctx.key, ctx.attempt)
    return total + int(ctx.call("faults_pay", n=total))


# A step whose call is refused, until its run is retried.
calling = Workflow("calling")


@calling.step(lease_seconds=float(os.environ.get("TEST_LEASE_SECONDS", "15")))
def ask(ctx: Ctx) -> int:
    return int(ctx.call("faults_refused", n=6))


FLOWS: dict[str, Workflow[Any]] = {"remembering": remembering, "calling": calling}
