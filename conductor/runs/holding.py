"""What one worker thread holds, and the pulse that keeps it.

Authority: the store decides who holds what; this is only the process's own memory of it. Two threads touch it: the main one, which runs
bodies, and the pulse, which must speak while a body runs. The lock is held for list moves only, never across a call or a body.

The pulse, every 25 ms while a drain is on: commits outcomes older than 50 ms, calls others where a body lasts longer than that, gives back
what was not begun within 250 ms, renews leases every few seconds and learns of cancels, raises in the body's thread at its timeout and
stops the process if the body does not listen. A drain that ended early (the store was away) may leave something untold: the pulse goes on
until that is told, so that what a living worker has finished is neither repeated nor in doubt.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from conductor.errors import StepTimeout
from conductor.ids import partition_of
from conductor.records import Attempt, Outcome, OutcomeKind, Poke
from conductor.store import Store, Want

__all__ = ["Holding", "Pulse"]

TICK, COMMIT_AFTER, BEGIN_WITHIN, GRACE = 0.025, 0.05, 0.25, 5.0

logger = logging.getLogger(__name__)


@dataclass
class Holding:
    """Attempts by what is happening to them. Times are monotonic seconds of this process."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    claimed_at: float = 0.0
    waiting: list[Attempt] = field(default_factory=list)
    running: Attempt | None = None
    began_at: float = 0.0
    timeout: float = 0.0
    raised_at: float = 0.0
    thread: int = 0
    finished: list[tuple[Outcome, str]] = field(default_factory=list)
    oldest: float = 0.0
    over: bool = True  # nothing has been taken since the last drain ended
    gone: dict[str, str] = field(default_factory=dict)  # attempts that are no longer ours: ref and fence → the store's word

    def take(self, attempts: list[Attempt], claimed_at: float) -> None:
        with self.lock:
            self.claimed_at, self.waiting, self.over = claimed_at, list(attempts), False
            self.gone.clear()

    def begin(self, held: Attempt, timeout: float) -> bool:
        """Whether the main thread may begin it; False if the pulse has given it back."""
        with self.lock:
            if held not in self.waiting:
                return False
            self.waiting.remove(held)
            self.running, self.began_at, self.timeout, self.raised_at = held, time.monotonic(), timeout, 0.0
            self.thread = threading.get_ident()
            return True

    def finish(self, outcome: Outcome, after: str) -> None:
        with self.lock:
            self.running = None
            if name_of(outcome.attempt) in self.gone:
                return
            if not self.finished:
                self.oldest = time.monotonic()
            self.finished.append((outcome, after))

    def end_body(self) -> None:
        """The body is over: its timeout no longer counts, and one that was raised and not yet delivered must hit nothing else."""
        if not self.timeout:
            return
        with self.lock:
            self.timeout = 0.0
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), None)

    def drop(self, held: Attempt) -> None:
        """Forget an attempt that nobody will ask about."""
        with self.lock:
            if held in self.waiting:
                self.waiting.remove(held)

    @property
    def followed(self) -> bool:
        """Whether something comes after what is finished: its run goes on."""
        with self.lock:
            return any(after for _, after in self.finished)

    def collect(self, partition: int | None = None) -> list[tuple[Outcome, str]]:
        """What is to be told, in one partition if it is named: a drain that ended early may have left something of another."""
        with self.lock:
            taken, self.finished = self.finished, []
            if partition is not None and any(partition_of(one.attempt.run_id) != partition for one, _ in taken):
                found = by_partition(taken)
                taken, self.finished = found.pop(partition, []), [one for others in found.values() for one in others]
            return taken

    def put_back(self, outcomes: list[tuple[Outcome, str]]) -> None:
        """They were not heard: they are still ours to tell, and their leases still to be kept."""
        with self.lock:
            self.finished = [*outcomes, *self.finished]

    def abandon(self) -> None:
        """A drain ended early: what it has not begun goes back. What the next one has taken at this very moment is its own."""
        with self.lock:
            if not self.over:
                return
            waiting, self.waiting, self.running = self.waiting, [], None
            self.finished += [(Outcome(held, OutcomeKind.GIVEN_BACK, reason="late"), "") for held in waiting]

    def late(self) -> list[Attempt]:
        """What was claimed but not begun in time, taken out of the hands of the main thread."""
        with self.lock:
            if not self.waiting or self.running is None or time.monotonic() - self.claimed_at < BEGIN_WITHIN:
                return []
            taken, self.waiting = self.waiting, []
            return taken

    def is_gone(self, held: Attempt) -> bool:
        return name_of(held) in self.gone


def by_partition(outcomes: Iterable[tuple[Outcome, str]]) -> dict[int, list[tuple[Outcome, str]]]:
    """Outcomes by the home of their runs: one call is about one partition."""
    found: dict[int, list[tuple[Outcome, str]]] = {}
    for one in outcomes:
        found.setdefault(partition_of(one[0].attempt.run_id), []).append(one)
    return found


def name_of(held: Attempt) -> str:
    return f"{held.ref}#{held.fence}"


