"""`conductor serve`: one process that serves HTTP until it is told to stop. Any number of them may run, on any hosts, on one store.

Start: the store is judged as a worker judges it (an unsafe one is refused, one that is away is waited for), runs are recovered unless
somebody did a minute ago, and only then, with the port open, one line says where it listens and what stands behind it.
Refused: an address that others can reach, while no token exists: everybody who reaches it could do everything.
Stop: SIGTERM or Ctrl-C close the port, tell streams to go on elsewhere, let requests end, write what is left of the audit record. A second
Ctrl-C waits for nobody.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import uvicorn

from conductor import __version__
from conductor.errors import SettingsError
from conductor.runs.doctor import examine, found_durability, refuse_unsafe
from conductor.runs.read import counted
from conductor.runs.recover import recover_at_start
from conductor.service.access import is_loopback
from conductor.service.app import Service, asgi
from conductor.service.protocol import bounded
from conductor.store.notices import Unreachable

if TYPE_CHECKING:
    from conductor.broker.conductor import Conductor

__all__ = ["serve"]

logger = logging.getLogger(__name__)

_PATIENCE = 5.0  # seconds for a store that is away: a caller of HTTP waits no half minute, and may ask again
_GRACE = 10
_IDLE = 30


def serve(conductor: Conductor, *, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve until told to stop. `announce` gets the line that says where."""
    settings, store = conductor.settings, conductor.engine.store
    store.give_up_after(_PATIENCE)
    conductor.import_code()
    behind = _judged(conductor)
    guarded = _tokens(conductor, host)
    app = asgi(conductor)
    config = uvicorn.Config(
        app, http=bounded(settings.service_body_seconds, settings.service_max_connections), ws="none", lifespan="off", log_config=None,
        access_log=False, server_header=False, proxy_headers=bool(settings.service_trusted_proxies),
        forwarded_allow_ips=settings.service_trusted_proxies, timeout_keep_alive=_IDLE, timeout_graceful_shutdown=_GRACE,
    )
    listening = _listen(host, port)
    with contextlib.closing(listening):
        threading.Thread(target=recover_at_start, args=(conductor.engine,), name="conductor-recovery", daemon=True).start()
        shown = f"[{host}]" if ":" in host else host
        where = f"http://{shown}:{listening.getsockname()[1]}"
        announce(f"conductor {__version__} serves {where} (namespace {settings.namespace}, {behind}, {guarded})")
        _Server(config, app).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Ends with exit code 0 when it was asked to: the server underneath would raise the signal once more."""

    def __init__(self, config: uvicorn.Config, app: Service) -> None:
        super().__init__(config)
        self._app = app

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        handled = (signal.SIGINT, signal.SIGTERM)
        before = {sig: signal.signal(sig, self.handle_exit) for sig in handled}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.stop()
        await super().shutdown(sockets)
        self._app.close()


def _judged(conductor: Conductor) -> str:
    """What stands behind the service, in a few words. Raises UnsafeServer."""
    settings, store = conductor.settings, conductor.engine.store
    checks = examine(store.client(), settings)
    if [check.name for check in checks if check.status == "failed"] == ["reachability"]:
        logger.warning("the store %s cannot be reached yet: %s; requests are answered 503 until it can; %s", store.url, checks[0].found,
                       checks[0].remedy)
        return f"state in {store.url}, which is away"
    refuse_unsafe(checks, settings, url=store.url)
    durability = found_durability(store.client(), settings) or "unknown"
    return f"state in {store.url}, durability {durability}, {counted(len(conductor.engine.workflows), 'workflow')}"


def _tokens(conductor: Conductor, host: str) -> str:
    """Who may call. Raises SettingsError for an address that others reach while nobody would have to show anything."""
    store = conductor.engine.store
    try:
        tokens = store.tokens()
        now = store.clock()
    except Unreachable:
        tokens, now = [], 0
    valid = [token for token in tokens if not token.problem(now)]
    if not is_loopback(host) and not valid:
        raise SettingsError(
            setting="service_host", problem=f"{host} can be reached by others, and there is no token, so everybody could do everything; "
            "make one (conductor tokens add NAME), or listen on 127.0.0.1")
    return counted(len(valid), "token") if tokens else "open to this machine only, because there is no token"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SettingsError(
            setting="service_port", problem=f"{host}:{port} cannot be listened on: {error.strerror or error}; name another with --port",
        ) from None
