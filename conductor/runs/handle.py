"""`Handle`: a run from its caller's side.

Waiting is driven by notices, not by polling. A notice may be lost (the stream is capped, a server may restart), so the record is looked at
again every second whatever the stream says; a lost notice costs a second, never the answer. A server that is away is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from conductor.declare.context import RUNNING
from conductor.errors import GetInsideStep, GetTimeout, LaneBusy, ResultExpired, RunCancelled, RunFailed, RunFinished, RunQueued, UnknownRun
from conductor.ids import is_run_id, partition_of
from conductor.log import Event
from conductor.records import Graph, NodeKind
from conductor.runs.archived import archived_events, archived_row
from conductor.runs.archiving import open_snapshot
from conductor.runs.cancelling import cancel
from conductor.runs.fork import fork_run
from conductor.runs.parking import awake
from conductor.runs.pausing import pause_run
from conductor.runs.read import failed_steps, run_result
from conductor.runs.retry import resume_failed, retry_run
from conductor.runs.waiting import Answer, advance, signal
from conductor.state import RUN, RunState, terminal
from conductor.store.answers import Cancelled, Moved
from conductor.store.lanes import lane_of
from conductor.store.notices import Follower, Glimpse, Unreachable, glimpse, last_notice, wait_notice
from conductor.store.reads import read_events, read_graph, read_run

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["Handle"]

_ENDED = terminal(RUN)
_LOOK_AGAIN = 1.0
_JUST_STARTED = 0.1
_PAUSE = 0.1
_GUESSED_LEAVES = 4

# Graph and leaves of the run that was read last: the next one is likely of the same, and its result then comes with its state.
_likely: tuple[str, tuple[int, ...]] = ("", ())


class Handle:
    """A run. `notice` is where its partition's notices stood when it was started: reading on from there misses nothing of it."""

    __slots__ = ("_born", "_engine", "_notice", "id")

    def __init__(self, engine: Engine, run_id: str, notice: str = "") -> None:
        self.id = run_id
        self._engine = engine
        self._notice = notice
        self._born = time.monotonic()

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def status(self) -> str:
        """The run's state now."""
        seen = glimpse(self._engine.store, self.id) if is_run_id(self.id) else None
        if seen is None:
            raise self._unknown()
        return seen.state

    def get(self, timeout: float | None = None) -> Any:
        """Wait until the run has ended and return its result. Raises RunFailed, RunCancelled, ResultExpired, or GetTimeout after `timeout`
        seconds; the run itself is not touched by that."""
        if (inside := RUNNING.get()) is not None:
            raise GetInsideStep(run_id=self.id, inside=inside.run_id)
        waiting = _Waiting(self, timeout)
        # Right after the start the run cannot have ended long ago: waiting at once spares a look.
        just_started = bool(self._notice) and time.monotonic() - self._born < _JUST_STARTED
        if just_started or not waiting.over(waiting.look):
            while not waiting.over(waiting.listen):
                pass
        return waiting.result()

    def events(self, follow: bool = False, after: int = 0) -> Iterator[Event]:
        """The run's history from event `after` on; with `follow` also what comes, until the run has ended."""
        store = self._engine.store
        if read_run(store, self.id) is None:
            awake(self._engine, self.id) if follow else None
            if not follow or read_run(store, self.id) is None:
                yield from self._archived_events(after)
                return
        follower = Follower(store, self.id, partition_of(self.id))
        while True:
            try:
                follower.begin()
                # The state before the page: a run that ends between the two looks has its last events in the next page.
                seen = glimpse(store, self.id) if follow else None
                page = read_events(store, self.id, after)
            except Unreachable:
                if not follow:
                    raise
                time.sleep(_LOOK_AGAIN)
                continue
            yield from page
            after += len(page)
            if page:
                continue
            if seen is None or seen.state in _ENDED:
                return
            self._wait(follower)

    def _archived_events(self, after: int) -> Iterator[Event]:
        """The history of a run that is parked, or has left the store."""
        row = archived_row(self._engine, self.id, with_snapshot=True)
        if row is None:
            raise self._unknown()
        yield from (event for event in archived_events(open_snapshot(row)) if event.number > after)

    def cancel(self, reason: str = "requested", *, terminate: bool = False, compensate: bool = False) -> Cancelled:
        """After this answers OK no step is claimed and no result is taken; with `compensate` what it had done is undone before it ends
        as cancelled. A run that has ended, or is being undone, is left as it is; the answer says so."""
        answer = cancel(self._engine, self._checked(), reason=reason, terminate=terminate, compensate=compensate)
        if answer.word == "UNKNOWN":
            raise self._unknown()
        return answer

    def signal(self, name: str, value: Any = None, *, id: str = "") -> Answer:
        """Send a signal; its value is checked against the wait's type. The same `id` again is no news."""
        return signal(self._engine, self._checked(), name, value, signal_id=id)

    def advance(self, step: str, result: Any = None, *, actor: str = "") -> Answer:
        """Answer for an agent step. The first answer wins, the same one again gets the same reply."""
        return advance(self._engine, self._checked(), step, result, actor=actor)

    def pause(self, reason: str = "requested") -> Moved:
        """Stop claims; running attempts may commit."""
        return self._moved(pause_run(self._engine, self._checked(), reason=reason))

    def resume(self) -> Moved:
        """Go on. Where a failed step paused the run, failed steps get a fresh budget."""
        moved = self._engine.store.resume(self._checked())
        return resume_failed(self._engine, self.id) if moved.word == "STEP_FAILED" else self._moved(moved)

    def retry(self) -> Handle:
        """Open a new generation of a failed run: completed steps stay, the rest run again."""
        retry_run(self._engine, self._checked())
        return self

    def fork(self, from_: str, **changes: Any) -> Handle:
        """A new run on today's graph that keeps what stands upstream of step `from_`. Effects from there on happen again, with new keys."""
        started = fork_run(self._engine, self._checked(), from_=from_, changes=changes)
        return Handle(self._engine, started.run_id, started.notice)

    def _moved(self, moved: Moved) -> Moved:
        if moved.word == "UNKNOWN":
            raise self._unknown()
        if moved.word == "ENDED":
            raise RunFinished(run_id=self.id, state=moved.state)
        if moved.word == "QUEUED":
            raise RunQueued(run_id=self.id, lane=lane_of(self._engine.store, self.id))
        self._engine.poke(moved.pokes)
        return moved

    @staticmethod
    def _wait(follower: Follower) -> None:
        try:
            follower.wait(_LOOK_AGAIN)
        except Unreachable:
            time.sleep(_LOOK_AGAIN)

    def _checked(self) -> str:
        if not is_run_id(self.id):
            raise self._unknown()
        return self.id

    def _unknown(self) -> UnknownRun:
        return UnknownRun(run_id=self.id, namespace=self._engine.store.namespace)