class Pulse:
    """The thread that speaks for a busy worker thread. Started after fork, asleep between drains."""

    def __init__(
        self, store: Store, holding: Holding, want: Callable[[], Want], *, heartbeat_seconds: float, give_up_after: Callable[[], bool],
        on_timeout: Callable[[Attempt, float], tuple[Outcome, str]], poke: Callable[[list[Poke]], None], may_stop: bool = True,
        leave_when_over: bool = False, on_long_body: Callable[[], None] = lambda: None, on_beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_long_body, self._on_beat = on_long_body, on_beat
        self._poke, self._may_stop, self._leave_when_over = poke, may_stop, leave_when_over
        self._store, self._holding, self._want = store, holding, want
        self._every = heartbeat_seconds
        self._give_up_after, self._on_timeout = give_up_after, on_timeout
        self._awake, self._over = threading.Event(), False
        self._beat_at = 0.0
        self._resting = True
        threading.Thread(target=self._run, name="conductor-pulse", daemon=True).start()

    def wake(self) -> None:
        self._beat_at = time.monotonic()
        self._resting = False
        self._awake.set()

    def rest(self) -> None:
        """The drain is over. What it could not tell (the store was away) is still to be told, and its leases are to be kept until then."""
        with self._holding.lock:
            self._holding.over = True
        self._resting = True
        if not self._holding.finished and not self._holding.waiting:
            self._fall_asleep()

    def _fall_asleep(self) -> None:
        self._awake.clear()
        if self._over or not self._resting:  # ended or woken at this very moment
            self._awake.set()

    def end(self) -> None:
        """For good, when everything has been told."""
        self._over = True
        self._awake.set()

    def _run(self) -> None:
        while self._awake.wait() and (self._holding.finished or not self._over):
            time.sleep(TICK)
            try:
                self._tick(time.monotonic())
            except Exception:
                logger.warning("the pulse of this worker missed a beat; leases are kept as long as one in three succeeds", exc_info=True)

    def _tick(self, now: float) -> None:
        mine = self._holding
        if self._resting:
            mine.abandon()
        if mine.finished and (mine.running is not None or self._resting) and now - mine.oldest > COMMIT_AFTER:
            self.tell(mine.collect())
        if mine.running is not None and now - mine.began_at > COMMIT_AFTER:
            self._on_long_body()
        if late := mine.late():
            self.tell([(Outcome(held, OutcomeKind.GIVEN_BACK, reason="not_begun"), "") for held in late])
        if mine.running is not None and self._give_up_after():
            self._give_up(mine.running)
        if now - self._beat_at >= self._interval():
            self._beat_at = now
            self._beat()
        self._watch_timeout(now)
        if self._resting and not mine.finished:
            self._fall_asleep()

    def _interval(self) -> float:
        """Three beats fit into the shortest lease that is held."""
        mine = self._holding
        held = [*mine.waiting, *([mine.running] if mine.running else []), *(outcome.attempt for outcome, _ in mine.finished)]
        return min([self._every, *(one.lease_ms / 3000 for one in held)])

    def tell(self, outcomes: list[tuple[Outcome, str]]) -> None:
        """Commit these and claim nothing; those that are not heard are put back."""
        want, left = self._want(), by_partition(outcomes)
        while left:
            partition, some = next(iter(left.items()))
            try:
                told = self._store.commit(partition, some, Want(want.queue, 0, want.code, want.tag))
            except Exception:
                self._holding.put_back([one for rest in left.values() for one in rest])
                raise
            del left[partition]
            self._poke(told.pokes)

    def _beat(self) -> None:
        mine = self._holding
        with mine.lock:
            kept = [*mine.waiting, *([mine.running] if mine.running else []), *(outcome.attempt for outcome, _ in mine.finished)]
        if not kept:
            return
        for partition in dict.fromkeys(partition_of(held.run_id) for held in kept):
            here = [held for held in kept if partition_of(held.run_id) == partition]
            for held, word in zip(here, self._store.heartbeat(partition, here), strict=True):
                if word != "OK":
                    mine.gone[name_of(held)] = word
                if word == "TERMINATE" and held is mine.running:
                    self._stop(held, "was cancelled with terminate")
        self._on_beat()

    def _give_up(self, held: Attempt) -> None:
        """The shutdown time is over: the lease goes back now instead of running out."""
        if self._holding.gone.get(name_of(held)) != "GIVEN_BACK":  # once, however long the body goes on
            self._holding.gone[name_of(held)] = "GIVEN_BACK"
            self.tell([(Outcome(held, OutcomeKind.GIVEN_BACK, reason="shutdown", doubt=True), "")])
        if self._leave_when_over:
            # A pool child that goes on with what is no longer its own would only hold up the shutdown until somebody kills them all.
            _stop_process(f"{held.ref} was given back, the shutdown time is over")

    def _watch_timeout(self, now: float) -> None:
        mine = self._holding
        held = mine.running
        if held is None or not mine.timeout or now - mine.began_at < mine.timeout:
            return
        if not mine.raised_at:
            with mine.lock:  # the body may end at this moment; what comes after it must not be hit
                if mine.running is held and mine.timeout:
                    mine.raised_at = now
                    _raise_in(mine.thread, StepTimeout)
        elif now - mine.raised_at > GRACE and held is mine.running:
            self.tell([self._on_timeout(held, now - mine.began_at)])
            self._stop(held, f"did not stop {GRACE:.0f} s after its timeout")

    def _stop(self, held: Attempt, why: str) -> None:
        """End the process that runs it; where others share the process, the attempt is fenced and abandoned instead."""
        if self._may_stop:
            _stop_process(f"{held.ref} {why}")
        elif name_of(held) not in self._holding.gone or self._holding.timeout:
            self._holding.gone[name_of(held)] = "ABANDONED"
            self._holding.timeout = 0.0
            logger.warning("%s %s; it shares its process, so it is abandoned and its result will not be taken", held.ref, why)


def _raise_in(thread: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def _stop_process(why: str) -> Any:
    logger.warning("stopping this process: %s", why)
    os.kill(os.getpid(), signal.SIGKILL)
