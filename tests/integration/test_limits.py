"""Limits: nothing begins without a permit, what is over stays ready and costs nothing, keys take turns, no permit leaks."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest
from pydantic import BaseModel

from conductor import DeclarationError, Limit, RetryAfter, Workflow, capability
from conductor.declare import registry
from conductor.declare.starting import start_options
from conductor.errors import BadInput
from conductor.ids import new_run_id
from conductor.records import Attempt, NodeKind, OutcomeKind
from conductor.runs.fsck import fsck
from conductor.runs.read import view_run
from conductor.runs.start import start
from conductor.runs.waiting import signal
from conductor.runs.why import why
from conductor.store import Store
from conductor.store.limits import home_of_limit, read_limits
from conductor.store.listing import queues
from tests.integration.playing import Player, graph_of, node
from tests.integration.shift import Shift

pytestmark = pytest.mark.spec("LANE-3")


class Ask(BaseModel):
    customer: str = "c"
    wait: float = 0.0


class Service:
    """A limited service, and who called it when."""

    def __init__(self, store: Store, limit: Limit, **options: Any) -> None:
        self.calls: list[tuple[str, float]] = []
        self.inside, self.most = 0, 0
        self.lock = threading.Lock()
        self.error: Exception | None = None
        flow: Workflow[Any] = Workflow("asking", input=Ask)

        @flow.step(limit=limit, **options)
        def ask(request: Ask) -> str:
            with self.lock:
                self.calls.append((request.customer, time.monotonic()))
                self.inside += 1
                self.most = max(self.most, self.inside)
                error, self.error = self.error, None
            try:
                time.sleep(request.wait)
                if error is not None:
                    raise error
                return request.customer
            finally:
                with self.lock:
                    self.inside -= 1

        self.flow, self.store = flow, store
        self.shift = Shift(store, flow)
        self.pokes: list[Any] = []
        self.shift.engine.poke = self.pokes.extend
        self.home = home_of_limit(limit.name, store.partitions)
        self.hands = self.shift.worker()

    def start(self, customer: str = "c", wait: float = 0.0, partition: int | None = None) -> str:
        at = None if partition is None else new_run_id(self.store.partitions, partition)
        payload = self.flow.encode_input({"customer": customer, "wait": wait})
        return start(self.shift.engine, self.flow, payload=payload, options=start_options("asking"), run_id=at or "").run_id

    def work(self, worker: Any = None) -> None:
        """Answer all pokes that there are, and those that follow."""
        for _ in range(1000):
            if not self.pokes:
                return
            poke = self.pokes.pop(0)
            (worker or self.hands).drain(poke.partition, poke.queue)
        raise AssertionError("pokes without end")

    def sweep(self) -> None:
        for number in range(self.store.partitions):
            self.pokes += self.store.fire_due(number).pokes

    def window_passes(self) -> None:
        """As if all permits had been given long ago."""
        client = self.store.client()
        client.delete(self.store.keys.of(self.home, "limit:ai:spent"))
        self.time_passes()

    def time_passes(self) -> None:
        client, due = self.store.client(), self.store.keys.of(self.home, "due")
        client.delete(self.store.keys.of(self.home, "pokes"))
        for member in client.zrange(due, 0, -1):
            if str(member).startswith("limit:"):
                client.zadd(due, {member: 1})
        self.sweep()

    def states(self, *run_ids: str) -> Counter[str]:
        return Counter(self.shift.state(run_id) for run_id in run_ids)


def test_what_is_over_the_rate_stays_ready_and_costs_no_attempt(store: Store) -> None:
    service = Service(store, Limit("ai", "3/m"))
    ids = [service.start() for _ in range(8)]
    service.work()
    assert service.states(*ids) == {"completed": 3, "running": 5}
    (waiting, *_) = [run_id for run_id in ids if service.shift.state(run_id) == "running"]
    step = view_run(store, waiting).steps[0]
    assert (step.state, step.attempt, step.limited) == ("ready", 0, "ai")
    assert "waits for limit ai" in why(view_run(store, waiting)).sentence
    assert [(view.queue, view.limited) for view in queues(store)] == [("q", 5)]
    (view,) = read_limits(store)
    assert (view.spent, view.permits, view.waiting) == (3, 0, {"": 5})
    assert fsck(service.shift.engine) == []
    service.time_passes()
    service.work()
    assert service.states(*ids)["completed"] == 3  # the window is not over: the poke found no room
    service.window_passes()
    service.work()
    assert service.states(*ids) == {"completed": 6, "running": 2}
    service.window_passes()
    service.work()
    assert service.states(*ids) == {"completed": 8}
    assert fsck(service.shift.engine) == []


def test_the_rate_holds_in_any_window_on_the_clock_of_redis(store: Store) -> None:
    service = Service(store, Limit("ai", "10/s"))
    given: list[int] = []
    real: Any = store.permit

    def permit(*asked: Any, **options: Any) -> Any:
        told = real(*asked, **options)
        given.extend(int(one.fence) for one in told.permits)  # a fence is the moment at which it was given
        return told

    store.permit = permit  # type: ignore[method-assign]
    ids = [service.start() for _ in range(25)]
    until = time.monotonic() + 8
    while service.states(*ids)["completed"] < 25 and time.monotonic() < until:
        service.work()
        service.sweep()
    assert len(given) == len(service.calls) == 25
    assert all(given[n + 10] - given[n] >= 1000 for n in range(15))
    assert given[-1] - given[0] < 2600


def test_never_more_at_once_than_the_concurrency_over_all_workers(store: Store) -> None:
    service = Service(store, Limit("ai", concurrency=2))
    ids = [service.start(wait=0.05) for _ in range(12)]
    lock = threading.Lock()

    def work() -> None:
        worker = service.shift.worker(may_stop_process=False)
        until = time.monotonic() + 10
        while service.states(*ids)["completed"] < 12 and time.monotonic() < until:
            with lock:
                poke = service.pokes.pop(0) if service.pokes else None
            if poke is not None:
                worker.drain(poke.partition, poke.queue)
            else:
                time.sleep(0.005)
                with lock:
                    service.sweep()

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert service.states(*ids) == {"completed": 12}
    assert service.most == 2
    assert fsck(service.shift.engine) == []


def test_keys_take_turns_over_all_partitions(store: Store) -> None:
    service = Service(store, Limit("ai", "100/m", key=lambda request: request.customer))
    for number in range(6):
        service.start("a", partition=number % store.partitions)
    for number in range(3):
        service.start("b", partition=number % store.partitions)
    pokes, service.pokes[:] = list(service.pokes), []
    for poke in pokes:  # all have asked before the first is given: as when the limit was exhausted
        wishes = store.ask(poke.partition, poke.queue)
        store.permit(poke.queue, most=0, terms="100;60000;", wants=wishes)
        store.ask(poke.partition, poke.queue, enrolled=wishes)
    service.hands.drain(service.home, "q!ai")
    assert "".join(customer for customer, _ in service.calls) == "ababab" + "aaa"


def test_a_retry_after_holds_back_its_key_only(store: Store) -> None:
    service = Service(store, Limit("ai", "100/m", key=lambda request: request.customer))
    service.error = RetryAfter(30)
    first = service.start("a")
    service.work()
    others = [service.start("a"), service.start("b")]
    service.work()
    assert [service.shift.state(run_id) for run_id in (first, *others)] == ["running", "running", "completed"]
    (view,) = read_limits(store)
    assert list(view.back) == ["a"]
    assert view_run(store, first).steps[0].due_at > 0
    client, key = store.client(), store.keys.of(service.home, "limit:ai")
    for tail in (":back", ":aside:q!ai"):
        for member in client.zrange(key + tail, 0, -1):
            client.zadd(key + tail, {member: 1})
    service.time_passes()
    service.work()
    assert service.shift.state(others[0]) == "completed"


def test_a_worker_that_dies_with_a_permit_leaks_none(store: Store) -> None:
    service = Service(store, Limit("ai", concurrency=1))
    ids = [service.start() for _ in range(2)]
    poke = service.pokes[0]
    for each in service.pokes:
        wishes = store.ask(each.partition, each.queue)
        told = store.permit(poke.queue, most=1, terms=";;1", wants=wishes)
        if told.permits:
            lost = told.permits[0]
        store.ask(each.partition, each.queue, enrolled=wishes)
    service.pokes.clear()
    service.hands.drain(service.home, poke.queue)  # nothing is given while its lease is good
    assert service.calls == []
    assert store.keep_permit("ai", lost.fence, 15_000) == "OK"
    client = store.client()
    client.zadd(store.keys.of(service.home, "limit:ai:permits"), {lost.fence: 1})
    service.time_passes()
    service.work()
    assert service.states(*ids) == {"completed": 2}
    assert store.keep_permit("ai", lost.fence, 15_000) == "LOST"
    assert fsck(service.shift.engine) == []


def test_a_permit_for_what_no_longer_stands_is_given_back_unspent(store: Store) -> None:
    service = Service(store, Limit("ai", "1/m"))
    first, second = service.start(), service.start()
    service.work()
    rest = [service.start() for _ in range(2)]
    service.work()
    store.cancel(second, reason="x")
    service.window_passes()
    service.work()
    assert service.states(first, *rest) == {"completed": 2, "running": 1}


def test_the_limit_is_set_at_run_time(store: Store) -> None:
    service = Service(store, Limit("ai", "1/m"))
    ids = [service.start() for _ in range(4)]
    service.work()
    assert service.states(*ids)["completed"] == 1
    word, pokes = store.set_limit("ai", "3;60000;", by_hand=True)
    service.pokes += pokes
    service.work()
    assert word == "OK"
    assert service.states(*ids)["completed"] == 3
    assert store.set_limit("ai", "1;60000;", by_hand=False)[0] == "BY_HAND"


def test_each_capability_and_workflow_stand_under_limits(store: Store) -> None:
    limit = Limit("ai", "2/m")
    flow: Workflow[Any] = Workflow("whole", limit=limit)

    @flow.step
    def numbers() -> list[int]:
        return [1, 2, 3]

    @flow.each(numbers)
    def members(number: int) -> int:
        return number

    @capability("limits.called", limit=Limit("cap", "1/m"))
    def called(number: int) -> int:
        return number

    other: Workflow[Any] = Workflow("calls_limited")
    other.step(called, params={"number": 1})
    assert [node.limit for node in flow.graph.nodes] == ["ai", "ai"]
    assert [node.limit for node in other.graph.nodes] == ["cap"]
    shift, pokes = Shift(store, flow), list[Any]()
    shift.engine.poke = pokes.extend
    run_id = start(shift.engine, flow, payload=flow.encode_input(), options=start_options("whole")).run_id
    worker = shift.worker()
    client, key = store.client(), store.keys.of(home_of_limit("ai", store.partitions), "limit:ai")
    for _ in range(40):
        while pokes:
            poke = pokes.pop(0)
            worker.drain(poke.partition, poke.queue)
        if shift.state(run_id) == "completed":
            break
        client.delete(f"{key}:spent")
        client.delete(store.keys.of(home_of_limit("ai", store.partitions), "pokes"))
        client.zadd(store.keys.of(home_of_limit("ai", store.partitions), "due"), {"limit:q!ai": 1}, xx=True)
        for number in range(store.partitions):
            pokes += store.fire_due(number).pokes
    assert shift.state(run_id) == "completed"
    assert fsck(shift.engine) == []


def test_items_of_an_each_run_side_by_side_as_far_as_the_limit_goes(store: Store) -> None:
    play, queue = Player(store), "q!ai"
    run_id = play.start(graph_of(node(0), node(1, 0, kind=NodeKind.EACH, source=0, max_parallel=5, limit="ai")))
    play.send(play.outcome(play.claim(1)[0], OutcomeKind.COMPLETED, total=5))
    items: list[Attempt] = []
    for _ in range(4):
        wishes = store.ask(0, queue)
        told = store.permit(queue, most=1, terms=";;3", wants=wishes)
        store.ask(0, queue, enrolled=[one for one in wishes if one.member not in {permit.member for permit in told.permits}])
        for permit in told.permits:
            items += store.take(0, queue, permit.member, play.want(queue=queue))[1]
    assert [one.ref for one in items] == [f"{run_id}:1:{item}" for item in range(3)]


def test_a_stalled_holder_gives_its_permit_back_after_its_step_has_asked_again(store: Store) -> None:
    play, queue = Player(store), "q!ai"
    play.start(graph_of(node(0, limit="ai")))
    (permit,) = store.permit(queue, most=1, terms=";;1", wants=store.ask(0, queue)).permits
    (stalled,) = store.take(0, queue, permit.member, play.want(queue=queue))[1]
    play.lose(stalled)
    wishes = store.ask(0, queue)
    assert store.permit(queue, most=1, terms=";;1", wants=wishes).permits == []
    store.ask(0, queue, enrolled=wishes)
    told = store.permit(queue, most=1, terms=";;1", returned=[(permit.fence, "done")])
    (anew,) = store.take(0, queue, told.permits[0].member, play.want(queue=queue))[1]
    assert anew.fence > stalled.fence


def _asks(limit: Limit | None) -> Workflow[Any]:
    with registry.isolated():  # the same workflow before and after its limit left the code
        flow: Workflow[Any] = Workflow("asks", input=int)
        go = flow.wait("go", int)
        options = {} if limit is None else {"limit": limit}

        @flow.step(after=[go], **options)
        def ask(number: int) -> int:
            return number + 1

        return flow


@pytest.mark.spec("WF-10")
@pytest.mark.parametrize("terms", ["1;60000;", ""])
def test_a_run_goes_on_whose_limit_has_left_the_code(store: Store, terms: str) -> None:
    """Under the terms in its own graph, since all that the store knew of the limit has gone. Where there are none, nothing holds it."""
    old, new = _asks(Limit("ai", "1/m")), _asks(None)
    if not terms:
        object.__setattr__(old.graph.nodes[1], "limit_terms", "")  # as a release wrote it that did not keep them
    before, after = Shift(store, old), Shift(store, new)
    pokes: list[Any] = []
    after.engine.poke = before.engine.poke = pokes.extend
    runs = [start(before.engine, old, payload=old.encode_input(1), options=start_options("asks")).run_id for _ in range(2)]
    assert read_limits(store) == []
    worker = after.worker()
    for run_id in runs:
        signal(after.engine, run_id, "go", 1)
    for _ in range(20):
        while pokes:
            poke = pokes.pop(0)
            worker.drain(poke.partition, poke.queue)
    done = Counter(after.state(run_id) for run_id in runs)
    assert done == ({"completed": 1, "running": 1} if terms else {"completed": 2})
    assert [view.terms for view in read_limits(store)] == ([terms] if terms else [])
    assert fsck(after.engine) == []


def test_no_permit_is_taken_for_lost_while_nobody_could_renew_it(store: Store) -> None:
    """The store was away for longer than a permit's lease; its holders go on, and each would be joined by another."""
    play, queue = Player(store), "q!ai"
    for _ in range(2):
        play.start(graph_of(node(0, limit="ai")))
    wishes = store.ask(0, queue)
    (permit,) = store.permit(queue, most=1, terms=";;1", wants=wishes).permits
    store.ask(0, queue, enrolled=[wish for wish in wishes if wish.member != permit.member])
    home, client = home_of_limit("ai", store.partitions), store.client()
    head, permits = store.keys.head(home), store.keys.of(home, "limit:ai:permits")
    now = client.time()[0] * 1000

    def given() -> int:
        return len(store.permit(queue, most=1, terms=";;1").permits)

    client.zadd(permits, {permit.fence: now - 2_000})  # as after a gap: its lease is over
    client.hset(head, "look", now - 20_000)  # and no sweep has looked since
    assert given() == 0
    store.expire_leases(home)  # the sweep looks, and leaves all leases alone for as long as one lasts
    assert given() == 0
    assert store.keep_permit("ai", permit.fence, 15_000) == "OK"
    client.zadd(permits, {permit.fence: now - 2_000})
    client.hset(head, "calm", now - 1)
    assert int(client.zscore(store.keys.of(home, "due"), f"limit:{queue}") or 0) >= now
    assert given() == 1
    assert store.keep_permit("ai", permit.fence, 15_000) == "LOST"


