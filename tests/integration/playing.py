"""A worker in miniature: claims, commits and sweeps by hand, without bodies, processes or waiting. Time passes by moving scores back."""

from __future__ import annotations

from typing import Any

from conductor.ids import derived_id, new_run_id
from conductor.log import parse_all
from conductor.records import Attempt, FailurePolicy, Graph, NewRun, Node, NodeKind, Outcome, OutcomeKind
from conductor.runs.undoing import plan_undos
from conductor.store import Batch, Moved, Store, Swept, Want
from conductor.store.scripts import load

__all__ = ["Player", "chain", "diamond", "fan", "graph_of", "node", "shapes"]

CODE = "c0de"


def node(index: int, *parents: int, **options: Any) -> Node:
    return Node(index=index, name=f"s{index}", parents=parents, signature=options.pop("signature", f"sig{index}"), **options)


def graph_of(*nodes: Node, workflow: str = "flow") -> Graph:
    return Graph.build(workflow, nodes)


def chain(length: int, **options: Any) -> Graph:
    return graph_of(*(node(index, *((index - 1,) if index else ()), **options) for index in range(length)))


def diamond(**options: Any) -> Graph:
    """0 → 1, 2 → 3, where 3 receives the results of 1 and 2."""
    return graph_of(node(0, **options), node(1, 0, **options), node(2, 0, **options), node(3, 1, 2, needs=(1, 2), **options))


def fan(parallel: int = 10, **options: Any) -> Graph:
    """0 → each 1 → 2."""
    return graph_of(node(0), node(1, 0, kind=NodeKind.EACH, source=0, needs=(0,), max_parallel=parallel, **options), node(2, 1))


def shapes() -> tuple[Graph, ...]:
    """Small graphs that have every kind of node and every failure policy."""
    go_on, stop, back = FailurePolicy.CONTINUE, FailurePolicy.PAUSE, FailurePolicy.COMPENSATE
    each = NodeKind.EACH
    return (
        graph_of(node(0), node(1, 0), node(2, 0), node(3, 1, 2, alone=True)),
        graph_of(
            node(0, policy=go_on), node(1, 0, policy=go_on), node(2, policy=go_on), node(3, 1, 2, policy=go_on),
            node(4, 2, kind=NodeKind.SLEEP, delay_ms=60_000, policy=go_on), node(5, kind=NodeKind.ON_FINISH)),
        graph_of(node(0), node(1, 0, kind=each, source=0, max_parallel=2), node(2, 1), node(3, kind=NodeKind.ON_FAILURE)),
        graph_of(
            node(0, policy=go_on), node(1, policy=go_on), node(2, 0, 1, kind=each, source=0, max_parallel=3, policy=go_on),
            node(3, 2, policy=go_on)),
        graph_of(node(0, policy=stop), node(1), node(2, 0, 1, kind=each, source=0, max_parallel=2, policy=stop), node(3, 2)),
        graph_of(node(0, policy=stop), node(1), node(2, 0, kind=NodeKind.SLEEP, delay_ms=60_000), node(3, kind=NodeKind.ON_FAILURE)),
        graph_of(
            node(0, policy=back), node(1, policy=back), node(2, 0, 1, policy=back), node(3, kind=NodeKind.ON_FAILURE),
            node(4, kind=NodeKind.UNDO, policy=back, alone=True), *(node(5 + one, kind=NodeKind.UNDO, undoes=one) for one in range(3))),
        graph_of(node(0), node(1, 0, kind=NodeKind.CALL), node(2, 1), node(3, kind=NodeKind.UNDO), node(4, kind=NodeKind.UNDO, undoes=1)),
        graph_of(
            node(0), node(1, 0, kind=each, source=0, max_parallel=2, policy=back), node(2, 1), node(3, kind=NodeKind.UNDO),
            node(4, kind=NodeKind.UNDO, undoes=1), node(5, kind=NodeKind.UNDO, undoes=2)),
        *waiting_shapes(),
    )


def waiting_shapes() -> tuple[Graph, ...]:
    """Two waits for one signal, one after the other; an agent beside a wait with a time; and an orphan that may be undone."""
    wait, agent, go_on = NodeKind.WAIT, NodeKind.AGENT, FailurePolicy.CONTINUE
    return (
        graph_of(node(0), node(1, 0, kind=wait, signal="go"), node(2, 1, kind=wait, signal="go"), node(3, 2, needs=(1, 2))),
        graph_of(
            node(0, policy=go_on), node(1, 0, kind=agent, policy=go_on), node(2, 0, kind=wait, signal="stop", delay_ms=3_600_000, policy=go_on),
            node(3, kind=NodeKind.SLEEP, delay_ms=60_000, policy=go_on), node(4, 1, 2, policy=go_on), node(5, kind=NodeKind.ON_FINISH)),
        graph_of(
            node(0), node(1, 0, kind=agent, idle_ms=60_000), node(2, 0, kind=agent, idle_ms=3_600_000), node(3, 1, 2),
            node(4, kind=NodeKind.UNDO), node(5, kind=NodeKind.UNDO, undoes=0)),
        # Under a limit: a step, the items behind it, and one that nothing needs.
        graph_of(
            node(0), node(1, 0, limit="ai"), node(2, 0, kind=NodeKind.EACH, source=0, max_parallel=2, limit="ai"),
            node(3, 0, limit="ai", policy=go_on)),
    )


