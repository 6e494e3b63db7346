"""An expense that somebody must approve: the run waits for a signal without holding a worker, however long that takes.

    conductor start expense '{"who": "Ada", "cents": 4200}' --key trip-7
    conductor why last
    conductor signal expense approval '{"by": "Grace", "ok": true}' --key trip-7

Nobody answers for three days: the expense is refused, as `default=` says. An approval that comes before the run asks for it is kept.
"""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel, Field

from conductor import Workflow

__all__ = ["Approval", "Expense", "flow"]


class Expense(BaseModel):
    """What a run is started with."""

    who: str
    cents: int = Field(gt=0)


class Approval(BaseModel):
    """What the signal carries."""

    by: str
    ok: bool


flow = Workflow("expense", input=Expense)


@flow.step
def filed(expense: Expense) -> str:
    return f"{expense.who}: {expense.cents / 100:.2f}"


approval = flow.wait("approval", Approval, timeout=timedelta(days=3), default=Approval(by="nobody", ok=False), after=filed)


@flow.step
def settled(filed: str, approval: Approval) -> str:
    return f"{filed} {'paid' if approval.ok else 'refused'}, said {approval.by}"
