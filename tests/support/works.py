"""The reference workflows of the fault and acceptance tests. Every body writes to the ledger and leaves one effect under `ctx.key`.

Each result is computed from its inputs, so the right answer of a run is known before it starts (`expected`). The environment says where
the ledger is (`TEST_LEDGER`) and how long a lease lasts (`TEST_LEASE_SECONDS`).
"""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from conductor import Ctx, Lane, Limit, PermanentError, Retry, TransientError, Workflow
from tests.support.ledger import Ledger

__all__ = ["FLOWS", "Job", "brittle", "chain", "deadly", "diamond", "effect_keys", "expected", "fan", "gated", "lonely", "long", "timed", "waited", "wide"]

LEASE = float(os.environ.get("TEST_LEASE_SECONDS", "15"))
ITEMS = 20


class Job(BaseModel):
    """`n` decides the answer; each body lasts `hold` seconds."""

    n: int
    hold: float = 0


def _body(ctx: Ctx, hold: float = 0) -> None:
    """What every body does besides computing: begin, last a while, leave its effect, end."""
    ledger = Ledger(os.environ["TEST_LEDGER"])
    ledger.note("begin", ctx.key, ctx.attempt)
    until = time.monotonic() + hold
    while time.monotonic() < until and not ctx.cancelled:
        time.sleep(min(0.01, hold))
    ledger.effect(ctx.key, ctx.attempt)
    ledger.note("end", ctx.key, ctx.attempt)


# A chain of three.
chain = Workflow("chain", input=Job)


@chain.step(lease_seconds=LEASE)
def first(job: Job, ctx: Ctx) -> int:
    _body(ctx, job.hold)
    return job.n + 1


@chain.step(lease_seconds=LEASE)
def second(first: int, job: Job, ctx: Ctx) -> int:
    _body(ctx, job.hold)
    return first * 2


@chain.step(lease_seconds=LEASE)
def third(second: int, job: Job, ctx: Ctx) -> int:
    _body(ctx, job.hold)
    return second + 3


# A diamond: two parents may commit at once.
diamond = Workflow("diamond", input=Job)


@diamond.step(lease_seconds=LEASE)
def top(job: Job, ctx: Ctx) -> int:
    _body(ctx, job.hold)
    return job.n + 1


@diamond.step(lease_seconds=LEASE)
def left(top: int, job: Job, ctx: Ctx) -> int:
    _body(ctx, job.hold)
    return top * 2


@diamond.step(lease_seconds=LEASE)
def right(top: int, job: Job, ctx: Ctx) -> int:
    _body(ctx, job.hold)
    return top * 3


@diamond.step(lease_seconds=LEASE)
def bottom(left: int, right: int, job: Job, ctx: Ctx) -> int:
    _body(ctx, job.hold)
    return left + right


# A fan of twenty with a join.
fan = Workflow("fan", input=Job)


@fan.step(lease_seconds=LEASE)
def split(job: Job, ctx: Ctx) -> list[int]:
    _body(ctx, job.hold)
    return list(range(job.n, job.n + ITEMS))


@fan.each(split, max_parallel=5, lease_seconds=LEASE)
def double(part: int, ctx: Ctx) -> int:
    _body(ctx)
    return part * 2


@fan.step(lease_seconds=LEASE)
def total(double: list[int], ctx: Ctx) -> int:
    _body(ctx)
    return sum(double)


# A list so long that it is staged before the commit that names it.
wide = Workflow("wide", input=Job)
WIDE = 300


@wide.step(lease_seconds=LEASE)
def spread(job: Job, ctx: Ctx) -> list[int]:
    _body(ctx, job.hold)
    return list(range(job.n, job.n + WIDE))


@wide.each(spread, max_parallel=50, lease_seconds=LEASE)
def pick(part: int) -> int:
    return part + 1


@wide.step(lease_seconds=LEASE)
def gather(pick: list[int], ctx: Ctx) -> int:
    _body(ctx)
    return sum(pick)


# A retry, a timer, and time enough to be cancelled.
timed = Workflow("timed", input=Job)


@timed.step(retry=Retry(max=3, backoff="exponential", cap=timedelta(seconds=0.2)), lease_seconds=LEASE)
def flaky(job: Job, ctx: Ctx) -> int:
    """Fails once per run, however often it is attempted: the ledger remembers that it did."""
    _body(ctx, job.hold)
    if Ledger(os.environ["TEST_LEDGER"]).effect(f"{ctx.key}:flaked"):
        raise TransientError("the first call always fails")
    return job.n + 1


