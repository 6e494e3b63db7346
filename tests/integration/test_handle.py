"""Handles: waiting for a run, what its end means, and moving it."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from conductor.declare.context import RUNNING, Ctx
from conductor.errors import BadInput, GetInsideStep, GetTimeout, NotFailed, ResultExpired, RunCancelled, RunFailed, RunFinished, UnknownRun
from conductor.ids import new_run_id
from conductor.records import FailurePolicy, Graph, NewRun, Node, OutcomeKind
from conductor.runs.cancelling import cancel
from conductor.runs.fsck import fsck
from conductor.runs.handle import Handle
from conductor.runs.pausing import pause_run, resume_run
from conductor.store import Store, connect
from tests.integration.test_reads import PAIR, claim, end
from tests.support.crew import engine_of
from tests.support.server import ValkeyServer

ONE = Graph.build("one", (Node(0, "work", signature="a"),))
PATIENT = Graph.build("patient", (Node(0, "work", signature="a", policy=FailurePolicy.PAUSE),))


def started(store: Store, graph: Graph = ONE) -> Handle:
    told = store.start(NewRun(new_run_id(store.partitions), graph.workflow, "j1:1", "q"), graph)
    return Handle(engine_of(store), told.run_id, told.notice)


def failing(store: Store, graph: Graph = ONE) -> Handle:
    handle = started(store, graph)
    error = json.dumps({"type": "CardError", "message": "declined"})
    policy = graph.nodes[0].policy
    end(store, claim(store), OutcomeKind.FAILED, reason="permanent_error", error=error, policy=policy)
    return handle


@pytest.mark.spec("WF-9")
def test_get_gives_the_result_of_an_ended_run(store: Store) -> None:
    handle = started(store)
    assert handle.status == "running"
    end(store, claim(store), payload="j1:42")
    assert handle.get(1) == 42
    assert Handle(engine_of(store), handle.id).get(timeout=0) == 42
    assert [event.kind for event in handle.events()] == ["started", "claimed", "completed", "ended"]


@pytest.mark.spec("WF-9")
@pytest.mark.parametrize("knows_notice", [True, False])
def test_get_wakes_when_the_run_ends(store: Store, knows_notice: bool) -> None:
    handle = started(store)
    waiting = handle if knows_notice else Handle(engine_of(store), handle.id)
    held = claim(store)
    threading.Timer(0.1, lambda: end(store, held, payload="j1:5")).start()
    began = time.monotonic()
    assert waiting.get(10) == 5
    assert time.monotonic() - began < 0.9  # sooner than the look of each second


@pytest.mark.spec("RUN-7", "ERR-2")
def test_a_failure_names_steps_and_why(store: Store) -> None:
    with pytest.raises(RunFailed) as raised:
        failing(store).get(1)
    assert "work (CardError: declined)" in str(raised.value)
    assert raised.value.failures == [("work", "CardError: declined")]


@pytest.mark.spec("CAN-2")
def test_cancel_says_what_it_found(store: Store) -> None:
    handle = started(store)
    assert handle.cancel("no stock").word == "OK"
    again = handle.cancel("again")
    assert (again.word, again.reason) == ("ALREADY", "no stock")
    with pytest.raises(RunCancelled, match="no stock"):
        handle.get(1)
    done = started(store)
    end(store, claim(store))
    assert (done.cancel().word, done.status) == ("ENDED", "completed")
    for run_id in (new_run_id(1), "no id at all"):
        with pytest.raises(UnknownRun, match="unknown run"):
            Handle(engine_of(store), run_id).cancel()


def test_waiting_ends_without_touching_the_run(store: Store) -> None:
    handle = started(store)
    with pytest.raises(GetTimeout, match="it is running"):
        handle.get(0.05)
    with pytest.raises(GetTimeout):
        handle.get(0)
    assert handle.status == "running"


@pytest.mark.spec("WF-9")
def test_get_inside_a_step_is_refused(store: Store) -> None:
    handle = started(store)
    token = RUNNING.set(Ctx.for_test(run_id="outer"))
    try:
        with pytest.raises(GetInsideStep, match="inside a step of run outer"):
            handle.get()
    finally:
        RUNNING.reset(token)


@pytest.mark.spec("RET-1")
def test_a_purged_run_has_expired_and_a_foreign_one_is_unknown(store: Store) -> None:
    handle = started(store)
    end(store, claim(store))
    store.purge(handle.id)
    with pytest.raises(ResultExpired, match="kept for 24 h"):
        handle.get(1)
    with pytest.raises(UnknownRun):
        Handle(engine_of(store), new_run_id(1)).get(1)
    with pytest.raises(UnknownRun):
        Handle(engine_of(store), "../../etc").get(1)
    old = "01700000-0000-7000-8000-000000000000"
    with pytest.raises(ResultExpired):
        Handle(engine_of(store), old).get(1)


@pytest.mark.spec("RUN-11")
def test_retry_opens_a_generation_that_ends_again(store: Store) -> None:
    handle = failing(store)
    with pytest.raises(RunFailed):
        handle.get(1)
    assert handle.retry().status == "running"
    end(store, claim(store), payload="j1:9")
    assert handle.get(1) == 9
    with pytest.raises(NotFailed, match="is completed"):
        handle.retry()
    assert fsck(engine_of(store)) == []


@pytest.mark.spec("RUN-14", "RUN-7")
def test_pause_and_resume(store: Store) -> None:
    handle = started(store)
    assert handle.pause().word == "OK"
    assert handle.status == "paused"
    assert claim(store) == []
    assert handle.resume().word == "OK"
    end(store, claim(store), payload="j1:1")
    assert handle.get(1) == 1
    with pytest.raises(RunFinished):
        handle.pause()
    with pytest.raises(RunFinished):
        handle.resume()
    paused = failing(store, PATIENT)
    assert paused.status == "paused"
    paused.resume()
    end(store, claim(store), payload="j1:2")
    assert paused.get(1) == 2
    assert fsck(engine_of(store)) == []


class _Flow:
    """As much of a workflow as a fork needs."""

    graph = PAIR
    limits = ()

    def encode_input(self, value: Any, *, limit: int = 0) -> str:
        return f"j1:{json.dumps(value)}"

    def result_of(self, values: dict[str, Any]) -> Any:
        return list(values.values())


@pytest.mark.spec("RUN-11")
def test_a_fork_keeps_upstream_and_takes_changed_input(store: Store) -> None:
    told = store.start(NewRun(new_run_id(1), "order", 'j1:{"n":1,"m":2}', "q"), PAIR)
    engine = engine_of(store, {"order": _Flow()})
    handle = Handle(engine, told.run_id, told.notice)
    end(store, claim(store, "fast"), payload="j1:10")
    end(store, claim(store), payload="j1:11")
    assert handle.get(1) == ["j1:11"]
    fork = handle.fork(from_="charge", n=5)
    (held,) = claim(store)
    assert (held.run_id, held.index) == (fork.id, 1)
    end(store, [held], payload="j1:99")
    assert fork.get(1) == ["j1:99"]
    assert store.client().hget(store.keys.run(fork.id), "i") == 'j1:{"n": 5, "m": 2}'
    assert store.client().hget(store.keys.run(fork.id), "0r") == "j1:10"
    with pytest.raises(Exception, match="no such field"):
        handle.fork(from_="charge", nonsense=1)
    assert fsck(engine) == []


def test_events_can_be_followed_to_the_end(store: Store) -> None:
    handle = started(store)
    seen: list[str] = []
    follower = threading.Thread(target=lambda: seen.extend(event.kind for event in handle.events(follow=True)))
    follower.start()
    end(store, claim(store))
    follower.join(10)
    assert seen == ["started", "claimed", "completed", "ended"]


@pytest.mark.spec("REC-6")
def test_waiting_goes_on_after_a_restart_of_the_server(own_valkey: ValkeyServer, namespace: str) -> None:
    store = Store(connect(own_valkey.url()), namespace=namespace, partitions=1)
    handle = started(store)
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.append(handle.get(30)))
    waiter.start()
    own_valkey.restart()
    end(store, claim(store), payload="j1:3")
    waiter.join(20)
    assert found == [3]


@pytest.mark.spec("RUN-9")
def test_steps_that_follow_at_once_share_a_notice_and_the_end_has_its_own(store: Store) -> None:
    """A waiting caller must not be woken by every step of the chain it waits for; a follower still meets every event soon."""
    size = 200
    nodes = (Node(0, "s0", signature="a"), *(Node(n, f"s{n}", parents=(n - 1,), signature="a") for n in range(1, size)))
    handle = started(store, Graph.build("long", nodes))
    told: list[str] = []
    follower = threading.Thread(target=lambda: told.extend(event.kind for event in handle.events(follow=True)), daemon=True)
    follower.start()
    for _ in range(size):
        end(store, claim(store), payload="j1:1")
    ended = time.monotonic()
    follower.join(5)
    assert time.monotonic() - ended < 0.9
    assert told.count("completed") == size and told[-1] == "ended"
    notices = store.client().xrange(store.keys.of(int(handle.id[-2:], 16), "notices"))
    assert 2 <= len(notices) < size
    assert notices[-1][1]["s"] == "completed"


@pytest.mark.spec("BAD-1", "CAN-1", "RUN-14")
@pytest.mark.parametrize("bad", ["a\nb", "\x1b[31mred", "x" * 5_000, None, 5])
def test_words_of_people_are_checked_before_anything_is_done(store: Store, bad: Any) -> None:
    handle = started(store)
    for verb in (cancel, pause_run):
        for words in ({"reason": bad}, {"actor": bad}):
            with pytest.raises(BadInput):
                verb(engine_of(store), handle.id, **words)
    with pytest.raises(BadInput):
        resume_run(engine_of(store), handle.id, actor=bad)
    assert (handle.status, len(store.log_of(handle.id))) == ("running", 1)
    assert pause_run(engine_of(store), handle.id, reason="night; shift", actor="ana").word == "OK"
