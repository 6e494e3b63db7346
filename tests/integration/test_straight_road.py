"""A commit and a start have a straight road for the simplest case. Before each of them the store is copied; the copy takes the long road;
both must agree.

The times of the two calls differ by a moment, so a number may differ by just as much as the two answers' `now` do.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from conductor.ids import partition_of
from conductor.records import Graph, LaneTerms, NewRun, Node, NodeKind, Outcome, OutcomeKind
from conductor.store import Batch, Store, Want, connect, scripts
from conductor.store.answers import Started
from conductor.store.caller import Reply
from conductor.store.scripts import Script
from tests.integration.playing import CODE, Player, chain, graph_of, node
from tests.support.crew import ENDS, Crew, random_graph
from tests.support.leaks import forget
from tests.support.server import ValkeyServer

TAKEN = "straight-road-taken"
_NUMBERS = re.compile(r"\d+")
TOLD_ONCE = ("notices", "active", "progress")  # within a window of `NOTICE_MS`; so is the field `pg` of a run
PROGRESS = re.compile(r"\('pg', '\d+'\)")


# Each straight road: its script, its fragment, the line on which it has been taken, and what stands for it where only the long road is open.
ROADS = {
    "commit": ("commit", "straight", "    tell({'OK', at,", ""),
    "end": ("commit", "straight_end", "  return 'OK'\n", "local function straight_end() end"),
    "start_run": ("start_run", "straight_start", "    return {'OK', notice, poked,", ""),
}


def counting(script: Script) -> Script:
    """The script as it is, and a mark each time the straight road is taken to its end."""
    for road, (name, fragment, end, _) in ROADS.items():
        if name == script.name:
            text = scripts._fragment(fragment)
            assert text in script.text
            assert text.count(end) == 1
            script = replace(script, text=script.text.replace(text, text.replace(end, f"redis.call('INCR', '{TAKEN}:{road}')\n{end}")))
    return script


def long_way(script: Script) -> Script:
    for name, fragment, _, instead in ROADS.values():
        if name == script.name:
            assert scripts._fragment(fragment) in script.text
            script = replace(script, text=script.text.replace(scripts._fragment(fragment), instead))
    return script


class Twin(Store):
    """Always takes the long road."""

    def _call(self, name: str, partition: int, *args: Any) -> Reply:
        return self._caller().call(long_way(scripts.load(name)), self.keys.head(partition), *args)

    def _call_bare(self, name: str, partition: int, *args: Any) -> Reply:
        return self._caller().call_bare(long_way(scripts.load(name)), self.keys.head(partition), *args)


class Compared(Store):
    """Starts and commits twice: here, and on a copy by the long road."""

    twin: Twin

    def _call(self, name: str, partition: int, *args: Any) -> Reply:
        return self._caller().call(counting(scripts.load(name)), self.keys.head(partition), *args)

    def _call_bare(self, name: str, partition: int, *args: Any) -> Reply:
        return self._caller().call_bare(counting(scripts.load(name)), self.keys.head(partition), *args)

    def start(self, run: NewRun, graph: Graph, **more: Any) -> Started:
        partition = partition_of(run.run_id)
        self._copy(partition)
        mine, its = super().start(run, graph, **more), self.twin.start(run, graph, **more)
        now = {store: int(store.client().hget(store.keys.head(partition), "clock") or 0) for store in (self, self.twin)}
        assert replace(mine, notice="", held=None) == replace(its, notice="", held=None)
        self._alike(partition, now[self], now[self.twin])
        return mine

    def commit(self, partition: int, outcomes: Sequence[tuple[Outcome, str]], want: Want) -> Batch:
        self._copy(partition)
        mine, its = super().commit(partition, outcomes, want), self.twin.commit(partition, outcomes, want)
        same(repr(mine), repr(its), mine.now, its.now)
        self._alike(partition, mine.now, its.now)
        return mine

    def _alike(self, partition: int, now: int, its_now: int) -> None:
        left, right = stored(self, partition), stored(self.twin, partition)
        assert sorted(left) == sorted(right)
        # Where the copy was a moment later, in the next window, it tells once more; all that is not told once within a window is the same.
        in_one_window = now // scripts.NOTICE_MS == its_now // scripts.NOTICE_MS
        for key, value in left.items():
            if in_one_window:
                same(value, right[key], now, its_now)
            elif key not in TOLD_ONCE:
                same(PROGRESS.sub("", value), PROGRESS.sub("", right[key]), now, its_now)

    def _copy(self, partition: int) -> None:
        client: Any = self.client()
        forget(client, self.twin.namespace)
        raw = connect_raw(client)
        for key in client.scan_iter(f"{self.keys.tag(partition)}*"):
            ttl = client.pttl(key)
            raw.restore(key.replace(self.keys.tag(partition), self.twin.keys.tag(partition)), max(ttl, 0), raw.dump(key), replace=True)


def connect_raw(client: Any) -> Any:
    """The same server, answering bytes."""
    import redis

    return redis.Redis(connection_pool=redis.ConnectionPool(
        connection_class=client.connection_pool.connection_class, **(client.connection_pool.connection_kwargs | {"decode_responses": False})))


def stored(store: Store, partition: int) -> dict[str, str]:
    """Every key but the callers' own, as text."""
    client: Any = store.client()
    found = {}
    for key in client.scan_iter(f"{store.keys.tag(partition)}*"):
        tail = key.removeprefix(store.keys.tag(partition))
        if tail.startswith("caller:"):
            continue
        match client.type(key):
            case "hash":
                found[tail] = repr(sorted(client.hgetall(key).items()))
            case "zset":
                found[tail] = repr([(member, str(int(score))) for member, score in sorted(client.zrange(key, 0, -1, withscores=True))])
            case "list":
                found[tail] = repr(client.lrange(key, 0, -1))
            case "set":
                found[tail] = repr(sorted(client.smembers(key)))
            case "stream":
                # In which order one call tells of several runs is left open.
                found[tail] = repr(sorted(sorted(said.items()) for _, said in client.xrange(key)))
            case _:
                found[tail] = repr(client.get(key))
    return found


