"""Streams through what happens to a store and to a service: servers killed, notices lost, runs parked, archived and purged; inboxes, and
what happens to all runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conductor.archive import Kind
from conductor.declare import registry
from conductor.runs.archiving import put_rows, rows_of
from conductor.runs.parking import park, wake
from conductor.service import listening, streams
from conductor.service.access import Caller
from conductor.sessions import inbox
from tests.integration.stage import Serve, staged
from tests.support.server import ValkeyServer
from tests.support.streaming import Reader, Served
from tests.support.waiting import eventually


@pytest.fixture
def serve(valkey: ValkeyServer, namespace: str, clean_keys: None) -> Iterator[Serve]:
    with staged(valkey.url(), namespace) as start:
        yield start


def whole(*readers: Reader) -> None:
    """Each event once, in order, over all readers that followed each other."""
    numbers = [number for reader in readers for number in reader.numbers]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.spec("SVC-3", "RUN-9")
def test_a_stream_lives_through_the_death_of_the_store(own_valkey: ValkeyServer, serve: Serve) -> None:
    stage, served = serve(own_valkey.url(), stream_heartbeat_seconds=0.1, stream_check_seconds=0.1)
    run_id = stage.begin()
    reader = served.reader(f"/v1/runs/{run_id}/events")
    reader.until("run_idle")
    own_valkey.kill()
    beats = len(reader.comments)
    eventually(lambda: len(reader.comments) > beats + 3, what="the heart beats while the store is away")
    assert served.get(f"/v1/runs/{run_id}/events")[0] == 503
    own_valkey.restart()
    stage.say(run_id)
    assert reader.ended().data["state"] == "completed"
    whole(reader)


@pytest.mark.spec("SVC-3")
def test_a_reader_goes_on_at_another_service(serve: Serve) -> None:
    stage, served = serve()
    run_id = stage.begin()
    first = served.reader(f"/v1/runs/{run_id}/events")
    first.until("run_idle")
    served.hub.loop.call_soon_threadsafe(served.hub.stop)
    assert "come back" in first.closed()
    _, another = serve()
    second = another.reader(f"/v1/runs/{run_id}/events", Last_Event_ID=first.last_id)
    stage.say(run_id)
    second.ended()
    whole(first, second)


@pytest.mark.spec("RUN-9")
def test_without_any_notice_a_stream_is_a_second_late_and_complete(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening._Notices, "ask", lambda self: bool(self.over.wait(0.1)))
    stage, served = serve()
    run_id = stage.begin()
    reader = served.reader(f"/v1/runs/{run_id}/events")
    reader.until("run_idle")
    stage.say(run_id)
    reader.ended(5)
    whole(reader)


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compared: only notices lead to a look."""
    monkeypatch.setattr(streams, "_COMPARE_EVERY", 3600)


def is_quiet(served: Served) -> None:
    """The topic has rung for all it has heard, and again when the window was over: only something new makes it ring."""
    (topic,) = served.hub._topics.values()
    eventually(lambda: topic._until and topic._rung >= topic._until and topic._timer is None)


class Waited:
    """A run that waits, with a reader who has seen all of it and hears by notices only."""

    def __init__(self, serve: Serve, **settings: Any) -> None:
        self.stage, self.served = serve(**settings)
        self.run_id = self.stage.begin()
        self.client = self.stage.engine.store.client()
        self.notices = self.stage.engine.store.keys.of(int(self.run_id[-2:], 16), "notices")
        self.log = self.stage.engine.store.keys.run(self.run_id, "log")
        self.reader = self.served.reader(f"/v1/runs/{self.run_id}/events")
        self.reader.until("run_idle")
        is_quiet(self.served)

    def heard(self, place: str) -> None:
        """Wait until the thread that listens has read up to a place."""
        eventually(lambda: self.listener._place == place, what=lambda: f"{self.listener._place} is {place}")

    @property
    def listener(self) -> Any:
        (found,) = self.served.hub._listeners._notices.values()
        return found

    def is_told(self) -> None:
        assert self.reader.ended(5).data["state"] == "completed"
        whole(self.reader)


@pytest.mark.spec("RUN-9")
def test_places_that_went_back_are_a_gap(blind: None, serve: Serve) -> None:
    """A store that was restored, on a clock that is behind, counts from an earlier place."""
    waited = Waited(serve)
    ahead = f"{stage_now(waited) + 3_600_000}-1"
    waited.client.xadd(waited.notices, {"r": "another", "n": 1, "s": "running"}, id=ahead)
    waited.heard(ahead)
    waited.client.delete(waited.notices)
    waited.stage.say(waited.run_id)
    waited.is_told()


def stage_now(waited: Waited) -> int:
    return int(waited.stage.engine.store._now())


