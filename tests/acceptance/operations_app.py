"""A user's project of the operation tests: capabilities and workflows that fail, half fail and die on demand.

Every body writes down in the ledger (`TEST_LEDGER`) that it began, under `<tag>:<ctx.key>`; a test chooses the tag, so tests may share
processes. What a body does is said by its parameters, the n-th call taking the n-th word of `plan`: `<what it applies>[+<how it ends>]`,
such as `whole+kill` (applies everything, then its process dies) or `half+unsure`. All names begin with `ops_`.
"""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy
from celery import Celery
from celery.schedules import crontab
from pydantic import BaseModel

from conductor import Conductor, Ctx, EffectUncertain, PermanentError, Retry, TransientError, Workflow
from conductor.declare.capability import capability
from conductor.declare.effects import EffectSpec
from conductor.declare.needs import need
from conductor.declare.verifiers import file_content, http_get, sql_row
from conductor.sessions.current import originating_session
from conductor.store import Store
from tests.support.ledger import Ledger

app = Celery("operations", broker=os.environ.get("TEST_BROKER_URL", "memory://"))
app.conf.update(broker_connection_retry_on_startup=True, worker_soft_shutdown_timeout=float(os.environ.get("TEST_SOFT_SECONDS", "0")))
conductor = Conductor(app)

LEASE = 2  # seconds; the tests' heartbeats are a quarter of it


def ledger() -> Ledger:
    return Ledger(os.environ["TEST_LEDGER"])


def begin(tag: str, ctx: Ctx) -> int:
    """Write down that a body begins; tells the how many-eth of its tag it is."""
    ledger().note("begin", f"{tag}:{ctx.key}", ctx.attempt)
    return sum(line.key.startswith(f"{tag}:") for line in ledger().lines("begin"))


def wait_for_go(tag: str, seconds: float) -> None:
    """Last until the test says go, at most so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not ledger().has_effect(f"{tag}:go"):
        time.sleep(0.02)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def say(tag: str, ctx: Ctx, **more: Any) -> dict[str, Any]:
    return {"tag": tag, "key": ctx.key, "attempt": ctx.attempt, "session": originating_session(), "pid": os.getpid(), **more}


def play(plan: list[str], number: int, apply: dict[str, Callable[[], Any]]) -> None:
    """Do what the plan's word for this call says; the last word serves all later calls."""
    what, _, end = plan[min(number, len(plan)) - 1].partition("+")
    apply[what]()
    if end == "kill":
        die()
    if end == "unsure":
        raise EffectUncertain(key="the effect")
    if end == "reset":
        raise ConnectionResetError("connection reset by peer")
    if end == "passing":
        raise TransientError("not now")
    if end == "hang":
        for _ in range(1000):  # in short sleeps, so that a timeout can be raised in it
            time.sleep(0.02)


# Plain ones.


@capability("ops_echo", lease_seconds=LEASE)
def echo(tag: str, ctx: Ctx, value: int = 0, text: str = "") -> dict[str, Any]:
    """Tell what came in and where it ran."""
    begin(tag, ctx)
    return say(tag, ctx, value=value, text=text)


def _hold(tag: str, seconds: float, ctx: Ctx) -> dict[str, Any]:
    number = begin(tag, ctx)
    wait_for_go(tag, seconds)
    ledger().note("end", f"{tag}:{ctx.key}", ctx.attempt)
    return say(tag, ctx, number=number)


@capability("ops_hold", retry="replay", backoff="none", lease_seconds=LEASE)
def hold(tag: str, seconds: float, ctx: Ctx) -> dict[str, Any]:
    """Last until told to go."""
    return _hold(tag, seconds, ctx)


@capability("ops_hold_unsaid", retry="replay", backoff="none")
def hold_unsaid(tag: str, seconds: float, ctx: Ctx) -> dict[str, Any]:
    """The same, and the lease is left to us."""
    return _hold(tag, seconds, ctx)


@capability("ops_hold_none", lease_seconds=LEASE)
def hold_none(tag: str, seconds: float, ctx: Ctx) -> dict[str, Any]:
    """The same, and never repeated."""
    return _hold(tag, seconds, ctx)


def _fail(tag: str, fails: int, ctx: Ctx) -> dict[str, Any]:
    number = begin(tag, ctx)
    if number <= fails:
        raise TransientError(f"call {number} of {fails} that fail")
    return say(tag, ctx, number=number)


@capability("ops_flaky", retry="replay", max_retries=5, lease_seconds=LEASE)
def flaky(tag: str, ctx: Ctx, fails: int = 1, text: str = "") -> dict[str, Any]:
    """Fail so often, each time for now only."""
    return _fail(tag, fails, ctx) | {"text": text}


