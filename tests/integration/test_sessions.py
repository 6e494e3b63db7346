"""Sessions: what is delivered is read once and in order, and a grant is used by whom it was given to. On fakeredis and on a real server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from conductor import failpoints
from conductor.errors import BadInput, ConsentRequired, StoreUnreachable
from conductor.ids import home_of_name
from conductor.sessions import consent, inbox
from conductor.store import Store, connect
from conductor.store.sessions import MESSAGES, USES, in_key
from tests.conftest import MakeStore
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually

T = TypeVar("T")
DAY = 86_400_000
ODD = ["x", "x:ids", "x%3Aids", "x}:ids", "{x}", "*", "a b", "é", "x@y", "../x", "😀" * 256]


def deliver(store: Store, message_id: str, session: str = "anna", **fields: Any) -> str:
    told = {"kind": "retry_success", "operation_id": "op-1", "body": "j1:{}"} | fields
    return store.deliver(session, message_id, **told).word


def ids(store: Store, session: str = "anna", **options: Any) -> list[str]:
    return [entry.message_id for entry in store.inbox(session, **options)]


def key(store: Store, tail: str) -> str:
    return store.keys.of(0, tail)


def now_ms(store: Store) -> int:
    seconds, _ = store.client().time()
    return int(seconds) * 1000


def lose(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """The first reply of `verb` is lost after the server has executed it."""
    monkeypatch.setattr(failpoints, "_armed", {f"{verb}.sent": failpoints._Armed("lost", 1)})


def at_once(count: int, fn: Callable[[int], T]) -> list[T]:
    """`fn(0)` … `fn(count - 1)`, all begun at the same moment in threads of their own."""
    barrier = threading.Barrier(count)

    def begin(number: int) -> T:
        barrier.wait(30)
        return fn(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


# Delivering.


@pytest.mark.spec("SES-3")
def test_messages_are_read_oldest_first_until_they_are_acknowledged(store: Store) -> None:
    assert [deliver(store, f"m{number}") for number in range(5)] == ["OK"] * 5
    first = store.inbox("anna", limit=2)
    assert [entry.message_id for entry in first] == ["m0", "m1"]
    assert ids(store, after=first[-1].cursor) == ["m2", "m3", "m4"]
    assert store.acknowledge("anna", "m1") == "OK"
    assert ids(store) == ["m0", "m2", "m3", "m4"]
    assert ids(store, after=first[-1].cursor) == ["m2", "m3", "m4"]
    assert ids(store, session="bert") == []


@pytest.mark.spec("SES-3")
def test_a_message_id_is_delivered_once_also_after_it_was_acknowledged(store: Store) -> None:
    first = store.deliver("anna", "m", kind="a", operation_id="o", body="j1:1")
    again = store.deliver("anna", "m", kind="b", operation_id="p", body="j1:2")
    assert (first.word, again.word) == ("OK", "KNOWN")
    assert first.cursor == again.cursor == store.inbox("anna")[0].cursor
    assert [(entry.kind, entry.body) for entry in store.inbox("anna")] == [("a", "j1:1")]
    assert [store.acknowledge("anna", "m") for _ in range(2)] == ["OK", "OK"]
    assert deliver(store, "m") == "KNOWN"
    assert ids(store) == []
    assert store.acknowledge("anna", "never") == store.acknowledge("bert", "m") == "UNKNOWN"


@pytest.mark.spec("SES-3")
def test_what_is_delivered_is_what_is_read_byte_for_byte(store: Store) -> None:
    body = 'j1:{"n":12345678901234567890,"e":[],"t":"\\u0000\r\n\x1b]52;😀"}'
    before = now_ms(store)
    deliver(store, "m:1;x", kind="retry_exhausted", operation_id="run:step:7", body=body)
    [entry] = store.inbox("anna")
    assert (entry.message_id, entry.kind, entry.operation_id, entry.body) == ("m:1;x", "retry_exhausted", "run:step:7", body)
    assert before <= entry.at <= now_ms(store) + 1000


@pytest.mark.spec("SES-3")
def test_a_place_grows_even_if_the_clock_does_not(store: Store) -> None:
    deliver(store, "m1")
    ahead = now_ms(store) + 3 * DAY
    store.client().zadd(key(store, "inbox:anna:ids"), {"from-a-later-clock": ahead})
    cursor = store.inbox("anna")[-1].cursor
    deliver(store, "m2")
    deliver(store, "m3")
    assert [entry.cursor for entry in store.inbox("anna", after=cursor)] == [f"{ahead + 1}-0", f"{ahead + 2}-0"]
    assert ids(store) == ["m1", "m2", "m3"]


@pytest.mark.spec("SES-3")
def test_an_inbox_forgets_what_is_a_month_old_and_nothing_younger(store: Store) -> None:
    now, client = now_ms(store), store.client()
    for name, age in (("old", 31 * DAY), ("young", 29 * DAY)):
        client.xadd(key(store, "inbox:anna"), {"m": name, "k": "a", "o": "", "t": now - age, "b": "j1:1"}, id=f"{now - age}-0")
        client.zadd(key(store, "inbox:anna:ids"), {name: now - age})
    assert ids(store) == ["old", "young"]
    deliver(store, "new")
    assert ids(store) == ["young", "new"]
    assert client.zrange(key(store, "inbox:anna:ids"), 0, -1) == ["young", "new"]
    assert store.acknowledge("anna", "young") == "OK"
    for tail in ("inbox:anna", "inbox:anna:ids"):
        assert 29 * DAY < client.pttl(key(store, tail)) <= 30 * DAY


@pytest.mark.spec("SES-3")
def test_an_inbox_that_nobody_reads_stays_bounded(store: Store) -> None:
    pipe, start = store.client().pipeline(transaction=False), now_ms(store) - MESSAGES - 1000
    for number in range(MESSAGES + 500):
        pipe.xadd(key(store, "inbox:anna"), {"m": f"m{number}", "k": "a", "o": "", "t": 1, "b": "j1:1"}, id=f"{start + number}-0")
    pipe.execute()
    deliver(store, "last")
    assert MESSAGES <= store.client().xlen(key(store, "inbox:anna")) <= MESSAGES + 200
    assert "m0" not in ids(store)


# Names and keys.


@pytest.mark.spec("SES-3", "ACT-3")
def test_no_session_reaches_another_ones_keys(make_store: MakeStore) -> None:
    store = make_store(4)
    for number, session in enumerate(ODD):
        deliver(store, f"m{number}", session)
        store.grant(session, "pay", "always", grant_id="g", by=f"by {number}")
    for number, session in enumerate(ODD):
        assert ids(store, session) == [f"m{number}"]
        assert [entry.granted_by for entry in store.grants(session)] == [f"by {number}"]
        home = home_of_name(session, 4)
        assert store.client().exists(store.keys.of(home, f"inbox:{in_key(session)}")) == 1
    kinds = [store.keys.kind_of(found) for found in store.client().scan_iter(f"conductor:{{{store.namespace}:*")]
    assert [kind.type for kind in kinds if kind].count("stream") == len(ODD)
    assert None not in kinds


@pytest.mark.spec("SES-3", "BAD-1")
@pytest.mark.parametrize("session", ["", "x" * 257, "a\nb", "a\x00", "a\x1b[2J", "a\ud800", None, 7])
def test_what_is_no_session_is_refused_by_every_verb(store: Store, session: Any) -> None:
    for call in (
        lambda: deliver(store, "m", session), lambda: store.acknowledge(session, "m"), lambda: store.inbox(session),
        lambda: store.inbox_wait(session, "", 0), lambda: store.grant(session, "pay", "once", grant_id="g"),
        lambda: store.revoke(session), lambda: store.use_grant(session, "pay", "op"), lambda: store.grants(session),
    ):
        with pytest.raises(BadInput):
            call()
    assert store.client().keys(f"conductor:{{{store.namespace}:*") == []


@pytest.mark.spec("SES-3", "BAD-1")
@pytest.mark.parametrize("after", ["x", "-1", "1", "1-", "$", "+", "1-0\n", "9" * 40 + "-0", "(1-0"])
def test_a_forged_cursor_is_refused(store: Store, after: str) -> None:
    with pytest.raises(BadInput, match="after"):
        store.inbox("anna", after=after)
    with pytest.raises(BadInput, match="after"):
        store.inbox_wait("anna", after, 0)


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_a_page_has_bounds(store: Store, limit: int) -> None:
    with pytest.raises(BadInput, match="limit"):
        store.inbox("anna", limit=limit)


# Waiting.


@pytest.mark.spec("SES-3")
def test_a_waiting_reader_wakes_when_a_message_comes(store: Store) -> None:
    deliver(store, "m1")
    cursor = store.inbox("anna")[0].cursor
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(inbox.wait, store, "anna", cursor, 30)
        inbox.deliver(store, "bert", id="m", kind="a", operation_id="", body={})
        inbox.deliver(store, "anna", id="m2", kind="a", operation_id="op", body={"result": [1, None]})
        [message] = waiting.result(20)
    assert (message.id, message.operation_id, message.body) == ("m2", "op", {"result": [1, None]})
    assert inbox.wait(store, "anna", message.cursor, 0) == []
    assert [found.id for found in inbox.wait(store, "anna", "", 5)] == ["m1", "m2"]


@pytest.mark.spec("SES-3")
def test_a_wait_outlasts_a_server_that_is_killed(own_valkey: ValkeyServer) -> None:
    store = Store(connect(own_valkey.url()), namespace="waiting", partitions=1)
    deliver(store, "m1")
    cursor = store.inbox("anna")[0].cursor
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.inbox_wait, "anna", cursor, 60)
        eventually(lambda: own_valkey.client().info("clients")["blocked_clients"] == 1, what="the reader waits")
        own_valkey.kill()
        own_valkey.restart()
        assert deliver(store, "m2") == "OK"
        assert [entry.message_id for entry in waiting.result(30)] == ["m2"]
    assert ids(store) == ["m1", "m2"]
    own_valkey.kill()
    with pytest.raises(StoreUnreachable, match="cannot be reached"):
        store.inbox_wait("anna", "", 0.5)


@pytest.mark.spec("SES-3")
def test_a_reader_follows_and_acknowledges_everything_once(make_store: MakeStore) -> None:
    writer, reader, read = make_store(), make_store(), []

    def follow() -> None:
        cursor = ""
        while len(read) < 60:
            for message in inbox.wait(reader, "anna", cursor, 20):
                read.append(message.id)
                cursor = message.cursor
                inbox.acknowledge(reader, "anna", message.id)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    for number in range(60):
        deliver(writer, f"m{number}")
    eventually(lambda: not thread.is_alive(), 30, what=lambda: f"everything is read, so far {len(read)}")
    assert read == [f"m{number}" for number in range(60)]
    assert ids(reader) == []


# Many at once, and lost replies.


@pytest.mark.spec("SES-3", "RUN-5")
def test_two_hundred_relays_deliver_each_message_once(store: Store) -> None:
    words = at_once(200, lambda number: deliver(store, f"m{number % 20}"))
    assert sorted(words) == ["KNOWN"] * 180 + ["OK"] * 20
    entries = store.inbox("anna")
    assert sorted(entry.message_id for entry in entries) == sorted(f"m{number}" for number in range(20))
    places = [int(entry.cursor.removesuffix("-0")) for entry in entries]
    assert places == sorted(set(places))


@pytest.mark.spec("SES-3", "RUN-5")
def test_a_delivery_whose_reply_was_lost_is_there_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lose(monkeypatch, "deliver")
    assert inbox.deliver(store, "anna", id="m", kind="a", operation_id="", body={}) is False  # the repetition found the first
    assert ids(store) == ["m"]
    lose(monkeypatch, "acknowledge")
    assert inbox.acknowledge(store, "anna", "m") is True
    assert ids(store) == []


@pytest.mark.spec("SES-1", "RUN-5")
def test_a_once_grant_is_used_by_exactly_one_of_two_hundred_ops(store: Store) -> None:
    store.grant("anna", "pay", "once", grant_id="g1")
    words = at_once(200, lambda number: store.use_grant("anna", "pay", f"op-{number}"))
    assert words.count("OK") == 1
    winner = words.index("OK")
    assert at_once(20, lambda _: store.use_grant("anna", "pay", f"op-{winner}")) == ["OK"] * 20
    assert store.use_grant("anna", "pay", f"op-{(winner + 1) % 200}") == "REQUIRED"
    assert store.grants("anna") == []


@pytest.mark.spec("SES-1", "RUN-5")
@pytest.mark.parametrize("verb", ["grant", "use_grant", "revoke"])
def test_a_lost_reply_neither_gives_nor_takes_a_second_use(store: Store, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    lose(monkeypatch, verb)
    for grant_id in ("g1", "g2"):
        consent.grant(store, "anna", "pay", "once", grant_id=grant_id)
    assert [entry.grant_id for entry in store.grants("anna")] == ["g1", "g2"]
    consent.require(store, "anna", "pay", "op-1")
    assert [entry.grant_id for entry in store.grants("anna")] == ["g2"]
    consent.revoke(store, "anna", "pay")
    with pytest.raises(ConsentRequired):
        consent.require(store, "anna", "pay", "op-2")
    assert failpoints._armed[f"{verb}.sent"].passed >= 2


# Grants.


@pytest.mark.spec("SES-1")
def test_each_grant_id_gives_one_use(store: Store) -> None:
    assert [store.grant("anna", "pay", "once", grant_id="g1", by="bert") for _ in range(2)] == ["OK", "KNOWN"]
    assert store.grant("anna", "pay", "once", grant_id="g2") == "OK"
    assert [store.use_grant("anna", "pay", f"op-{number}") for number in range(3)] == ["OK", "OK", "REQUIRED"]
    assert [store.use_grant("anna", "pay", f"op-{number}") for number in range(3)] == ["OK", "OK", "REQUIRED"]
    assert store.grant("anna", "pay", "once", grant_id="g1") == "KNOWN"
    assert store.use_grant("anna", "pay", "op-2") == "REQUIRED"
    assert store.use_grant("anna", "refund", "op-0") == store.use_grant("bert", "pay", "op-0") == "REQUIRED"


@pytest.mark.spec("SES-1")
def test_a_grant_for_a_time_lapses_and_is_dropped_when_it_is_met(store: Store) -> None:
    before = now_ms(store)
    store.grant("anna", "pay", "until", grant_id="g1", length_ms=60_000, by="bert")
    [entry] = store.grants("anna")
    assert (entry.capability, entry.mode, entry.granted_by) == ("pay", "until", "bert")
    assert before + 60_000 <= entry.until <= now_ms(store) + 61_000
    assert before <= entry.granted_at <= now_ms(store) + 1000
    assert store.use_grant("anna", "pay", "op-1") == store.use_grant("anna", "pay", "op-2") == "OK"
    store.client().hset(key(store, "grants:anna"), "grant:pay", f"{before - 1};{before - 2};bert")
    assert store.grants("anna") == []
    assert store.use_grant("anna", "pay", "op-3") == "REQUIRED"
    assert not store.client().hexists(key(store, "grants:anna"), "grant:pay")


@pytest.mark.spec("SES-1")
def test_a_standing_grant_spares_the_single_ones(store: Store) -> None:
    store.grant("anna", "pay", "once", grant_id="g1")
    store.grant("anna", "pay", "always", grant_id="g2")
    assert store.use_grant("anna", "pay", "op-1") == store.use_grant("anna", "pay", "op-2") == "OK"
    assert [entry.mode for entry in store.grants("anna")] == ["once", "always"]
    store.client().hset(key(store, "grants:anna"), "grant:pay", "1;1;")
    assert [store.use_grant("anna", "pay", f"op-{number}") for number in (3, 4)] == ["OK", "REQUIRED"]


@pytest.mark.spec("SES-1")
def test_the_last_standing_grant_counts(store: Store) -> None:
    store.grant("anna", "pay", "always", grant_id="g1")
    store.grant("anna", "pay", "until", grant_id="g2", length_ms=60_000)
    assert store.grant("anna", "pay", "always", grant_id="g1") == "KNOWN"  # a late repetition does not widen it again
    assert [entry.mode for entry in store.grants("anna")] == ["until"]


@pytest.mark.spec("SES-1")
def test_revoking_takes_back_one_capability_or_all(store: Store) -> None:
    for capability in ("pay", "pay.more", "refund"):
        store.grant("anna", capability, "always", grant_id=f"always {capability}")
        store.grant("anna", capability, "once", grant_id=f"once {capability}")
    for capability, op_id in (("ship", "op"), ("pack", "op:1")):
        store.grant("anna", capability, "once", grant_id="g")
        assert store.use_grant("anna", capability, op_id) == "OK"
    assert store.revoke("anna", "pack") == store.revoke("anna", "pay") == "OK"
    assert store.use_grant("anna", "pack", "op:1") == "REQUIRED"
    assert [entry.capability for entry in store.grants("anna")] == ["pay.more", "pay.more", "refund", "refund"]
    assert store.use_grant("anna", "pay", "op") == "REQUIRED"
    assert store.use_grant("anna", "ship", "op") == "OK"
    assert [store.revoke("anna") for _ in range(2)] == ["OK", "OK"]
    assert store.grants("anna") == []
    assert store.use_grant("anna", "ship", "op") == "REQUIRED"
    assert store.grant("anna", "ship", "once", grant_id="g") == "KNOWN"  # nor does a late repetition bring it back
    assert store.grant("anna", "ship", "once", grant_id="g2") == "OK"


@pytest.mark.spec("SES-1")
@pytest.mark.parametrize(("granted", "asked"), [
    (("a", "b:c"), ("a:b", "c")), (("a:b", "c"), ("a", "b:c")), (("x", "op"), ("used:x:op", "op")), (("x", "grant:y"), ("y", "grant:y")),
    (("x", "op"), ("x\u00ad", "op")), (("a", "op"), ("a%3Ab", "op")), (("x", "1"), ("x;1", "1")),
])
def test_names_cannot_be_mistaken_for_each_other(store: Store, granted: tuple[str, str], asked: tuple[str, str]) -> None:
    store.grant("anna", granted[0], "once", grant_id="once:y;1")
    assert store.use_grant("anna", *granted) == "OK"
    assert store.use_grant("anna", *asked) == "REQUIRED"
    assert store.use_grant("anna", *granted) == "OK"
    store.revoke("anna", asked[0])
    assert store.use_grant("anna", *granted) == "OK"


@pytest.mark.spec("SES-1")
def test_an_operation_that_a_grant_for_a_time_let_through_passes_also_when_that_is_over(store: Store) -> None:
    consent.grant(store, "anna", "pay", "until", lasting=60)
    assert store.use_grant("anna", "pay", "op") == "OK"
    grants = key(store, "grants:anna")
    store.client().hset(grants, "grant:pay", f"{now_ms(store) - 1};1;")  # its time is over
    assert (store.use_grant("anna", "pay", "op"), store.use_grant("anna", "pay", "another")) == ("OK", "REQUIRED")
    store.revoke("anna", "pay")
    assert store.use_grant("anna", "pay", "op") == "REQUIRED"


@pytest.mark.spec("SES-1")
def test_what_a_grant_for_a_time_has_let_through_is_forgotten_by_age(store: Store) -> None:
    now, grants = now_ms(store), key(store, "grants:anna")
    store.client().hset(grants, mapping={f"used:pay:old{number}": f"{now - 31 * DAY};;1;" for number in range(20)})
    consent.grant(store, "anna", "pay", "until", lasting=60)
    used = iter(range(1000))
    eventually(lambda: store.use_grant("anna", "pay", f"op{next(used) % 3}") and not [one for one in store.client().hkeys(grants) if "old" in one], every=0)


@pytest.mark.spec("SES-1")
def test_uses_granted_ahead_are_bounded(store: Store) -> None:
    for number in range(USES):
        consent.grant(store, "anna", "pay", grant_id=f"g{number}", by="x" * 256)
    with pytest.raises(BadInput, match=f"{USES} uses"):
        consent.grant(store, "anna", "pay")
    assert store.use_grant("anna", "pay", "op") == "OK"
    assert store.grant("anna", "pay", "once", grant_id="after") == "OK"
    assert [entry.grant_id for entry in store.grants("anna")][:1] == ["g1"]


@pytest.mark.spec("SES-1")
def test_what_is_kept_only_for_repetitions_goes_by_age(store: Store) -> None:
    now, grants = now_ms(store), key(store, "grants:anna")
    for number in range(40):
        store.client().hset(grants, mapping={f"given:pay:old{number}": now - 31 * DAY, f"used:pay:op{number}": f"{now - 31 * DAY};g;1;"})
    store.client().hset(grants, mapping={"given:pay:young": now - 29 * DAY, "used:pay:young": f"{now - 29 * DAY};g;1;"})
    store.grant("anna", "pay", "always", grant_id="g")

    def pruned() -> bool:
        store.grant("anna", "pay", "always", grant_id=f"g{store.client().hlen(grants)}-{len(seen)}")
        seen.append(1)
        return not [field for field in store.client().hkeys(grants) if "old" in field or ":op" in field]

    seen: list[int] = []
    eventually(pruned, every=0)
    assert {"given:pay:young", "used:pay:young", "grant:pay"} <= set(store.client().hkeys(grants))


# The outbox.


@pytest.mark.spec("SES-3", "OP-9")
def test_an_ending_stands_in_the_outbox_until_it_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.client().zadd(key(store, "outbox"), {"b;1": 2, "a;1": 1, "c;1": 3})
    assert store.outbox(0, 2) == ["a;1", "b;1"]
    assert store.outbox(0, 0) == []
    lose(monkeypatch, "told")
    store.told(0, "a;1")
    store.told(0, "a;1")
    assert store.outbox(0) == ["b;1", "c;1"]