@pytest.mark.spec("RUN-9")
def test_notices_that_were_cut_off_are_a_gap(blind: None, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_PAUSE", 0.7)
    waited = Waited(serve)
    waited.heard(waited.client.xadd(waited.notices, {"r": "another", "n": 1, "s": "running"}))
    waited.stage.say(waited.run_id)
    pipe = waited.client.pipeline(transaction=False)
    for number in range(500):
        pipe.xadd(waited.notices, {"r": "another", "n": number, "s": "running"}, maxlen=500, approximate=False)
    pipe.execute()
    waited.is_told()


@pytest.mark.spec("RUN-9")
def test_an_outage_is_a_gap(blind: None, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a store has lost when it comes back shows at once."""
    waited = Waited(serve)
    entry = waited.client.rpop(waited.log)
    read, broken = listening.read_news, threading.Event()

    def read_news(*args: Any) -> Any:
        if threading.current_thread() is waited.listener and not broken.is_set():
            broken.set()
            raise ConnectionError("the store is away")
        return read(*args)

    monkeypatch.setattr(listening, "read_news", read_news)
    assert "lost its last writes" in waited.reader.closed(5)
    waited.client.rpush(waited.log, entry)


@pytest.mark.spec("RUN-9")
def test_a_look_that_fails_is_repeated_though_nothing_rings(blind: None, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = Waited(serve)
    histories = waited.served.app.state.histories
    read, broken = histories.page, iter([True] * 3)

    def page(*args: Any) -> Any:
        if next(broken, False):
            raise ConnectionError("the store is away")
        return read(*args)

    monkeypatch.setattr(histories, "page", page)
    waited.stage.say(waited.run_id)
    waited.is_told()


@pytest.mark.spec("RUN-9")
def test_steps_within_the_window_of_a_notice_are_told_when_it_is_over(blind: None, serve: Serve) -> None:
    stage, served = serve(drain_steps=3)
    run_id = str(registry.declared["many"].apply_async().id)
    reader = served.reader(f"/v1/runs/{run_id}/events")
    eventually(lambda: served.listening == 1)
    for _ in range(5):
        stage.drain()
        last = stage.engine.store.client().llen(stage.engine.store.keys.run(run_id, "log"))
        eventually(lambda last=last: len(reader.numbers) == last, 0.9, what=lambda last=last: f"{last} events, not {len(reader.numbers)}")
    whole(reader)


@pytest.mark.spec("SVC-3")
def test_a_log_that_lost_its_end_and_grew_again_closes_the_stream(serve: Serve) -> None:
    waited = Waited(serve)
    entry = waited.client.rpop(waited.log)
    waited.client.rpush(waited.log, "i;1;1", entry)
    assert "lost its last writes" in waited.reader.closed(5)
    waited.client.rpop(waited.log, 2)
    waited.client.rpush(waited.log, entry)


@pytest.mark.spec("RUN-9")
def test_who_comes_while_runs_are_compared_is_listened_for(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    comparing, marks = threading.Semaphore(0), streams.marks

    def slow(*args: Any) -> Any:
        comparing.release()
        threading.Event().wait(0.2)
        return marks(*args)

    monkeypatch.setattr(streams, "marks", slow)
    monkeypatch.setattr(streams, "_COMPARE_EVERY", 0.05)
    stage, served = serve()
    first, second = stage.begin(), stage.begin()
    while first[-2:] == second[-2:]:
        second = stage.begin()
    served.reader(f"/v1/runs/{first}/events").until("run_idle")
    while comparing.acquire(blocking=False):
        pass
    comparing.acquire(timeout=5)
    served.reader(f"/v1/runs/{second}/events").until("run_idle")
    for _ in range(2):
        assert comparing.acquire(timeout=5)
    assert served.listening == 2


@pytest.mark.spec("SVC-3")
def test_a_log_that_lost_its_end_closes_the_stream(serve: Serve) -> None:
    stage, served = serve()
    run_id = stage.begin()
    reader = served.reader(f"/v1/runs/{run_id}/events")
    reader.until("run_idle")
    log = stage.engine.store.keys.run(run_id, "log")
    entry = stage.engine.store.client().rpop(log)
    assert "lost its last writes" in reader.closed(5)
    back = served.reader(f"/v1/runs/{run_id}/events", Last_Event_ID=reader.last_id)
    assert (back.status, "has 3 events" in back.error["message"]) == (422, True)
    stage.engine.store.client().rpush(log, entry)


@pytest.mark.spec("SVC-3", "RET-1")
def test_a_run_that_is_purged_under_its_reader_closes_the_stream(serve: Serve) -> None:
    stage, served = serve()
    run_id = stage.begin()
    reader = served.reader(f"/v1/runs/{run_id}/events")
    reader.until("run_idle")
    stage.engine.store.client().unlink(*stage.engine.store.client().keys(f"*{run_id}*"))
    assert "no longer kept" in reader.closed(5)
    assert served.reader(f"/v1/runs/{run_id}/events").status == 404


class Kept:
    """A stage with an archive."""

    def __init__(self, serve: Serve, directory: Path) -> None:
        self.stage, self.served = serve(archive_url=f"sqlite:///{directory}/archive.db")

    def park(self, run_id: str) -> None:
        assert park(self.stage.engine, [run_id], int(self.stage.engine.store._now())) == [run_id]

    def archive(self, run_id: str) -> None:
        """As when its retention in the store is over."""
        put_rows(self.stage.engine, [row for _, row in rows_of(self.stage.engine, [run_id], Kind.FINISHED)])
        self.stage.engine.store.purge(run_id)
        assert not self.stage.engine.store.client().exists(self.stage.engine.store.keys.run(run_id))


@pytest.fixture
def kept(serve: Serve, tmp_path: Path) -> Kept:
    return Kept(serve, tmp_path)


@pytest.mark.spec("SVC-3")
def test_a_parked_run_is_told_without_being_woken_and_followed_when_it_is(kept: Kept) -> None:
    stage, served = kept.stage, kept.served
    run_id, path = stage.begin(session="s1"), "/v1/runs/{}/events"
    kept.park(run_id)
    parked, late = served.reader(path.format(run_id)), served.reader(path.format(run_id), Last_Event_ID="4")
    parked.until("run_idle")
    page = served.get(f"{path.format(run_id)}?after=2")[1]
    assert ([event["number"] for event in page["events"]], page["last"], page["end"]) == ([3, 4], 4, None)
    assert not stage.engine.store.client().exists(stage.engine.store.keys.run(run_id))
    stage.conductor.run(run_id).signal("word", {"by": "ann"})
    wake(stage.engine, run_id)
    stage.drain()
    for reader in (parked, late):
        assert reader.ended(10).data["state"] == "completed"
    whole(parked)
    assert late.numbers[0] == 5


@pytest.mark.spec("SVC-3")
def test_a_run_that_is_parked_under_its_reader_and_cancelled_there_ends(kept: Kept) -> None:
    """What was said to a parked run is an event when it is back, and not before."""
    stage, served = kept.stage, kept.served
    run_id = stage.begin()
    reader = served.reader(f"/v1/runs/{run_id}/events")
    reader.until("run_idle")
    kept.park(run_id)
    assert stage.conductor.cancel(run_id, reason="late")["word"] == "OK"
    served.hub._topics[run_id].ring()
    late = served.reader(f"/v1/runs/{run_id}/events", Last_Event_ID="4")
    assert late.status == 200
    wake(stage.engine, run_id)
    for one in (reader, late):
        assert one.ended(10).data == {"state": "cancelled", "reason": "late", "generation": 1}
    whole(reader)
    assert reader.kinds[-2:] == ["cancelled", "end"]


@pytest.mark.spec("SVC-3")
def test_a_run_that_only_the_archive_has_is_told_whole(kept: Kept) -> None:
    stage, served = kept.stage, kept.served
    run_id = stage.begin("many")
    kept.archive(run_id)
    reader = served.reader(f"/v1/runs/{run_id}/events")
    assert reader.ended().data == {"state": "completed", "reason": "", "generation": 1}
    whole(reader)
    assert len(reader.numbers) == 302
    again = served.reader(f"/v1/runs/{run_id}/events", Last_Event_ID="300")
    again.ended()
    assert again.numbers == [301, 302]


@pytest.mark.spec("SES-3", "SVC-3")
def test_an_inbox_is_told_as_it_fills(serve: Serve) -> None:
    stage, served = serve()
    store = stage.engine.store

    def deliver(name: str) -> None:
        inbox.deliver(store, "ann", id=name, kind="retry_success", operation_id="op", body={"n": name})

    deliver("m1")
    deliver("m2")
    deliver("m3")
    assert inbox.acknowledge(store, "ann", "m2")
    reader = served.reader("/v1/sessions/ann/inbox/events")
    reader.until("retry_success", count=2)
    deliver("m4")
    reader.until("retry_success", count=3)
    assert [(event.id, event.data["id"], event.data["body"]) for event in reader.events] == [
        (name, name, {"n": name}) for name in ("m1", "m3", "m4")]
    # The same under the path of the inbox; who comes back goes on behind what it had, acknowledged or not.
    for last, expected in (("m1", ["m3", "m4"]), ("m2", ["m3", "m4"]), ("m3", ["m4"]), ("never", ["m1", "m3", "m4"])):
        again = served.reader("/v1/sessions/ann/inbox", Last_Event_ID=last)
        again.until("retry_success", count=len(expected))
        assert [event.id for event in again.events] == expected
    assert served.get("/v1/sessions/ann/inbox")[1]["messages"][0]["id"] == "m1"
    assert served.get("/v1/sessions/ann/inbox/events")[1]["error"]["code"] == "not_acceptable"
    stage.engine.store.erase_session("ann")


@pytest.mark.spec("SES-3")
def test_a_message_reaches_its_reader_at_once_and_through_the_death_of_the_store(own_valkey: ValkeyServer, serve: Serve) -> None:
    stage, served = serve(own_valkey.url())
    reader = served.reader("/v1/sessions/ann/inbox/events")
    for number in range(3):
        inbox.deliver(stage.engine.store, "ann", id=f"m{number}", kind="told", operation_id="", body={})
        reader.until("told", 10, count=number + 1)
        own_valkey.restart()
    assert [event.id for event in reader.events] == ["m0", "m1", "m2"]


@pytest.mark.spec("SES-3")
def test_a_message_is_heard_of_without_comparing_and_after_places_went_back(blind: None, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, served = serve()
    deliver = partial(inbox.deliver, stage.engine.store, "ann", kind="told", operation_id="", body={})
    reader = served.reader("/v1/sessions/ann/inbox/events")
    (listener,) = served.hub._listeners._inboxes.values()
    eventually(lambda: "ann" in listener._places)
    for number in range(3):
        deliver(id=f"m{number}")
        reader.until("told", 2, count=number + 1)
    read, broken = listening.read_arrivals, threading.Event()

    def read_arrivals(*args: Any) -> Any:
        if threading.current_thread() is listener and not broken.is_set():
            listener._places["ann"] = "9999999999999-0"
            broken.set()
            raise ConnectionError("the store is away")
        return read(*args)

    monkeypatch.setattr(listening, "read_arrivals", read_arrivals)
    assert broken.wait(5)
    is_quiet(served)
    deliver(id="m3")
    reader.until("told", 5, count=4)
    stage.engine.store.erase_session("ann")


@pytest.mark.spec("SVC-3", "SVC-4")
def test_what_happens_to_all_runs_is_told_to_who_may_see_it(serve: Serve) -> None:
    sees = {"all": None, "one": frozenset({"s1"})}
    stage, served = serve(
        auth=lambda request: Caller(request.headers["x-who"], frozenset({"read"}), sees[request.headers["x-who"]]))
    everything = served.reader("/v1/events", X_Who="all")
    one = served.reader("/v1/events", X_Who="one")
    failures = served.reader("/v1/events?workflow=cli_orders&state=failed", X_Who="all")
    eventually(lambda: served.listening == 2)
    mine, other = stage.begin(session="s1"), stage.begin(session="s2")
    broken = stage.begin("cli_orders", {"number": 1, "bad": True})
    stage.say(mine)

    def told(reader: Reader) -> set[tuple[str, str]]:
        return {(event.data["run_id"], event.data["state"]) for event in reader.events if event.kind == "state"}

    eventually(lambda: {(mine, "completed"), (other, "waiting_signal"), (broken, "failed")} <= told(everything), what=lambda: str(told(everything)))
    eventually(lambda: (mine, "completed") in told(one))
    eventually(lambda: told(failures) == {(broken, "failed")})
    assert {run for run, _ in told(one)} == {mine}
    event = next(event for event in everything.events if event.data.get("run_id") == broken)
    assert (event.id, event.data["workflow"], event.data["generation"]) == ("", "cli_orders", 1)
    assert served.reader("/v1/events?state=lost", X_Who="all").error["code"] == "unknown_filter"
    assert served.reader("/v1/events?stat=failed", X_Who="all").error["code"] == "unknown_filter"
    assert served.reader("/v1/events", X_Who="all", Last_Event_ID="3").error["code"] == "bad_input"
    assert served.get("/v1/events", {"X-Who": "all"})[0] == 406


@pytest.mark.spec("SVC-3")
def test_a_run_that_moves_quickly_is_told_once_in_its_last_state(serve: Serve) -> None:
    stage, served = serve()
    reader = served.reader("/v1/events")
    eventually(lambda: served.listening == 2)
    runs = {stage.begin("cli_orders", {"number": number}) for number in range(30)}

    def last() -> dict[str, str]:
        return {event.data["run_id"]: event.data["state"] for event in reader.events if event.kind == "state"}

    eventually(lambda: last() == dict.fromkeys(runs, "completed"), what=lambda: json.dumps(last()))
    assert len(reader.events) <= 60
