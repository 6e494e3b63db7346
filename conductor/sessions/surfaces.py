"""Notification surfaces: where people look. Each is named by a URL in the setting, and each is told by an operation of its own, so that
one that fails or hangs delays neither the others nor the queue.

| URL | what it is |
|---|---|
| `log:` | a line in the log of whoever tells it |
| `webhook+https://host/path` | a signed POST (`webhook.py`) |
| `apprise:<url>` | anything Apprise knows (extra `notify`) |

A surface's name stands in operations and logs, so it never holds what a URL may hide: tokens, passwords, paths.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from conductor.errors import BadInput, SettingsError
from conductor.sessions.inbox import Message

__all__ = ["Factory", "LogSurface", "Surface", "SurfaceOptions", "build", "register"]

_LOGGER = logging.getLogger("conductor.notify")


class Surface(Protocol):
    """Something that can be told. `send` raises TransientError if a repeat may help, PermanentError if not; it may be called twice."""

    @property
    def name(self) -> str: ...

    def send(self, message: Message) -> None: ...


@dataclass(frozen=True, slots=True)
class SurfaceOptions:
    """What the settings say beside the URLs. `allow_http` is for tests: plain HTTP to this machine only."""

    secret: str = ""
    allow_private: bool = False
    allow_http: bool = False


Factory = Callable[[str, SurfaceOptions], Surface]
"""Makes a surface of the URL (whole, with its scheme); BadInput says why it cannot."""


class LogSurface:
    """A line per message: ids and words only, as JSON, so that nothing in it can look like another line or move a terminal's cursor."""

    name = "log"

    def send(self, message: Message) -> None:
        said = {"id": message.id, "kind": message.kind, "operation_id": message.operation_id}
        said |= {word: str(message.body[word]) for word in ("capability", "error_kind") if message.body.get(word)}
        level = logging.WARNING if message.kind.endswith(("_failed", "_exhausted")) else logging.INFO
        _LOGGER.log(level, "notification %s", json.dumps(said))


def _log(url: str, _: SurfaceOptions) -> Surface:
    if url.lower() != "log:":
        raise BadInput(what="surface", field="url", problem="nothing follows `log:`")
    return LogSurface()


def _webhook(url: str, options: SurfaceOptions) -> Surface:
    from conductor.sessions.webhook import Webhook

    return Webhook(url[len("webhook+"):], options.secret, allow_private=options.allow_private, allow_http=options.allow_http)


def _apprise(url: str, _: SurfaceOptions) -> Surface:
    from conductor.sessions.apprise import AppriseSurface

    return AppriseSurface(url[len("apprise:"):])


_FACTORIES: dict[str, Factory] = {"log": _log, "webhook+https": _webhook, "webhook+http": _webhook, "apprise": _apprise}


def register(scheme: str, factory: Factory) -> None:
    """Add a kind of surface: URLs that begin with `scheme:` are built by `factory`. Register it in every process that tells."""
    _FACTORIES[scheme.lower()] = factory


def build(urls: str | Iterable[str], options: SurfaceOptions = SurfaceOptions()) -> dict[str, Surface]:
    """All surfaces by name. A text is split at blanks, because commas stand in URLs. A wrong one is refused, and named by its place."""
    given = urls.split() if isinstance(urls, str) else list(urls)
    built: dict[str, Surface] = {}
    for place, url in enumerate(given, start=1):
        try:
            surface = _one(url, options)
        except BadInput as error:
            raise SettingsError(setting="conductor_notify", problem=f"surface {place} of {len(given)}: {error.problem}") from None
        built[surface.name] = surface
    return built


def _one(url: str, options: SurfaceOptions) -> Surface:
    scheme = url.partition(":")[0].lower() if ":" in url else ""
    factory = _FACTORIES.get(scheme)
    if factory is None:
        # The text itself may be a secret that slipped into the wrong place: only what it should have been is told.
        raise BadInput(what="surface", field="url", problem=f"it begins with none of {', '.join(f'{known}:' for known in _FACTORIES)}")
    return factory(url, options)
