"""Parts of streams without a store: how events are framed, when a topic rings, what is read once and what anew, what counts as an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from conductor.errors import BadInput
from conductor.runs import history
from conductor.runs.history import Histories
from conductor.service.access import Caller
from conductor.service.framing import comment, frame, place
from conductor.service.routes.events import _number, _wants_stream
from conductor.service.telling import NOTHING, EventStream, Told
from conductor.service.topics import Looks, Topic
from conductor.settings import Settings
from conductor.store.following import LogPage

ANY = st.text(st.characters(exclude_categories=[]), max_size=40)


@pytest.mark.spec("S43")
@given(ANY, ANY, ANY)
def test_nothing_in_an_event_begins_a_line_of_its_own(kind: str, id: str, said: str) -> None:
    lines = frame(kind, {"said": said}, id=id or "1").decode().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["id", "event", "data", ""]
    assert len(comment(said).decode().splitlines()) == 2
    assert len(place(id or 1).decode().splitlines()) == 2


def on_a_loop(test: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        rings = iter(range(1, 1000))
        await test(SimpleNamespace(loop=loop, rings=rings, apart=0.01, in_thread=lambda read, *args: loop.run_in_executor(None, read, *args)))

    asyncio.run(run())


@pytest.mark.spec("RUN-9")
def test_a_topic_rings_at_once_and_again_when_the_window_of_its_notice_is_over() -> None:
    """Steps that follow each other within a window are told by the first of them."""

    async def test(hub: Any) -> None:
        rung: list[float] = []
        topic, began = Topic(hub, "run", frozenset({0})), hub.loop.time()

        class Noted(asyncio.Event):
            def set(self) -> None:
                rung.append(hub.loop.time() - began)

        flag = Noted()
        topic.join(flag)
        topic.told()
        await asyncio.sleep(0.25)
        assert len(rung) == 2
        assert rung[0] < 0.05
        assert 0.1 <= rung[-1] < 0.2
        assert topic.leave(flag)

    on_a_loop(test)


def test_rings_keep_their_distance_however_much_is_told() -> None:
    async def test(hub: Any) -> None:
        hub.apart = 0.05
        topic = Topic(hub, "run", frozenset({0}))
        first, end = topic.number, hub.loop.time() + 0.3
        while hub.loop.time() < end:
            topic.told()
            await asyncio.sleep(0.001)
        assert 3 <= topic.number - first <= 7

    on_a_loop(test)


@pytest.mark.spec("SVC-3")
def test_what_one_reads_serves_all_until_the_topic_rings_and_for_ever_if_it_is_whole() -> None:
    async def test(hub: Any) -> None:
        reads: list[int] = []
        looks: Looks[int] = Looks(hub, lambda name, block: reads.append(block) or len(reads), lambda told: told == 2)
        topic = Topic(hub, "run", frozenset({0}))
        assert await asyncio.gather(*(looks.at(topic, 0) for _ in range(9))) == [1] * 9
        topic.ring()
        assert await asyncio.gather(*(looks.at(topic, 0) for _ in range(9))) == [2] * 9
        topic.ring()
        assert await looks.at(topic, 0) == 2  # whole
        looks.forget("run")
        assert await looks.at(topic, 0) == 3

    on_a_loop(test)


@pytest.mark.spec("SVC-3")
def test_a_look_that_began_before_a_ring_serves_nobody_after_it() -> None:
    async def test(hub: Any) -> None:
        answers: list[asyncio.Future[int]] = []

        def in_thread(_read: Any, *_args: Any) -> asyncio.Future[int]:
            answers.append(hub.loop.create_future())
            return answers[-1]

        hub.in_thread = in_thread
        looks: Looks[int] = Looks(hub, lambda name, block: 0, lambda told: False)
        topic = Topic(hub, "run", frozenset({0}))
        early = asyncio.create_task(looks.at(topic, 0))
        await asyncio.sleep(0)
        topic.ring()
        late = asyncio.create_task(looks.at(topic, 0))
        await asyncio.sleep(0)
        answers[1].set_result(2)
        answers[0].set_result(1)
        assert (await early, await late) == (1, 2)

    on_a_loop(test)


def test_a_look_that_fails_is_made_again_and_one_reader_that_leaves_takes_it_from_no_other() -> None:
    async def test(hub: Any) -> None:
        outcomes: list[Any] = [OSError("away"), 5]

        def read(_name: str, _block: int) -> int:
            if isinstance(found := outcomes.pop(0), Exception):
                raise found
            return int(found)

        looks: Looks[int] = Looks(hub, read, lambda told: False)
        topic = Topic(hub, "run", frozenset({0}))
        with pytest.raises(OSError, match="away"):
            await looks.at(topic, 0)
        leaver, stayer = (asyncio.create_task(looks.at(topic, 0)) for _ in range(2))
        await asyncio.sleep(0)
        leaver.cancel()
        assert await stayer == 5

    on_a_loop(test)


class Script:
    """A teller whose looks are functions of the flag, one after the other."""

    def __init__(self, *looks: Callable[[asyncio.Event], Told]) -> None:
        self._looks = list(looks)
        self._flag = asyncio.Event()

    @contextmanager
    def follow(self, hub: Any, flag: asyncio.Event) -> Iterator[Any]:
        self._flag = flag
        yield None

    def opening(self) -> bytes:
        return b""

    def permits(self, caller: Caller) -> bool:
        return True

    async def look(self, hub: Any, topic: Any) -> Told:
        return self._looks.pop(0)(self._flag)


async def streamed(hub: Any, teller: Script, send: Any) -> None:
    hub.place, hub.stopping = lambda actor: nullcontext(), False
    hub.engine = SimpleNamespace(settings=Settings(stream_send_seconds=0.2))
    caller = Caller("ann", frozenset({"read"}))

    async def who() -> Caller:
        return caller

    async def receive() -> Any:
        await asyncio.Event().wait()

    app = SimpleNamespace(state=SimpleNamespace(streams=hub, histories=None))
    async with asyncio.timeout(2):
        await EventStream(teller, caller, who)({"type": "http", "app": app}, receive, send)


@pytest.mark.spec("SVC-3")
def test_what_happens_during_a_look_is_looked_at_without_waiting() -> None:
    def during(flag: asyncio.Event) -> Told:
        flag.set()
        return NOTHING

    async def test(hub: Any) -> None:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await streamed(hub, Script(during, during, lambda flag: Told(b"x", over="end")), send)
        assert [message.get("body") for message in sent[2:]] == [b"x", b""]
        assert not sent[-1]["more_body"]

    on_a_loop(test)


@pytest.mark.spec("SVC-3", "S43")
def test_a_reader_that_takes_nothing_is_given_up_where_a_connection_cannot_be_cut() -> None:
    async def test(hub: Any) -> None:
        async def send(message: Any) -> None:
            if message.get("body") == b"x":
                await asyncio.Event().wait()

        await streamed(hub, Script(lambda flag: Told(b"x", more=True)), send)

    on_a_loop(test)


@pytest.mark.spec("S43")
@given(ANY | st.integers().map(str))
def test_only_a_number_of_a_log_is_a_place_in_it(text: str) -> None:
    if len(text) <= 15 and text.isascii() and text.isdigit():
        assert _number(text, "after") == int(text)
    elif text != "now":
        with pytest.raises(BadInput):
            _number(text, "Last-Event-ID")


@pytest.mark.parametrize(("accept", "wants"), [
    ("text/event-stream", True), ("TEXT/Event-Stream; charset=utf-8", True), ("application/json, text/event-stream;q=0.9", True),
    ("text/event-stream;q=0", False), ("text/event-stream; q=0.000", False), ("text/event-stream;q=0.001", True), ("*/*", False), ("", False),
    ("text/*", False), ("application/json", False), (",;,", False)])
def test_a_stream_is_told_to_who_asks_for_one(accept: str, wants: bool) -> None:
    assert _wants_stream(Headers({"accept": accept})) is wants


@pytest.mark.spec("SVC-3")
@pytest.mark.parametrize(("settled", "state", "entries", "ended"), [
    (True, "completed", 2, True), (False, "completed", 2, False), (True, "running", 2, False), (True, "failed", 5, False)])
def test_an_end_is_told_only_of_a_run_that_nothing_reopened_while_its_last_page_was_read(
    monkeypatch: pytest.MonkeyPatch, settled: bool, state: str, entries: int, ended: bool,
) -> None:
    page = LogPage(state, "", 1, "", "", entries, tuple(["e;1;completed"] * entries), settled)
    monkeypatch.setattr(history, "read_log", lambda *_: page)
    monkeypatch.setattr(history, "read_graph", lambda *_: SimpleNamespace(nodes=()))
    found = Histories(SimpleNamespace(store=None)).page("01997f3a-52a1-7c33-9d1e-6a1f2f0c4d00", 0, 5)  # type: ignore[arg-type]
    assert found is not None
    assert (found.end is not None) is ended


def test_an_event_of_a_later_release_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    page = LogPage("running", "", 1, "", "", 3, ("s;1;1;0", "%;7;what", "e;9;completed"), True)
    monkeypatch.setattr(history, "read_log", lambda *_: page)
    monkeypatch.setattr(history, "read_graph", lambda *_: SimpleNamespace(nodes=()))
    found = Histories(SimpleNamespace(store=None)).page("01997f3a-52a1-7c33-9d1e-6a1f2f0c4d00", 0, 5)  # type: ignore[arg-type]
    assert found is not None
    assert [(event["number"], event["kind"]) for event in found.events] == [(1, "started"), (2, "unreadable"), (3, "ended")]