def test_a_poke_that_is_lost_when_there_is_room_again_is_sent_again(store: Store) -> None:
    service = Service(store, Limit("ai", "1/m"))
    ids = [service.start() for _ in range(2)]
    service.work()
    service.window_passes()
    service.pokes.clear()  # the broker lost it
    service.time_passes()
    service.work()
    assert service.states(*ids) == {"completed": 2}


def test_a_step_without_a_limit_makes_no_call_more(store: Store) -> None:
    """Its home of limits is never asked, and nothing about limits stands in the store."""
    flow: Workflow[Any] = Workflow("plain")
    flow.add(lambda: 1, name="one")
    shift = Shift(store, flow)
    shift.start(flow)
    for verb in ("ask", "permit", "take", "keep_permit", "set_limit"):
        setattr(store, verb, None)
    shift.worker().drain(0, "q")
    assert list(store.client().scan_iter(f"conductor:{{{store.namespace}:*limit*")) == []


@pytest.mark.spec("BAD-1")
def test_bad_limits_are_refused_before_anything_is_written(store: Store) -> None:
    for wrong, said in (({}, "limits nothing"), ({"rate": "5"}, "rate"), ({"rate": "0/m"}, "rate"), ({"concurrency": 0}, "concurrency"),
                        ({"rate": "1/s", "key": 3}, "key")):
        with pytest.raises(DeclarationError, match=said):
            Limit("ai", **wrong)
    flow: Workflow[Any] = Workflow("disagreeing")
    flow.add(lambda: 1, name="a", limit=Limit("ai", "1/m"))
    flow.add(lambda: 1, name="b", limit=Limit("ai", "2/m"))
    with pytest.raises(DeclarationError, match="declared twice and differently"):
        _ = flow.graph
    service = Service(store, Limit("ai", "1/m", key=lambda request: request.nobody))
    with pytest.raises(BadInput, match="key of limit"):
        service.start()
