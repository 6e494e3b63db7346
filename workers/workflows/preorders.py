"""An order that can be taken back: reserve, charge, deliver, each of the first two with an undo; the delivery is a workflow of its own.

If a step fails for good, or if somebody says `conductor cancel RUN --compensate`, what was done is undone, the latest first: the refund,
then the release of the goods. An undo has a key of its own (`…:charge:undo`), its own record and its own retries. As in `orders.py` the
world outside is a directory, here named by `PREORDERS_LEDGER`; it keeps one file per booking and one per refund.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pydantic import BaseModel, Field

from conductor import Ctx, PermanentError, Retry, RunOutcome, Workflow

__all__ = ["Parcel", "Preorder", "delivery", "entries", "flow"]


class Preorder(BaseModel):
    """What a run is started with. An empty address is noticed late, when the money has been taken already."""

    id: int
    total: int = Field(ge=0, description="in cents")
    address: str = ""


class Parcel(BaseModel):
    """What a delivery is started with."""

    order: int
    address: str


class NoAddress(PermanentError):
    """there is no address to deliver to"""


delivery = Workflow("delivery", input=Parcel)


@delivery.step
def route(parcel: Parcel) -> str:
    """Find the way."""
    if not parcel.address:
        raise NoAddress
    return f"to {parcel.address}"


@delivery.step
def drop(route: str, parcel: Parcel) -> str:
    """Hand it over."""
    return f"parcel {parcel.order} {route}"


flow = Workflow("preorder", input=Preorder, on_failure="compensate")


@flow.step
def reserve(order: Preorder) -> str:
    """Put the goods aside."""
    return f"hold-{order.id}"


@reserve.undo
def release(reserve: str | None, ctx: Ctx) -> None:
    """Put them back. Of an attempt in doubt the result is not known: then there is nothing to name."""
    _enter(ctx.key, f"released {reserve or 'whatever was held'}")


@flow.effect(idempotent=True)
def charge(order: Preorder, reserve: str, ctx: Ctx) -> str:
    """Take the money, once."""
    _enter(ctx.key, f"took {order.total} for {reserve}")
    return ctx.key


@charge.verify
def charged(ctx: Ctx) -> bool:
    """Whether the money was taken: asked before the charge is repeated, and before an attempt in doubt is refunded."""
    return (_ledger() / _name(ctx.key)).exists()


@charge.undo(retry=Retry(max=20))
def refund(order: Preorder, ctx: Ctx) -> None:
    """Give it back, once: a refund may have to wait for a bank for long."""
    _enter(ctx.key, f"gave back {order.total}")


def parcel(order: Preorder, charge: str) -> Parcel:
    """What the delivery is started with: the parameters are wired like those of a step."""
    return Parcel(order=order.id, address=order.address)


deliver = flow.call(delivery, parcel, name="deliver", result=True)


@flow.on_failure
def tell_customer(order: Preorder, outcome: RunOutcome, ctx: Ctx) -> None:
    """Runs after the undos."""
    ctx.log.warning("order %s could not be carried out (%s); everything was taken back", order.id, outcome.reason)


def entries() -> list[str]:
    """What the ledger says."""
    return sorted(found.read_text() for found in _ledger().iterdir())


def _ledger() -> Path:
    place = Path(os.environ.get("PREORDERS_LEDGER") or Path(tempfile.gettempdir()) / "conductor-preorders")
    place.mkdir(parents=True, exist_ok=True)
    return place


def _name(key: str) -> str:
    return f"{key.replace(':', '_')}.txt"


def _enter(key: str, text: str) -> None:
    """One entry per key, however often it is made."""
    (_ledger() / _name(key)).write_text(text)
