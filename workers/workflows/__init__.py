"""Example workflows, one file each. Copy one and make it yours."""

from __future__ import annotations

from workers.workflows import approvals, chain, drafts, media, orders, payments, preorders

__all__ = ["approvals", "chain", "drafts", "media", "orders", "payments", "preorders"]
