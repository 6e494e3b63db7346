"""The Celery application of the fault and acceptance tests. Everything comes from the environment, so that each process can differ:

`TEST_BROKER_URL` the broker, `TEST_LEDGER` the ledger's directory, `TEST_BROKER_COPIES` and `TEST_BROKER_LOSS` a broker that doubles
and loses, `CONDUCTOR_*` the engine's own settings.
"""

from __future__ import annotations

import os

from celery import Celery

from conductor import Conductor
from tests.support import works
from tests.support.broken_broker import install_from_environment
from tests.support.ledger import Ledger

__all__ = ["app", "conductor", "works"]

app = Celery("conductor-tests", broker=os.environ["TEST_BROKER_URL"])
app.conf.update(worker_hijack_root_logger=False, broker_connection_retry_on_startup=True, worker_soft_shutdown_timeout=3)
conductor = Conductor(app)
install_from_environment(Ledger(os.environ["TEST_LEDGER"]))
