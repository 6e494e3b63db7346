"""The ready-made application: `celery -A workers worker`, `celery -A workers beat`, `celery -A workers flower` just work.

Nothing has to be set. Without `CELERY_BROKER_URL` and `CONDUCTOR_REDIS_URL` both the broker and the state are the Valkey that comes
along, which is started, or found running, under `.conductor/` and announced in one line.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys

from celery import Celery

from conductor import Conductor
from conductor.embedded import EmbeddedServer
from conductor.locations import EMBEDDED, is_redis
from conductor.settings import Settings

__all__ = ["app", "conductor"]


def _addresses() -> dict[str, str]:
    """Broker and state. Celery's own variable names the broker, else it is where the state is, else both are the embedded server."""
    named = os.environ.get("CELERY_BROKER_URL", "")
    settings = Settings.load()
    state = settings.redis_url or ("" if is_redis(named) else EMBEDDED)
    if state != EMBEDDED:
        return {"broker_url": named or state}
    server = EmbeddedServer(settings.embedded_directory).start()
    return {"broker_url": named or server.broker_url, "conductor_redis_url": server.url}


def _keep_flower_private() -> None:
    """Flower may cancel and shows what runs: on loopback and behind a password, unless its own variables or options say otherwise."""
    os.environ.setdefault("FLOWER_ADDRESS", "127.0.0.1")
    if "flower" not in sys.argv or any(os.environ.get(name) for name in ("FLOWER_BASIC_AUTH", "FLOWER_AUTH", "FLOWER_AUTH_PROVIDER")):
        return
    file = Settings.load().embedded_directory / "flower.password"
    if not file.exists():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made:
            made.write(secrets.token_urlsafe(18))
    os.environ["FLOWER_BASIC_AUTH"] = f"conductor:{file.read_text().strip()}"
    print(f"Flower: user conductor, password in {file.resolve()}", file=sys.stderr)


def _keepalive() -> dict[int, int]:
    """Notice within seconds that the server's end of a connection is gone: Flower only reads, and would otherwise wait for two hours."""
    wanted = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
    return {getattr(socket, name): value for name, value in wanted.items() if hasattr(socket, name)}


_keep_flower_private()
app = Celery("workers")
app.conf.update(
    accept_content=["json"],
    broker_connection_retry_on_startup=True,
    broker_transport_options={"socket_connect_timeout": 5, "socket_keepalive": True, "socket_keepalive_options": _keepalive()},
    task_default_queue="conductor",
    worker_prefetch_multiplier=1,
    worker_soft_shutdown_timeout=20,
    **_addresses(),
)
conductor = Conductor(app)

from workers import workflows  # noqa: E402, F401 - the example workflows are declared when the application is