nap = timed.sleep(timedelta(seconds=0.2), name="nap", after=flaky)


@timed.step(after=nap, lease_seconds=LEASE)
def last(flaky: int, job: Job, ctx: Ctx) -> int:
    _body(ctx, job.hold)
    return flaky * 10


# One step that lasts as long as the test wants, tells progress and keeps a checkpoint.
long = Workflow("long", input=Job)


@long.step(lease_seconds=LEASE)
def toil(job: Job, ctx: Ctx) -> int:
    ctx.checkpoint({"seen": job.n})
    ctx.progress(1, 2, "half")
    _body(ctx, job.hold)
    return job.n


# One that kills every process that runs it.
deadly = Workflow("deadly", input=Job)


@deadly.step(lease_seconds=LEASE)
def strike(job: Job, ctx: Ctx) -> int:
    Ledger(os.environ["TEST_LEDGER"]).note("begin", ctx.key, ctx.attempt)
    os.kill(os.getpid(), signal.SIGKILL)
    return job.n


# One that fails for good until it is mended, for `retry`.
brittle = Workflow("brittle", input=Job)


@brittle.step(lease_seconds=LEASE)
def sound(job: Job, ctx: Ctx) -> int:
    _body(ctx, job.hold)
    return job.n + 1


@brittle.step(lease_seconds=LEASE)
def crack(sound: int, ctx: Ctx) -> int:
    _body(ctx)
    if not Ledger(os.environ["TEST_LEDGER"]).has_effect("mended"):
        raise PermanentError("not mended yet")
    return sound * 7


# Many items, of which the last ones fail until they are mended: more than one call of a reopening looks at.
SHARDS = 70
shards = Workflow("shards", input=Job)


@shards.step(lease_seconds=LEASE)
def cut(job: Job) -> list[int]:
    return list(range(job.n, job.n + SHARDS))


@shards.each(cut, max_parallel=20, lease_seconds=LEASE)
def shard(piece: int, ctx: Ctx) -> int:
    if ctx.item is not None and ctx.item >= SHARDS - 6 and not Ledger(os.environ["TEST_LEDGER"]).has_effect("mended"):
        raise PermanentError("not mended yet")
    return piece


@shards.step(lease_seconds=LEASE)
def glue(shard: list[int]) -> int:
    return sum(shard)


# One that waits: for a signal, an agent, and a signal that never comes.
waited = Workflow("waited", input=Job)


@waited.step(lease_seconds=LEASE)
def asks(job: Job, ctx: Ctx) -> int:
    _body(ctx, job.hold)
    return job.n + 1


word = waited.wait("word", int, after=asks)
draft = waited.agent("draft", int, instructions="say a number", after=asks)
never = waited.wait("never", int, timeout=timedelta(seconds=0.1), default=4, after=asks)


@waited.step(lease_seconds=LEASE)
def sums(asks: int, word: int, draft: int, never: int, ctx: Ctx) -> int:
    _body(ctx)
    return asks + word + draft + never


# One that waits for an agent only.
lonely = Workflow("lonely", input=Job, idle_timeout=timedelta(milliseconds=1))
opinion = lonely.agent("opinion", int)


# Three that wait for three days: for a word, for an agent, for the days themselves.
THREE_DAYS = timedelta(days=3)
patient = Workflow("patient", input=Job)


@patient.step(lease_seconds=LEASE)
def prepares(job: Job, ctx: Ctx) -> int:
    _body(ctx, job.hold)
    return job.n


release = patient.wait("release", int, timeout=THREE_DAYS, after=prepares)


@patient.step(lease_seconds=LEASE)
def settles(prepares: int, release: int, ctx: Ctx) -> int:
    _body(ctx)
    return prepares + release


advised = Workflow("advised", input=Job, idle_timeout=THREE_DAYS)
advice = advised.agent("advice", int, instructions="say a number")


@advised.step(lease_seconds=LEASE)
def heeds(advice: int, job: Job, ctx: Ctx) -> int:
    _body(ctx, job.hold)
    return job.n + advice


drowsy = Workflow("drowsy", input=Job)
slumber = drowsy.sleep(THREE_DAYS, name="slumber")


@drowsy.step(after=slumber, lease_seconds=LEASE)
def rises(job: Job, ctx: Ctx) -> int:
    _body(ctx, job.hold)
    return job.n + 1


# One whose effect can be asked for: it is never brought about twice.
charged = Workflow("charged", input=Job)


