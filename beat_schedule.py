"""What beat sends, and how often: names and intervals from the settings, no logic."""

from __future__ import annotations

from conductor.broker.schedule import beat_entries
from conductor.settings import Settings

__all__ = ["beat_schedule"]

beat_schedule = beat_entries(Settings.load())