class _Waiting:
    """One wait for the end of a run."""

    def __init__(self, handle: Handle, timeout: float | None) -> None:
        self.handle = handle
        self.engine = handle._engine
        self.seen: Glimpse | None = None
        self.guess = _likely
        self.timeout = timeout
        self.started = self.looked = time.monotonic()
        self.last = handle._notice
        self.partition = partition_of(handle._checked())

    def over(self, ask: Callable[[], bool]) -> bool:
        """Whether the run has ended. A server that is away is asked again; when the time is up, the record is looked at once more."""
        try:
            if self.left() > 0:
                return ask()
            if self.look():
                return True
        except Unreachable:
            if self.left() > 0:
                time.sleep(min(_PAUSE, self.left()))
                return False
            self.seen = None
        state = self.seen.state if self.seen else "not known, the store is out of reach"
        raise GetTimeout(run_id=self.handle.id, seconds=self.timeout, state=state)

    def left(self) -> float:
        return _LOOK_AGAIN if self.timeout is None else max(0.0, self.timeout - (time.monotonic() - self.started))

    def look(self) -> bool:
        """Read state and, if its place can be guessed, the result; True when there is nothing more to wait for."""
        self.guess = _likely
        self.seen = glimpse(self.engine.store, self.handle.id, self.guess[1])
        self.looked = time.monotonic()
        return self.seen is None or self.seen.state in _ENDED

    def listen(self) -> bool:
        """Wait for a notice of this run, a second at most; look at the record if one says the end, or if the last look is a second old."""
        if not self.last:
            # First where the stream stands, then the record: what happens between the two is still to be read.
            self.last = last_notice(self.engine.store, self.partition)
            return self.look()
        said = wait_notice(self.engine.store, self.partition, self.last, min(_LOOK_AGAIN, max(0.001, self.left())), self.handle.id)
        self.last = said.last_id
        if (said.met and said.state in _ENDED) or time.monotonic() - self.looked >= _LOOK_AGAIN:
            return self.look()
        return False

    def result(self) -> Any:
        """What the end of the run means to its caller."""
        global _likely
        store, run_id, seen = self.engine.store, self.handle.id, self.seen
        if seen is None:
            raise self._gone()
        if seen.state == RunState.CANCELLED:
            raise RunCancelled(run_id=run_id, workflow=seen.workflow, reason=seen.reason or "no reason was given")
        if seen.state == RunState.FAILED:
            raise self._failed(seen)
        graph = read_graph(store, self.partition, seen.graph)
        known = seen.results if self.guess[0] == graph.hash else None
        if _likely[0] != graph.hash:
            _likely = (graph.hash, _leaves(graph))
        return run_result(self.engine, run_id, seen.workflow, graph, known)

    def _failed(self, seen: Glimpse) -> Exception:
        run = read_run(self.engine.store, self.handle.id)
        if run is None:
            return self._gone()
        failures = failed_steps(self.engine.store, run)
        if run.reason == "lane_busy":
            return LaneBusy(run_id=run.run_id, workflow=run.workflow, lane=run.lane, steps="none", reason="lane_busy", failures=[])
        steps = "; ".join(f"{name} ({why})" for name, why in failures) or "none"
        return RunFailed(run_id=run.run_id, workflow=run.workflow, steps=steps, reason=seen.reason or "step_failed", failures=failures)

    def _gone(self) -> Exception:
        """A run that was accepted and is no longer there was kept as long as it was to be; one nobody knows never was."""
        settings = self.engine.settings
        row = archived_row(self.engine, self.handle.id)
        if row is not None:
            told = f"the time of its workflow, and then in the archive, where it is {row.state}"
            return ResultExpired(run_id=self.handle.id, retention=told)
        age_ms = time.time() * 1000 - int(self.handle.id.replace("-", "")[:12], 16)
        kept = min(settings.retention_completed_seconds, settings.retention_failed_seconds)
        if self.handle._notice or age_ms > kept * 1000:
            hours = f"{settings.retention_completed_seconds / 3600:g} h (failed: {settings.retention_failed_seconds / 3600:g} h)"
            return ResultExpired(run_id=self.handle.id, retention=hours)
        return self.handle._unknown()


def _leaves(graph: Graph) -> tuple[int, ...]:
    """The leaves whose results can come with the state."""
    if len(graph.leaves) > _GUESSED_LEAVES:
        return ()
    return tuple(node.index for node in graph.leaves if node.kind is not NodeKind.EACH)
