"""`conductor.asgi()`: the HTTP service of this app, to be mounted into another. It needs the extra `server`, which workers do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conductor.errors import ServerNotInstalled

if TYPE_CHECKING:
    from conductor.broker.conductor import Conductor

__all__ = ["Serving"]


class Serving:
    """The door for those who have an ASGI server of their own."""

    def import_code(self: Conductor) -> None:  # type: ignore[misc]
        """Import what the app would import at a worker's start; once is enough, and is remembered by Python itself."""
        self._import_modules("")

    def asgi(self: Conductor, *, auth: Any = None) -> Any:  # type: ignore[misc]
        """The HTTP service as an ASGI app: `app.mount("/conductor", conductor.asgi(auth=who))`. `auth` takes the request and gives a
        `Caller`, or None for nobody; without it the tokens of the store count."""
        try:
            from conductor.service import asgi
        except ModuleNotFoundError as error:
            if error.name not in ("fastapi", "starlette", "prometheus_client"):
                raise
            raise ServerNotInstalled(package=error.name) from None
        return asgi(self, auth=auth)
