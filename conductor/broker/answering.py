"""What callers do with runs that wait: signals, answers for agents, and the end of those for which nobody comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conductor.runs import waiting
from conductor.sweeps.idle import sweep_idle

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["Answering"]


class Answering:
    """A run is named by its id, or by its workflow and its key: `conductor.signal("order", "approval", {…}, key="42")`."""

    @property
    def engine(self) -> Engine:
        raise NotImplementedError

    def _check_id(self, run_id: str) -> None:
        raise NotImplementedError

    def _import_modules(self, wanted: str) -> None:
        raise NotImplementedError

    def signal(self, run: str, name: str, value: Any = None, *, key: str | None = None, id: str = "") -> dict[str, Any]:
        """Send a signal. Its value is checked against the wait's type; the same `id` again is no news."""
        return waiting.signal(self.engine, self._named(run, key), name, value, signal_id=id).to_json()

    def advance(self, run: str, step: str, result: Any = None, *, key: str | None = None, actor: str = "") -> dict[str, Any]:
        """Answer for an agent step. The first answer wins, the same one again gets the same reply."""
        return waiting.advance(self.engine, self._named(run, key), step, result, actor=actor).to_json()

    def sweep_idle(self, *, dry_run: bool = False, older_than_hours: float | None = None) -> dict[str, Any]:
        """Cancel runs that have waited for agents alone for too long, now."""
        return sweep_idle(self.engine, dry_run=dry_run, older_than_hours=older_than_hours).to_json()

    def _named(self, run: str, key: str | None) -> str:
        self._import_modules("")  # what a wait takes is said by its workflow's code
        if key is not None:
            return waiting.run_of_key(self.engine, run, key)
        self._check_id(run)
        return run
