"""Many readers, few reads: who wakes a stream of events, and why a slow reader costs a run nothing.

Authority: the log of a run, which only the store has. A stream is a place in it (the number of the last event it has sent) and nothing
else; whoever reconnects names that place and goes on behind it. So nothing is queued for a reader: it has one flag, `look again`, however
far behind it is, and reads on when its last send has gone out. A reader that takes nothing keeps one chunk and is dropped after a while.

Who wakes whom: scripts write one notice per move into the capped stream of their partition, whoever reads it. One thread per followed
partition (`listening.py`) waits there and tells the loop which runs moved; the topic of a run rings the flags of its readers; a reader
that looks asks for a block of the log, which is read once for all of them (`topics.py`). Workers do not know that anybody reads.

Time: notices of one run are told once in a window, so a topic rings at once and again when the window is over. Rings of one topic keep a
distance that grows with the number of streams: telling many readers may cost a fixed share of this process, not all of it.

Races, one sentence each:
* *An event between a page and the wait*: the flag is lowered before the look, so a ring during the look ends the wait at once.
* *An event before the thread stands*: when it has found where the notices stand it says `gap`, and every topic of the partition rings.
* *A look that began before a move is answered after it*: looks are kept by the number of the ring before which they began; each later ring
  makes a new one.
* *The run ends, or is reopened, between state and page*: a page says `end` only if state and generation were the same before and after it.
* *Notices are lost* (the stream is cut, the server restarted, places went back): a gap; all topics of the partition ring, kept looks are
  forgotten. What even that does not show is found by comparing marks once a second (`_compare`).
* *The store is away*: a look fails, the stream stays open and looks again; its heartbeat goes on.
* *The log is shorter than what was sent, or another* (a server lost its last writes): the stream closes, for what it told is not true now.
* *A run is parked, woken, archived under its readers*: its numbers stay, so the next look finds the same place elsewhere.
* *This service restarts*: readers come back with `Last-Event-ID`, to any replica.

Everything here runs on one event loop; only reads are done in threads.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from conductor.ids import partition_of
from conductor.runs.history import Histories
from conductor.service.blocks import Block, Blocks, is_whole
from conductor.service.errors import Refusal
from conductor.service.listening import Listeners
from conductor.service.topics import Looks, Topic
from conductor.store.following import News, inbox_home, marks
from conductor.store.notices import Unreachable

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["Hub", "TooManyStreams", "Watcher", "histories_of", "hub_of"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_APART, _APART_PER_STREAM = 0.05, 0.001  # seconds between two rings of a topic
_COMPARE_EVERY = 1.0
_COMPARE_AT_ONCE = 500
_THREADS = 4


class TooManyStreams(Refusal):
    """{who} already has {limit} streams of events open here"""

    status = 429
    hint = "Close one, or read pages without `Accept: text/event-stream`; the settings streams_per_caller and streams_total are the limits."


class Watcher(Protocol):
    """Hears everything, not only what one run does."""

    def heard(self, news: News) -> None: ...


class Hub:
    """The streams of one process on one event loop."""

    def __init__(self, engine: Engine, histories: Histories, loop: asyncio.AbstractEventLoop) -> None:
        self.engine, self.loop = engine, loop
        self.rings = itertools.count(1)
        self.watcher: Watcher | None = None
        self.stopping = False
        self.logs: Looks[Block | None] = Looks(self, Blocks(histories).read, is_whole)
        self._topics: dict[str, Topic] = {}
        self._streams: Counter[str] = Counter()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="conductor-streams")
        self._listeners = Listeners(engine.store, self._from_thread(self._heard), self._from_thread(self._arrived))
        self._comparing: asyncio.Task[None] | None = None

    @property
    def open(self) -> int:
        """How many streams there are."""
        return self._streams.total()

    @property
    def listening(self) -> int:
        """How many threads wait in the store."""
        return len(self._listeners)

    @property
    def apart(self) -> float:
        """Seconds between two rings of a topic: the more streams there are, the more each ring costs."""
        return _APART + _APART_PER_STREAM * self.open

    def in_thread(self, read: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """A read of the store, off the loop."""
        return self.loop.run_in_executor(self._pool, read, *args)

    @contextmanager
    def place(self, actor: str) -> Iterator[None]:
        """A stream of this caller, while it lasts."""
        settings = self.engine.settings
        if self._streams[actor] >= settings.streams_per_caller:
            raise TooManyStreams(who=actor, limit=settings.streams_per_caller)
        if self.open >= settings.streams_total:
            raise TooManyStreams(who="this process", limit=settings.streams_total)
        self._streams[actor] += 1
        try:
            yield
        finally:
            self._streams[actor] -= 1
            if not self._streams[actor]:
                del self._streams[actor]

    @contextmanager
    def follow_run(self, run_id: str, flag: asyncio.Event) -> Iterator[Topic]:
        """The topic of a run, whose rings raise the flag."""
        with self._follow(run_id, flag, frozenset({partition_of(run_id)})) as topic:
            yield topic

    @contextmanager
    def follow_inbox(self, session: str, flag: asyncio.Event) -> Iterator[Topic]:
        home = frozenset({inbox_home(self.engine.store, session)})
        with self._follow(f"inbox:{session}", flag, home, session=session) as topic:
            yield topic

    @contextmanager
    def follow_all(self, flag: asyncio.Event) -> Iterator[Topic]:
        with self._follow("*", flag, frozenset(range(self.engine.store.partitions))) as topic:
            yield topic

    @contextmanager
    def _follow(self, name: str, flag: asyncio.Event, partitions: frozenset[int], session: str = "") -> Iterator[Topic]:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = Topic(self, name, partitions, session=session)
            self._listen()
        topic.join(flag)
        if self._comparing is None or self._comparing.done():
            self._comparing = self.loop.create_task(self._compare_for_ever())
        try:
            yield topic
        finally:
            if topic.leave(flag):
                del self._topics[name]
                self.logs.forget(name)

    # What the threads tell.

    def _from_thread(self, heard: Callable[..., None]) -> Callable[..., None]:
        def tell(*args: Any) -> None:
            self.loop.call_soon_threadsafe(heard, *args)

        return tell

    def _heard(self, partition: int, news: News) -> None:
        if news.gap:
            for topic in list(self._topics.values()):
                if partition in topic.partitions and not topic.session:
                    self.logs.forget(topic.name)
                    topic.told()
        else:
            for run_id in {run_id for run_id, _, _ in news.told} & self._topics.keys():
                self._topics[run_id].told()
        if self.watcher is not None and (news.told or news.gap):
            self.watcher.heard(news)

    def _arrived(self, sessions: Iterable[str]) -> None:
        for session in sessions:
            if (topic := self._topics.get(f"inbox:{session}")) is not None:
                topic.told()

    # What nobody tells.

    async def _compare_for_ever(self) -> None:
        """Ends when nothing is followed and no thread listens."""
        while self._topics or len(self._listeners):
            await asyncio.sleep(_COMPARE_EVERY)
            topics = list(self._topics.values())
            for at in range(0, len(topics), _COMPARE_AT_ONCE):
                await self._compare(topics[at : at + _COMPARE_AT_ONCE])
            partitions, inboxes = self._listen()
            self._listeners.let_go(partitions, inboxes)

    def _listen(self) -> tuple[set[int], dict[int, frozenset[str]]]:
        """Listen to what is followed now, and tell what that is."""
        inboxes: dict[int, frozenset[str]] = {}
        partitions: set[int] = set()
        for topic in self._topics.values():
            if topic.session:
                (home,) = topic.partitions
                inboxes[home] = inboxes.get(home, frozenset()) | {topic.session}
            else:
                partitions |= topic.partitions
        self._listeners.listen(partitions, inboxes)
        return partitions, inboxes

    async def _compare(self, topics: list[Topic]) -> None:
        """Ring where something is not as it was a second ago and no notice has said so."""
        runs = [topic for topic in topics if not topic.session and topic.name != "*"]
        inboxes = [topic for topic in topics if topic.session]
        try:
            found = await self.in_thread(marks, self.engine.store, [topic.name for topic in runs], [topic.session for topic in inboxes])
        except Exception as error:
            if not isinstance(error, Unreachable):
                logger.warning("followed runs could not be compared: %s: %s", type(error).__name__, error)
            return
        for topic, mark in zip([*runs, *inboxes], found, strict=True):
            if topic.mark != mark:
                topic.mark = mark
                topic.told()

    def stop(self) -> None:
        """Close every stream, because this process is to end; its readers go on at another one."""
        self.stopping = True
        for topic in self._topics.values():
            topic.ring()


def histories_of(app: Any) -> Histories:
    """What reads histories for this application: one, because it keeps what is dear to read."""
    known: Histories | None = getattr(app.state, "histories", None)
    if known is None:
        known = app.state.histories = Histories(app.state.conductor.engine)
    return known


def hub_of(app: Any) -> Hub:
    """The hub of this application on the running loop."""
    loop = asyncio.get_running_loop()
    known: Hub | None = getattr(app.state, "streams", None)
    if known is None or known.loop is not loop:
        known = app.state.streams = Hub(app.state.conductor.engine, histories_of(app), loop)
    return known
