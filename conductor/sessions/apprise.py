"""Anything Apprise can tell (mail, chat, phones), by its own URLs. It comes with the extra `notify` and is imported when it is used."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re

from conductor.errors import BadInput, PermanentError, TransientError, redact
from conductor.sessions.inbox import Message

__all__ = ["AppriseSurface"]

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_TEXT = 1500  # characters; the smallest surfaces cut there anyway


class AppriseSurface:
    """One Apprise URL. It holds credentials, so neither the name nor an error repeats it."""

    def __init__(self, url: str) -> None:
        found = _SCHEME.match(url)
        if found is None:
            raise BadInput(what="surface", field="url", problem="after `apprise:` comes a URL that Apprise knows, such as mailto://")
        if importlib.util.find_spec("apprise") is None:
            problem = 'Apprise is not installed; install it with pip install "celery-conductor[notify]"'
            raise BadInput(what="surface", field="url", problem=problem)
        self._url = url
        self.name = f"apprise:{found.group(1).lower()}:{hashlib.blake2b(url.encode(), digest_size=4).hexdigest()}"

    def send(self, message: Message) -> None:
        """Apprise says only whether it worked, so a failure counts as one that may pass."""
        apprise = importlib.import_module("apprise")
        target = apprise.Apprise()
        if not target.add(self._url):
            raise PermanentError(f"{self.name}: Apprise cannot read this URL")
        bad = message.kind.endswith(("_failed", "_exhausted"))
        try:
            sent = target.notify(title=_title(message), body=_text(message), notify_type="failure" if bad else "success")
        except Exception as error:  # a plug-in of Apprise may raise anything; its text may repeat the URL
            raise TransientError(f"{self.name}: Apprise raised {type(error).__name__}") from None
        if not sent:
            raise TransientError(f"{self.name}: Apprise could not deliver")


def _title(message: Message) -> str:
    return f"Conductor: {message.kind.replace('_', ' ')}"


def _text(message: Message) -> str:
    lines = [f"operation {message.operation_id}"]
    lines += [f"{word}: {redact(str(message.body[word]))}" for word in ("capability", "error_kind", "error") if message.body.get(word)]
    return "\n".join(lines)[:_TEXT]
