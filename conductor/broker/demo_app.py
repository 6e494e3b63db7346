"""The application that `conductor demo` runs: an order of many parcels, each packed by a step of its own, with an outside ledger.

The ledger is a directory: `bodies` has one line each time a body ran, `effects/` one file per `ctx.key`. It belongs to no part of the
engine, so it can testify what really happened.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from celery import Celery
from pydantic import BaseModel, Field

from conductor.broker.conductor import Conductor
from conductor.declare.context import Ctx
from conductor.declare.workflow import Workflow

__all__ = ["Order", "app", "conductor", "flow"]

app = Celery("conductor_demo", broker=os.environ.get("CONDUCTOR_DEMO_BROKER", "memory://"))
app.conf.update(worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)
conductor = Conductor(app, autodiscover=False, namespace="demo")


class Order(BaseModel):
    """An order of `parcels` parcels, each of which takes `seconds` to pack."""

    parcels: int = Field(ge=1, le=10_000)
    seconds: float = Field(ge=0, le=10)


def _testify(ctx: Ctx, seconds: float = 0) -> str:
    """Note that a body began, work a while, and leave its effect under its key: the second time it is found there."""
    ledger = Path(os.environ["CONDUCTOR_DEMO_LEDGER"])
    with (ledger / "bodies").open("a") as bodies:
        bodies.write(f"{ctx.key} {os.getpid()}\n")
    time.sleep(seconds)
    effect = ledger / "effects" / hashlib.sha256(ctx.key.encode()).hexdigest()[:32]
    try:
        with effect.open("x") as file:
            file.write(ctx.key)
    except FileExistsError:
        ctx.log.info("its effect is there already")
    return ctx.key


flow = Workflow("parcels", input=Order)


@flow.step
def accept(order: Order, ctx: Ctx) -> list[int]:
    """Take the order in; one number per parcel."""
    _testify(ctx)
    return list(range(order.parcels))


@flow.each(accept, max_parallel=8)
def pack(parcel: int, order: Order, ctx: Ctx) -> str:
    """Pack one parcel."""
    return _testify(ctx, order.seconds)


@flow.step
def ship(pack: list[str], ctx: Ctx) -> int:
    """Ship them all together."""
    _testify(ctx)
    return len(pack)


@flow.effect(idempotent=True)
def invoice(ship: int, ctx: Ctx) -> str:
    """Write the invoice, once."""
    _testify(ctx)
    return f"{ship} parcels"
