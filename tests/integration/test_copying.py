"""Copies of runs that move: whatever happens between two reads of a copy, it is one moment of the run, and the newest."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from conductor.records import FailurePolicy, Graph, NodeKind
from conductor.store import Store, connect
from conductor.store.copying import Parts, Restless, read_snapshot
from conductor.store.keys import Keys
from tests.integration.playing import Player, fan, graph_of, node, shapes
from tests.support.server import ValkeyServer

go_on = FailurePolicy.CONTINUE


@pytest.fixture
def play(valkey: ValkeyServer, namespace: str, clean_keys: None) -> Player:
    return Player(Store(connect(valkey.url()), namespace=namespace, partitions=1))


class Busy:
    """A store in which something happens to the run before each read."""

    def __init__(self, store: Store, move: Callable[[], object], moves: int) -> None:
        self._store, self._move, self.left, self.calls = store, move, moves, 0
        self.namespace, self.partitions = store.namespace, store.partitions

    @property
    def keys(self) -> Keys:
        return self._store.keys

    def _moved(self) -> None:
        if self.left:
            self.left -= 1
            self._move()

    def client(self) -> Any:
        self._moved()
        return self._store.client()

    def read_parts(self, run_id: str, after: int, tails: Mapping[str, str], due: Sequence[str]) -> Parts | None:
        self._moved()
        self.calls += 1
        return self._store.read_parts(run_id, after, tails, due)


def wide(length: int) -> Graph:
    """A first step, many that follow it, one that follows them all: their records fill several keys."""
    return graph_of(
        node(0, policy=go_on), *(node(one, 0, policy=go_on) for one in range(1, length - 1)),
        node(length - 1, *range(1, length - 1), policy=go_on))


GRAPHS = [*shapes(), fan(parallel=40), fan(parallel=5, policy=go_on), wide(62)]


def moved(play: Player, graph: Graph, run_id: str, chance: random.Random) -> None:
    """What a worker, an agent, a sweep or a person would do next."""
    what = chance.random()
    if what < 0.04:
        play.store.fire_due(0)
    elif what < 0.12:
        node_of = chance.choice(graph.nodes)
        if node_of.kind is NodeKind.AGENT:
            play.store.advance(run_id, node_of.index, digest="d", payload='j1:"a"', actor="test")
    for held in play.claim(chance.choice((1, 1, 5, 10))):
        dice = chance.random()
        if graph.feeds_each(held.index) and not play.plans(held):
            play.complete(held, f"j1:[{','.join('1' * 300)}]", total=300)
        elif dice < 0.7 or play.plans(held) or play.calls(held):
            play.by_flags(held)
        elif dice < 0.8:
            play.retry_later(held)
        elif dice < 0.9:
            play.give_back(held)
        else:
            play.fail(held)


@pytest.mark.spec("REC-6")
@pytest.mark.parametrize("number", range(len(GRAPHS)))
def test_a_copy_of_a_busy_run_is_one_moment(play: Player, number: int, seed: int) -> None:
    chance, graph = random.Random(seed * 100 + number), GRAPHS[number]
    copied = asked_again = 0
    for _ in range(12):
        run_id = play.start(graph)

        move = partial(moved, play, graph, run_id, chance)
        for _ in range(chance.randint(0, 12)):
            move()
        busy = Busy(play.store, move, chance.randint(4, 14))
        try:
            found = read_snapshot(busy, run_id)
        except Restless:
            continue
        copied, asked_again = copied + 1, asked_again + busy.calls - 1
        quiet = read_snapshot(play.store, run_id)
        assert found is not None and quiet is not None
        assert (found.n, found.fields, found.keys, found.due) == (quiet.n, quiet.fields, quiet.keys, quiet.due)
        for held in play.claim(500):
            play.complete(held)
        play.store.cancel(run_id, reason="next")
    assert copied >= 6
    assert asked_again or number < len(shapes())
