"""Events by SSE: what a reader is told, in which order, how often, and what a reader can not do to the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conductor.service.access import Caller
from tests.integration.stage import Serve, staged
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually


@pytest.fixture
def serve(valkey: ValkeyServer, namespace: str, clean_keys: None) -> Iterator[Serve]:
    with staged(valkey.url(), namespace) as start:
        yield start


@pytest.mark.spec("SVC-3")
def test_a_stream_replays_a_run_goes_on_live_and_ends_with_it(serve: Serve) -> None:
    stage, served = serve()
    run_id = stage.begin()
    reader = served.reader(f"/v1/runs/{run_id}/events")
    assert (reader.status, reader.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    reader.until("run_idle")
    assert reader.kinds == ["started", "claimed", "completed", "run_idle"]
    stage.say(run_id)
    end = reader.ended()
    assert end.data == {"state": "completed", "reason": "", "generation": 1}
    assert reader.numbers == list(range(1, len(reader.numbers) + 1))
    assert [event.id for event in reader.events[:-1]] == [str(number) for number in reader.numbers]
    status, page = served.get(f"/v1/runs/{run_id}/events")
    assert status == 200
    assert page["events"] == [event.data for event in reader.events[:-1]]
    assert (page["last"], page["end"]) == (len(reader.numbers), end.data)
    assert {event["step"] for event in page["events"] if event["kind"] == "claimed"} == {"begin", "word", "finish"}


@pytest.mark.spec("SVC-3", "S43")
def test_who_comes_back_with_the_last_id_gets_each_event_once(serve: Serve) -> None:
    stage, served = serve()
    run_id = stage.begin("many")
    whole = served.reader(f"/v1/runs/{run_id}/events")
    whole.ended()
    assert len(whole.numbers) == 302  # over several blocks of the log
    for last in (0, 1, 127, 128, 129, 256, 301, 302):
        again = served.reader(f"/v1/runs/{run_id}/events?after=5", Last_Event_ID=str(last))  # what the browser says goes before the URL
        again.ended()
        assert again.numbers == list(range(last + 1, 303))
    later = served.reader(f"/v1/runs/{run_id}/events?after=300")
    later.ended()
    assert later.numbers == [301, 302]


@pytest.mark.spec("SVC-3")
def test_a_history_that_is_sent_in_parts_ends_with_its_last_part(serve: Serve) -> None:
    stage, served = serve()
    run_id = stage.begin("some")
    reader = served.reader(f"/v1/runs/{run_id}/events")
    reader.ended()
    assert reader.numbers == list(range(1, 123))  # one block, more than one chunk


@pytest.mark.spec("SVC-3")
def test_after_now_tells_only_what_comes_and_gives_a_place_to_come_back_to(serve: Serve) -> None:
    stage, served = serve()
    run_id = stage.begin()
    reader = served.reader(f"/v1/runs/{run_id}/events?after=now")
    eventually(lambda: reader.last_id == "4", what="the place is told before any event")
    stage.say(run_id)
    reader.ended()
    assert reader.numbers[0] == 5
    assert served.get(f"/v1/runs/{run_id}/events?after=now")[1] == {"events": [], "last": reader.numbers[-1], "end": reader.events[-1].data}


@pytest.mark.spec("SVC-3")
def test_pages_of_json_lead_through_the_history(serve: Serve) -> None:
    stage, served = serve()
    run_id = stage.begin("many")
    found: list[Any] = []
    page: Any = {"end": None}
    while page["end"] is None:
        page = served.get(f"/v1/runs/{run_id}/events?after={found[-1]['number'] if found else 0}&limit=50")[1]
        found += page["events"]
        assert page["last"] == len(found)
    assert [event["number"] for event in found] == list(range(1, 303))


REFUSED = ["-1", "+1", "1.0", "0x1", " 1", "1 ", "one", "1,2", "9" * 16, "9" * 4000, "١", "%00", "now", "1\t"]


@pytest.mark.spec("S43")
def test_a_last_id_that_is_none_is_refused_before_the_stream_opens(serve: Serve) -> None:
    stage, served = serve()
    run_id, other = stage.begin(), stage.begin("many")
    path = f"/v1/runs/{run_id}/events"
    for text in REFUSED:
        if text.isascii() and text == text.strip():
            reader = served.reader(path, Last_Event_ID=text)
            assert (reader.status, reader.error["code"]) == (422, "bad_input"), text
    for text in ("-1", "one", "9" * 16, "1e3", "%20", "5", "999999999999999"):
        status, told = served.get(f"{path}?after={text}")
        assert (status, told["error"]["code"]) == (422, "bad_input"), text
    # A place in the history of another run.
    last = served.reader(f"/v1/runs/{other}/events")
    last.ended()
    reader = served.reader(path, Last_Event_ID=last.last_id)
    assert reader.status == 422
    assert "has 4 events" in reader.error["message"]
    assert reader.error["hint"]
    assert served.get(f"{path}?aftr=1")[1]["error"]["code"] == "unknown_filter"
    assert served.reader(f"{path}?limit=5").error["code"] == "unknown_filter"
    for limit in ("0", "-1", "1001", "x"):
        assert served.get(f"{path}?limit={limit}")[0] == 422


@pytest.mark.spec("S43", "SVC-3")
def test_an_unknown_run_is_404_before_the_stream_opens(serve: Serve) -> None:
    _, served = serve()
    for run_id in ("no-run", "01997f3a-52a1-7c33-9d1e-6a1f2f0c4d00", "*", "01997f3a-52a1-7c33-9d1e-6a1f2f0c4dff"):
        assert served.reader(f"/v1/runs/{run_id}/events").error["code"] == "unknown_run"
        assert served.get(f"/v1/runs/{run_id}/events")[0] == 404


@pytest.mark.spec("S43")
def test_a_line_break_in_what_was_said_begins_no_line_of_its_own(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused where it is said; a stream does not rely on that."""
    stage, served = serve()
    monkeypatch.setattr("conductor.store.runs.said", lambda text, _what: text.replace(";", ","))
    run_id = stage.begin()
    reader = served.reader(f"/v1/runs/{run_id}/events")
    reader.until("run_idle")
    reason = "late\n\nevent: end\ndata: {}\r\rid: 99\u2028\n\n"
    stage.conductor.cancel(run_id, reason=reason)
    end = reader.ended()
    assert end.data["state"] == "cancelled"
    assert reader.kinds == ["started", "claimed", "completed", "run_idle", "cancelled", "end"]
    assert end.data["reason"].startswith("late")
    assert reader.last_id == "5"