@capability("ops_prompt", retry="replay", backoff="none", lease_seconds=LEASE)
def prompt(tag: str, ctx: Ctx, fails: int = 1, text: str = "") -> dict[str, Any]:
    """The same, repeated at once."""
    return _fail(tag, fails, ctx) | {"text": text}


@capability("ops_unserved", retry="replay", queue="ops_nowhere")
def unserved(tag: str, ctx: Ctx, fails: int = 0) -> dict[str, Any]:
    """Its queue has no worker unless a test starts one."""
    return _fail(tag, fails, ctx)


@capability("ops_budgeted", retry="replay", retry_budget=5, lease_seconds=LEASE)
def budgeted(tag: str, ctx: Ctx, fails: int = 1) -> dict[str, Any]:
    """Five retries a minute for all callers."""
    return _fail(tag, fails, ctx)


@capability("ops_raising", retry="replay")
def raising(tag: str, kind: str, ctx: Ctx) -> None:
    """Fail for good, or for a reason nobody knows."""
    begin(tag, ctx)
    raise PermanentError("no such account") if kind == "permanent" else RuntimeError("what is this?")


@capability("ops_stubborn", retry="replay", retry_unknown=True, backoff="none")
def stubborn(tag: str, ctx: Ctx) -> dict[str, Any]:
    """Meet once an error that nobody knows, and be repeated all the same."""
    number = begin(tag, ctx)
    if number == 1:
        raise RuntimeError("what is this?")
    return say(tag, ctx, number=number)


@capability("ops_turning", retry="replay", max_retries=2, backoff="none")
def turning(tag: str, ctx: Ctx) -> None:
    """Fail three times for now, then for good."""
    if begin(tag, ctx) <= 3:
        raise TransientError("the first trouble")
    raise PermanentError("the last trouble")


@capability("ops_half_sure", retry="replay", backoff="none")
def half_sure(tag: str, ctx: Ctx) -> dict[str, Any]:
    """Tell in the first answer that one of two effects is missing."""
    number = begin(tag, ctx)
    return say(tag, ctx, number=number, verified={"first": True, "second": "verified" if number > 1 else "absent"})


@capability("ops_deadly", retry="replay", lease_seconds=LEASE)
def deadly(tag: str, ctx: Ctx) -> None:
    """Kill every process that runs it."""
    begin(tag, ctx)
    die()


@capability("ops_deaf", retry="replay", timeout=1, lease_seconds=LEASE)
def deaf(tag: str, ctx: Ctx) -> dict[str, Any]:
    """At first block where no exception can be raised, far beyond its timeout."""
    number = begin(tag, ctx)
    if number == 1:
        time.sleep(60)
    return say(tag, ctx, number=number)


# Effects on a file, a page, a row.


@capability(
    "ops_file", retry="verify_first", backoff="none", lease_seconds=LEASE,
    effects=(EffectSpec("file", file_content(lambda p: p.path, equals=lambda p: p.text)),),
)
def write_file(tag: str, path: str, text: str, plan: list[str], ctx: Ctx) -> dict[str, Any]:
    """Leave a text in a file."""
    _write(tag, path, text, plan, ctx)
    return say(tag, ctx)


@capability(
    "ops_file_late", retry="verify_first", backoff="none", timeout=1, max_retries=1, lease_seconds=LEASE,
    effects=(EffectSpec("file", file_content(lambda p: p.path, equals=lambda p: p.text)),),
)
def write_file_late(tag: str, path: str, text: str, plan: list[str], ctx: Ctx) -> dict[str, Any]:
    """The same within a second."""
    _write(tag, path, text, plan, ctx)
    return say(tag, ctx)


@capability(
    "ops_file_last", retry="verify_first", backoff="none", timeout=1, max_retries=0, lease_seconds=LEASE,
    effects=(EffectSpec("file", file_content(lambda p: p.path, equals=lambda p: p.text)),),
)
def write_file_last(tag: str, path: str, text: str, plan: list[str], ctx: Ctx) -> dict[str, Any]:
    """The same within a second, and without a repeat left."""
    _write(tag, path, text, plan, ctx)
    return say(tag, ctx)


