"""An order that survives anything: reserve, charge, ship. Charging changes the world outside, so it is an effect and uses `ctx.key`.

The outside world here is a directory, one file per booking, named by `ORDERS_LEDGER`. Whatever worker is killed and whatever step is
repeated, it holds one booking per order, because a booking is made under the step's key and a key is booked once.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pydantic import BaseModel, Field

from conductor import Ctx, PermanentError, Retry, RunOutcome, Workflow

__all__ = ["Declined", "Order", "Payment", "bookings", "flow"]


class Order(BaseModel):
    """What a run is started with: `flow.apply_async(Order(id=42, items=["tea"], total=900), key="order-42")`."""

    id: int
    items: list[str] = Field(min_length=1)
    total: int = Field(ge=0, description="in cents")


class Payment(BaseModel):
    """A booking in the ledger."""

    key: str
    amount: int


class Declined(PermanentError):
    """the payment was declined; another try would be declined as well"""


flow = Workflow("order", input=Order)


@flow.step
def reserve(order: Order) -> str:
    """Put the goods aside."""
    return f"hold-{order.id}"


@flow.effect(retry=Retry(max=5, never=Declined), idempotent=True)
def charge(order: Order, reserve: str, ctx: Ctx) -> Payment:
    """Take the money, once. In every attempt `ctx.key` is the same, so a repeat finds the booking of the attempt that was cut off."""
    if order.total > 1_000_000:
        raise Declined(f"order {order.id} for {reserve} is over the limit of the card")
    return _book(Payment(key=ctx.key, amount=order.total))


@flow.step
def ship(order: Order, charge: Payment) -> str:
    """Send the parcel that was paid for."""
    return f"parcel-{order.id}-{charge.amount}"


@flow.on_failure
def tell_support(order: Order, outcome: RunOutcome, ctx: Ctx) -> None:
    """Say that somebody must look at it."""
    ctx.log.warning("order %s failed: %s", order.id, outcome.reason)


def bookings() -> list[Payment]:
    """All bookings in the ledger."""
    return [Payment.model_validate_json(found.read_text()) for found in sorted(_ledger().glob("*.json"))]


def _ledger() -> Path:
    place = Path(os.environ.get("ORDERS_LEDGER") or Path(tempfile.gettempdir()) / "conductor-ledger")
    place.mkdir(parents=True, exist_ok=True)
    return place


def _book(payment: Payment) -> Payment:
    """Write the booking whole or not at all; if the key is booked already, answer with that booking."""
    target = _ledger() / f"{payment.key.replace(':', '_')}.json"
    with tempfile.NamedTemporaryFile("w", dir=target.parent, suffix=".part") as draft:
        draft.write(payment.model_dump_json())
        draft.flush()
        os.fsync(draft.fileno())
        try:
            os.link(draft.name, target)  # unlike a rename, this refuses if another attempt was first
        except FileExistsError:
            return Payment.model_validate_json(target.read_text())
    return payment