def same(left: str, right: str, now: int, its_now: int) -> None:
    """Equal texts, but for times that are as far apart as the two calls were."""
    mine, its = _NUMBERS.findall(left), _NUMBERS.findall(right)
    assert _NUMBERS.sub("#", left) == _NUMBERS.sub("#", right), f"{left}\n{right}"
    for one, other in zip(mine, its, strict=True):
        assert one == other or int(one) - int(other) == now - its_now, f"{one} and {other}, {its_now - now} ms later:\n{left}\n{right}"


@pytest.fixture
def compared(valkey: ValkeyServer, namespace: str, clean_keys: None) -> Any:
    store = Compared(connect(valkey.url()), namespace=namespace, partitions=1)
    store.twin = Twin(connect(valkey.url()), namespace=f"{namespace}twin", partitions=1)
    forget_marks(store)
    yield store
    forget(store.client(), store.twin.namespace)
    forget_marks(store)


def forget_marks(store: Store) -> None:
    store.client().delete(*(f"{TAKEN}:{name}" for name in ROADS))


def taken(store: Store, name: str = "commit") -> int:
    return int(store.client().get(f"{TAKEN}:{name}") or 0)


def far_reaching(size: int) -> Graph:
    """A chain in which every step also reads results from long ago."""
    return graph_of(node(0), *(node(n, n - 1, needs=tuple(sorted({n - 1, n // 2, 0}))) for n in range(1, size)))


@pytest.mark.spec("RUN-3", "RUN-4")
@pytest.mark.parametrize("options", [{}, {"session": "ann", "priority": 2, "deadline_ms": 3_600_000}], ids=["plain", "all"])
@pytest.mark.parametrize("graph", [chain(40), far_reaching(40)], ids=["chain", "far reaching"])
def test_a_chain_is_written_the_same_on_both_roads(compared: Compared, graph: Graph, options: dict[str, Any]) -> None:
    play = Player(compared)
    run_id = play.start(graph, **options)
    held, seen = play.one(), 0
    while held:
        told = play.send(play.outcome(held, OutcomeKind.COMPLETED, payload=f"j1:{held.index}"), limit=10)
        held = told.attempts[0] if told.attempts else None
        seen += 1
    assert (seen, play.field(run_id, "st")) == (40, "completed")
    assert taken(compared) == 39, "every step but the last goes straight on"


class OneByOne(Crew):
    """Commits one outcome at a time, mostly after having claimed all there is: then the straight road is open."""

    def commit(self) -> None:
        if self.rng.random() < 0.7:
            self.claim("all", 10)
        if self.held:
            self._commit([self.held.pop(self.rng.randrange(len(self.held)))], lambda: self.rng.choices(ENDS, (12, 1, 2, 1, 1))[0])


@pytest.mark.spec("RUN-3", "RUN-4")
def test_whatever_a_crew_does_both_roads_agree(compared: Compared, seed: int) -> None:
    """Small worlds, one after the other, until the straight road was taken often enough to say something."""
    rng = random.Random(seed)
    straight = graph_of(*(Node(n, f"s{n}", parents=(n - 1,) if n else (), signature=f"sig{n}", lease_ms=1) for n in range(6)))
    hooked = graph_of(*straight.nodes[:3], Node(3, "on_finish", NodeKind.ON_FINISH, signature="on_finish", lease_ms=1), workflow="other")
    for _ in range(90):
        forget(compared.client(), compared.namespace)
        crew = OneByOne(compared, rng, [straight, straight, hooked, random_graph(rng)])
        for _ in range(40):
            crew.act()
        if taken(compared) >= 10:
            return
    raise AssertionError(f"the straight road was taken {taken(compared)} times only")


def _paused(play: Player, run_id: str) -> None:
    play.store.pause(run_id, reason="requested")


def _cancelled(play: Player, run_id: str) -> None:
    play.store.cancel(run_id, reason="requested", actor="me")


def _field(name: str, value: str) -> Any:
    def change(play: Player, run_id: str) -> None:
        play.redis.hset(play.store.keys.run(run_id), name, value)

    return change


def _record(play: Player, run_id: str) -> None:
    play.redis.hset(play.store.keys.run(run_id), "1", "P;1;")


def _lost(play: Player, run_id: str) -> None:
    record = play.redis.hget(play.store.keys.run(run_id), "0").split(";")
    play.redis.hset(play.store.keys.run(run_id), "0", ";".join([record[0], str(int(record[1]) + 1), *record[2:]]))


def _held(play: Player, run_id: str) -> None:
    play.store.hold("workflow:flow", "maintenance")


def _busy(play: Player, run_id: str) -> None:
    play.start(chain(1), priority=1)


def _forgotten(play: Player, run_id: str) -> None:
    play.redis.srem(play.store.keys.of(0, "code:all"), "sig1")
    assert play.redis.delete(play.store.keys.of(0, f"code:{CODE}"))
    play.store.register_code(CODE, ["sig0"])


SITUATIONS = {
    "paused": _paused, "cancelled": _cancelled, "failing": _field("ph", "F"), "another generation": _field("g", "2"), "reset": _record,
    "lost": _lost, "held": _held, "something else is ready": _busy, "no code": _forgotten,
}
GRAPHS = {
    "two parents": graph_of(node(0), node(1, 0), node(2, 0), node(3, 1, 2)),
    "alone": graph_of(node(0), node(1, 0, alone=True)),
    "another queue": graph_of(node(0), node(1, 0, queue="gpu")),
    "a sleep": graph_of(node(0), node(1, 0, kind=NodeKind.SLEEP, delay_ms=60_000)),
    "an each": graph_of(node(0), node(1, 0, kind=NodeKind.EACH, source=0, needs=(0,), max_parallel=2)),
    "the last": chain(1),
}


@pytest.mark.spec("RUN-3", "RUN-4")
@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_situation_that_is_not_simple_takes_the_long_road(compared: Compared, situation: str) -> None:
    play = Player(compared)
    run_id = play.start(chain(3))
    held = play.one()
    SITUATIONS[situation](play, run_id)
    play.send(play.outcome(held, OutcomeKind.COMPLETED, payload="j1:1"), limit=3)
    assert taken(compared) == 0


@pytest.mark.spec("RUN-3", "RUN-4")
@pytest.mark.parametrize("shape", GRAPHS)
def test_a_graph_that_is_not_simple_takes_the_long_road(compared: Compared, shape: str) -> None:
    play = Player(compared)
    play.start(GRAPHS[shape])
    total = 2 if shape == "an each" else -1
    play.send(play.outcome(play.one(), OutcomeKind.COMPLETED, payload="j1:[1,2]", total=total), limit=3)
    assert taken(compared) == 0


@pytest.mark.parametrize("kind", [kind for kind in OutcomeKind if kind is not OutcomeKind.COMPLETED])
def test_an_outcome_that_is_not_simple_takes_the_long_road(compared: Compared, kind: OutcomeKind) -> None:
    play = Player(compared)
    play.start(chain(3))
    play.send(play.outcome(play.one(), kind, reason="transient", error="{}"), limit=3)
    assert taken(compared) == 0


PLAIN_STARTS: dict[str, dict[str, Any]] = {
    "nothing special": {}, "session": {"session": "ann"}, "tags": {"tags": ("red", "big")}, "priority": {"priority": 0},
    "queue": {"queue": "gpu"}, "idle timeout": {"idle_timeout_ms": 5}, "limit keys": {"limit_keys": "ai=ann"},
}
SPECIAL_STARTS: dict[str, dict[str, Any]] = {
    "key": {"key": "k", "digest": "d"}, "delay": {"delay_ms": 60_000}, "deadline": {"deadline_ms": 60_000}, "expires": {"expires_ms": 60_000},
    "lane": {"lane": LaneTerms("narrow", 1, 1, 0, False)}, "an operation": {"queue_reason": "retry"},
}


@pytest.mark.spec("RUN-1")
@pytest.mark.parametrize("options", PLAIN_STARTS.values(), ids=PLAIN_STARTS)
def test_a_start_is_written_the_same_on_both_roads(compared: Compared, options: dict[str, Any]) -> None:
    play = Player(compared)
    play.start(chain(2))  # the first brings the graph along
    assert taken(compared, "start_run") == 0
    run_id = play.start(chain(2), **options)
    assert taken(compared, "start_run") == 1
    hooked = graph_of(node(0, queue="far", priority=3), Node(1, "on_finish", NodeKind.ON_FINISH, signature="sig1", lease_ms=1))
    play.start(hooked)
    play.start(hooked, **options)
    assert taken(compared, "start_run") == 2
    assert compared.start(play.new(chain(2), run_id=run_id), chain(2)).word == "EXISTS"


@pytest.mark.spec("RUN-1")
def test_while_somebody_attends_the_straight_start_spares_the_message_too(compared: Compared) -> None:
    play = Player(compared)
    play.start(chain(1))
    compared.claim(0, Want("q", 10, CODE, "w1", first=True, attends=True))
    assert compared.start(play.new(chain(1)), chain(1)).pokes == []
    assert taken(compared, "start_run") == 1


@pytest.mark.spec("RUN-1")
@pytest.mark.parametrize("options", SPECIAL_STARTS.values(), ids=SPECIAL_STARTS)
def test_a_start_that_is_not_simple_takes_the_long_road(compared: Compared, options: dict[str, Any]) -> None:
    play = Player(compared)
    for _ in range(2):
        compared.start(play.new(chain(1), **options), chain(1))
    assert taken(compared, "start_run") == 0


@pytest.mark.spec("RUN-1")
@pytest.mark.parametrize("shape", ["two roots", "a sleep", "an each", "limited"])
def test_a_first_step_that_is_not_simple_takes_the_long_road(compared: Compared, shape: str) -> None:
    play = Player(compared)
    graph = {
        "two roots": graph_of(node(0), node(1)), "a sleep": graph_of(node(0, kind=NodeKind.SLEEP, delay_ms=60_000)),
        "an each": graph_of(node(0, kind=NodeKind.EACH, max_parallel=2)), "limited": graph_of(node(0, queue="!ai")),
    }[shape]
    for _ in range(2):
        compared.start(play.new(graph), graph)
    assert taken(compared, "start_run") == 0

PLAIN_ENDS: dict[str, dict[str, Any]] = {"nothing special": {}, "session": {"session": "ann"}, "tags": {"tags": ("red",)}, "deadline": {"deadline_ms": 60_000}}
SPECIAL_ENDS: dict[str, tuple[Graph, dict[str, Any]]] = {
    "key": (chain(1), {"key": "k", "digest": "d"}), "lane": (chain(1), {"lane": LaneTerms("narrow", 1, 9, 0, False)}),
    "an operation": (chain(1), {"queue_reason": "retry"}), "another step": (graph_of(node(0), node(1)), {}), "a step behind it": (chain(2), {}),
    "a last step": (graph_of(node(0), Node(1, "on_finish", NodeKind.ON_FINISH, signature="sig1")), {}),
}


@pytest.mark.spec("RUN-3", "RUN-4")
@pytest.mark.parametrize("options", PLAIN_ENDS.values(), ids=PLAIN_ENDS)
@pytest.mark.parametrize("length", [1, 40])
def test_ends_of_one_call_are_written_the_same_on_both_roads(compared: Compared, length: int, options: dict[str, Any]) -> None:
    """Beside one that fails, one that is told twice, and one that is no longer its holder's."""
    play = Player(compared)
    for _ in range(6):
        play.start(chain(length), **options)
    while (held := play.claim(10))[0].index < length - 1:
        play.send(*(play.outcome(one, OutcomeKind.COMPLETED, payload="j1:0") for one in held))
    failing, stale, *others = held
    told = [play.outcome(one, OutcomeKind.COMPLETED, payload=f"j1:{one.fence}", ran_ms=7) for one in others]
    told += [told[0], play.outcome(replace(stale, fence=stale.fence + 99), OutcomeKind.COMPLETED, payload="j1:1")]
    told.insert(2, play.outcome(failing, OutcomeKind.FAILED, reason="unknown_error", error="{}"))
    assert play.send(*told, limit=3).answers == ["OK"] * 5 + ["LOST"] * 2
    assert taken(compared, "end") == 4
    assert [play.state(one.run_id) for one in (*others, failing, stale)] == ["completed"] * 4 + ["failed", "running"]


@pytest.mark.spec("RUN-3", "RUN-4")
@pytest.mark.parametrize("special", SPECIAL_ENDS.values(), ids=SPECIAL_ENDS)
def test_an_end_that_is_not_simple_takes_the_long_road(compared: Compared, special: tuple[Graph, dict[str, Any]]) -> None:
    play = Player(compared)
    graph, options = special
    play.start(graph, **options)
    play.send(play.outcome(play.one(), OutcomeKind.COMPLETED, payload="j1:1"), limit=3)
    assert taken(compared, "end") == 0


@pytest.mark.parametrize("situation", [situation for situation in SITUATIONS if situation in ("paused", "cancelled", "failing", "another generation", "lost")])
def test_a_situation_at_the_end_that_is_not_simple_takes_the_long_road(compared: Compared, situation: str) -> None:
    play = Player(compared)
    run_id = play.start(chain(1))
    held = play.one()
    SITUATIONS[situation](play, run_id)
    play.send(play.outcome(held, OutcomeKind.COMPLETED, payload="j1:1"), limit=3)
    assert taken(compared, "end") == 0
