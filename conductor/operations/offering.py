"""What can be called here: capabilities with their schema, and which of them cannot be expected to work.

Probing costs a thread per tool and up to its seconds, so whoever may be asked often (`Offering`) keeps an answer for some seconds and
never probes twice at once. A slightly old answer is right enough: a call goes ahead in any case, and is judged by its own error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from conductor.declare.capability import Capability
from conductor.errors import DeclarationError

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["Offering", "acts_for_everybody", "disabled_now", "offer"]

_FRESH_SECONDS = 10.0


def disabled_now(engine: Engine, found: Sequence[Capability[..., Any]]) -> dict[str, str]:
    """Which of these cannot be expected to work, and why: probed now. A need that nobody declares disables its capability, not the
    whole list."""
    needy = {one.name: one.options.needs for one in found if one.options.needs}
    try:
        return dict(engine.needs.examine(needy))
    except DeclarationError:
        told = dict[str, str]()
        for name, needs in needy.items():
            try:
                told |= engine.needs.examine({name: needs})
            except DeclarationError as error:
                told[name] = str(error)
        return told


def offer(found: Capability[..., Any], reason: str) -> dict[str, Any]:
    """What a caller must know of one: `disabled` says why it cannot be expected to work."""
    return found.schema() | {"disabled": reason or None}


def acts_for_everybody(found: Capability[..., Any]) -> bool:
    """Whether it comes along with Conductor and acts on any run or operation, whosever it is."""
    return found.fn.__module__.partition(".")[0] == __name__.partition(".")[0]


class Offering:
    """The answer of `disabled_now`, kept for some seconds."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._asked = -_FRESH_SECONDS
        self._reasons: dict[str, str] = {}

    def reasons(self, everything: Sequence[Capability[..., Any]]) -> dict[str, str]:
        """Why which capabilities are disabled. While another thread probes, what was known before is the answer."""
        if time.monotonic() - self._asked >= _FRESH_SECONDS and self._lock.acquire(blocking=False):
            try:
                self._reasons = disabled_now(self._engine, everything)
                self._asked = time.monotonic()
            finally:
                self._lock.release()
        return self._reasons
