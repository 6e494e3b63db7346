"""The two ways a command can go: to the store itself (`direct.py`), or to a service over HTTP (`remote.py`). Commands do not know which.

Both answer in plain JSON as the service tells it, with the clock that its times were read by, and raise the same errors; words are in
capitals (`OK`, `ALREADY`). So a command has one body, and what people read and what `--json` prints is the same by either door.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

__all__ = ["KEEP", "Asked", "Away", "Door", "Heard", "Told"]

Told = dict[str, Any]
Away = Callable[[], None]
"""Said each time nobody could be reached while something is followed; it is tried again."""
Heard = Callable[[str, Told], None]
"""The id of a batch, and how far it is."""
KEEP = "keep"
"""Of a limit's rate or concurrency: leave it as it is."""


class Asked(Protocol):
    """A call under way; one call however often it is asked."""

    def __call__(self, seconds: float, /) -> Told:
        """Wait up to so long for its end, and answer how it stands."""
        ...

    def leave(self) -> None:
        """Nobody waits for it any more."""
        ...


class Door(Protocol):
    """What commands ask."""

    def close(self) -> None:
        """Nothing is asked any more."""
        ...

    # Names and time.

    def runs_named(self, text: str) -> list[str]:
        """The run that a text names; several, if it is the beginning of more than one id."""
        ...

    def operations_named(self, text: str) -> list[str]:
        """The same of an operation that stands alone."""
        ...

    def now(self) -> int:
        """The store's clock."""
        ...

    # Looking at runs.

    def runs(self, where: Mapping[str, Any], *, cursor: str, limit: int) -> Told:
        """`runs`, `cursor`, `now`, and perhaps a `warning`."""
        ...

    def show(self, run_id: str, *, values: bool = False) -> Told:
        """A run and its steps."""
        ...

    def why(self, run_id: str) -> Told:
        """`sentence` and `command`, and which run."""
        ...

    def events(
        self, run_id: str, *, after: int = 0, follow: bool = False, timeout: float | None = None, away: Away = lambda: None,
    ) -> Iterator[Told]:
        """The history; with `follow` also what comes, until the run has ended. GetTimeout if that takes too long."""
        ...

    def looks(self, run_id: str, *, timeout: float | None, away: Away) -> Iterator[Told]:
        """The run as it stands, each time something moved and once a second, until the time is over."""
        ...

    def wait(self, run_id: str, timeout: float | None) -> Any:
        """The run's result, when it has ended; else what its end means, or GetTimeout."""
        ...

    def graph(self, workflow: str) -> Told:
        """The steps of a workflow."""
        ...

    # Moving runs.

    def start(self, workflow: str, input: Any, *, key: str | None, options: Mapping[str, Any]) -> Told:
        """`run_id`, `workflow` and whether it is `new`. Durations are in seconds."""
        ...

    def cancel(self, run_id: str, *, reason: str, terminate: bool, compensate: bool) -> Told: ...
    def pause(self, run_id: str, *, reason: str) -> Told: ...
    def resume(self, run_id: str) -> Told: ...
    def retry(self, run_id: str) -> Told: ...
    def fork(self, run_id: str, *, from_: str, changes: Mapping[str, Any]) -> Told: ...
    def signal(self, run: str, name: str, value: Any, *, key: str | None, id: str) -> Told: ...
    def advance(self, run: str, step: str, result: Any, *, key: str | None) -> Told: ...
    def consent(self, run_id: str, *, on: bool) -> Told: ...

    def preview(self, action: str, where: Mapping[str, Any]) -> Told:
        """How many runs a batch would move: `count`, `more`, some `runs`, `now`."""
        ...

    def move_many(self, action: str, where: Mapping[str, Any], *, reason: str, rate: float, heard: Heard) -> str:
        """Begin a batch, and perhaps do it: its id."""
        ...

    def batch(self, batch_id: str) -> Told:
        """How far it is, or what it came to."""
        ...

    # What holds work back.

    def hold(self, scope: str, reason: str) -> Told: ...
    def lift(self, scope: str) -> Told: ...

    def queues(self) -> Told:
        """`queues` and `holds`."""
        ...

    def lanes(self, name: str) -> list[Told]: ...
    def limits(self, name: str) -> list[Told]: ...
    def set_limit(self, name: str, *, rate: Any = KEEP, concurrency: Any = KEEP) -> None: ...
    def limits_as_declared(self, name: str) -> None: ...

    # Operations.

    def operations(self, by: Mapping[str, Any], *, limit: int) -> Told:
        """`operations`, newest first, and `now`."""
        ...

    def operation(self, operation_id: str, *, values: bool = False) -> Told:
        """One operation, where it stands, and `why`."""
        ...

    def operation_status(self) -> Told:
        """The queue at a glance, and `now`."""
        ...

    def retry_operation(self, operation_id: str, *, health_check: bool) -> Told: ...
    def cancel_operation(self, operation_id: str, *, reason: str) -> Told: ...
    def resolve(self, operation_id: str, *, happened: bool, value: Any) -> Told: ...
    def call(self, capability: str, params: Any, *, session: str, key: str) -> Asked: ...
    def submit(self, capability: str, params: Any, *, session: str, key: str) -> Told: ...
    def capabilities(self, text: str) -> list[Told]: ...

    # Schedules.

    def schedules(self) -> Told:
        """`schedules`, and `now` by the clock that judges ticks."""
        ...

    def schedule(self, name: str) -> Told: ...
    def pause_schedule(self, name: str, reason: str) -> str: ...
    def resume_schedule(self, name: str) -> str: ...
    def drop_schedule(self, name: str) -> str: ...

    # Sessions.

    def inbox(self, session: str, *, after: str = "", limit: int) -> Told:
        """`messages`, oldest first, and `now`."""
        ...

    def messages(self, session: str, after: str, seconds: float) -> list[Told]:
        """The messages behind a place; if there is none, those that come within so many seconds."""
        ...

    def acknowledge(self, session: str, message_id: str) -> bool:
        """False if the inbox never had it."""
        ...

    def grant(self, session: str, capability: str, mode: str, seconds: float | None) -> Told: ...
    def grants(self, session: str) -> Told: ...
    def revoke(self, session: str, capability: str) -> Told: ...
