"""An application of the acceptance tests of streams: long chains whose steps do nothing, so that what is measured is the engine."""

from __future__ import annotations

import os

from celery import Celery

from conductor import Conductor, Workflow

__all__ = ["LENGTH", "app", "conductor", "march"]

LENGTH = 800

app = Celery("streaming", broker=os.environ["TEST_BROKER_URL"])
app.conf.update(broker_connection_retry_on_startup=True)
conductor = Conductor(app)
march = Workflow("march")


def _step() -> int:
    return 1


_last = None
for _number in range(LENGTH):
    _last = march.step(_step, name=f"s{_number}", after=[_last] if _last else [])