def _write(tag: str, path: str, text: str, plan: list[str], ctx: Ctx) -> None:
    file = Path(path)
    play(plan, begin(tag, ctx), {
        "whole": lambda: file.write_text(text), "half": lambda: file.write_text(text[: len(text) // 2]), "nothing": lambda: None,
    })


@capability(
    "ops_page", retry="verify_first", backoff="none", lease_seconds=LEASE,
    effects=(EffectSpec("page", http_get(lambda p: p.url, contains=lambda p: p.text)),),
)
def put_page(tag: str, url: str, text: str, ctx: Ctx) -> dict[str, Any]:
    """Put a text under a URL."""
    begin(tag, ctx)
    request = urllib.request.Request(url, data=text.encode(), method="PUT", headers={"Idempotency-Key": ctx.key})
    with urllib.request.urlopen(request, timeout=2) as answer:
        return say(tag, ctx, status=answer.status)


@capability(
    "ops_row", retry="verify_first", backoff="none", lease_seconds=LEASE,
    effects=(EffectSpec("row", sql_row(
        lambda p: p.database, "SELECT amount FROM payment WHERE reference = :tag", lambda p: {"tag": p.tag}, expect=lambda p: p.amount)),),
)
def insert_row(tag: str, database: str, amount: int, plan: list[str], ctx: Ctx) -> dict[str, Any]:
    """Book a payment. Nothing in the table forbids to book it twice."""
    engine = sqlalchemy.create_engine(database, poolclass=sqlalchemy.pool.NullPool)
    number = begin(tag, ctx)
    insert = sqlalchemy.text("INSERT INTO payment (reference, amount) VALUES (:tag, :amount)")
    with engine.connect() as connection:
        play(plan, number, {
            "commit": lambda: (connection.execute(insert, {"tag": tag, "amount": amount}), connection.commit()),
            "open": lambda: connection.execute(insert, {"tag": tag, "amount": amount}),
        })
    return say(tag, ctx)


def blind(ctx: Ctx) -> bool:
    raise RuntimeError("the ledger of effects is away")


@capability("ops_dim", retry="verify_first", backoff="none", lease_seconds=LEASE, effects=(EffectSpec("payment", blind),))
def dim(tag: str, plan: list[str], ctx: Ctx) -> dict[str, Any]:
    """Its verifier cannot tell."""
    play(plan, begin(tag, ctx), {"whole": lambda: ledger().note("landed", tag), "nothing": lambda: None})
    return say(tag, ctx)


# Tools and consent.


@need("ops_tool", seconds=5)
def tool() -> bool:
    return ledger().has_effect("ops_tool")


@capability("ops_tooled", retry="replay", needs=("ops_tool",), lease_seconds=LEASE)
def tooled(tag: str, ctx: Ctx) -> dict[str, Any]:
    """Work with a tool that may be missing."""
    begin(tag, ctx)
    if not ledger().has_effect("ops_tool"):
        raise TransientError("the tool is not there")
    return say(tag, ctx)


@capability("ops_consented", retry="replay", consent=True, lease_seconds=LEASE)
def consented(tag: str, ctx: Ctx, fails: int = 0) -> dict[str, Any]:
    """Only with consent."""
    return _fail(tag, fails, ctx)


# Workflows.


class Job(BaseModel):
    """What the steps of a run are to do."""

    tag: str
    plan: list[str] = ["whole"]
    fails: int = 0
    at: int = 0


def _pay(job: Job, ctx: Ctx) -> str:
    """An effect outside: each application of it is a line of the ledger, so that a second one shows."""
    play(job.plan, begin(job.tag, ctx), {"whole": lambda: ledger().note("landed", job.tag), "nothing": lambda: None})
    ledger().effect(f"{job.tag}:{ctx.key}")
    return "paid"


pay_flow = Workflow("ops_pay", input=Job)


@pay_flow.effect(lease_seconds=LEASE)
def pay(job: Job, ctx: Ctx) -> str:
    return _pay(job, ctx)


@pay_flow.step(lease_seconds=LEASE)
def receipt(pay: str) -> str:
    return f"receipt: {pay}"


verified_flow = Workflow("ops_pay_verified", input=Job)


@verified_flow.effect(lease_seconds=LEASE)
def pay_verified(job: Job, ctx: Ctx) -> str:
    return _pay(job, ctx)


@pay_verified.verify
def was_paid(job: Job) -> str | None:
    return "found paid" if [line for line in ledger().lines("landed") if line.key == job.tag] else None


@verified_flow.step(lease_seconds=LEASE)
def verified_receipt(pay_verified: str) -> str:
    return f"receipt: {pay_verified}"


idempotent_flow = Workflow("ops_pay_idempotent", input=Job)


@idempotent_flow.effect(lease_seconds=LEASE, idempotent=True)
def pay_idempotent(job: Job, ctx: Ctx) -> str:
    return _pay(job, ctx)


retried_flow = Workflow("ops_retried", input=Job)


@retried_flow.step(retry=Retry(max=1), lease_seconds=LEASE)
def shaky(job: Job, ctx: Ctx) -> int:
    return int(_fail(job.tag, job.fails, ctx)["number"])


@retried_flow.step(lease_seconds=LEASE)
def after_shaky(shaky: int, job: Job) -> int:
    ledger().note("after", job.tag)
    return shaky * 10


TEN = 10
once_flow = Workflow("ops_once", input=Job)


@once_flow.step(lease_seconds=LEASE)
def ten_times(job: Job, ctx: Ctx) -> list[int]:
    """Ten recorded calls. The first attempt dies after the one that the job names; by plan `each` the n-th dies after the n-th."""
    number = begin(job.tag, ctx)
    last = number if job.plan == ["each"] else job.at if number == 1 else 0
    given = []
    for turn in range(1, TEN + 1):
        given.append(ctx.once(f"turn{turn}", _turn, job.tag, turn))
        if turn == last:
            die()
    return given


def _turn(tag: str, turn: int) -> int:
    ledger().note("turn", f"{tag}:{turn}")
    return turn * turn


calling_flow = Workflow("ops_calling", input=Job)


@calling_flow.step(lease_seconds=LEASE)
def caller(job: Job, ctx: Ctx) -> dict[str, Any]:
    """Call a capability, die right after (`plan` kill) the first time, and go on with what it gave."""
    ledger().note("caller", f"{job.tag}:{ctx.attempt}", ctx.attempt)
    calls = sum(line.key.startswith(f"{job.tag}:") for line in ledger().lines("caller"))
    answer: dict[str, Any] = ctx.call("ops_echo", tag=job.tag, value=7)
    if calls == 1 and job.plan == ["kill"]:
        die()
    return answer


pending_flow = Workflow("ops_pending", input=Job)


@pending_flow.step(lease_seconds=LEASE)
def patient(job: Job, ctx: Ctx) -> dict[str, Any]:
    """Call a capability that is queued for a retry, or dies with this process inside."""
    ledger().note("caller", f"{job.tag}:{ctx.attempt}", ctx.attempt)
    answer: dict[str, Any] = ctx.call("ops_hold", tag=job.tag, seconds=20.0) if job.plan == ["hold"] else ctx.call(
        "ops_flaky", tag=job.tag, fails=job.fails)
    return answer


consent_flow = Workflow("ops_consent", input=Job)


@consent_flow.step(lease_seconds=LEASE)
def tag(job: Job, ctx: Ctx) -> str:
    """Hold the run until the test says go; fail for good as long as it is not mended, if the plan says so."""
    wait_for_go(job.tag, 20)
    if job.plan == ["mend"] and not ledger().has_effect(f"{job.tag}:mended"):
        raise PermanentError("not mended yet")
    return job.tag


consent_flow.step(consented, name="consented", params={"fails": 0}, lease_seconds=LEASE)


consent_call_flow = Workflow("ops_consent_call", input=Job)


@consent_call_flow.step(lease_seconds=LEASE)
def asking(job: Job, ctx: Ctx) -> dict[str, Any]:
    """The same, called from inside a step."""
    wait_for_go(job.tag, 20)
    answer: dict[str, Any] = ctx.call("ops_consented", tag=job.tag)
    return answer


ticking_flow = Workflow("ops_ticking", input=Job)


@ticking_flow.step
def ticked(job: Job, ctx: Ctx) -> str:
    """Write down that a tick has begun a run."""
    begin(job.tag, ctx)
    return ctx.run_id


if "TEST_SLOW_TICKS" in os.environ:  # long between what is started and the note of it, so that others judge the same tick meanwhile
    note_tick = Store.tick_job

    def note_slowly(store: Store, name: str, **tick: Any) -> str:
        ledger().note("judged", f"{name}:{tick['expected']}")
        time.sleep(0.2)
        return note_tick(store, name, **tick)

    Store.tick_job = note_slowly  # type: ignore[method-assign]

if "TEST_TICKS" in os.environ:  # only where a test is about them: they tick as long as a worker lives
    for name, cadence in (("ops-seconds", 1), ("ops-hours", crontab(minute=0))):
        ticking_flow.every(cadence, name=name, input={"tag": f"{os.environ['TEST_TICKS']}-{name}"}, overlap="allow")


if __name__ == "__main__":  # a caller in a process of its own: python -m tests.acceptance.operations_app CAPABILITY PARAMS SESSION
    import json
    import sys

    told = conductor.call(sys.argv[1], json.loads(sys.argv[2]), session=sys.argv[3] if len(sys.argv) > 3 else "")
    print(json.dumps(told.to_json()), flush=True)
