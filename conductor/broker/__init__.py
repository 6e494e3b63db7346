"""Celery and kombu: the only door to them. `Conductor(app)` is what users write; the rest is what it brings along."""

from __future__ import annotations

from conductor.broker.conductor import Conductor

__all__ = ["Conductor"]
