"""Conductor, used exactly as a user would: a Celery app, one line of Conductor, workflows, `delay` and `get`.

Chains are declared step by step from text, because each step has to name the one before as its parameter, as a person would write it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import redis
from celery import Celery
from pydantic import BaseModel

from conductor import Conductor, Ctx, TransientError, Workflow
from conductor.declare.capability import capability
from conductor.sweeps.idle import sweep_idle
from ops.bench.works import NAP_SECONDS, Work, span

__all__ = ["app", "conductor", "connect"]

URL = os.environ["BENCH_URL"]
PARALLEL = 64  # above the number of slots in every row
CHAINS = (3, 10, 100, 1_000, *((10_000,) if os.environ.get("BENCH_LARGE") else ()))

app = Celery("bench", broker=URL)
app.conf.broker_connection_retry_on_startup = True
conductor = Conductor(app, redis_url=URL)


class Number(BaseModel):
    """The input of a one-step run and of a fan-out."""

    n: int


one: Workflow[Number] = Workflow("one", input=Number)


@one.step
def only(number: Number) -> int:
    return number.n


# What an idle sweep meets most: runs that wait, and are not due.
asked: Workflow[None] = Workflow("asked")
asked.agent("answer", int)
told: Workflow[None] = Workflow("told")
told.wait("word", int)


@capability("bench_op", retry="replay", backoff="none")
def bench_op(n: int, ctx: Ctx) -> int:
    """Its first attempt, in the driver's own process, fails: what is left is a retry that is due."""
    if ctx.attempt == 1:
        raise TransientError("not yet")
    return n


class OpHandle:
    """An operation, asked like a run."""

    def __init__(self, operation_id: str) -> None:
        self.id = operation_id

    def get(self, timeout: float) -> Any:
        return conductor.operation(self.id).result


def _declare(flow: Workflow[Any], text: str) -> None:
    """One step from source text."""
    names: dict[str, Any] = {"time": time, "span": span, "NAP_SECONDS": NAP_SECONDS}
    exec(compile(text, f"<{flow.name}>", "exec", dont_inherit=True), names)
    flow.step(names[text.removeprefix("def ").partition("(")[0]])


def _chain(size: int, name: str = "chain", body: str = "return {before} + 1") -> Workflow[None]:
    flow: Workflow[None] = Workflow(f"{name}{size}")
    _declare(flow, "def s0() -> int:\n    " + body.format(before="0"))
    for index in range(1, size):
        before = f"s{index - 1}"
        _declare(flow, f"def s{index}({before}: int) -> int:\n    {body.format(before=before)}")
    return flow


def _timed_chain(size: int) -> Workflow[None]:
    flow: Workflow[None] = Workflow(f"timed{size}")
    _declare(flow, "def s0() -> float:\n    return time.monotonic()")
    for index in range(1, size):
        answer = f"s{index - 1}" if index < size - 1 else f"span(s{index - 1})"
        _declare(flow, f"def s{index}(s{index - 1}: float) -> float:\n    return {answer}")
    return flow


chains = {size: _chain(size) for size in CHAINS if size < 10_000}
timed_chains = {size: _timed_chain(size) for size in CHAINS}
nap_chains = {20: _chain(20, "nap", "time.sleep(NAP_SECONDS); return {before} + 1")}

fan: Workflow[Number] = Workflow("fan", input=Number)


@fan.step
def numbers(number: Number) -> list[int]:
    return list(range(number.n))


@fan.each(numbers, max_parallel=PARALLEL)
def item(each: int) -> int:
    return each


@fan.step
def total(item: list[int]) -> int:
    return sum(item)


nap_fan: Workflow[Number] = Workflow("nap_fan", input=Number)


@nap_fan.step(name="numbers")
def nap_numbers(number: Number) -> list[int]:
    return list(range(number.n))


@nap_fan.each(nap_numbers, max_parallel=PARALLEL, name="item")
def nap_item(each: int) -> int:
    time.sleep(NAP_SECONDS)
    return each


@nap_fan.step(name="total")
def nap_total(item: list[int]) -> int:
    return sum(item)


timed_fan: Workflow[Number] = Workflow("timed_fan", input=Number)


@timed_fan.step
def moments(number: Number) -> list[float]:
    """Every item is told when the head ended, so that the join can say how long the items took."""
    return [time.monotonic()] * number.n


@timed_fan.each(moments, max_parallel=PARALLEL)
def moment(each: float) -> float:
    return max(each, time.monotonic())


@timed_fan.step
def passed(moment: list[float]) -> float:
    """From the first item's body to the last one's: reading the list is the join's own cost, not an item's."""
    return max(moment) - min(moment)


class ConductorPlug:
    """The driver's side."""

    def __init__(self) -> None:
        self._redis = redis.Redis.from_url(URL)

    def begin(self, many: bool) -> None:
        """There is one road."""

    def start(self, work: Work, number: int) -> Any:
        match work.kind:
            case "one":
                return one.delay(Number(n=number))
            case "op":
                return OpHandle(conductor.call(bench_op, {"n": number}).operation_id)
            case "chain":
                return chains[work.size].delay(None)
            case "timed_chain":
                return timed_chains[work.size].delay(None)
            case "nap_chain":
                return nap_chains[work.size].delay(None)
        return {"fan": fan, "nap_fan": nap_fan, "timed_fan": timed_fan}[work.kind].delay(Number(n=work.size))

    def result(self, handle: Any, timeout: float) -> Any:
        return handle.get(timeout=timeout)

    def outstanding(self) -> int:
        """Runs and operations that have not ended: the sizes of their hashes."""
        keys = conductor.engine.store.keys
        with self._redis.pipeline(transaction=False) as pipe:
            for partition in range(keys.partitions):
                pipe.hlen(keys.of(partition, "active"))
                pipe.hlen(keys.of(partition, "ops:open"))
            return sum(pipe.execute())

    def results(self, handles: list[Any], timeout: float) -> list[Any]:
        return [handle.get(timeout=timeout) for handle in handles]

    def messages(self) -> dict[str, Any]:
        """Tasks received by all workers since they began, by name."""
        found = app.control.inspect(timeout=2).stats() or {}
        totals = [worker["total"] for worker in found.values()]
        return {"tasks": {name: sum(total.get(name, 0) for total in totals) for name in {key for total in totals for key in total}}}

    def idle_sweeps(self, runs: int, looks: int) -> dict[str, Any]:
        """Milliseconds of each idle sweep, and of each look over the whole store, while so many active runs wait."""
        for number in range(self.outstanding(), runs):
            match number % 3:
                case 0:
                    asked.delay()
                case 1:
                    told.delay()
                case _:
                    one.apply_async(Number(n=number), countdown=86_400)
        if (active := self.outstanding()) != runs:
            raise AssertionError(f"{active} active runs instead of {runs}")
        return {"sweep": _times(_swept_nothing, looks), "look": _times(conductor.engine.store.glance, looks)}


def _times(work: Callable[[], object], count: int) -> list[float]:
    found = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        found.append(1000 * (time.perf_counter() - began))
    return found


def _swept_nothing() -> None:
    report = sweep_idle(conductor.engine)
    if not report.ran or report.count:
        raise AssertionError(f"an idle sweep with nothing due, alone: {report}")


def connect() -> ConductorPlug:
    return ConductorPlug()
