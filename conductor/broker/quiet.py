"""Sweeps that did nothing are not news, in Celery's own lines neither: "received" and "succeeded" of our sweeps are for DEBUG.

Six sweeps come every few seconds, so a worker at INFO would say little else. Only lines about our own sweeps are held back; a sweep that
moved something says so itself, and what fails is said as always. No level, handler or format of the project's logging is touched.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

__all__ = ["hush_sweeps"]

_LOGGERS = ("celery.worker.strategy", "celery.app.trace")  # received; succeeded
_SWEEPS = "conductor.sweep_"


def _is_news(record: logging.LogRecord) -> bool:
    if record.levelno != logging.INFO or not isinstance(record.args, Mapping):
        return True
    if not str(record.args.get("name", "")).startswith(_SWEEPS):
        return True
    return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


def hush_sweeps() -> None:
    """Called when a worker starts; again is harmless."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_is_news)