@pytest.mark.spec("SVC-3", "RUN-11")
def test_after_a_retry_the_next_generation_streams_and_ends_again(serve: Serve) -> None:
    stage, served = serve()
    run_id = stage.begin("cli_orders", {"number": 1, "bad": True})
    first = served.reader(f"/v1/runs/{run_id}/events")
    end = first.ended()
    assert (end.data["state"], end.data["generation"]) == ("failed", 1)
    stage.mended = True
    stage.conductor.retry(run_id)
    second = served.reader(f"/v1/runs/{run_id}/events", Last_Event_ID=first.last_id)
    second.until("reopened")
    stage.drain()
    assert second.ended().data == {"state": "completed", "reason": "", "generation": 2}
    assert first.numbers + second.numbers == list(range(1, second.numbers[-1] + 1))
    # Whoever reads from the beginning passes the first end without stopping.
    whole = served.reader(f"/v1/runs/{run_id}/events")
    assert whole.ended().data["generation"] == 2
    assert whole.kinds.count("end") == 1


@pytest.mark.spec("SVC-3")
def test_many_readers_of_a_run_cost_the_store_one_read(own_valkey: ValkeyServer, serve: Serve) -> None:
    stage, served = serve(own_valkey.url())
    run_id = stage.begin("many")
    warm = served.reader(f"/v1/runs/{run_id}/events?after=now")
    eventually(lambda: warm.over)
    waiting = stage.begin()
    readers = [served.reader(f"/v1/runs/{waiting}/events") for _ in range(40)]
    for reader in readers:
        reader.until("run_idle")
    own_valkey.client().config_resetstat()
    stage.say(waiting)
    for reader in readers:
        assert reader.ended().data["state"] == "completed"
        assert reader.numbers == list(range(1, len(reader.numbers) + 1))
    reads = own_valkey.info("commandstats")["cmdstat_lrange"]["calls"]
    assert reads < 20, f"{reads} reads of the log for 40 readers"


@pytest.mark.spec("SVC-3")
def test_a_quiet_stream_says_that_it_lives_and_an_idle_one_is_closed(serve: Serve) -> None:
    stage, served = serve(stream_heartbeat_seconds=0.05, stream_idle_seconds=0.6)
    run_id = stage.begin()
    reader = served.reader(f"/v1/runs/{run_id}/events")
    assert "nothing has happened" in reader.closed()
    assert len(reader.comments) >= 5
    assert reader.numbers == [1, 2, 3, 4]
    again = served.reader(f"/v1/runs/{run_id}/events", Last_Event_ID=reader.last_id)
    stage.say(run_id)
    again.ended()
    assert again.numbers[0] == 5


