"""Money that moves once: charge, draw a receipt, post it. Each effect can be asked whether it happened, so none is done twice or lost.

The outside world is a directory that the input names: a list of bookings, and a file per receipt. Kill the worker wherever you like:

    conductor start payment '{"order": 42, "cents": 900, "ledger": "/tmp/ledger"}' --wait
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from celery.schedules import crontab
from pydantic import BaseModel, Field

from conductor import Ctx, Workflow
from conductor.declare.capability import capability
from conductor.declare.effects import EffectSpec
from conductor.declare.verifiers import file_content

__all__ = ["Booking", "Ledger", "Payment", "Receipt", "audit", "flow", "read"]


class Ledger(BaseModel):
    """Where bookings and receipts are kept."""

    ledger: str


class Payment(Ledger):
    """What a run is started with."""

    order: int
    cents: int = Field(ge=0)


class Booking(BaseModel):
    """Money that was taken, under the key of the step that took it."""

    key: str
    cents: int


class Receipt(Ledger):
    """What the customer gets."""

    number: str
    cents: int

    @property
    def path(self) -> Path:
        return Path(self.ledger, f"receipt-{self.number}.txt")

    @property
    def text(self) -> str:
        return f"receipt {self.number}: {self.cents} cents\n"


# A capability: called alone (`conductor call post_receipt …`) or as a step. Its effect is verified before it would be repeated.


@capability("post_receipt", retry="verify_first", effects=[
    EffectSpec("receipt file", file_content(lambda p: p.receipt.path, equals=lambda p: p.receipt.text)),
])
def post_receipt(receipt: Receipt) -> str:
    """Write the receipt where the customer finds it. A half-written one is healed by writing it again."""
    receipt.path.parent.mkdir(parents=True, exist_ok=True)
    receipt.path.write_text(receipt.text)
    return str(receipt.path)


# A workflow.

flow = Workflow("payment", input=Payment)


@flow.effect
def charge(payment: Payment, ctx: Ctx) -> Booking:
    """Take the money: a second line would take it twice. The key is the same in every attempt."""
    booking, bookings = Booking(key=ctx.key, cents=payment.cents), _bookings(payment)
    bookings.parent.mkdir(parents=True, exist_ok=True)
    with bookings.open("a") as file:
        file.write(f"{booking.model_dump_json()}\n")
    return booking


@charge.verify
def booked(payment: Payment, ctx: Ctx) -> Booking | None:
    """Asked before `charge` is repeated. A booking that is found is the step's result; None says that nothing happened."""
    return next((found for found in read(payment) if found.key == ctx.key), None)


@flow.step
def draw(payment: Payment, charge: Booking, ctx: Ctx) -> Receipt:
    """Number the receipt. `ctx.once` keeps the number: an attempt that is repeated does not draw another."""
    number = ctx.once("number", secrets.token_hex, 4)
    return Receipt(ledger=payment.ledger, number=number, cents=charge.cents)


post = flow.step("post_receipt", name="post", using={"receipt": draw})


def read(where: Ledger) -> list[Booking]:
    """All bookings of a ledger."""
    bookings = _bookings(where)
    return [Booking.model_validate_json(line) for line in bookings.read_text().splitlines()] if bookings.exists() else []


def _bookings(where: Ledger) -> Path:
    return Path(where.ledger, "bookings.jsonl")


# A schedule, only where somebody asks for it: PAYMENTS_LEDGER=/tmp/ledger celery -A workers worker

audit = Workflow("payment_audit", input=Ledger)


@audit.step
def total(where: Ledger) -> int:
    """Add up all bookings."""
    return sum(found.cents for found in read(where))


if where := os.environ.get("PAYMENTS_LEDGER"):
    audit.every(crontab(hour=3, minute=0), tz="UTC", input=Ledger(ledger=where))