class Player:
    """Plays client, worker and sweep on partition 0 of one store."""

    def __init__(self, store: Store, tag: str = "w1") -> None:
        self.store, self.tag = store, tag
        self.graphs: dict[str, Graph] = {}
        self.redis = store.client()
        store.register_code(CODE, [f"sig{index}" for index in range(64)])
        self.look_now()

    def look_now(self) -> None:
        """As if the stall sweep had just looked: no gap."""
        self.redis.hset(self.store.keys.head(0), "look", self.now())

    def now(self) -> int:
        seconds, micros = self.redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    # Client.

    def new(self, graph: Graph, run_id: str = "", **options: Any) -> NewRun:
        run_id = run_id or new_run_id(self.store.partitions, 0)
        self.graphs[run_id] = graph
        return NewRun(run_id=run_id, workflow=graph.workflow, input="j1:1", queue=options.pop("queue", "q"), **options)

    def start(self, graph: Graph, **options: Any) -> str:
        run = self.new(graph, **options)
        assert self.store.start(run, graph).word == "OK"
        return run.run_id

    # Worker.

    def want(self, limit: int = 1, queue: str = "q", code: str = CODE, *, first: bool = False) -> Want:
        return Want(queue, limit, code, self.tag, first)

    def claim(self, limit: int = 1, queue: str = "q", code: str = CODE) -> list[Attempt]:
        return self.store.claim(0, self.want(limit, queue, code)).attempts

    def one(self) -> Attempt:
        (held,) = self.claim()
        return held

    def outcome(self, held: Attempt, kind: OutcomeKind, **options: Any) -> tuple[Outcome, str]:
        graph = self.graphs[held.run_id]
        options.setdefault("policy", graph.nodes[held.index].policy)
        options.setdefault("total", -1)
        return Outcome(held, kind, **options), ",".join(map(str, graph.successors[held.index]))

    def send(self, *outcomes: tuple[Outcome, str], limit: int = 0, queue: str = "q") -> Batch:
        return self.store.commit(0, outcomes, self.want(limit, queue))

    def complete(self, held: Attempt, payload: str = 'j1:"ok"', total: int = -1) -> str:
        return self.send(self.outcome(held, OutcomeKind.COMPLETED, payload=payload, total=total)).answers[0]

    def fail(self, held: Attempt, policy: FailurePolicy | None = None) -> str:
        options = {} if policy is None else {"policy": policy}
        return self.send(self.outcome(held, OutcomeKind.FAILED, reason="unknown_error", error="{}", **options)).answers[0]

    def retry_later(self, held: Attempt, delay_ms: int = 60_000) -> str:
        return self.send(self.outcome(held, OutcomeKind.RETRY, delay_ms=delay_ms, reason="transient", error="{}")).answers[0]

    def skip(self, held: Attempt, reason: str) -> str:
        return self.send(self.outcome(held, OutcomeKind.SKIPPED, reason=reason)).answers[0]

    def give_back(self, held: Attempt) -> str:
        return self.send(self.outcome(held, OutcomeKind.GIVEN_BACK, reason="shutdown")).answers[0]

    def by_flags(self, held: Attempt) -> str:
        """What a worker says without running anything, if the flags tell it so; else it completes."""
        if "!" in held.flags:
            return self.send(self.outcome(held, OutcomeKind.FAILED, reason="poison", error="{}")).answers[0]
        if "u" in held.flags or "s" in held.flags:
            return self.skip(held, "upstream_failed" if "u" in held.flags else "upstream_skipped")
        if self.plans(held):
            return self.complete(held, total=self.plan(held))
        if self.calls(held):
            return self.send(self.outcome(held, OutcomeKind.CALLED, reason=self.call(held))).answers[0]
        feeds = self.graphs[held.run_id].feeds_each(held.index)
        return self.complete(held, payload="j1:[1,2,3]" if feeds else 'j1:"ok"', total=3 if feeds else -1)

    def calls(self, held: Attempt) -> bool:
        """Whether it has yet to call a child."""
        return self.graphs[held.run_id].nodes[held.index].kind is NodeKind.CALL and "v" not in held.flags

    def call(self, held: Attempt, graph: Graph | None = None) -> str:
        """Start a child, or find the one of this life of its run."""
        life = self.field(held.run_id, "lv") or "0"
        stamp = int(held.run_id.replace("-", "")[:12], 16)
        child = self.new(graph or chain(2), derived_id(f"{held.run_id}:{held.index}:{life}", stamp, 0), bound_to=(
            f"{held.run_id};{held.generation};{held.index}"))
        self.store.start(child, self.graphs[child.run_id])
        return child.run_id

    def plans(self, held: Attempt) -> bool:
        """Whether it makes the plan of what is undone."""
        node = self.graphs[held.run_id].nodes[held.index]
        return node.kind is NodeKind.UNDO and node.undoes is None

    def plan(self, held: Attempt) -> int:
        """Stage what a worker would, two places to a chunk."""
        places = plan_undos(self.graphs[held.run_id], parse_all(self.log(held.run_id)))
        for number, first in enumerate(range(0, max(1, len(places)), 2)):
            self.store.stage_undo(held, number, places[first : first + 2])
        return len(places)

    def drain(self, most: int = 200) -> list[tuple[int, int | None]]:
        """Claim one after the other and commit by flags until nothing is ready."""
        done = []
        for _ in range(most):
            claimed = self.claim()
            if not claimed:
                return done
            assert self.by_flags(claimed[0]) == "OK"
            done.append((claimed[0].index, claimed[0].item))
        raise AssertionError(f"still something ready after {most} steps")

    # Those who are waited for.

    def answer_everything(self) -> None:
        """Every agent answers, every signal comes once."""
        for run_id, graph in self.graphs.items():
            for one in graph.nodes:
                if one.kind is NodeKind.AGENT:
                    self.store.advance(run_id, one.index, digest="d", payload="j1:1")
                elif one.signal:
                    self.store.signal(
                        run_id, name=one.signal, signal_id=f"{one.index}", payload="j1:1", waits=graph.waits_for(one.signal))

    # Time.

    def backdate(self, tail: str, member: str = "") -> None:
        """Let everything of an index (or one member) lie in the past."""
        key = self.store.keys.of(0, tail)
        for name in [member] if member else self.redis.zrange(key, 0, -1):
            self.redis.zadd(key, {name: 1000}, xx=True)

    def lose(self, *held: Attempt, begun: bool = True) -> Swept:
        """The leases of these attempts have ended, and the sweep comes. A worker says that the code of a repeated step begins."""
        for one in held:
            if begun and "1" in one.flags.partition("w")[0]:
                self.store.note(one, "begun", "")
            self.backdate("leases", one.ref)
        self.look_now()
        return self.store.expire_leases(0)

    def due(self) -> Swept:
        self.backdate("due")
        return self.store.fire_due(0)

    # Looking.

    def field(self, run_id: str, name: str) -> str:
        return self.redis.hget(self.store.keys.run(run_id), name) or ""

    def state(self, run_id: str) -> str:
        return self.field(run_id, "st")

    def ended(self, run_id: str) -> tuple[str, str]:
        return self.state(run_id), self.field(run_id, "wy")

    def record(self, run_id: str, index: int, item: int | None = None) -> list[str]:
        keys = self.store.keys
        found = self.redis.hget(keys.shard(run_id, index), str(index)) if item is None else self.redis.hget(
            keys.items(run_id, index, item), str(item))
        return (found or "").split(";")

    def step(self, run_id: str, index: int, item: int | None = None) -> str:
        return self.record(run_id, index, item)[0]

    def log(self, run_id: str) -> list[str]:
        return list(self.redis.lrange(self.store.keys.run(run_id, "log"), 0, -1))

    def codes(self, run_id: str) -> str:
        return "".join(entry[0] for entry in self.log(run_id))

    def ready(self, queue: str = "q") -> list[str]:
        return list(self.redis.zrange(self.store.keys.of(0, f"ready:{queue}"), 0, -1))

    def keys_with(self, text: str) -> list[str]:
        return sorted(self.redis.scan_iter(f"conductor:{{{self.store.namespace}:*{text}*", count=1000))

    # Lost replies.

    def raw(self, name: str, number: int, *args: Any) -> list[Any]:
        """The same call as often as wanted: a reply that was lost is asked for again under its number."""
        caller = self.store._caller()
        return caller._insist(load(name), (self.store.keys.head(0), "ghost", number, *args))

    def reopen(self, run_id: str, *, generation: bool = True, at_event: int | None = None) -> Moved:
        """What `conductor.runs.retry` plans from the records, applied at a chosen length of the log."""
        from conductor.runs.retry import plan_reopening
        from conductor.store.reads import read_run, read_steps

        run = read_run(self.store, run_id)
        assert run is not None
        graph = self.graphs[run_id]
        plan = plan_reopening(graph, read_steps(self.store, run_id, graph))
        return self.store.reopen(
            run_id, at_event=run.events if at_event is None else at_event, reset=plan.triples, eaches=plan.eaches, steps=plan.left,
            hooks=graph.hooks, actor="ops", generation=generation)
