"""What users write: workflows, steps, retries. Pure declarations; no store, no broker, no clock except where a start names a time."""

from __future__ import annotations