@charged.effect(lease_seconds=LEASE)
def charge(job: Job, ctx: Ctx) -> int:
    _body(ctx, job.hold)
    return job.n + 1


@charge.verify
def was_charged(job: Job, ctx: Ctx) -> int | None:
    return job.n + 1 if Ledger(os.environ["TEST_LEDGER"]).has_effect(ctx.key) else None


@charged.step(lease_seconds=LEASE)
def receipt(charge: int, job: Job, ctx: Ctx) -> int:
    _body(ctx, job.hold)
    return charge * 2


# One at a time in its lane, and one a second under its limit.
gated = Workflow("gated", input=Job, lane=Lane("gate", 1, None))


@gated.step(lease_seconds=LEASE, limit=Limit("outside", "1/s", concurrency=1, key=lambda job: job.n))
def pass_gate(job: Job, ctx: Ctx) -> int:
    _body(ctx, job.hold)
    return job.n + 1


# One that is always undone, and one that is undone if somebody asks for it while it sleeps.
undone = Workflow("undone", input=Job, on_failure="compensate")


@undone.step(lease_seconds=LEASE)
def book(job: Job, ctx: Ctx) -> int:
    _body(ctx)
    return job.n


@book.undo(lease_seconds=LEASE)
def unbook(job: Job, result: int | None, ctx: Ctx) -> None:
    assert result in (job.n, None)
    _body(ctx, job.hold)


@undone.step(lease_seconds=LEASE)
def rent(book: int, ctx: Ctx) -> int:
    _body(ctx)
    return book + 1


@rent.undo(lease_seconds=LEASE)
def unrent(book: int, ctx: Ctx) -> None:
    _body(ctx)


@undone.step(lease_seconds=LEASE)
def refuse(rent: int, ctx: Ctx) -> int:
    _body(ctx)
    raise PermanentError("never")


regretted = Workflow("regretted", input=Job)


@regretted.step(lease_seconds=LEASE)
def keep(job: Job, ctx: Ctx) -> int:
    _body(ctx, job.hold)
    return job.n


@keep.undo(lease_seconds=LEASE)
def lose(job: Job, ctx: Ctx) -> None:
    _body(ctx)


regretted.sleep(timedelta(hours=1), name="ponder", after=keep)

# One that calls a chain and adds one to what it gives.
caller = Workflow("caller", input=Job)
called = caller.call(chain, name="called")


@caller.step(lease_seconds=LEASE)
def add(called: int, ctx: Ctx) -> int:
    _body(ctx)
    return called + 1


FLOWS: dict[str, Workflow[Any]] = {flow.name: flow for flow in (
    chain, diamond, fan, wide, timed, long, deadly, brittle, waited, lonely, undone, regretted, caller, shards, patient, gated,
    advised, drowsy, charged)}
_STEPS = {
    "chain": ("first", "second", "third"), "diamond": ("top", "left", "right", "bottom"), "fan": ("split", "total"),
    "timed": ("flaky", "last"), "long": ("toil",), "brittle": ("sound", "crack"),
    "wide": ("spread", "gather"), "waited": ("asks", "sums"), "lonely": (), "undone": (), "regretted": (), "caller": ("add",), "shards": (),
    "patient": ("prepares", "settles"), "gated": ("pass_gate",),
    "advised": ("heeds",), "drowsy": ("rises",), "charged": ("charge", "receipt"),
}


def expected(workflow: str, n: int) -> int:
    """The right answer of a run."""
    return {
        "chain": 2 * (n + 1) + 3, "diamond": 5 * (n + 1), "fan": 2 * sum(range(n, n + ITEMS)), "timed": 10 * (n + 1), "long": n,
        "brittle": 7 * (n + 1), "wide": sum(range(n + 1, n + WIDE + 1)), "waited": n + 1 + 10 + 20 + 4,
        "caller": 2 * (n + 1) + 4, "gated": n + 1,
        "shards": sum(range(n, n + SHARDS)), "patient": n + 100, "advised": n + 20, "drowsy": n + 1, "charged": 2 * (n + 1),
    }[workflow]


def effect_keys(workflow: str, run_id: str) -> set[str]:
    """The effects a completed run must have left, each once."""
    keys = {f"{run_id}:{step}" for step in _STEPS[workflow]}
    if workflow == "fan":
        keys |= {f"{run_id}:double:{item}" for item in range(ITEMS)}
    if workflow == "timed":
        keys.add(f"{run_id}:flaky:flaked")
    return keys
