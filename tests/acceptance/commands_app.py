"""A user's project of the command tests: a workflow that can fail, one that asks, a lane, a limit, two capabilities."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import Celery
from pydantic import BaseModel

from conductor import Conductor, Lane, Limit, Workflow
from conductor.declare.capability import capability

app = Celery("commands", broker=os.environ["TEST_BROKER_URL"], backend=os.environ["TEST_RESULTS"])
app.conf.update(broker_connection_retry_on_startup=True)
conductor = Conductor(app)


class Order(BaseModel):
    """`mended` is a file whose presence lets the charge succeed."""

    number: int
    mended: str = ""


orders = Workflow("orders", input=Order)


@orders.step
def price(order: Order) -> int:
    return order.number * 2


@orders.step(limit=Limit("bank", concurrency=3))
def charge(price: int, order: Order) -> int:
    if order.mended and not Path(order.mended).exists():
        raise ValueError("card refused")
    return price + 1


asks: Workflow[Any] = Workflow("asks", lane=Lane("desk", 2))
asks.wait("go", int)
asks.agent("draft", str)


@capability("lend")
def lend(title: str, days: int = 14) -> dict[str, Any]:
    """Lend a book."""
    return {"title": title, "days": days}


@capability("erase", consent=True)
def erase() -> str:
    """Erase everything."""
    return "erased"
