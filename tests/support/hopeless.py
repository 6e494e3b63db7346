"""A workflow that fails whatever one does, and the application whose workers know it: for what must be done once although nothing changes.

As an application it needs the environment of `tests.support.app`; the workflow alone needs nothing.
"""

from __future__ import annotations

import os
from typing import Any

from conductor import PermanentError, Workflow

__all__ = ["hopeless"]

hopeless: Workflow[Any] = Workflow("hopeless")


@hopeless.step(lease_seconds=3)
def despair() -> int:
    raise PermanentError("whatever one does")


if "TEST_BROKER_URL" in os.environ:
    from tests.support.app import app, conductor  # noqa: F401 - what `celery -A` and `conductor -A` look for