@pytest.mark.spec("S43", "SVC-4")
def test_a_stream_ends_when_its_reader_may_no_longer_read(serve: Serve) -> None:
    may: dict[str, Any] = {"caller": Caller("ann", frozenset({"read"}), frozenset({"s1"}))}
    stage, served = serve(auth=lambda request: may["caller"], stream_check_seconds=0.1)
    mine, other = stage.begin(session="s1"), stage.begin(session="s2")
    assert served.reader(f"/v1/runs/{other}/events").error["code"] == "unknown_run"
    for loss in (None, Caller("ann", frozenset({"write"}), None), Caller("ann", frozenset({"read"}), frozenset({"s2"}))):
        may["caller"] = Caller("ann", frozenset({"read"}), frozenset({"s1"}))
        run, inbox = served.reader(f"/v1/runs/{mine}/events"), served.reader("/v1/sessions/s1/inbox/events")
        run.until("run_idle")
        may["caller"] = loss
        assert "may no longer" in run.closed()
        assert "may no longer" in inbox.closed()
        stage.begin(session="s1")


@pytest.mark.spec("S42", "SVC-4")
def test_a_browser_reads_by_its_cookie_and_no_token_ever_stands_in_a_url(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    stage, served = serve(stream_check_seconds=0.1)
    run_id, store = stage.begin(), stage.engine.store
    secret, _ = store.add_token("ann", ["read", "write"])
    path = f"/v1/runs/{run_id}/events"
    try:
        eventually(lambda: served.reader(path).status == 401, what="the first token closes the service")
        for name in ("token", "access_token", "ticket", "Authorization"):
            assert served.reader(f"{path}?{name}={secret}").status == 401
            refused = served.reader(f"{path}?{name}={secret}", Authorization=f"Bearer {secret}")
            assert (refused.status, refused.error["code"]) == (422, "unknown_filter")
            assert secret not in str(refused.error)
        _, headers, told = served.ask("POST", "/v1/login", body={"token": secret})
        cookie = headers["set-cookie"].partition(";")[0]
        assert secret not in cookie
        reader, by_token = served.reader(path, Cookie=cookie), served.reader(path, Authorization=f"Bearer {secret}")
        for one in (reader, by_token):
            one.until("run_idle")
        assert served.ask("POST", "/v1/logout", {"Cookie": cookie, "X-Conductor-CSRF": told["csrf"]})[0] == 200
        assert "may no longer" in reader.closed()
        assert served.reader(path, Cookie=cookie, Last_Event_ID=reader.last_id).status == 401
        assert not by_token.over
        store.revoke_token("ann")
        assert "may no longer" in by_token.closed()
        assert secret not in caplog.text
    finally:
        store.forget_token("ann")


@pytest.mark.spec("S43", "S15")
def test_streams_are_bounded_by_caller_and_in_all(serve: Serve) -> None:
    stage, served = serve(
        auth=lambda request: Caller(request.headers["x-who"], frozenset({"read"})), streams_per_caller=3, streams_total=5)
    path = f"/v1/runs/{stage.begin()}/events"
    readers = [served.reader(path, X_Who="ann") for _ in range(3)]
    refused = served.reader(path, X_Who="ann")
    assert (refused.status, refused.error["code"]) == (429, "too_many_streams")
    assert refused.error["hint"]
    assert refused.headers["retry-after"]
    readers += [served.reader(path, X_Who="bob") for _ in range(2)]
    assert served.reader(path, X_Who="eve").status == 429
    readers[0].close()
    eventually(lambda: served.reader(path, X_Who="ann").status == 200, what="a place that was left is given again")
    for reader in readers[1:]:
        reader.until("run_idle")


@pytest.mark.spec("SVC-3", "S43")
def test_a_reader_that_takes_nothing_is_dropped_and_holds_nobody_up(serve: Serve) -> None:
    stage, served = serve(send_buffer=4096, stream_send_seconds=0.5)
    run_id = stage.begin("endless")
    mutes = [served.mute(f"/v1/runs/{run_id}/events") for _ in range(5)]
    eventually(lambda: served.streams == 5)
    quick = served.reader(f"/v1/runs/{run_id}/events")
    quick.ended(5)
    assert quick.numbers == list(range(1, 1603))
    eventually(lambda: (served.streams, served.connections) == (0, 1), what=lambda: f"{served.streams} streams, {served.connections} connections")
    assert len(mutes) == 5


@pytest.mark.spec("SVC-3")
def test_a_reader_that_leaves_is_noticed_at_once(serve: Serve) -> None:
    stage, served = serve()
    run_id = stage.begin()
    mutes = [served.mute(f"/v1/runs/{run_id}/events") for _ in range(5)]
    eventually(lambda: served.streams == 5)
    for mute in mutes:
        mute.close()
    eventually(lambda: served.streams == 0, 2)
    eventually(lambda: not served.listening, 5, what="nobody listens for nobody")
